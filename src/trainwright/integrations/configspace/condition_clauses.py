"""Converts the conditions of a space into ConfigSpace's conditions."""

import math
from typing import Any

from trainwright.errors import SpaceError
from trainwright.integrations.configspace.forbidden_clauses import values_of
from trainwright.space.canonical import canonical_json
from trainwright.space.choice import Choice
from trainwright.space.conditions import Comparison, Condition
from trainwright.space.numeric import Float, Int
from trainwright.space.parameters import Constant, Varying
from trainwright.space.space import Space

__all__ = ["ConditionClauses", "make_refusal"]


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
        values = values_of(parent)
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
