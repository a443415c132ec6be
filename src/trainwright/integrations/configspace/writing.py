"""Writes a space as a `ConfigSpace.ConfigurationSpace` (github.com/automl/ConfigSpace, version 1).

ConfigSpace has no expressions and no steps. A stepped number becomes an ordinal; a requirement becomes the combinations
of values that it forbids, if its parameters have few. Everything else is refused, and so is what ConfigSpace would read
differently when a parameter is inactive.
"""

import itertools
import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from trainwright.errors import MissingExtra, SpaceError
from trainwright.randomness import rng
from trainwright.space.choice import Choice
from trainwright.space.conditions import Comparison, Condition
from trainwright.space.configuration import canonical_json
from trainwright.space.numeric import Beta, Float, Int, Normal
from trainwright.space.parameters import Constant, Parameter, Varying, make_table
from trainwright.space.rules import Requirement
from trainwright.space.space import Space

__all__ = ["MOST_LISTED", "to_configspace"]


class ConditionClauses:
    """The conditions of a space, comparison by comparison.

    Every comparison becomes one that is false for an inactive parent, negated or not: ConfigSpace's own "not equal" is
    true for it in some places and false in others.
    """

    def __init__(self, cs: Any, space: Space, found: Any) -> None:
        self.cs, self.space, self.found = cs, space, found

    def convert_all(self) -> list[Any]:
        """Return the condition of every conditional parameter, or raise `SpaceError`."""
        conditions = []
        for name, parameter in self.space.parameters.items():
            if parameter.when is not None:
                condition = self._convert_tree(name, parameter.when, negated=False)
                if condition is False:
                    raise make_refusal(f"{name}: is never active, as {parameter.when} cannot be", "leave it out")
                conditions += [] if condition is True else [condition]
        return conditions

    def _convert_tree(self, child: str, tree: Condition, *, negated: bool) -> Any:
        if isinstance(tree, Comparison):
            return self._convert_comparison(child, tree, negated=negated)
        if tree.operation == "not_":
            return self._convert_tree(child, tree.parts[0], negated=not negated)
        every = (tree.operation == "all_of") is not negated
        return self._join_parts([self._convert_tree(child, part, negated=negated) for part in tree.parts], every=every)

    def _join_parts(self, parts: list[Any], *, every: bool) -> Any:
        if any(part is (not every) for part in parts):
            return not every
        # A part that is always true or always false is resolved here: ConfigSpace has no constants.
        rest = [part for part in parts if part is not every]
        if len(rest) > 1:
            return (self.cs.AndConjunction if every else self.cs.OrConjunction)(*rest)
        return rest[0] if rest else every

    def _convert_comparison(self, child: str, comparison: Comparison, *, negated: bool) -> Any:
        parent = self.space.parameters[comparison.name]
        values = _listed_values(parent)
        if values is not None:
            # Listed parents: the values for which the comparison is true.
            matching = [value for value in values if _comparison_holds(parent, comparison, value) is not negated]
            if not matching or isinstance(parent, Constant):
                return bool(matching)
            return self.cs.InCondition(self.found[child], self.found[comparison.name], matching)
        assert isinstance(parent, Float | Int)  # noqa: S101 -- the others are listed
        return self._compare_number(child, comparison, parent, negated=negated)

    def _compare_number(self, child: str, comparison: Comparison, parent: Float | Int, *, negated: bool) -> Any:
        ends = (self.found[child], self.found[comparison.name])
        # Negations are written as comparisons: its own "not equal" may hold for an inactive parent.
        less, equal, more = (
            lambda v, kind=kind: getattr(self.cs, f"{kind}Condition")(*ends, v)
            for kind in ("LessThan", "Equals", "GreaterThan")
        )
        operation, numbers = comparison.operation, comparison.values
        if operation in ("equals", "one_of") and not negated:
            return self._join_parts([equal(v) for v in dict.fromkeys(numbers)], every=False)
        if operation in ("equals", "one_of"):
            return self._join_parts([self._join_parts([less(v), more(v)], every=False) for v in numbers], every=True)
        [v] = numbers
        # x < 2.5 on whole numbers is x < 3.
        if isinstance(parent, Int):  # whole numbers on either side of any number
            v = math.ceil(v) if operation == "less" else math.floor(v)
        strict = less if (operation == "less") is not negated else more
        return self._join_parts([strict(v), equal(v)], every=False) if negated else strict(v)


def _comparison_holds(parent: Any, comparison: Comparison, value: Any) -> bool:
    """Whether a comparison is true of one value of a listed parent."""
    if comparison.operation in ("equals", "one_of"):
        named = [parent.clean("", v) if isinstance(parent, Varying) else v for v in comparison.values]
        return canonical_json(value) in map(canonical_json, named)
    [bound] = comparison.values
    if isinstance(parent, Choice):
        rank = parent.rank(comparison.name, bound)
        return parent.number(value) < rank if comparison.operation == "less" else parent.number(value) > rank
    return bool(value < bound if comparison.operation == "less" else value > bound)


def make_refusal(what: str, mend: str) -> SpaceError:
    """Return the error for what ConfigSpace cannot express."""
    return SpaceError(f"to_configspace: {what}, which ConfigSpace cannot express; {mend}")


MOST_LISTED = 1000
"""Values of a stepped number, and combinations of values that a requirement forbids, that are listed one by one."""

_CHECKED = 32  # legal draws that ConfigSpace must take
_DECIMALS = 13  # to which ConfigSpace rounds bounds, defaults and values


def to_configspace(space: Space) -> Any:
    """Return a `ConfigSpace.ConfigurationSpace` of the same configurations, or raise `SpaceError` naming what it lacks.

    A parameter without default gets ConfigSpace's own; where these together are forbidden, those of a legal draw.
    """
    with MissingExtra.instead_of_import_error("space.to_configspace()", "ConfigSpace", "configspace"):
        import ConfigSpace
    # Legal draws, to test the result with, and to take defaults from where ConfigSpace's own are forbidden.
    rows = space.sample(rng(0, "configspace", 0), _CHECKED)
    draws = space.decode(rows)
    try:
        try:
            found = _build_space(ConfigSpace, space, {})
        except ConfigSpace.exceptions.ForbiddenValueError:
            found = _build_space(ConfigSpace, space, draws[0])
        # It takes some conditions for equal that are not, such as "a and b" of one parameter and "a or b" of another.
        for params in draws:
            ConfigSpace.Configuration(found, values=params)
    except ValueError as error:
        why = str(error).splitlines()[0]
        raise make_refusal(f"a condition is misread ({why})", "simplify the conditions (when=) of the space") from error
    return found


def _build_space(cs: Any, space: Space, defaults: Mapping[str, Any]) -> Any:
    # Parameters first, then what names them.
    found = cs.ConfigurationSpace()
    for name, parameter in space.parameters.items():
        if isinstance(parameter, Constant):
            found.add(cs.Constant(name, parameter.value))
        elif isinstance(parameter, Varying):
            found.add(_make_hyperparameter(cs, name, parameter, defaults.get(name)))
        else:
            raise make_refusal(f"{name} is derived", "leave it out, and compute it where it is used")
    conditions = ConditionClauses(cs, space, found)
    found.add(*conditions.convert_all())
    for requirement in space.requirements:
        found.add(*_forbid_combinations(cs, space, found, requirement))
    return found


def _forbid_combinations(cs: Any, space: Space, found: Any, requirement: Requirement) -> list[Any]:
    """Return a clause for each combination of values that breaks a requirement, those of its longest list joined.

    A clause of ConfigSpace is false where a parameter is inactive, and so does a requirement bind only where all of
    its parameters are active.
    """
    lists = {name: _list_values(space.parameters[name]) for name in requirement.names}
    if math.prod(map(len, lists.values())) > MOST_LISTED or not all(lists.values()):
        raise make_refusal(
            f"requirement '{requirement}' has parameters of many values",
            f"it can forbid up to {MOST_LISTED} combinations of values: leave it out, or give its parameters steps",
        )
    kinds = {n: p.values_kind for n, p in space.parameters.items() if isinstance(p, Varying | Constant)}
    holds = requirement.bind(kinds)
    # The longest list goes into one clause with `in`, so that combinations are as few as possible.
    *rest, last = sorted(lists, key=lambda name: len(lists[name]))
    clauses = []
    for combination in itertools.product(*(lists[name] for name in rest)):
        fixed = dict(zip(rest, combination, strict=True))
        columns = {**{name: [value] * len(lists[last]) for name, value in fixed.items()}, last: lists[last]}
        with np.errstate(all="ignore"):
            kept = holds({name: make_table(tuple(values)) for name, values in columns.items()}, len(lists[last]))
        bad = [value for value, is_kept in zip(lists[last], kept, strict=True) if not is_kept]
        if bad:
            equal = [cs.ForbiddenEqualsClause(found[name], value) for name, value in fixed.items()]
            clause = cs.ForbiddenInClause(found[last], bad)
            clauses.append(cs.ForbiddenAndConjunction(*equal, clause) if equal else clause)
    return clauses


def _list_values(parameter: Parameter) -> Sequence[Any]:
    """Return all values of a parameter; nothing if there are too many."""
    values = _listed_values(parameter)
    if values is None and isinstance(parameter, Int) and parameter.high - parameter.low < MOST_LISTED:
        values = range(parameter.low, parameter.high + 1)
    return values or ()


def _listed_values(parameter: Parameter) -> Sequence[Any] | None:
    """Return the values of a parameter that leaves as a list of values; None for a plain number."""
    if isinstance(parameter, Constant):
        return (parameter.value,)
    if isinstance(parameter, Float | Int) and parameter.step is None:
        return None
    assert isinstance(parameter, Varying)  # noqa: S101 -- derived values have been refused
    return parameter.restore(parameter.axis.to_numbers(parameter.axis.all_units()))


def _make_hyperparameter(cs: Any, name: str, parameter: Varying, default: Any) -> Any:
    if parameter.has_default:
        default = parameter.default
    if isinstance(parameter, Choice):
        return _make_choice(cs, name, parameter, default)
    assert isinstance(parameter, Float | Int)  # noqa: S101 -- there are no other kinds
    if parameter.step is not None:
        return _make_stepped(cs, name, parameter, default)
    # Plain numbers keep their law; only the names of its numbers differ.
    low, high, log, prior = parameter.low, parameter.high, parameter.log, parameter.prior
    # ConfigSpace rounds; a bound that changes would change the space.
    for number in (low, high, parameter.default):
        if number is not None and round(number, _DECIMALS) != number:
            rounded = round(number, _DECIMALS)
            raise make_refusal(
                f"{name}: {number!r} has more than {_DECIMALS} decimals", f"give {rounded!r} if that will do"
            )
    kind = "Float" if isinstance(parameter, Float) else "Integer"
    common = {"lower": low, "upper": high, "log": log, "default_value": default}
    if isinstance(prior, Normal):
        mean, sd = _scale_normal(name, parameter, prior)
        return getattr(cs, f"Normal{kind}Hyperparameter")(name, mu=mean, sigma=sd, **common)
    if isinstance(prior, Beta):
        if min(prior.a, prior.b) < 1:
            raise make_refusal(f"{name}: Beta({prior.a!r}, {prior.b!r}) has a shape below 1", "give shapes >= 1")
        return getattr(cs, f"Beta{kind}Hyperparameter")(name, alpha=prior.a, beta=prior.b, **common)
    return getattr(cs, f"Uniform{kind}Hyperparameter")(name, **common)


def _make_choice(cs: Any, name: str, parameter: Choice, default: Any) -> Any:
    values = parameter.values
    table = np.array(values) if {type(value) for value in values} <= {int, float, bool} else None
    for index, value in enumerate(values):
        equal = [other for other in values[:index] if other == value]
        if equal:
            raise make_refusal(f"{name}: its values {equal[0]!r} and {value!r} are equal in Python", "give one of them")
        # ConfigSpace holds values in a numpy array, which gives all of them one type.
        if table is not None and type(table[index].item()) is not type(value):
            converted = table[index].item()
            raise make_refusal(f"{name}: it would make {converted!r} of {value!r}", "give all values one type")
    options = {} if default is None and None not in values else {"default_value": default}
    if default is None and not parameter.has_default:
        options = {}
    if not parameter.ordered:
        return cs.CategoricalHyperparameter(name, values, weights=parameter.weights, **options)
    if parameter.weights is not None:
        raise make_refusal(f"{name}: an ordered choice has weights", "leave the weights or the order out")
    return cs.OrdinalHyperparameter(name, values, **options)


def _make_stepped(cs: Any, name: str, parameter: Float | Int, default: Any) -> Any:
    count = parameter.axis.count or 0
    if count > MOST_LISTED:
        raise make_refusal(f"{name}: step={parameter.step!r} makes {count} values", f"allow at most {MOST_LISTED}")
    if parameter.prior is not None:
        raise make_refusal(f"{name}: a stepped number has a prior", "leave the prior or the step out")
    options = {} if default is None else {"default_value": default}
    return cs.OrdinalHyperparameter(name, _listed_values(parameter), **options)


def _scale_normal(name: str, parameter: Float | Int, prior: Normal) -> tuple[float, float]:
    """Return a normal prior's mean and deviation as ConfigSpace writes them: in the parameter's own units."""
    low, high = float(parameter.low), float(parameter.high)
    if not parameter.log:
        return low + prior.mean * (high - low), prior.sd * (high - low)
    width = math.log(high) - math.log(low)
    # ConfigSpace takes |ln(low + sigma)| / width for the deviation on the unit column.
    sigma = math.exp(min(prior.sd * width, 700.0)) - low
    if sigma <= 0 or prior.sd * width > 700.0:
        raise make_refusal(f"{name}: it has no sigma for {prior!r} on a log scale", "give a smaller sd, or log=False")
    return low * math.exp(prior.mean * width), sigma
