"""Validates parameters that a user wrote: every violation names the rule and the values."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from trainwright.aliases import Array
from trainwright.errors import TrialError, closest
from trainwright.space.conditions import Condition
from trainwright.space.configuration import canonical_json, to_python
from trainwright.space.parameters import Constant
from trainwright.space.row_schema import names_in
from trainwright.space.rules import BoundRule, BoundRules, RowTable

__all__ = ["Reading", "describe_violation", "validate_params"]


@dataclass(frozen=True, slots=True)
class Reading:
    """Parameters as the space understands them."""

    row: Array  # NaN where inactive, absent or refused
    params: dict[str, Any]  # the clean values of active parameters, with constants and derived values
    mistakes: list[str]  # wrong, missing and unknown values
    breaches: list[str]  # broken requirements


def validate_params(rules: BoundRules, params: Mapping[str, Any]) -> Reading:
    """Return what parameters mean in the space; constants and derived values may be left out."""
    return _ParamsReader(rules, params).reading()


def describe_violation(rule: BoundRule, values: Mapping[str, Any]) -> str:
    """Return the sentence of a broken rule."""
    named = ", ".join(f"{name}={values[name]!r}" for name in rule.names if name in values)
    return f"{named} breaks {rule.text!r}"


class _ParamsReader:
    """Reads one configuration, value by value."""

    def __init__(self, rules: BoundRules, params: Mapping[str, Any]) -> None:
        self.rules = rules
        self.layout = rules.layout
        self.params = params
        self.clean: dict[str, Any] = {}
        self.doubtful: set[str] = set()  # activity of what depends on these is not known
        self.mistakes: list[str] = []
        self.breaches: list[str] = []
        self.numbers = np.full((1, len(self.layout.columns)), np.nan)

    def reading(self) -> Reading:
        # Value by value first: conditions and rules need all of them.
        for name, value in self.params.items():
            self._read_value(name, value)
        row = self.layout.maps.to_units(self.numbers)
        # Parents come first: whether a child is active follows from their values.
        for name in self.layout.order:
            self._check_activity(name, row)
        rows = RowTable(self.rules, row, self.numbers)
        # Rules are judged only on values that are legal one by one.
        if not self.mistakes:
            self._add_derived(rows)
            self._check_constraints(rows)
        params = {name: self.clean[name] for name in self.layout.parameters if name in self.clean}
        return Reading(row[0], params, self.mistakes, self.breaches)

    def _read_value(self, name: str, value: Any) -> None:
        parameter = self.layout.parameters.get(name)
        if parameter is None:
            near = closest(str(name), self.layout.parameters)
            self.mistakes.append(
                f"{name!r} is no parameter of the space; known: {', '.join(self.layout.parameters)}{near}"
            )
        elif name in self.layout.varying:
            varying = self.layout.varying[name]
            try:
                self.clean[name] = varying.clean(name, value)
                self.numbers[0, self.layout.index[name]] = varying.number(self.clean[name])
            except TrialError as error:
                self.doubtful.add(name)
                self.mistakes.append(str(error))
        elif isinstance(parameter, Constant) and not _is_same_value(value, parameter.value):
            self.mistakes.append(f"{name}={value!r} differs from the constant {parameter.value!r}")

    def _check_activity(self, name: str, row: Array) -> None:
        """Refuse values of inactive parameters and missing values of active ones."""
        index, when = self.layout.index[name], self.layout.varying[name].when
        # A refused parent leaves its children undecided: one mistake, one message.
        if self.doubtful.intersection(names_in(when)):
            self.doubtful.add(name)
            return
        active = name not in self.layout.conditions or bool(self.layout.conditions[name](row)[0])
        if active and name not in self.params:
            self.doubtful.add(name)
            why = "" if when is None else f", and it is active {self._describe_cause(when)}"
            self.mistakes.append(f"{name!r} is missing{why}")
        elif not active and name in self.params:
            # The value is taken out, so that rules see the row as the space would have it.
            row[0, index] = self.numbers[0, index] = np.nan
            self.clean.pop(name, None)
            self.mistakes.append(f"{name!r} is inactive {self._describe_cause(when)}")

    def _describe_cause(self, when: Condition | None) -> str:
        values = self.clean | {n: p.value for n, p in self.layout.parameters.items() if isinstance(p, Constant)}
        known = [f"{name}={values[name]!r}" for name in dict.fromkeys(names_in(when)) if name in values]
        return f"when {' and '.join(known)}" if known else f"unless {when}"

    def _add_derived(self, rows: RowTable) -> None:
        for name, parameter in self.layout.parameters.items():
            if isinstance(parameter, Constant):
                self.clean[name] = parameter.value
        for name, formula in self.rules.formulas.items():
            mask = rows.where(formula.support.gates)
            if mask is None or mask.all():
                [self.clean[name]] = formula.values(rows[name])
                if name in self.params and to_python(self.params[name]) != self.clean[name]:
                    self.mistakes.append(
                        f"{name}={self.params[name]!r} differs from its derived value {self.clean[name]!r}"
                    )
            elif name in self.params:
                self.mistakes.append(f"{name!r} is derived, and inactive here")

    def _check_constraints(self, rows: RowTable) -> None:
        passed = self.rules.verdicts(rows)[0]
        for rule, good in zip(self.rules.rules, passed, strict=True):
            if not good:
                self.breaches.append(describe_violation(rule, self.clean))


def _is_same_value(value: Any, constant: Any) -> bool:
    try:
        return canonical_json(to_python(value)) == canonical_json(constant)
    except (TypeError, ValueError):
        return False
