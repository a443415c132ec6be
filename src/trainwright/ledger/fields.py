"""The types of record fields: which values each accepts, and its name in the documentation.

Every record of another writer is checked, one by one, so each check is a few comparisons of exact types and bounds.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

from trainwright.errors import ObjectiveError
from trainwright.ledger.objectives import parse_constraints, parse_objectives

__all__ = ["DEEPEST", "Field", "Shape", "Type", "optional", "seconds", "whole"]

DEEPEST = 20
"""So many lists and objects may lie within each other in a value."""

# Up to which every reader of JSON knows whole numbers exactly.
_LARGEST = 2**53
_LONGEST_SECONDS = 1e12
_NOT_FINITE = frozenset({"nan", "inf", "-inf"})
_SCALARS = frozenset({float, int, str, bool, type(None)})
# Which `float` takes.
_WIDEST = 2**1000


@dataclass(frozen=True, slots=True)
class Type:
    """What the values of one field may be: its name in the documentation, and a test of a value.

    `plain` makes such a value of what a caller of Python has, as a list of a tuple; None: it is one already.
    """

    text: str
    fits: Callable[[Any], bool]
    plain: Callable[[Any], Any] | None = None


def whole(minimum: int = 0, maximum: int = _LARGEST) -> Type:
    """Return the type of whole numbers from `minimum` to `maximum`; true and false are no numbers."""
    return Type(f"whole number >= {minimum}", lambda value: type(value) is int and minimum <= value <= maximum)


def seconds(maximum: float = _LONGEST_SECONDS) -> Type:
    """Return the type of a time that has passed, or of a wall time since 1970 if `maximum` says so."""

    def fits(value: Any) -> bool:
        # NaN is in no order and fails the comparison.
        return (type(value) is float or type(value) is int) and 0 <= value <= maximum

    # To the microsecond, as a float of Python whatever kind of number it was.
    return Type("seconds >= 0", fits, lambda value: round(float(value), 6))


def optional(of: Type) -> Type:
    """Return the type of a value of another type, or null."""
    return Type(f"{of.text}, or null", lambda value: value is None or of.fits(value))


@dataclass(frozen=True, slots=True)
class Field:
    """One entry of an object: its name, what it may hold, what it says; `required` if it has to be there."""

    name: str
    type: Type
    says: str = ""
    required: bool = True


class Shape(Type):
    """An object with certain fields; others may lie beside them, which a later version has written."""

    __slots__ = ("fields",)
    fields: tuple[Field, ...]

    def __init__(self, *fields: Field) -> None:
        # Looked up once: the test runs for every record that others wrote.
        checks = tuple((field.name, field.required, field.type.fits) for field in fields)
        object.__setattr__(self, "fields", fields)
        Type.__init__(self, f"object with {', '.join(field.name for field in fields)}", partial(_has_fields, checks))

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


def _has_fields(checks: tuple[tuple[str, bool, Callable[[Any], bool]], ...], value: Any) -> bool:
    """Whether a value is an object with the fields."""
    if type(value) is not dict:
        return False
    for name, required, fits in checks:
        if name in value:
            if not fits(value[name]):
                return False
        elif required:
            return False
    return True


def _is_text_list(value: Any) -> bool:
    return type(value) is list and {*map(type, value)} <= {str}


def _is_text_map(value: Any) -> bool:
    return type(value) is dict and {*map(type, value), *map(type, value.values())} <= {str}


def _is_number_map(value: Any) -> bool:
    if type(value) is not dict:
        return False
    for name, number in value.items():
        # Nearly every number is a float; the call for other kinds is made for the rest only.
        if type(name) is not str or (type(number) is not float and not _is_number(number)):
            return False
    return True


def _parses(parse: Callable[[Any], object], texts: Any) -> bool:
    """Whether texts are goals that `parse` understands."""
    if not _is_text_list(texts):
        return False
    try:
        parse(texts)
    except ObjectiveError:
        return False
    return True


def _is_space(value: Any) -> bool:
    """Whether a value is a search space as far as this package looks into it: its parameters have names."""
    if not _is_json_object(value, DEEPEST):
        return False
    parameters = value.get("parameters", [])
    return isinstance(parameters, list | tuple) and all(
        isinstance(one, dict) and isinstance(one.get("name"), str) for one in parameters
    )


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


TEXT = Type("text", lambda value: type(value) is str)
FLAG = Type("true or false", lambda value: type(value) is bool)
NOTHING = Type("null", lambda value: value is None)
TEXTS = Type("list of texts", _is_text_list, list)
TEXT_MAP = Type("object of texts", _is_text_map, dict)
# NaN and infinities are the texts that `float` reads back.
NUMBER = Type('number, "nan", "inf" or "-inf"', _is_number)
NUMBERS = Type('object of numbers, "nan", "inf" or "-inf"', _is_number_map, dict)
# Whole numbers as large as a double can tell apart.
PARAMS = Type("object of JSON values", lambda value: _is_json_object(value, DEEPEST + 1))
JSON = Type(f"JSON, at most {DEEPEST} levels deep", lambda value: _is_json(value, DEEPEST))
JSON_OBJECT = Type("object of JSON", lambda value: _is_json_object(value, DEEPEST), dict)
OBJECTIVES = Type("list of objectives", partial(_parses, parse_objectives), list)
CONSTRAINTS = Type("list of constraints", partial(_parses, partial(parse_constraints, objectives=())), list)
SPACE = Type("object, as `Space.to_json` gives it", _is_space)
