"""The types of record fields: which values each accepts, and its name in the documentation.

Every record of another writer is checked, one by one, so each check is a few comparisons of exact types and bounds.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Protocol

from trainwright.errors import ObjectiveError
from trainwright.ledger.objectives import parse_constraints, parse_objectives

__all__ = [
    "DEEPEST",
    "Field",
    "Flag",
    "Goals",
    "Json",
    "Nothing",
    "Number",
    "Numbers",
    "Optional",
    "Params",
    "Seconds",
    "Shape",
    "SpaceTable",
    "Text",
    "TextMap",
    "Texts",
    "Type",
    "Whole",
]

DEEPEST = 20
"""So many lists and objects may lie within each other in a value."""

# Up to which every reader of JSON knows whole numbers exactly.
_LARGEST = 2**53
_LONGEST_SECONDS = 1e12
_NOT_FINITE = frozenset({"nan", "inf", "-inf"})
_SCALARS = frozenset({float, int, str, bool, type(None)})
# Which `float` takes.
_WIDEST = 2**1000


class Type(Protocol):
    """What the values of one field may be."""

    @property
    def text(self) -> str:
        """The type as a reader of the documentation knows it."""

    def fits(self, value: Any) -> bool:
        """Whether the value is of the type."""


@dataclass(frozen=True, slots=True)
class Whole:
    """A whole number from `minimum` to `maximum`; true and false are no numbers."""

    minimum: int = 0
    maximum: int = _LARGEST

    @property
    def text(self) -> str:
        """The type as a reader of the documentation knows it."""
        return f"whole number >= {self.minimum}"

    def fits(self, value: Any) -> bool:
        """Whether the value is of the type."""
        return type(value) is int and self.minimum <= value <= self.maximum


@dataclass(frozen=True, slots=True)
class Seconds:
    """A time that has passed, or a wall time since 1970 if `maximum` says so."""

    maximum: float = _LONGEST_SECONDS
    text: str = "seconds >= 0"

    def fits(self, value: Any) -> bool:
        """Whether the value is of the type; NaN is in no order and fails the comparison."""
        return (type(value) is float or type(value) is int) and 0 <= value <= self.maximum


@dataclass(frozen=True, slots=True)
class Text:
    """Any text."""

    text: str = "text"

    def fits(self, value: Any) -> bool:
        """Whether the value is of the type."""
        return type(value) is str


@dataclass(frozen=True, slots=True)
class Flag:
    """True or false."""

    text: str = "true or false"

    def fits(self, value: Any) -> bool:
        """Whether the value is of the type."""
        return type(value) is bool


@dataclass(frozen=True, slots=True)
class Nothing:
    """Null."""

    text: str = "null"

    def fits(self, value: Any) -> bool:
        """Whether the value is of the type."""
        return value is None


@dataclass(frozen=True, slots=True)
class Optional:
    """A value of another type, or null."""

    of: Type

    @property
    def text(self) -> str:
        """The type as a reader of the documentation knows it."""
        return f"{self.of.text}, or null"

    def fits(self, value: Any) -> bool:
        """Whether the value is of the type."""
        return value is None or self.of.fits(value)


@dataclass(frozen=True, slots=True)
class Texts:
    """A list of texts."""

    text: str = "list of texts"

    def fits(self, value: Any) -> bool:
        """Whether the value is of the type."""
        return type(value) is list and {*map(type, value)} <= {str}


@dataclass(frozen=True, slots=True)
class TextMap:
    """A text for each of several names."""

    text: str = "object of texts"

    def fits(self, value: Any) -> bool:
        """Whether the value is of the type."""
        return type(value) is dict and {*map(type, value), *map(type, value.values())} <= {str}


@dataclass(frozen=True, slots=True)
class Numbers:
    """A number for each of several names; NaN and infinities are the texts that `float` reads back."""

    text: str = 'object of numbers, "nan", "inf" or "-inf"'

    def fits(self, value: Any) -> bool:
        """Whether the value is of the type."""
        if type(value) is not dict:
            return False
        for name, number in value.items():
            # Nearly every number is a float; the call for other kinds is made for the rest only.
            if type(name) is not str or (type(number) is not float and not _is_number(number)):
                return False
        return True


@dataclass(frozen=True, slots=True)
class Number:
    """A number; NaN and infinities are the texts that `float` reads back."""

    text: str = 'number, "nan", "inf" or "-inf"'

    def fits(self, value: Any) -> bool:
        """Whether the value is of the type."""
        return type(value) is float or _is_number(value)


@dataclass(frozen=True, slots=True)
class Params:
    """A value for each of several parameters: of JSON, whole numbers as large as a double can tell apart."""

    text: str = "object of JSON values"

    def fits(self, value: Any) -> bool:
        """Whether the value is of the type."""
        return _is_json_object(value, DEEPEST + 1)


@dataclass(frozen=True, slots=True)
class Json:
    """Any value of JSON, of bounded depth; `kind` narrows it to objects."""

    kind: type = object
    text: str = f"JSON, at most {DEEPEST} levels deep"

    def fits(self, value: Any) -> bool:
        """Whether the value is of the type."""
        return _is_json_object(value, DEEPEST) if self.kind is dict else _is_json(value, DEEPEST)


@dataclass(frozen=True, slots=True)
class Goals:
    """Objectives such as "min loss", at least one; or constraints such as "bytes <= 8e9"."""

    parse: Callable[[Sequence[str]], object]
    text: str
    example: str

    @classmethod
    def objectives(cls) -> "Goals":
        """Return the type of a study's objectives."""
        return cls(parse_objectives, "list of objectives", "min loss")

    @classmethod
    def constraints(cls) -> "Goals":
        """Return the type of a study's constraints."""
        return cls(lambda texts: parse_constraints(texts, ()), "list of constraints", "bytes <= 1")

    def fits(self, value: Any) -> bool:
        """Whether the value is of the type."""
        if not Texts().fits(value):
            return False
        try:
            self.parse(value)
        except ObjectiveError:
            return False
        return True


@dataclass(frozen=True, slots=True)
class SpaceTable:
    """A search space as `Space.to_json` gives it, as far as this package looks into it: its parameters have names."""

    text: str = "object, as `Space.to_json` gives it"

    def fits(self, value: Any) -> bool:
        """Whether the value is of the type."""
        if not _is_json_object(value, DEEPEST):
            return False
        parameters = value.get("parameters", [])
        return isinstance(parameters, list | tuple) and all(
            isinstance(one, dict) and isinstance(one.get("name"), str) for one in parameters
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class Field:
    """One entry of an object: its name, what it may hold, what it says; `required` if it has to be there."""

    name: str
    type: Type
    says: str = ""
    required: bool = True


@dataclass(frozen=True)
class Shape:
    """An object with certain fields; others may lie beside them, which a later version has written."""

    fields: tuple[Field, ...]

    @cached_property
    def _checks(self) -> tuple[tuple[str, bool, Callable[[Any], bool]], ...]:
        # Looked up once: `fits` runs for every record that others wrote.
        return tuple((field.name, field.required, field.type.fits) for field in self.fields)

    @property
    def text(self) -> str:
        """The type as a reader of the documentation knows it."""
        return f"object with {', '.join(field.name for field in self.fields)}"

    def fits(self, value: Any) -> bool:
        """Whether the value is an object with the fields."""
        if type(value) is not dict:
            return False
        for name, required, fits in self._checks:
            if name in value:
                if not fits(value[name]):
                    return False
            elif required:
                return False
        return True

    def why(self, value: Any) -> str:
        """Return what is wrong with an object that does not fit."""
        if type(value) is not dict:
            return "it is no object"
        for field in self.fields:
            if field.name not in value:
                if field.required:
                    return f"{field.name} is missing"
            elif not field.type.fits(value[field.name]):
                if isinstance(field.type, Shape):
                    return f"{field.name}: {field.type.why(value[field.name])}"
                return f"{field.name} is no {field.type.text}"
        return "it does not fit"


def _is_number(value: Any) -> bool:
    # Also a float64 of numpy, which is a float.
    if isinstance(value, float):
        return True
    if isinstance(value, str):
        return value in _NOT_FINITE
    return type(value) is int and -_WIDEST <= value <= _WIDEST


def _is_json_object(value: Any, depth: int) -> bool:
    """Whether a value is an object of JSON, with at most `depth` levels, its own among them."""
    if type(value) is not dict:
        return False
    for name, item in value.items():
        kind = type(item)
        # What most values are is seen without a call.
        plain = kind is float or kind is str
        if type(name) is not str or not (plain or _is_json(item, depth - 1)):
            return False
    return True


def _is_json(value: Any, depth: int) -> bool:
    """Whether a value is of JSON, with at most `depth` levels and no whole number that `float` does not take."""
    kind = type(value)
    if kind is int:
        return bool(-_WIDEST <= value <= _WIDEST)
    if kind in _SCALARS:
        return True
    if not depth:
        return False
    if kind is dict:
        return _is_json_object(value, depth)
    if isinstance(value, list | tuple):
        return all(_is_json(item, depth - 1) for item in value)
    # A number of numpy.
    return isinstance(value, float)
