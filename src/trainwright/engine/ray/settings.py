"""Refusals of settings that are out of range, each in one sentence."""

from trainwright.errors import EngineError

__all__ = ["check_number", "check_whole"]


def check_whole(name: str, value: object, *, least: int, none: str | None = None) -> None:
    """Refuse what is no whole number from `least` on; `none` says what None means, where it is allowed."""
    if value is None and none is not None:
        return
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        or_none = "" if none is None else f", or None for {none}"
        raise EngineError(f"Ray.{name}: got {value!r}; allowed: a whole number >= {least}{or_none}")


def check_number(name: str, value: object, *, none: str | None = None, zero: bool = False) -> None:
    """Refuse what is no number above 0, or from 0 on; `none` says what None means, where it is allowed."""
    if value is None and none is not None:
        return
    good = isinstance(value, int | float) and not isinstance(value, bool) and (value > 0 or (zero and value == 0))
    if not good:
        sign = ">= 0" if zero else "> 0"
        or_none = "" if none is None else f", or None for {none}"
        raise EngineError(f"Ray.{name}: got {value!r}; allowed: a number {sign}{or_none}")
