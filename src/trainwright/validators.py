"""Validates settings: each validator is a test of a value, with the words for what it allows.

A validator is named like the sentence that it proves: `integer(minimum=1)` allows "a whole number >= 1". All errors
have one form: what, the value given, what is allowed.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from numbers import Integral, Real
from typing import Any

from trainwright.errors import InputError, closest

__all__ = [
    "Validator",
    "check",
    "each",
    "flag",
    "instance_of",
    "integer",
    "number",
    "one_of",
    "optional",
    "text",
]


@dataclass(frozen=True, slots=True)
class Validator:
    """A test of one value, and the words for what passes it; `choices` are all values that do, if they are few."""

    accepts: Callable[[Any], bool]
    allowed: str
    choices: tuple[Any, ...] = ()

    def __or__(self, other: "Validator") -> "Validator":
        """Return a validator of what either of two accepts."""
        first, second = self, other
        return Validator(
            lambda value: first.accepts(value) or second.accepts(value), f"{self.allowed}, or {other.allowed}"
        )


def check(value: Any, validator: Validator, where: str, error: type[InputError] = InputError) -> None:
    """Raise `error` with a sentence that names `where`, the value and what is allowed, unless the validator accepts."""
    if not validator.accepts(value):
        near = closest(str(value), [str(each) for each in validator.choices]) if validator.choices else ""
        raise error(f"{where}: got {value!r}; allowed: {validator.allowed}{near}")


def integer(*, minimum: int | None = None, maximum: int | None = None, of: str = "") -> Validator:
    """Return the validator of whole numbers in a closed range; `of` names what they count, such as "epochs"."""

    def accepts(value: Any) -> bool:
        return _is_number(value, Integral) and _within(value, minimum, maximum)

    return Validator(accepts, f"a whole number{f' of {of}' if of else ''}{_range_words(minimum, maximum)}")


def number(
    *,
    minimum: float | None = None,
    maximum: float | None = None,
    above: float | None = None,
    below: float | None = None,
    of: str = "",
) -> Validator:
    """Return the validator of finite numbers in a range; `above` and `below` are not part of it themselves."""

    def accepts(value: Any) -> bool:
        if not _is_number(value, Real) or not math.isfinite(value):
            return False
        inside = (above is None or value > above) and (below is None or value < below)
        return inside and _within(value, minimum, maximum)

    if above is not None and (below is not None or maximum is not None):
        upper = f"below {below:g}" if below is not None else f"{maximum:g}"
        words = f" above {above:g} and {'' if below is not None else 'at most '}{upper}"
    elif above is not None:
        words = f" > {above:g}"
    elif below is not None:
        words = f" from {minimum:g} to below {below:g}" if minimum is not None else f" < {below:g}"
    else:
        words = _range_words(minimum, maximum)
    return Validator(accepts, f"a number{f' of {of}' if of else ''}{words}")


def one_of(*values: Any) -> Validator:
    """Return the validator of a few values; equal numbers of another type, such as True for 1, are not among them."""

    def accepts(value: Any) -> bool:
        return any(type(value) is type(each) and value == each for each in values)

    return Validator(accepts, ", ".join(map(repr, values)), values)


def flag() -> Validator:
    """Return the validator of True and False."""
    return Validator(lambda value: isinstance(value, bool), "true, false")


def text(words: str = "a name") -> Validator:
    """Return the validator of strings that are not empty."""
    return Validator(lambda value: isinstance(value, str) and bool(value), words)


def instance_of(*kinds: type, words: str = "") -> Validator:
    """Return the validator of the instances of some classes or protocols; a class itself is none."""
    names = " or ".join(kind.__name__ for kind in kinds)
    return Validator(lambda value: isinstance(value, kinds) and not isinstance(value, type), words or f"a {names}")


def each(validator: Validator, *, least: int = 0, words: str = "") -> Validator:
    """Return the validator of lists and tuples of at least so many values that another accepts."""

    def accepts(value: Any) -> bool:
        return isinstance(value, list | tuple) and len(value) >= least and all(map(validator.accepts, value))

    return Validator(accepts, words or f"a list of {validator.allowed}")


def optional(validator: Validator, *, words: str = "None") -> Validator:
    """Return the validator of None and of what another accepts."""
    return Validator(
        lambda value: value is None or validator.accepts(value),
        f"{validator.allowed}, or {words}",
        validator.choices,
    )


def _is_number(value: Any, kind: type) -> bool:
    # A truth value is an int in Python, but nobody means one by 1.
    return isinstance(value, kind) and not isinstance(value, bool)


def _within(value: Any, minimum: float | None, maximum: float | None) -> bool:
    return (minimum is None or value >= minimum) and (maximum is None or value <= maximum)


def _range_words(minimum: float | None, maximum: float | None) -> str:
    if minimum is not None and maximum is not None:
        return f" from {minimum:g} to {maximum:g}"
    if minimum is not None:
        return f" >= {minimum:g}"
    return "" if maximum is None else f" <= {maximum:g}"
