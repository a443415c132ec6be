"""What a requirement forbids, as ConfigSpace's forbidden clauses.

The text is turned into a disjunction of conjunctions of comparisons that are true where it is broken. A clause of
ConfigSpace is false for an inactive parameter; a requirement binds only where all its parameters are active, so each
conjunction also says that those which it does not compare are active.
"""

import ast
import itertools
import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from trainwright.errors import SpaceError
from trainwright.space.expressions import Expression
from trainwright.space.numeric import Float, Int
from trainwright.space.parameters import Constant, Parameter, Varying, make_table

__all__ = ["Forbidden", "values_of"]

Conjunction = tuple[tuple[str, Any], ...]  # names and the clause that compares them
_FLIPPED: dict[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Lt: ast.Gt, ast.Gt: ast.Lt, ast.LtE: ast.GtE, ast.GtE: ast.LtE, ast.Eq: ast.Eq, ast.NotEq: ast.NotEq
}  # fmt: skip
_NEGATED: dict[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Lt: ast.GtE, ast.GtE: ast.Lt, ast.Gt: ast.LtE, ast.LtE: ast.Gt, ast.Eq: ast.NotEq, ast.NotEq: ast.Eq
}  # fmt: skip
_WORDS = {
    ast.Lt: "LessThan", ast.LtE: "LessThanEquals", ast.Gt: "GreaterThan", ast.GtE: "GreaterThanEquals", ast.Eq: "Equals"
}  # fmt: skip
_EITHER: dict[type[ast.cmpop], tuple[type[ast.cmpop], type[ast.cmpop]]] = {
    ast.NotEq: (ast.Lt, ast.Gt), ast.LtE: (ast.Lt, ast.Eq), ast.GtE: (ast.Gt, ast.Eq)
}  # fmt: skip


class _Inexpressible(Exception):
    """A comparison that no clause says."""


def values_of(parameter: Parameter) -> Sequence[Any] | None:
    """Return the values of a parameter that leaves as a list of values; None for a plain number."""
    if isinstance(parameter, Constant):
        return (parameter.value,)
    if isinstance(parameter, Float | Int) and parameter.step is None:
        return None
    assert isinstance(parameter, Varying)  # noqa: S101 -- derived values have been refused
    return parameter.restore(parameter.axis.to_numbers(parameter.axis.all_units()))


class Forbidden:
    """The clauses of one requirement over the parameters of a space; `most` combinations are listed one by one."""

    def __init__(
        self, cs: Any, parameters: Mapping[str, Parameter], found: Any, expression: Expression, most: int
    ) -> None:
        self.cs, self.parameters, self.found, self.most = cs, parameters, found, most
        self.expression = expression
        self.kinds = {n: p.values_kind for n, p in parameters.items() if isinstance(p, Varying | Constant)}

    def clauses(self) -> list[Any]:
        """Return what to add to the ConfigSpace, or raise `SpaceError`."""
        # First as comparisons; where no clause says one of them, as a list of value combinations.
        tree = ast.parse(self.expression.text, mode="eval").body
        try:
            broken = self._normal_form(tree, truth=False)
        except _Inexpressible:
            broken = self._list_combinations(tree)
        return [
            self._join_clauses([clause for _, clause in self._require_active(conjunction)]) for conjunction in broken
        ]

    def _require_active(self, conjunction: Conjunction) -> Conjunction:
        """Add that the conditional parameters which a conjunction does not compare are active."""
        compared = {name for name, _ in conjunction}
        # ConfigSpace's clauses are false for inactive parameters only where they compare them.
        missing = [n for n in self.expression.names if n not in compared and self.parameters[n].when is not None]
        whole = conjunction + tuple((name, self._is_active(name)) for name in missing)
        if not whole:  # no configuration is legal
            raise SpaceError(f"to_configspace: requirement {self.expression.text!r} is never met; leave it out")
        return whole

    def _normal_form(self, node: ast.expr, *, truth: bool) -> list[Conjunction]:
        """Return the conjunctions, any of which holds exactly where `node` is `truth`."""
        match node:
            case ast.BoolOp():
                parts = [self._normal_form(value, truth=truth) for value in node.values]
                # De Morgan: where `a and b` is false, one of them is false.
                if isinstance(node.op, ast.And) is not truth:
                    return [conjunction for part in parts for conjunction in part]
                return [sum(combination, ()) for combination in self._bounded_product(parts)]
            case ast.UnaryOp(op=ast.Not()):
                return self._normal_form(node.operand, truth=not truth)
            case ast.Compare() if len(node.ops) > 1:
                ends = [node.left, *node.comparators]
                pairs: list[ast.expr] = [
                    ast.Compare(left, [op], [right]) for left, op, right in zip(ends, node.ops, ends[1:], strict=False)
                ]
                return self._normal_form(ast.BoolOp(ast.And(), pairs), truth=truth)
        return self._convert_comparison(node, truth=truth)

    def _bounded_product(self, parts: list[list[Conjunction]]) -> Any:
        # A normal form can grow exponentially; beyond the limit values are listed instead.
        if math.prod(map(len, parts)) > self.most:
            raise _Inexpressible
        return itertools.product(*parts)

    def _convert_comparison(self, node: ast.expr, *, truth: bool) -> list[Conjunction]:
        # A part of the text is parsed again, since it is compiled on its own columns.
        names = Expression.parse(ast.unparse(node), self.expression.owner).names
        # A parameter with few values: those that make the comparison true are listed.
        if len(names) == 1 and (values := values_of(self.parameters[names[0]])) is not None:
            holds = self._evaluate_node(node, {names[0]: values})
            matching = [value for value, is_true in zip(values, holds, strict=True) if bool(is_true) is truth]
            return [((names[0], self._one_of_values(names[0], matching)),)] if matching else []
        if not isinstance(node, ast.Compare):
            raise _Inexpressible
        op = type(node.ops[0])
        if op not in _NEGATED:
            return self._convert_membership(node, truth=truth)
        op = op if truth else _NEGATED[op]
        left, right = node.left, node.comparators[0]
        if isinstance(left, ast.Name) and isinstance(right, ast.Name):
            return self._compare_parameters(left.id, op, right.id)
        if isinstance(right, ast.Name):
            left, op, right = right, _FLIPPED[op], left
        if not isinstance(left, ast.Name) or len(names) > 1:
            raise _Inexpressible
        return self._compare_number(left.id, op, float(self._evaluate_node(right, {})))

    def _convert_membership(self, node: ast.Compare, *, truth: bool) -> list[Conjunction]:
        op = ast.Eq() if isinstance(node.ops[0], ast.In) else ast.NotEq()
        [listed] = node.comparators
        assert isinstance(listed, ast.Tuple | ast.List | ast.Set)  # noqa: S101 -- the space has checked it
        if isinstance(node.left, ast.Name) and isinstance(op, ast.Eq) is truth:
            return self._one_of_numbers(
                node.left.id, [float(self._evaluate_node(element, {})) for element in listed.elts]
            )
        parts: list[ast.expr] = [ast.Compare(node.left, [op], [element]) for element in listed.elts]
        join = ast.Or() if isinstance(op, ast.Eq) else ast.And()
        return self._normal_form(ast.BoolOp(join, parts) if len(parts) > 1 else parts[0], truth=truth)

    def _one_of_numbers(self, name: str, values: Sequence[float]) -> list[Conjunction]:
        """Return that a plain number has one of some values."""
        parameter = self.parameters[name]
        assert isinstance(parameter, Float | Int)  # noqa: S101 -- the others are listed
        # ConfigSpace refuses clauses with values outside of the bounds, which can never hold.
        legal: list[float] = [v for v in values if parameter.low <= v <= parameter.high]
        if isinstance(parameter, Int):
            legal = [int(v) for v in legal if v.is_integer()]
        return [((name, self._one_of_values(name, legal)),)] if legal else []

    def _compare_parameters(self, left: str, op: type[ast.cmpop], right: str) -> list[Conjunction]:
        if op is ast.NotEq:
            return self._compare_parameters(left, ast.Lt, right) + self._compare_parameters(left, ast.Gt, right)
        # Relations between texts know equality alone.
        text = {self.kinds[left], self.kinds[right]} - {"bool", "int", "float"}
        if text and op is not ast.Eq:
            raise _Inexpressible
        clause = getattr(self.cs, f"Forbidden{_WORDS[op]}Relation")(self.found[left], self.found[right])
        return [((left, clause), (right, clause))]

    def _compare_number(self, name: str, op: type[ast.cmpop], value: float) -> list[Conjunction]:
        """Return a comparison of a plain number with a value, which need not be one of its own."""
        parameter = self.parameters[name]
        assert isinstance(parameter, Float | Int)  # noqa: S101 -- the others are listed
        # Whole numbers have a strict form of every comparison.
        if isinstance(parameter, Int) and op in (ast.LtE, ast.GtE) and math.isfinite(value):
            op, value = (ast.Lt, math.floor(value) + 1) if op is ast.LtE else (ast.Gt, math.ceil(value) - 1)
        if op in _EITHER:  # the clauses with "or equal" of ConfigSpace 1.2.2 forbid the wrong side when it draws
            return [found for one in _EITHER[op] for found in self._compare_number(name, one, value)]
        if not parameter.low <= value <= parameter.high:  # all or nothing, as ConfigSpace wants legal values
            every = (op is ast.Lt and value > parameter.high) or (op is ast.Gt and value < parameter.low)
            return [((name, self._is_active(name)),)] if every else []
        if isinstance(parameter, Int):
            if op is ast.Eq and not value.is_integer():
                return []
            value = math.ceil(value) if op is ast.Lt else math.floor(value)
        return [((name, getattr(self.cs, f"Forbidden{_WORDS[op]}Clause")(self.found[name], value)),)]

    def _list_combinations(self, tree: ast.expr) -> list[Conjunction]:
        """Return the combinations of values that break the requirement, those of the longest list joined."""
        names = self.expression.names
        lists = {name: self._all_values(name) for name in names}
        if math.prod(map(len, lists.values())) > self.most or not all(lists.values()):
            raise SpaceError(
                f"to_configspace: requirement {self.expression.text!r}, which ConfigSpace cannot express; it can "
                f"compare a parameter with a value or another one, or forbid up to {self.most} combinations of values"
            )
        # The longest list goes into one clause with `in`, so that combinations are as few as possible.
        last = max(names, key=lambda name: len(lists[name]))
        rest = [name for name in names if name != last]
        found: list[Conjunction] = []
        for combination in itertools.product(*(lists[name] for name in rest)):
            fixed = {name: [value] * len(lists[last]) for name, value in zip(rest, combination, strict=True)}
            holds = self._evaluate_node(tree, {**fixed, last: lists[last]})
            bad = [value for value, is_true in zip(lists[last], holds, strict=True) if not is_true]
            if bad:
                equal = [(n, self._one_of_values(n, [value])) for n, value in zip(rest, combination, strict=True)]
                found.append((*equal, (last, self._one_of_values(last, bad))))
        return found

    def _all_values(self, name: str) -> Sequence[Any]:
        """Return all values of a discrete parameter; nothing if there are too many."""
        parameter = self.parameters[name]
        values = values_of(parameter)
        if values is None and isinstance(parameter, Int) and parameter.high - parameter.low < self.most:
            values = range(parameter.low, parameter.high + 1)
        return values or ()

    def _evaluate_node(self, node: ast.expr, columns: Mapping[str, Sequence[Any]]) -> Any:
        term = Expression.parse(ast.unparse(node), self.expression.owner).bind(self.kinds)
        table = {name: make_table(tuple(values)) for name, values in columns.items()}
        with np.errstate(all="ignore"):
            value = term.evaluate(table)
        return np.broadcast_to(value, len(next(iter(columns.values())))) if columns else value

    def _is_active(self, name: str) -> Any:
        return self.cs.ForbiddenEqualsRelation(self.found[name], self.found[name])

    def _one_of_values(self, name: str, values: Sequence[Any]) -> Any:
        if len(values) == 1:
            return self.cs.ForbiddenEqualsClause(self.found[name], values[0])
        return self.cs.ForbiddenInClause(self.found[name], list(values))

    def _join_clauses(self, clauses: list[Any]) -> Any:
        clauses = list({id(clause): clause for clause in clauses}.values())  # a relation stands for both its names
        return clauses[0] if len(clauses) == 1 else self.cs.ForbiddenAndConjunction(*clauses)
