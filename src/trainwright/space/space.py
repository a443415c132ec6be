"""A space: named parameters, conditions and requirements; columns in, configurations out."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, Self

import numpy as np

from trainwright.errors import SpaceError, TrialError
from trainwright.space.axes import Array, Mask
from trainwright.space.canonical import digest
from trainwright.space.columns import Column
from trainwright.space.configuration import Configuration
from trainwright.space.layout import Layout
from trainwright.space.parameters import Constant, Derived, Parameter, parameter_from_json

__all__ = ["Space"]

_ABSENT = object()


class Space:
    """What may vary: `Space(requirement, ..., lr=Float(...), width=Int(...))`."""

    def __init__(self, /, *requirements: Any, **parameters: Parameter) -> None:
        for name, parameter in parameters.items():
            if not isinstance(parameter, Parameter):
                raise SpaceError(
                    f"{name}: {parameter!r} is no parameter; give Float, Int, Choice, Constant or Derived, "
                    f"such as Constant({parameter!r})"
                )
            parameter.refuse(name)
        self._layout = Layout(parameters)
        self._requirements = requirements
        self.parameters: Mapping[str, Parameter] = MappingProxyType(parameters)

    @classmethod
    def of(cls, parameters: Mapping[str, Parameter], /, *requirements: Any) -> Self:
        """Return the space of a mapping, for names that are no identifiers."""
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
        """Return the latent rows of points in the unit cube, through the priors and weights."""
        return self._layout.maps.quantile(p)

    def latent(self, generator: np.random.Generator, count: int) -> Array:
        """Return `count` draws from the priors in which every column has a value; `settle` makes rows of them."""
        return self._layout.maps.quantile(generator.random((count, self.dimension)))

    def settle(self, U: Array) -> Array:
        """Return rows with canonical units, and NaN where conditions make a parameter inactive."""
        return self._layout.settle(U)

    def sample(self, generator: np.random.Generator, count: int) -> Array:
        """Return `count` legal rows drawn from the priors."""
        return self.settle(self.latent(generator, count))

    def legal(self, U: Array) -> Mask:
        """Return which settled rows meet every requirement."""
        return np.ones(len(U), dtype=np.bool_)

    def model_matrix(self, U: Array) -> Array:
        """Return settled rows without NaN: inactive units are -1, inactive choices the number of values."""
        return self._layout.maps.fill(U)

    def row_keys(self, U: Array) -> list[bytes]:
        """Return the identity of each settled row: equal keys for equal rows."""
        rows = np.ascontiguousarray(U, dtype=np.float64) + 0.0  # no -0.0
        rows[np.isnan(rows)] = np.nan  # one bit pattern
        keys: list[bytes] = rows.view(f"V{8 * self.dimension}").ravel().tolist()
        return keys

    def decode(self, U: Array) -> list[dict[str, Any]]:
        """Return the parameters of settled rows: active ones only, constants included."""
        numbers = self._layout.maps.numbers(np.asarray(U, dtype=np.float64))
        lists: list[Any] = []
        partial = False
        for name, parameter in self.parameters.items():
            if name in self._layout.index:
                column = numbers[:, self._layout.index[name]].tolist()
                varying = self._layout.varying[name]
                if name in self._layout.conditions:
                    partial = True
                    found = iter(varying.restore([x for x in column if x == x]))
                    lists.append([next(found) if x == x else _ABSENT for x in column])
                else:
                    lists.append(varying.restore(column))
            elif isinstance(parameter, Constant):
                lists.append([parameter.value] * len(U))
        names = [name for name, p in self.parameters.items() if not isinstance(p, Derived)]
        if partial:
            return [
                {n: v for n, v in zip(names, row, strict=True) if v is not _ABSENT} for row in zip(*lists, strict=True)
            ]
        return [dict(zip(names, row, strict=True)) for row in zip(*lists, strict=True)]

    def encode(self, params: Mapping[str, Any]) -> Array:
        """Return the row of parameters."""
        numbers = np.full((1, self.dimension), np.nan)
        for name, index in self._layout.index.items():
            if name in params:
                varying = self._layout.varying[name]
                numbers[0, index] = varying.number(varying.clean(name, params[name]))
        row: Array = self._layout.maps.units(numbers)[0]
        return row

    def configuration(self, row: Array) -> Configuration:
        """Return the configuration of a settled row."""
        params = self.decode(np.asarray(row)[None, :])[0]
        return Configuration(params=params, key=self._key(params))

    def configuration_of(self, params: Mapping[str, Any]) -> Configuration:
        """Return the configuration of parameters given by a user, or raise TrialError."""
        row = self.encode(params)
        if not self.legal(row[None, :])[0]:
            raise TrialError(f"{dict(params)!r} is not legal")
        params = self.decode(row[None, :])[0] | dict(params)
        return Configuration(params=params, key=self._key(params))

    def to_json(self) -> dict[str, Any]:
        """Return the space as data."""
        return {"parameters": [{"name": name} | p.to_json() for name, p in self.parameters.items()]}

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> Self:
        """Return the space that `to_json` wrote."""
        parameters = {}
        for entry in document["parameters"]:
            rest = {key: value for key, value in entry.items() if key != "name"}
            parameters[entry["name"]] = parameter_from_json(entry["name"], rest)
        return cls.of(parameters)

    @property
    def fingerprint(self) -> str:
        """BLAKE2b-128 of the canonical JSON."""
        return digest(self.to_json())

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Space) and self.fingerprint == other.fingerprint

    def __hash__(self) -> int:
        return hash(self.fingerprint)

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self).from_json, (self.to_json(),)

    def _key(self, params: Mapping[str, Any]) -> str:
        return digest({n: v for n, v in params.items() if not isinstance(self.parameters[n], Derived)})
