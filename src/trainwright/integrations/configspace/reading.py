"""Reads a `ConfigSpace.ConfigurationSpace` (version 1) as parameters and requirements.

Conditions become conditions. What a forbidden clause forbids becomes one requirement for each conjunction in it, so
that each applies exactly where ConfigSpace applies it: where all the parameters of the conjunction are active.
"""

import itertools
import keyword
import math
from collections.abc import Mapping
from typing import Any

from trainwright.errors import MissingExtra, SpaceError
from trainwright.space.choice import Choice
from trainwright.space.conditions import Condition, all_of, any_of, equals, greater, less, not_, one_of
from trainwright.space.configuration import to_python
from trainwright.space.numeric import Beta, Float, Int, Normal, Prior
from trainwright.space.parameters import Constant, Parameter
from trainwright.space.rules import Requirement, require

__all__ = ["read_configspace"]

_SIGNS = {  # what a clause forbids, and what is left when it stands alone
    "ForbiddenLessThan": ("<", ">="),
    "ForbiddenLessThanEquals": ("<=", ">"),
    "ForbiddenGreaterThan": (">", "<="),
    "ForbiddenGreaterThanEquals": (">=", "<"),
    "ForbiddenEquals": ("==", "!="),
    "ForbiddenIn": ("in", "not in"),
}
Literal = tuple[str, str, str]  # left side, sign, right side


def read_configspace(space: Any) -> tuple[dict[str, Parameter], list[Requirement]]:
    """Return the parameters and requirements of a ConfigurationSpace, or raise `SpaceError` for unsupported ones.

    All parameters come with defaults, for ConfigSpace gives one to each.
    """
    with MissingExtra.instead_of_import_error("Space.from_configspace()", "ConfigSpace", "configspace"):
        from ConfigSpace import ConfigurationSpace
    if not isinstance(space, ConfigurationSpace):
        raise SpaceError(f"from_configspace: got {space!r}; allowed: a ConfigSpace.ConfigurationSpace")
    parameters = {}
    for name, hyperparameter in space.items():
        conditions = [_read_condition(condition) for condition in space.parent_conditions_of[name]]
        # Several conditions on one parameter must all hold in ConfigSpace.
        when = all_of(*conditions) if len(conditions) > 1 else next(iter(conditions), None)
        parameters[name] = _read_parameter(hyperparameter, when)
    requirements = [
        _make_requirement(conjunction)
        for clause in space.forbidden_clauses
        for conjunction in _forbidden_conjunctions(clause)
    ]
    return parameters, requirements


def _read_parameter(it: Any, when: Condition | None) -> Parameter:
    kind = type(it).__name__.removesuffix("Hyperparameter")
    if kind == "Constant" and when is None:
        return Constant(to_python(it.value))
    if kind == "Constant":  # a constant of ours is always there
        return Choice(to_python(it.value), default=to_python(it.value), when=when)
    if kind in ("Categorical", "Ordinal"):
        # Not its list of choices: a configuration holds what numpy makes of them, such as 1.0 of 1 next to 2.5.
        values = [to_python(it.to_value(float(place))) for place in range(it.size)]
        weights = getattr(it, "weights", None)
        default = values[int(it.to_vector(it.default_value))]
        return Choice(*values, ordered=kind == "Ordinal", weights=weights, default=default, when=when)
    # The class name has the law and the kind: NormalFloat, UniformInteger.
    kinds: Mapping[str, type[Float | Int]] = {"Float": Float, "Integer": Int}
    law, number = next(((kind.removesuffix(end), cls) for end, cls in kinds.items() if kind.endswith(end)), ("", None))
    if number is None or law not in ("Uniform", "Normal", "Beta"):
        raise SpaceError(
            f"from_configspace: {it.name} is a {type(it).__name__}; allowed: Uniform, Normal and Beta floats and "
            "integers, Categorical, Ordinal, Constant"
        )
    prior: Prior | None = None
    if law != "Uniform":
        prior = _read_normal(it) if law == "Normal" else Beta(float(it.alpha), float(it.beta))
    low, high, default = to_python(it.lower), to_python(it.upper), to_python(it.default_value)
    return number(low, high, log=bool(it.log), default=default, prior=prior, when=when)


def _read_normal(it: Any) -> Normal:
    """Return the law of the unit column that ConfigSpace draws from."""
    low, high, mean, sd = float(it.lower), float(it.upper), float(it.mu), float(it.sigma)
    # Bounds, mean and deviation on the log scale, as ConfigSpace computes them.
    if it.log:  # its deviation is |ln(low + sigma)|, whatever the mean
        mean, sd, low, high = math.log(mean), abs(math.log(low + sd)), math.log(low), math.log(high)
        return Normal((mean - low) / (high - low), sd / (high - low))
    return Normal((mean - low) / (high - low), sd / (high - low))


def _read_condition(it: Any) -> Condition:
    kind = type(it).__name__
    if kind in ("AndConjunction", "OrConjunction"):
        parts = [_read_condition(part) for part in it.components]
        return all_of(*parts) if kind == "AndConjunction" else any_of(*parts)
    name = it.parent.name
    if kind == "InCondition":
        return one_of(name, [_read_value(it.parent, value) for value in it.values])
    value = _read_value(it.parent, it.value)
    if kind == "NotEqualsCondition":
        return not_(equals(name, value))
    make = {"EqualsCondition": equals, "LessThanCondition": less, "GreaterThanCondition": greater}.get(kind)
    if make is None:
        raise SpaceError(
            f"from_configspace: {it.child.name} has a {kind}; allowed: Equals, NotEquals, In, LessThan and GreaterThan "
            "conditions, and their conjunctions"
        )
    return make(name, value)


def _read_value(it: Any, value: Any) -> Any:
    """Return a value as configurations hold it."""
    return to_python(value if hasattr(it, "lower") else it.to_value(it.to_vector(value)))


def _forbidden_conjunctions(it: Any) -> list[list[Literal]]:
    """Return conjunctions of comparisons, each of which is forbidden."""
    kind = type(it).__name__
    if kind == "ForbiddenOrConjunction":
        return [conjunction for part in it.components for conjunction in _forbidden_conjunctions(part)]
    if kind == "ForbiddenAndConjunction":
        parts = [_forbidden_conjunctions(part) for part in it.components]
        # A conjunction of disjunctions, multiplied out.
        return [[literal for part in combination for literal in part] for combination in itertools.product(*parts)]
    # A clause compares with a value, a relation with another parameter.
    word = kind.removesuffix("Relation").removesuffix("Clause")
    if word not in _SIGNS:
        raise SpaceError(
            f"from_configspace: a {kind} has no word here; allowed: forbidden Equals, In, LessThan, GreaterThan (with "
            "Equals) clauses and relations, and their conjunctions"
        )
    sign = _SIGNS[word][0]
    if kind.endswith("Relation"):
        return [[(_identifier_of(it.left), sign, _identifier_of(it.right))]]
    return [[_read_literal(it, sign)]]


def _read_literal(it: Any, sign: str) -> Literal:
    parameter = it.hyperparameter
    name = _identifier_of(parameter)
    if sign == "in":
        return name, sign, _tuple_text([_read_value(parameter, value) for value in it.values])
    if sign != "==" and hasattr(parameter, "sequence"):  # by place, where a text compares values
        places = {
            place for place in range(parameter.size) if _compare_positions(place, sign, parameter.to_vector(it.value))
        }
        return name, "in", _tuple_text([to_python(parameter.to_value(float(place))) for place in sorted(places)])
    return name, sign, repr(_read_value(parameter, it.value))


def _compare_positions(place: int, sign: str, other: float) -> bool:
    return {"<": place < other, "<=": place <= other, ">": place > other, ">=": place >= other}[sign]


def _tuple_text(values: list[Any]) -> str:
    return f"({', '.join(map(repr, values))},)"


def _identifier_of(it: Any) -> str:
    name: str = it.name
    if not name.isidentifier() or keyword.iskeyword(name):
        raise SpaceError(
            f"from_configspace: a forbidden clause names {name!r}, which no requirement can write; rename it to an "
            "identifier such as 'optimizer_name'"
        )
    return name


def _make_requirement(conjunction: list[Literal]) -> Requirement:
    # A single comparison reads better turned around than under `not`.
    if len(conjunction) == 1:
        [(left, sign, right)] = conjunction
        left_over = next(other for found, other in _SIGNS.values() if found == sign)
        return require(f"{left} {left_over} {right}")
    return require(f"not ({' and '.join(' '.join(literal) for literal in conjunction)})")
