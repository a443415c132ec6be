"""A space of named parameters, conditions and requirements: draws rows, judges them, and decodes configurations.

The searcher sees float64 matrices only: `sample` and `latent` draw them, `settle` and `legal` judge them,
`model_matrix` and `row_keys` give the model's and the duplicates' view, `decode` makes parameters of them.
"""

import math
from collections.abc import Mapping, Sequence
from functools import cached_property
from importlib import import_module
from types import MappingProxyType
from typing import Any, Self

import numpy as np

from trainwright.aliases import Array, Mask
from trainwright.errors import SpaceError, TrialError
from trainwright.space.checking import describe_violation, validate_params
from trainwright.space.columns import Column
from trainwright.space.configuration import Configuration, hash_json
from trainwright.space.documents import space_from_json, space_to_json
from trainwright.space.parameters import Constant, Derived, Parameter
from trainwright.space.row_schema import RowSchema
from trainwright.space.rules import BoundRules, Requirement, RowTable
from trainwright.space.sampling import MOST_LEGAL, enumerate_legal, sample_legal

__all__ = ["Space"]

_ABSENT = object()


class Space:
    """What may vary: `Space(require("batch * accumulation <= 4096"), lr=Float(1e-5, 1e-1, log=True), ...)`.

    Immutable; two spaces are equal when their fingerprints are.
    """

    def __init__(self, /, *requirements: Requirement, **parameters: Parameter) -> None:
        for name, parameter in parameters.items():
            _check_parameter(name, parameter)
        for requirement in requirements:
            if not isinstance(requirement, Requirement):
                raise SpaceError(f"{requirement!r} is no requirement; write require('a <= b'), and parameters by name")
        self.parameters: Mapping[str, Parameter] = MappingProxyType(parameters)
        self.requirements = requirements
        self._layout = RowSchema(parameters)
        if not self._layout.columns:
            raise SpaceError("the space holds nothing that varies; give at least one Float, Int or Choice")
        self._rules = BoundRules(self._layout, requirements)
        self._partial = bool(self._layout.conditions) or any(f.support.gates for f in self._rules.formulas.values())
        self._check_default()

    @classmethod
    def of(cls, parameters: Mapping[str, Parameter], /, *requirements: Requirement) -> Self:
        """Return the space of a mapping, for names that are no identifiers."""
        for name in parameters:
            if not isinstance(name, str) or not name:
                raise SpaceError(f"parameter name {name!r} is not allowed; use a text of at least one character")
        return cls(*requirements, **parameters)

    @property
    def columns(self) -> tuple[Column, ...]:
        """One column for each Float, Int and Choice, in the order of the parameters."""
        return self._layout.columns

    @property
    def dimension(self) -> int:
        """Number of columns."""
        return len(self._layout.columns)

    def quantile(self, p: Array) -> Array:
        """Return the latent rows of points of the unit cube, column by column through the priors and weights."""
        return self._layout.maps.quantile(p)

    def latent(self, generator: np.random.Generator, count: int) -> Array:
        """Return `count` draws from the priors in which every column has a value; `settle` makes rows of them."""
        return self._layout.maps.quantile(generator.random((count, self.dimension)))

    @property
    def has_priors(self) -> bool:
        """Whether a prior or weights bend the draws."""
        return bool(self._layout.maps.densities)

    def log_density(self, U: Array) -> Array:
        """Return the logarithm of the priors and weights of rows, up to a constant; what is inactive has none."""
        density = np.zeros(len(U))
        for index, log_density in self._layout.maps.densities:
            active = ~np.isnan(U[:, index])
            density[active] += log_density(U[active, index])
        return density

    def sample(self, generator: np.random.Generator, count: int) -> Array:
        """Return `count` legal rows drawn from the priors, or raise SpaceInfeasible."""
        if count < 0:
            raise SpaceError(f"sample: count must be >= 0, got {count}")
        if self._rules.rules:
            return sample_legal(self._rules, generator, count)
        return self.settle(self.latent(generator, count))

    def settle(self, U: Array) -> Array:
        """Return rows with canonical units, and NaN where conditions make a parameter inactive."""
        return self._layout.settle(U)

    def legal(self, U: Array) -> Mask:
        """Return which settled rows meet every requirement."""
        if not self._rules.rules:
            return np.ones(len(U), dtype=np.bool_)
        return self._rules.legal(RowTable(self._rules, U))

    def model_matrix(self, U: Array) -> Array:
        """Return settled rows without NaN: inactive units are -1, inactive choices the number of their values."""
        return self._layout.maps.fill(U)

    def row_keys(self, U: Array) -> list[bytes]:
        """Return the identity of each settled row: equal keys for equal rows."""
        rows = np.ascontiguousarray(U, dtype=np.float64) + 0.0  # no -0.0
        rows[np.isnan(rows)] = np.nan  # one bit pattern
        # The bytes of the whole row, as one opaque value.
        keys: list[bytes] = rows.view(f"V{8 * self.dimension}").ravel().tolist()
        return keys

    def decode(self, U: Array) -> list[dict[str, Any]]:
        """Return the parameters of settled rows: the active ones, constants and derived values."""
        # Decoded column by column: numpy maps a thousand rows as fast as one.
        U = np.asarray(U, dtype=np.float64)
        numbers = self._layout.maps.to_numbers(U)
        rows = RowTable(self._rules, U, numbers)
        columns = [self._parameter_values(name, rows, numbers) for name in self.parameters]
        names = list(self.parameters)
        if self._partial:
            pairs = (zip(names, row, strict=True) for row in zip(*columns, strict=True))
            return [{name: value for name, value in row if value is not _ABSENT} for row in pairs]
        return [dict(zip(names, row, strict=False)) for row in zip(*columns, strict=True)]

    def encode(self, params: Mapping[str, Any]) -> Array:
        """Return the row of parameters, NaN where inactive; raises TrialError where they are no row of this space."""
        # Read as a user's: a searcher may be told configurations that no space of ours made.
        reading = validate_params(self._rules, params)
        # A broken requirement still has a row; a wrong, missing or unknown value has none.
        if reading.mistakes:
            raise TrialError("; ".join(reading.mistakes))
        return reading.row

    def encode_all(self, many: Sequence[Mapping[str, Any]]) -> Array:
        """Return the rows [many, dimension] of parameters that are known to be rows of this space, much faster."""
        numbers = np.full((len(many), self.dimension), np.nan)
        for name, index in self._layout.index.items():
            varying = self._layout.varying[name]
            # Rows in which the parameter is inactive keep NaN.
            places = [i for i, params in enumerate(many) if name in params]
            numbers[places, index] = [varying.number(varying.clean(name, many[i][name])) for i in places]
        return self._layout.maps.to_units(numbers)

    def check(self, params: Mapping[str, Any]) -> list[str]:
        """Return every way in which parameters are not a configuration of this space, a sentence each."""
        reading = validate_params(self._rules, params)
        return reading.mistakes + reading.breaches

    def configuration(self, row: Array) -> Configuration:
        """Return the configuration of a settled row."""
        [found] = self.configurations(np.asarray(row, dtype=np.float64)[None, :])
        return found

    def configurations(self, U: Array) -> list[Configuration]:
        """Return the configurations of settled rows."""
        return [Configuration(params=params, key=self._key_of(params)) for params in self.decode(U)]

    def configuration_of(self, params: Mapping[str, Any]) -> Configuration:
        """Return the configuration of parameters that a user gives, or raise TrialError that says what is wrong."""
        reading = validate_params(self._rules, params)
        if reading.mistakes or reading.breaches:
            raise TrialError("; ".join(reading.mistakes + reading.breaches))
        return Configuration(params=reading.params, key=self._key_of(reading.params))

    def default(self) -> Configuration | None:
        """Return the configuration of all defaults, or None if an active parameter has none."""
        defaults, row = self._read_defaults()
        for name, index in self._layout.index.items():
            # An inactive parameter needs no default.
            active = name not in self._layout.conditions or self._layout.conditions[name](row)[0]
            if active and np.isnan(row[0, index]):
                return None
        active_defaults = {name: defaults[name] for name, i in self._layout.index.items() if not np.isnan(row[0, i])}
        return self.configuration_of(active_defaults)

    @cached_property
    def size(self) -> int | None:
        """Number of legal configurations; None if a parameter is continuous.

        Above a million, the number before conditions and requirements.
        """
        # One continuous column makes the space endless.
        points = [column.points for column in self.columns]
        if any(count is None for count in points):
            return None
        product = math.prod(count or 0 for count in points)
        # Without rules and conditions every combination is legal; otherwise they are counted by enumeration.
        if not self._rules.rules and not self._layout.conditions:
            return product
        return product if self._legal_points is None else len(self._legal_points)

    def enumerate(self) -> Array:
        """Return all legal rows of a finite space of at most a million, always in the same order."""
        if self.size is None or self.size > MOST_LEGAL or self._legal_points is None:
            size = "infinitely many" if self.size is None else f"up to {self.size}"
            raise SpaceError(f"enumerate: the space has {size} configurations; at most {MOST_LEGAL} can be listed")
        return self._legal_points.copy()

    @cached_property
    def _legal_points(self) -> Array | None:
        return enumerate_legal(self._rules)

    def to_json(self) -> dict[str, Any]:
        """Return the space as data, conditions and requirements too."""
        return space_to_json(self.parameters, self.requirements)

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> Self:
        """Return the space that `to_json` wrote."""
        parameters, requirements = space_from_json(document)
        return cls.of(parameters, *requirements)

    def to_configspace(self) -> Any:
        """Return a `ConfigSpace.ConfigurationSpace` of the same configurations, or raise SpaceError if there is none.

        Stepped numbers become ordinals, requirements forbidden clauses. Needs the extra `configspace`.
        """
        # By name, as a plug-in is: adapters lie above the packages that they adapt.
        return import_module("trainwright.integrations.configspace.writing").to_configspace(self)

    @classmethod
    def from_configspace(cls, space: Any) -> Self:
        """Return the space of a `ConfigSpace.ConfigurationSpace`; every parameter has the default that it has there."""
        adapter = import_module("trainwright.integrations.configspace.reading")
        parameters, requirements = adapter.read_configspace(space)
        return cls.of(parameters, *requirements)

    @cached_property
    def fingerprint(self) -> str:
        """BLAKE2b-128 of the canonical JSON: equal for equal spaces, in every process."""
        return hash_json(self.to_json())

    def differences(self, other: "Space") -> list[str]:
        """Return what `other` has otherwise: "width = Int(16, 256), now Int(16, 512)"."""
        # From their documents, in which 1 and 1.0 are written alike.
        old, new = (type(self).from_json(space.to_json()) for space in (self, other))
        found = []
        for name in {**old.parameters, **new.parameters}:
            was, now = (repr(s.parameters[name]) if name in s.parameters else "absent" for s in (old, new))
            found += [f"{name} = {was}, now {now}"] if was != now else []
        # Order matters: columns follow it, and so do rows of a ledger.
        if not found and list(old.parameters) != list(new.parameters):
            found.append(f"the order {', '.join(old.parameters)}, now {', '.join(new.parameters)}")
        rules, others = (list(map(str, space.requirements)) for space in (old, new))
        if rules != others:
            found.append(f"requirements {rules}, now {others}")
        return found

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Space) and self.fingerprint == other.fingerprint

    def __hash__(self) -> int:
        return hash(self.fingerprint)

    def __repr__(self) -> str:
        parts = [f"require({str(requirement)!r})" for requirement in self.requirements]
        return f"Space({', '.join([*parts, *(f'{name}={p!r}' for name, p in self.parameters.items())])})"

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self).from_json, (self.to_json(),)  # the bound rules are closures, which no process can send

    def _parameter_values(self, name: str, rows: RowTable, numbers: Array) -> list[Any]:
        """Return one parameter's values in all rows, with a mark where it is inactive."""
        parameter = self.parameters[name]
        if isinstance(parameter, Constant):
            return [parameter.value] * len(rows)
        if isinstance(parameter, Derived):
            formula = self._rules.formulas[name]
            active = rows.where(formula.support.gates)
            some = rows if active is None else rows.take(active)
            return _spread_values(formula.values(some[name]), active)
        column = numbers[:, self._layout.index[name]]
        varying = self._layout.varying[name]
        if name not in self._layout.conditions:
            return varying.restore(column)
        active = ~np.isnan(column)
        return _spread_values(varying.restore(column[active]), active)

    def _key_of(self, params: Mapping[str, Any]) -> str:
        return hash_json({name: v for name, v in params.items() if not isinstance(self.parameters[name], Derived)})

    def _read_defaults(self) -> tuple[dict[str, Any], Array]:
        """Return the defaults, and their row: NaN where there is none or where it is inactive."""
        varying = self._layout.varying.items()
        defaults = {name: p.clean(name, p.default) for name, p in varying if p.has_default}
        numbers = [p.number(defaults[name]) if name in defaults else np.nan for name, p in varying]
        row = self._layout.maps.to_units(np.array([numbers]))
        for name, holds in self._layout.conditions.items():
            if not holds(row)[0]:
                row[0, self._layout.index[name]] = np.nan
        return defaults, row

    def _check_default(self) -> None:
        defaults, row = self._read_defaults()
        rows = RowTable(self._rules, row)
        for rule in self._rules.rules:
            # A rule is judged if all columns below it have defaults.
            passed = np.ones(1, dtype=np.bool_)
            if not np.isnan(row[0, list(rule.support.columns)]).any():
                self._rules.judge(rule, rows, passed)
            if not passed[0]:
                raise SpaceError(f"default {describe_violation(rule, defaults)}")


def _spread_values(values: list[Any], active: Mask | None) -> list[Any]:
    if active is None or len(values) == len(active):
        return values
    found = iter(values)
    return [next(found) if here else _ABSENT for here in active.tolist()]


def _check_parameter(name: str, parameter: Any) -> None:
    if not isinstance(parameter, Parameter):
        raise SpaceError(
            f"{name}: {parameter!r} is no parameter; give Float, Int, Choice, Constant or Derived, "
            f"such as Constant({parameter!r})"
        )
    parameter.check_arguments(name)
