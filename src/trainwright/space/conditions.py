"""When a conditional parameter is active: a small tree of comparisons with other parameters, kept as data.

A comparison on an inactive parameter is false, under `not_` too; so `not_` is pushed down to the comparisons, and
each of them is false where its column holds NaN. Columns compare in units, which order as the values do.
"""

import operator
from collections.abc import Callable
from dataclasses import dataclass
from functools import reduce
from typing import Any

import numpy as np

from trainwright.aliases import Array, Mask
from trainwright.errors import SpaceError
from trainwright.space.configuration import to_python

__all__ = [
    "Combination",
    "Comparison",
    "Condition",
    "Holds",
    "all_of",
    "any_of",
    "condition_from_json",
    "equals",
    "greater",
    "less",
    "not_",
    "one_of",
]

Holds = Callable[[Array], Mask]  # settled rows to the rows in which a condition holds
Binder = Callable[["Comparison", bool], Holds]  # (comparison, negated) to its evaluation over the columns of a space


@dataclass(frozen=True, repr=False)
class Comparison:
    """A parameter compared with one value or, for `one_of`, several."""

    operation: str  # "equals", "one_of", "less" or "greater"
    name: str
    values: tuple[Any, ...]

    def __repr__(self) -> str:
        return f"{self.operation}({', '.join(map(repr, (self.name, *self.values)))})"

    def __str__(self) -> str:
        values = [repr(value) for value in self.values]
        signs = {"equals": "==", "less": "<", "greater": ">"}
        if self.operation == "one_of":
            return f"{self.name} in ({', '.join(values)})"
        return f"{self.name} {signs[self.operation]} {values[0]}"

    def comparisons(self) -> list["Comparison"]:
        """Return the comparisons of the tree, from left to right."""
        return [self]

    def bind(self, binder: Binder, *, negated: bool = False) -> Holds:
        """Return the evaluation of this tree."""
        return binder(self, negated)

    def to_json(self) -> dict[str, Any]:
        """Return the tree as data."""
        return {self.operation: [self.name, list(self.values) if self.operation == "one_of" else self.values[0]]}


@dataclass(frozen=True, repr=False)
class Combination:
    """Conditions joined by `all_of` or `any_of`, or one under `not_`."""

    operation: str
    parts: tuple["Condition", ...]

    def __repr__(self) -> str:
        return f"{self.operation}({', '.join(map(repr, self.parts))})"

    def __str__(self) -> str:
        if self.operation == "not_":
            return f"not ({self.parts[0]})"
        return (" and " if self.operation == "all_of" else " or ").join(f"({part})" for part in self.parts)

    def comparisons(self) -> list[Comparison]:
        """Return the comparisons of the tree, from left to right."""
        return [comparison for part in self.parts for comparison in part.comparisons()]

    def bind(self, binder: Binder, *, negated: bool = False) -> Holds:
        """Return the evaluation of this tree."""
        if self.operation == "not_":
            return self.parts[0].bind(binder, negated=not negated)
        # `not_` is pushed down to the comparisons, so that each stays false for an inactive parent.
        parts = [part.bind(binder, negated=negated) for part in self.parts]
        join: Callable[[Any, Any], Any] = (  # De Morgan
            operator.and_ if (self.operation == "all_of") is not negated else operator.or_
        )
        return lambda U: reduce(join, [part(U) for part in parts])

    def to_json(self) -> dict[str, Any]:
        """Return the tree as data."""
        parts = [part.to_json() for part in self.parts]
        return {self.operation: parts[0] if self.operation == "not_" else parts}


Condition = Comparison | Combination


def equals(name: str, value: Any) -> Condition:
    """Hold where the parameter `name` has this value."""
    return Comparison("equals", name, (to_python(value),))


def one_of(name: str, *values: Any) -> Condition:
    """Hold where the parameter `name` has one of these values; a single list or tuple is taken as the values."""
    if len(values) == 1 and isinstance(values[0], list | tuple):
        values = tuple(values[0])
    if not values:
        raise SpaceError(f"one_of({name!r}): at least one value is needed")
    return Comparison("one_of", name, tuple(to_python(value) for value in values))


def less(name: str, value: Any) -> Condition:
    """Hold where the number or ordered choice `name` is below this value."""
    return Comparison("less", name, (to_python(value),))


def greater(name: str, value: Any) -> Condition:
    """Hold where the number or ordered choice `name` is above this value."""
    return Comparison("greater", name, (to_python(value),))


def all_of(*conditions: Condition) -> Condition:
    """Hold where every condition holds."""
    return _combine_conditions("all_of", conditions)


def any_of(*conditions: Condition) -> Condition:
    """Hold where at least one condition holds."""
    return _combine_conditions("any_of", conditions)


def not_(condition: Condition) -> Condition:
    """Hold where the condition does not, as far as the parameters that it compares are active."""
    return _combine_conditions("not_", (condition,))


def condition_from_json(document: Any) -> Condition:
    """Return the condition that `to_json` wrote."""
    if isinstance(document, dict) and len(document) == 1:
        # One key names the operation, its value holds the operands.
        [(operation, body)] = document.items()
        if operation == "not_":
            return not_(condition_from_json(body))
        if operation in ("all_of", "any_of") and isinstance(body, list | tuple):
            return _combine_conditions(operation, tuple(condition_from_json(part) for part in body))
        if operation in ("equals", "one_of", "less", "greater") and isinstance(body, list | tuple) and len(body) == 2:
            name, value = body
            values = list(value) if operation == "one_of" and isinstance(value, list | tuple) else [value]
            # JSON has no tuples: a value that was one comes back as a list.
            return Comparison(operation, name, tuple(tuple(v) if isinstance(v, list) else v for v in values))
    raise SpaceError(f'condition {document!r} cannot be read; write for example {{"equals": ["optimizer", "sgd"]}}')


def evaluate_condition(column: int, operation: str, units: list[float], *, slack: float, negated: bool) -> Holds:
    """Return the evaluation of one comparison over a column; NaN, which is inactive, compares false either way.

    Units within `slack` count as equal: a row must not differ from what is read of its decoded numbers.
    """
    # Units order as the values do, so one number per comparison decides; NaN fails every comparison.
    if operation == "less":
        # A unit that is equal to the bound but for rounding is not below it.
        least = units[0] - slack
        return (lambda U: U[:, column] >= least) if negated else (lambda U: U[:, column] < least)
    if operation == "greater":
        greatest = units[0] + slack
        return (lambda U: U[:, column] <= greatest) if negated else (lambda U: U[:, column] > greatest)

    # Abs(NaN - unit) <= slack is false, and so is its negation once NaN is left out.
    def holds(U: Array) -> Mask:
        u = U[:, column]
        found: Mask = reduce(np.logical_or, [np.abs(u - unit) <= slack for unit in units])
        return ~found & ~np.isnan(u) if negated else found

    return holds


def _combine_conditions(operation: str, conditions: tuple[Condition, ...]) -> Condition:
    if not conditions:
        raise SpaceError(f"{operation}: at least one condition is needed")
    for condition in conditions:
        if not isinstance(condition, Comparison | Combination):
            raise SpaceError(
                f"{operation}: {condition!r} is no condition; write for example equals('optimizer', 'sgd')"
            )
    return Combination(operation, conditions)
