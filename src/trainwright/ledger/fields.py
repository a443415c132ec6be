"""What a field of a record may hold: types that check the values of many records at once.

Each check takes a column, the values that one field has in many records, and is nothing but a few calls of C functions
over it: every worker reads every record of the others. A column that does not fit is checked again value by value.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import chain
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

_LARGEST = 2**53  # up to which every reader of JSON knows whole numbers exactly
_LONGEST_SECONDS = 1e12
_NOT_FINITE = frozenset({"nan", "inf", "-inf"})
_SCALARS = frozenset({float, int, str, bool, type(None)})


class Type(Protocol):
    """What the values of one field may be."""

    @property
    def text(self) -> str:
        """The type as a reader of the documentation knows it."""

    def fits(self, column: Sequence[Any]) -> bool:
        """Whether all of these values (at least one) are of the type."""

    def made(self, value: Any) -> Any:
        """Return what is written for a value that a caller gives."""


class _Plain:
    def made(self, value: Any) -> Any:
        """Return the value as it is."""
        return value


@dataclass(frozen=True, slots=True)
class Whole(_Plain):
    """A whole number from `minimum` to `maximum`."""

    minimum: int = 0
    maximum: int = _LARGEST

    @property
    def text(self) -> str:
        """The type as a reader of the documentation knows it."""
        return f"whole number >= {self.minimum}"

    def fits(self, column: Sequence[Any]) -> bool:
        """Whether all of these values are of the type; true and false are no numbers."""
        return {*map(type, column)} == {int} and self.minimum <= min(column) and max(column) <= self.maximum


@dataclass(frozen=True, slots=True)
class Seconds:
    """A time that has passed, or a wall time since 1970 if `maximum` says so."""

    maximum: float = _LONGEST_SECONDS
    text: str = "seconds >= 0"

    def fits(self, column: Sequence[Any]) -> bool:
        """Whether all of these values are of the type."""
        if not {*map(type, column)} <= {float, int}:
            return False
        return bool(min(column) >= 0 and max(column) <= self.maximum and sum(column) >= 0)  # a sum finds NaN too

    def made(self, value: Any) -> Any:
        """Return the value to the microsecond."""
        return round(float(value), 6)


@dataclass(frozen=True, slots=True)
class Text(_Plain):
    """Any text."""

    text: str = "text"

    def fits(self, column: Sequence[Any]) -> bool:
        """Whether all of these values are of the type."""
        return {*map(type, column)} == {str}


@dataclass(frozen=True, slots=True)
class Flag(_Plain):
    """True or false."""

    text: str = "true or false"

    def fits(self, column: Sequence[Any]) -> bool:
        """Whether all of these values are of the type."""
        return {*map(type, column)} == {bool}


@dataclass(frozen=True, slots=True)
class Nothing(_Plain):
    """Null."""

    text: str = "null"

    def fits(self, column: Sequence[Any]) -> bool:
        """Whether all of these values are of the type."""
        return {*map(type, column)} == {type(None)}


@dataclass(frozen=True, slots=True)
class Optional:
    """A value of another type, or null."""

    of: Type

    @property
    def text(self) -> str:
        """The type as a reader of the documentation knows it."""
        return f"{self.of.text}, or null"

    def fits(self, column: Sequence[Any]) -> bool:
        """Whether all of these values are of the type."""
        if None in column:
            column = [value for value in column if value is not None]
        return not column or self.of.fits(column)

    def made(self, value: Any) -> Any:
        """Return what the other type makes of a value."""
        return None if value is None else self.of.made(value)


@dataclass(frozen=True, slots=True)
class Texts:
    """A list of texts."""

    text: str = "list of texts"

    def fits(self, column: Sequence[Any]) -> bool:
        """Whether all of these values are of the type."""
        return {*map(type, column)} == {list} and {*map(type, chain.from_iterable(column))} <= {str}

    def made(self, value: Any) -> Any:
        """Return the value as a list."""
        return list(value)


@dataclass(frozen=True, slots=True)
class TextMap:
    """A text for each of several names."""

    text: str = "object of texts"

    def fits(self, column: Sequence[Any]) -> bool:
        """Whether all of these values are of the type."""
        found = _items(column)
        return found is not None and {*map(type, found)} <= {str}

    def made(self, value: Any) -> Any:
        """Return the value as a dict."""
        return dict(value)


@dataclass(frozen=True, slots=True)
class Numbers:
    """A number for each of several names; NaN and infinities are the texts that `float` reads back."""

    text: str = 'object of numbers, "nan", "inf" or "-inf"'

    def fits(self, column: Sequence[Any]) -> bool:
        """Whether all of these values are of the type."""
        found = _items(column)
        return found is not None and ({*map(type, found)} <= {float} or all(map(_number, found)))

    def made(self, value: Any) -> Any:
        """Return the value as a dict."""
        return dict(value)


@dataclass(frozen=True, slots=True)
class Number(_Plain):
    """A number; NaN and infinities are the texts that `float` reads back."""

    text: str = 'number, "nan", "inf" or "-inf"'

    def fits(self, column: Sequence[Any]) -> bool:
        """Whether all of these values are of the type."""
        return {*map(type, column)} <= {float} or all(map(_number, column))


@dataclass(frozen=True, slots=True)
class Params(_Plain):
    """A value for each of several parameters: of JSON, whole numbers as large as a double can tell apart."""

    text: str = "object of JSON values"

    def fits(self, column: Sequence[Any]) -> bool:
        """Whether all of these values are of the type."""
        found = _items(column)
        return found is not None and _all_flat_enough(found)


_WIDEST = 2**1000  # which `float` takes


@dataclass(frozen=True, slots=True)
class Json(_Plain):
    """Any value of JSON, of bounded depth; `kind` narrows it to objects."""

    kind: type = object
    text: str = f"JSON, at most {DEEPEST} levels deep"

    def fits(self, column: Sequence[Any]) -> bool:
        """Whether all of these values are of the type."""
        if self.kind is not dict:
            return _all_flat_enough(column)
        found = _items(column)
        return found is not None and _all_flat_enough(found, DEEPEST - 1)


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

    def fits(self, column: Sequence[Any]) -> bool:
        """Whether all of these values are of the type."""
        if not Texts().fits(column):
            return False
        try:
            for texts in column:
                self.parse(texts)
        except ObjectiveError:
            return False
        return True

    def made(self, value: Any) -> Any:
        """Return the value as a list."""
        return list(value)


@dataclass(frozen=True, slots=True)
class SpaceTable(_Plain):
    """A search space as `Space.to_json` gives it, as far as this package looks into it: its parameters have names."""

    text: str = "object, as `Space.to_json` gives it"

    def fits(self, column: Sequence[Any]) -> bool:
        """Whether all of these values are of the type."""
        return Json(dict).fits(column) and all(map(self._named, column))

    @staticmethod
    def _named(value: Mapping[str, Any]) -> bool:
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
    def checks(self) -> tuple[tuple[str, bool, Callable[[Sequence[Any]], bool]], ...]:
        """What `fits` looks up for each field: it runs for every look at what others wrote."""
        return tuple((field.name, field.required, field.type.fits) for field in self.fields)

    @property
    def text(self) -> str:
        """The type as a reader of the documentation knows it."""
        return f"object with {', '.join(field.name for field in self.fields)}"

    def fits(self, column: Sequence[Any]) -> bool:
        """Whether all of these values are objects with the fields."""
        if {*map(type, column)} != {dict}:
            return False
        try:
            for name, required, fits in self.checks:
                if required:
                    if not fits([body[name] for body in column]):
                        return False
                elif (there := [body[name] for body in column if name in body]) and not fits(there):
                    return False
        except KeyError:
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
            elif not field.type.fits([value[field.name]]):
                if isinstance(field.type, Shape):
                    return f"{field.name}: {field.type.why(value[field.name])}"
                return f"{field.name} is no {field.type.text}"
        return "it does not fit"

    def made(self, value: Mapping[str, Any]) -> dict[str, Any]:
        """Return the object with its fields in their order, each as its type writes it."""
        return {f.name: f.type.made(value[f.name]) for f in self.fields if f.required or f.name in value}


def _items(column: Sequence[Any]) -> list[Any] | None:
    """Return the values of all objects of a column; None if one is no object, or a name is no text."""
    if {*map(type, column)} != {dict} or not {*map(type, chain.from_iterable(column))} <= {str}:
        return None
    return [*chain.from_iterable(map(dict.values, column))]


def _number(value: Any) -> bool:
    if isinstance(value, float):
        return True
    if isinstance(value, str):
        return value in _NOT_FINITE
    return type(value) is int and -_WIDEST <= value <= _WIDEST


def _all_flat_enough(values: Sequence[Any], depth: int = DEEPEST) -> bool:
    kinds = {*map(type, values)}
    if not kinds <= _SCALARS:
        return all(_flat_enough(value, depth) for value in values)
    whole = [value for value in values if type(value) is int] if int in kinds else ()
    return not whole or bool(min(whole) >= -_WIDEST and max(whole) <= _WIDEST)


def _flat_enough(value: Any, depth: int = DEEPEST) -> bool:
    """Whether a value is of JSON, with at most `depth` levels and no whole number that `float` does not take."""
    kind = type(value)
    if kind is int:
        return bool(-_WIDEST <= value <= _WIDEST)
    if kind in _SCALARS:
        return True
    if not depth:
        return False
    if kind is dict:
        return {*map(type, value)} <= {str} and all(_flat_enough(item, depth - 1) for item in value.values())
    if isinstance(value, list | tuple):
        return all(_flat_enough(item, depth - 1) for item in value)
    return isinstance(value, float)  # a number of numpy
