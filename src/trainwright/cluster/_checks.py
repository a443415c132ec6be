"""Refusals of figures that no machine can have; each names the field as Record.field, which a file's reader locates."""

import math
from collections.abc import Collection, Mapping

from trainwright.errors import InputError, closest

__all__ = ["at_least", "each_positive", "one_of", "positive", "refuse", "whole"]


def refuse(where: str, got: object, allowed: str) -> InputError:
    """Return the error of a field."""
    return InputError(f"{where}: got {got!r}; allowed: {allowed}")


def whole(where: str, value: object, *, least: int = 1) -> None:
    """Refuse what is no whole number of at least `least`."""
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise refuse(where, value, f"a whole number >= {least}")


def at_least(where: str, value: float, least: float = 0.0) -> None:
    """Refuse NaN, infinity and numbers below `least`."""
    if not (math.isfinite(value) and value >= least):
        raise refuse(where, value, f"a number >= {least:g}")


def positive(where: str, value: float) -> None:
    """Refuse NaN, zero and negative numbers."""
    if not value > 0:
        raise refuse(where, value, "a number > 0")


def each_positive(where: str, values: Mapping[str, float]) -> None:
    """Refuse a mapping with such a number, naming its key."""
    for key, value in values.items():
        positive(f"{where}.{key}", value)


def one_of(where: str, name: str, known: Collection[str]) -> None:
    """Refuse a name that is not among those known, and propose the nearest."""
    if name not in known:
        raise refuse(where, name, ", ".join(known) + closest(name, known))
