"""Operations: what a plan is made of, a list that says what runs, what is dropped, and what leaves the device."""

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum

from trainwright.errors import ChainError

__all__ = [
    "Operation",
    "OperationKind",
    "Value",
    "backward",
    "delete",
    "format_operations",
    "forward_all",
    "forward_drop",
    "forward_keep",
    "offload",
    "parse_operations",
    "prefetch",
]  # fmt: skip


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


def forward_all(stage: int, option: int = 0) -> Operation:
    """Return F_all of a stage."""
    return Operation(OperationKind.FORWARD_ALL, stage, option=option)


def forward_keep(stage: int) -> Operation:
    """Return F_ck of a stage."""
    return Operation(OperationKind.FORWARD_KEEP, stage)


def forward_drop(stage: int) -> Operation:
    """Return the forward of a stage that drops its bare input."""
    return Operation(OperationKind.FORWARD_DROP, stage)


def backward(stage: int) -> Operation:
    """Return the backward of a stage."""
    return Operation(OperationKind.BACKWARD, stage)


def delete(value: Value, stage: int) -> Operation:
    """Return Del of a value of a stage."""
    return Operation(OperationKind.DELETE, stage, value)


def offload(value: Value, stage: int) -> Operation:
    """Return the start of a copy of a value to the host."""
    return Operation(OperationKind.OFFLOAD, stage, value)


def prefetch(value: Value, stage: int) -> Operation:
    """Return the start of a copy of a value back from the host."""
    return Operation(OperationKind.PREFETCH, stage, value)


def format_operations(operations: Iterable[Operation]) -> str:
    """Return operations as one line, separated by semicolons."""
    return "; ".join(map(str, operations))


def parse_operations(written: str) -> Operation:
    """Return the operation that a string such as "Fall 3/1" or "Del a2" means."""
    try:
        name, _, rest = written.strip().partition(" ")
        kind = OperationKind(name)
        if kind in _MOVES:
            return Operation(kind, _read_number(rest[1:]), Value(rest[:1]))
        stage, slash, option = rest.partition("/")
        if slash and kind is not OperationKind.FORWARD_ALL:
            raise ValueError(written)
        return Operation(kind, _read_number(stage), option=_read_number(option) if slash else 0)
    except ValueError:
        raise ChainError(
            f"operation: got {written!r}; allowed: one of {', '.join(OperationKind)} and a stage, such as 'Fall 3', "
            "'Fall 3/1' or 'Del a2'"
        ) from None


def _read_number(digits: str) -> int:
    if not digits.isdecimal():
        raise ValueError(digits)
    return int(digits)
