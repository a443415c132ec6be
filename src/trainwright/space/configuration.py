"""One point of a space, as a training function sees it."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

__all__ = ["Configuration"]


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
