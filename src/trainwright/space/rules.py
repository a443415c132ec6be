"""Requirements (constraints) and derived values of a space, bound to its columns and evaluated over many rows at once.

A requirement is a text over parameters, such as "batch * accumulation <= 4096". It applies only to rows in which all
names that it uses are active.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from typing import Any

import numpy as np
from numpy.typing import NDArray

from trainwright.aliases import Array, Mask
from trainwright.errors import SpaceError
from trainwright.space.conditions import Condition, Holds
from trainwright.space.expressions import Environment, Expression, Kind, Term
from trainwright.space.parameters import Constant, Derived, Varying
from trainwright.space.row_schema import RowSchema, names_in, order_by_needs

__all__ = ["BoundRule", "BoundRules", "Requirement", "RowTable", "Verdict", "require", "requirement_from_json"]

Verdict = Callable[[Environment, int], Mask]  # columns, and their length, to the rows that pass


@dataclass(frozen=True)
class Requirement:
    """An expression that must be true."""

    expression: Expression

    def __str__(self) -> str:
        return self.expression.text

    @property
    def names(self) -> tuple[str, ...]:
        """The parameters that the requirement uses."""
        return self.expression.names

    def bind(self, kinds: Mapping[str, Kind]) -> Verdict:
        """Return the evaluation over columns of these kinds."""
        term = self.expression.bind(kinds)
        if term.kind != "bool":
            raise SpaceError(f"{self.expression.owner}: gives a value, not true or false; compare it, as in ... <= 1")
        return lambda env, count: np.broadcast_to(np.asarray(term.evaluate(env), dtype=np.bool_), count)

    def to_json(self) -> dict[str, Any]:
        """Return the requirement as data."""
        return {"text": self.expression.text}


def require(rule: str) -> Requirement:
    """Return a rule that every configuration must meet: a text over parameter names."""
    if not isinstance(rule, str):
        raise SpaceError(f"require: got {rule!r}; allowed: a text over names of parameters, such as require('a <= b')")
    expression = Expression.parse(rule, f"requirement {rule.strip()!r}")
    if not expression.names:
        raise SpaceError(f"requirement {rule!r}: names no parameter; compare at least one, as in 'width <= 64'")
    return Requirement(expression)


def requirement_from_json(document: Any) -> Requirement:
    """Return the requirement that `to_json` wrote."""
    if not isinstance(document, Mapping) or "text" not in document:
        raise SpaceError(f'requirement {document!r} cannot be read; write {{"text": "a <= b"}}')
    return require(document["text"])


@dataclass(frozen=True)
class Support:
    """What stands below some names."""

    columns: tuple[int, ...]  # those that the values are computed from
    gates: tuple[Holds, ...]  # all must hold for all names to be active
    reads: frozenset[int]  # the columns, and those that the gates look at


@dataclass(frozen=True)
class Formula:
    """A derived parameter over columns."""

    term: Term
    support: Support

    def values(self, column: Array) -> list[Any]:
        """Return a derived column as Python values of the formula's kind."""
        # Rows may be illegal just because a formula gives inf or NaN there, and neither has an int.
        if self.term.kind == "int":
            return [int(x) if np.isfinite(x) else x for x in column.tolist()]
        return [bool(x) for x in column.tolist()] if self.term.kind == "bool" else column.tolist()


@dataclass(frozen=True)
class BoundRule:
    """A requirement over columns."""

    text: str
    names: tuple[str, ...]  # as the requirement uses them
    support: Support  # the rule applies where its gates hold
    verdict: Verdict


class BoundRules:
    """The derived values and requirements of a space, bound to its layout."""

    def __init__(self, layout: RowSchema, requirements: Sequence[Requirement]) -> None:
        self.layout = layout
        self.kinds: dict[str, Kind] = {
            name: p.values_kind for name, p in layout.parameters.items() if isinstance(p, Varying | Constant)
        }
        self.formulas: dict[str, Formula] = {}
        self._bind_formulas()
        # In the order of the parameters, for messages.
        self.kinds = {name: self.kinds[name] for name in layout.parameters}
        # Every derived value must be finite: 1 / 0 makes a row illegal, not an error.
        self.rules = [self._finite_rule(name) for name in self.formulas]
        for requirement in requirements:
            verdict = requirement.bind(self.kinds)
            self.rules.append(
                BoundRule(str(requirement), requirement.names, self._support_of(requirement.names), verdict)
            )

    def verdicts(self, rows: "RowTable") -> Mask:
        """Return for each row and rule whether the row passes; a rule that does not apply is passed."""
        passed = np.ones((len(rows), len(self.rules)), dtype=np.bool_)
        for index, rule in enumerate(self.rules):
            self.judge(rule, rows, passed[:, index])
        return passed

    def legal(self, rows: "RowTable") -> Mask:
        """Return for each row whether it passes all rules."""
        passed = np.ones(len(rows), dtype=np.bool_)
        for rule in self.rules:
            self.judge(rule, rows, passed)
        return passed

    def judge(self, rule: BoundRule, rows: "RowTable", passed: Mask) -> None:
        """Clear `passed` where the rule applies and is broken."""
        # The rule is evaluated on the rows to which it applies, and only there.
        active = rows.where(rule.support.gates)
        some = rows if active is None else rows.take(active)
        if len(some) == 0:
            return
        with np.errstate(all="ignore"):  # log(0), 1 / 0: the comparison with inf or nan decides
            verdict = rule.verdict(some, len(some))
        if active is None:
            passed &= verdict
        else:
            passed[active] &= verdict

    def _bind_formulas(self) -> None:
        derived = {name: p for name, p in self.layout.parameters.items() if isinstance(p, Derived)}
        expressions = {name: parameter.expression(name) for name, parameter in derived.items()}
        needs = {name: [used for used in e.names if used in derived] for name, e in expressions.items()}
        known = {name: self.kinds.get(name, "float") for name in self.layout.parameters}
        # Derived values may use each other, so they are bound after those that they use.
        for name in order_by_needs(needs, "derived values"):
            term = expressions[name].bind(known)
            if term.kind not in ("bool", "int", "float"):
                raise SpaceError(f"{name}: {derived[name].text!r} gives no number; derive numbers only")
            self.formulas[name] = Formula(term, self._support_of(expressions[name].names, name, derived[name].when))
            self.kinds[name] = known[name] = term.kind

    def _finite_rule(self, name: str) -> BoundRule:
        return BoundRule(
            f"{name} is finite", (name,), self.formulas[name].support, lambda env, _: np.isfinite(env[name])
        )

    def _support_of(self, names: Sequence[str], owner: str = "", when: Condition | None = None) -> Support:
        columns: dict[int, None] = {}  # a set in order
        gates: list[Holds] = []
        reads: set[int] = set()
        for name in names:
            # A derived name brings the columns and gates of what it is computed from.
            if name in self.formulas:
                below = self.formulas[name].support
                columns |= dict.fromkeys(below.columns)
                gates += below.gates
                reads |= below.reads
            elif name in self.layout.index:
                index = self.layout.index[name]
                columns[index] = None
                if name in self.layout.conditions:
                    gates.append(_is_present(index))
        # A condition of its own is one gate more, and reads its parents' columns.
        if when is not None:
            gates.append(self.layout.bind(owner, when))
            reads |= {self.layout.index[name] for name in names_in(when) if name in self.layout.index}
        return Support(tuple(columns), tuple(gates), frozenset(reads | columns.keys()))


class RowTable:
    """Settled rows by parameter name: columns of natural dtype, decoded where asked for.

    `numbers` are given where the exact values are known, as for parameters that a user wrote. Entries of inactive
    parameters mean nothing; `take` the rows in which a `where` holds.
    """

    def __init__(self, rules: BoundRules, U: Array, numbers: Array | None = None) -> None:
        self._rules = rules
        self._U = U
        self._numbers = numbers
        self._columns: dict[str, NDArray[Any]] = {}

    def __len__(self) -> int:
        return len(self._U)

    def __getitem__(self, name: str) -> NDArray[Any]:
        if name not in self._columns:
            self._columns[name] = self._decode_column(name)
        return self._columns[name]

    def where(self, gates: Sequence[Holds]) -> Mask | None:
        """Return the rows in which all gates hold; None = all rows."""
        if not gates:
            return None
        mask: Mask = reduce(np.logical_and, [gate(self._U) for gate in gates])
        # Without a mask the table itself serves, and nothing is copied.
        return None if mask.all() else mask

    def take(self, mask: Mask) -> "RowTable":
        """Return some of the rows."""
        return RowTable(self._rules, self._U[mask], None if self._numbers is None else self._numbers[mask])

    def _decode_column(self, name: str) -> NDArray[Any]:
        layout = self._rules.layout
        if name in self._rules.formulas:
            with np.errstate(all="ignore"):
                # Formulas see this table itself, so that derived values may use each other.
                value = np.asarray(self._rules.formulas[name].term.evaluate(self), dtype=np.float64)
            return np.broadcast_to(value, len(self._U))
        parameter = layout.parameters[name]
        if isinstance(parameter, Constant):
            return parameter.column(len(self._U))
        index, varying = layout.index[name], layout.varying[name]
        # Exact numbers as the user wrote them, where rows come from parameters.
        if self._numbers is not None:
            return varying.natural(self._numbers[:, index])
        return varying.natural(varying.axis.to_numbers(self._U[:, index]))


def _is_present(index: int) -> Callable[[Array], Mask]:
    return lambda U: ~np.isnan(U[:, index])
