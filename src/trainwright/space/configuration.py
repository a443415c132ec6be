"""One point of a space, as a training function sees it, and the identity of its values: canonical JSON and its digest.

Two values are the same exactly when their canonical JSON is. So `1`, `1.0`, `True` and `"1"` are four different
values of a `Choice` (JSON writes 1, 1.0, true and "1"), and a tuple equals the list that JSON makes of it.
"""

import hashlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

__all__ = ["Configuration", "canonical_json", "format_number", "hash_json", "is_number", "to_python"]

# No blanks, sorted keys, no NaN: one text per value, the same in every process.
_encode = json.JSONEncoder(sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False).encode


def canonical_json(value: Any) -> str:
    """Return the one JSON text of a plain value: sorted keys, no blanks, shortest floats."""
    return _encode(value)


def hash_json(value: Any) -> str:
    """Return BLAKE2b-128 of the canonical JSON, as 32 hex digits."""
    return hashlib.blake2b(_encode(value).encode(), digest_size=16).hexdigest()


def to_python(value: Any) -> Any:
    """Return the Python scalar of a numpy scalar; anything else as it is."""
    return value.item() if isinstance(value, np.generic) else value


def is_number(value: Any) -> bool:
    """Tell whether a value is an int or float; True and False are not numbers here."""
    return isinstance(value, int | float) and not isinstance(value, bool)


def format_number(number: float) -> str:
    """Return a number for a message: 1.0 as 1, others in full."""
    return str(int(number)) if float(number).is_integer() and abs(number) < 1e15 else repr(number)


@dataclass(frozen=True, kw_only=True, slots=True)
class Configuration(Mapping[str, Any]):
    """The values of one point by parameter name; reads like a dict: `configuration["lr"]`, `dict(configuration)`."""

    params: dict[str, Any]  # active parameters, constants and derived values, in the order of the space
    key: str  # blake2b-128 of the canonical JSON of `params` without the derived values; equal keys are duplicates
    number: int | None = None  # the trial's number, once it has one
    origin: Mapping[str, Any] = field(default_factory=dict)  # who proposed it, and how

    def __getitem__(self, name: str) -> Any:
        return self.params[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self.params)

    def __len__(self) -> int:
        return len(self.params)

    def __hash__(self) -> int:
        return hash(self.key)
