"""Operations: what a plan is made of, a list that says what runs, what is dropped, and what leaves the device.

Beside them the link to the host, which says how long values take that leave and come back.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Annotated

import numpy as np

from trainwright.errors import ChainError
from trainwright.kernels import Ints
from trainwright.settings import Settings
from trainwright.validators import Validator, optional

__all__ = [
    "BACKWARD",
    "DELETE",
    "FORWARD_ALL",
    "FORWARD_DROP",
    "FORWARD_KEEP",
    "OFFLOAD",
    "PREFETCH",
    "Link",
    "Operation",
    "OperationKind",
    "Value",
    "operations_of",
    "parse_operation",
    "rows_of",
]


class OperationKind(StrEnum):
    """What an operation does; l is its stage."""

    FORWARD_ALL = "Fall"
    """Forward with gradients, by one of the stage's options: makes the saved values of l."""
    FORWARD_KEEP = "Fck"
    """Forward without gradients: makes the output of l and keeps the output of l-1."""
    FORWARD_DROP = "Fdrop"
    """Forward without gradients: makes the output of l and drops the bare output of l-1 at its end."""
    BACKWARD = "B"
    """Backward: needs gradient l, saved l, and output or saved l-1; makes gradient l-1, drops gradient and saved l."""
    DELETE = "Del"
    """Drop a value."""
    OFFLOAD = "Off"
    """Start a copy to the host; the device's copy goes when it ends."""
    PREFETCH = "Pre"
    """Start a copy back from the host; the device's bytes are taken at once."""


class Value(StrEnum):
    """What a stage leaves behind."""

    OUTPUT = "a"
    """Its bare output."""
    SAVED = "s"
    """All that autograd holds of it, the output included."""


_MOVES = frozenset({OperationKind.DELETE, OperationKind.OFFLOAD, OperationKind.PREFETCH})
_WRITTEN = re.compile(rf"({'|'.join(OperationKind)}) ([{''.join(Value)}]?)([0-9]+)(?:/([0-9]+))?")


@dataclass(frozen=True, slots=True)
class Operation:
    """One step of a plan, at stages counted from 1; written as "Fall 3", "Fall 3/1" (option 1), "Del a3", "Off s2"."""

    kind: OperationKind
    stage: int
    value: Value | None = None
    """Which value a Del, Off or Pre moves; None for the others."""
    option: int = 0
    """Which of the stage's `choices` a forward with gradients takes."""

    def __str__(self) -> str:
        if self.value is not None:
            return f"{self.kind} {self.value}{self.stage}"
        return f"{self.kind} {self.stage}" + (f"/{self.option}" if self.option else "")


def parse_operation(written: str) -> Operation:
    """Return the operation that a string such as "Fall 3/1" or "Del a2" means."""
    parts = _WRITTEN.fullmatch(written.strip())
    if parts is not None:
        name, value, stage, option = parts.groups()
        kind = OperationKind(name)
        # Only a move names a value, and only a forward with gradients an option.
        if (kind in _MOVES) == bool(value) and (kind is OperationKind.FORWARD_ALL or option is None):
            return Operation(kind, int(stage), Value(value) if value else None, int(option or 0))
    raise ChainError(
        f"operation: got {written!r}; allowed: one of {', '.join(OperationKind)} and a stage, such as 'Fall 3', "
        "'Fall 3/1' or 'Del a2'"
    )


FORWARD_ALL, FORWARD_KEEP, FORWARD_DROP, BACKWARD, DELETE, OFFLOAD, PREFETCH = range(7)
"""The kinds in their order, as kernels write them: rows (kind, stage, option), -1 for a move of a bare output."""
_KINDS = tuple(OperationKind)


def operations_of(rows: Ints) -> tuple[Operation, ...]:
    """Return what the rows of a kernel stand for."""
    return tuple(
        Operation(_KINDS[kind], stage, None, option if kind == FORWARD_ALL else 0)
        if kind < DELETE
        else Operation(_KINDS[kind], stage, Value.OUTPUT if option < 0 else Value.SAVED)
        for kind, stage, option in rows.tolist()
    )


def rows_of(operations: Sequence[Operation]) -> Ints:
    """Return operations as rows, as kernels read them."""
    moved = {None: 0, Value.OUTPUT: -1, Value.SAVED: 0}
    return np.array(
        [(_KINDS.index(each.kind), each.stage, each.option or moved[each.value]) for each in operations], np.int64
    ).reshape(-1, 3)


_BANDWIDTH = Validator(
    lambda value: isinstance(value, int | float) and not isinstance(value, bool) and value > 0, "bytes per second > 0"
)


@dataclass(frozen=True, kw_only=True, slots=True)
class Link(Settings, error=ChainError):
    """Bandwidths in bytes per second; what is measured with both directions busy may be less than alone."""

    to_host: Annotated[float, _BANDWIDTH]
    to_device: Annotated[float, _BANDWIDTH]
    to_host_together: Annotated[float | None, optional(_BANDWIDTH)] = None
    """None: as fast as alone (full duplex)."""
    to_device_together: Annotated[float | None, optional(_BANDWIDTH)] = None

    @classmethod
    def of(cls, bandwidth: "float | Link") -> "Link":
        """Return a link as fast in both directions as `bandwidth` says, in bytes per second."""
        return bandwidth if isinstance(bandwidth, Link) else cls(to_host=bandwidth, to_device=bandwidth)

    @property
    def rates(self) -> tuple[float, float, float, float]:
        """The rates to the host and to the device, each alone, then each while both directions are busy."""
        together = self.to_host_together or self.to_host, self.to_device_together or self.to_device
        return self.to_host, self.to_device, *together
