"""Parameters that are one of some values: Choice."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from trainwright.aliases import Array
from trainwright.errors import SpaceError, TrialError
from trainwright.space.axes import Axis, Code, Grid
from trainwright.space.conditions import Condition
from trainwright.space.configuration import canonical_json, to_python
from trainwright.space.expressions import Kind
from trainwright.space.parameters import Varying, check_value, kind_of_table, make_table
from trainwright.validators import check, each, flag, number

__all__ = ["Choice"]


class Unset:
    """Stands for a default that is not given, where None is a value like any other."""

    def __repr__(self) -> str:
        return "UNSET"

    def __reduce__(self) -> str:
        return "UNSET"  # unpickles as the one instance, so that `is UNSET` holds in other processes


UNSET = Unset()


@dataclass(frozen=True, repr=False, init=False)
class Choice(Varying):
    """One of some values: JSON scalars or tuples of them; with `ordered=True` they are levels from low to high.

    Values are distinguished by their canonical JSON: 1, 1.0 and True are three values. `weights` make some values more
    frequent in draws.
    """

    values: tuple[Any, ...]
    ordered: bool = False
    weights: tuple[float, ...] | None = None
    default: Any = UNSET
    when: Condition | None = None
    kind: ClassVar[str] = "choice"

    def __init__(
        self,
        *values: Any,
        ordered: bool = False,
        weights: Sequence[float] | None = None,
        default: Any = UNSET,
        when: Condition | None = None,
    ) -> None:
        values_by_name = {
            "values": tuple(to_python(value) for value in values),
            "ordered": ordered,
            "weights": None if weights is None else tuple(to_python(weight) for weight in weights),
            "default": to_python(default),
            "when": when,
        }
        for name, value in values_by_name.items():
            object.__setattr__(self, name, value)

    def __repr__(self) -> str:
        rest = [f"{name}={value!r}" for name, value in self.arguments().items() if name != "values"]
        return f"Choice({', '.join([*map(repr, self.values), *rest])})"

    @cached_property
    def axis(self) -> Axis:
        """The map between units and positions."""
        # Ordered levels are cells of the unit interval; others are positions, between which nothing lies.
        points = float(len(self.values))
        return (
            Grid.of(low=0.0, step=1.0, points=points, high=points - 1, decimals=1.0)
            if self.ordered
            else Code.of(points=points)
        )

    @property
    def has_default(self) -> bool:
        """Whether a default is given; None can be one."""
        return self.default is not UNSET

    @property
    def even(self) -> bool:
        """Whether no weights bend the draws."""
        return self.weights is None

    @property
    def values_kind(self) -> Kind:
        """What expressions may do with the values."""
        return kind_of_table(self._table)

    def quantile(self, p: Array) -> Array:
        """Return the latent units of uniform draws, by the weights."""
        if self.weights is None:
            return self.axis.to_units(np.minimum(np.floor(p * len(self.values)), len(self.values) - 1.0))
        # Cumulated shares: a draw falls into the interval of one value.
        ends = np.cumsum(self.weights) / math.fsum(self.weights)
        # Rounding may leave the last end below 1, and a value of weight 0 must never be drawn.
        last = max(index for index, weight in enumerate(self.weights) if weight > 0)
        return self.axis.to_units(np.minimum(np.searchsorted(ends, p, side="right"), last).astype(np.float64))

    def log_density(self, units: Array) -> Array:
        """Return the logarithm of the weights at units, up to a constant; of a weight of 0 that of the least double."""
        if self.weights is None:
            return np.zeros(len(units))
        weights = np.maximum(np.array(self.weights) / max(self.weights), np.finfo(np.float64).tiny)
        density: Array = np.log(weights)[self.axis.to_numbers(units).astype(np.intp)]
        return density

    def check_arguments(self, name: str) -> None:
        """Raise SpaceError if the arguments contradict each other."""
        if not self.values:
            raise SpaceError(
                f"{name}: at least one value is needed, got none; give them, such as Choice('sgd', 'adamw')"
            )
        seen = set()
        for value in self.values:
            check_value(name, value)
            # 1, 1.0 and True are equal in Python and different here, so duplicates are found by their JSON.
            if canonical_json(value) in seen:
                raise SpaceError(
                    f"{name}: value {value!r} is listed twice; list each once, and use weights to favour it"
                )
            seen.add(canonical_json(value))
        check(self.ordered, flag(), f"{name}: ordered", SpaceError)
        if self.weights is not None:
            if len(self.weights) != len(self.values):
                raise SpaceError(
                    f"{name}: {len(self.weights)} weights for {len(self.values)} values; give one for each"
                )
            check(self.weights, each(number(minimum=0)), f"{name}: weights", SpaceError)
            check(sum(self.weights), number(above=0), f"{name}: sum of weights", SpaceError)
        super().check_arguments(name)

    def clean(self, name: str, value: Any) -> Any:
        """Return the listed value, or raise TrialError that lists them."""
        # JSON makes lists of tuples, so both name the same value.
        value = tuple(value) if isinstance(value, list) else to_python(value)
        try:
            return self.values[self._codes[canonical_json(value)]]
        except (KeyError, TypeError, ValueError):
            allowed = ", ".join(map(repr, self.values))
            raise TrialError(f"{name}={value!r} is not a value of {name}; allowed: {allowed}") from None

    def number(self, value: Any) -> float:
        """Return the position of a value."""
        return float(self._codes[canonical_json(value)])

    def rank(self, name: str, value: Any) -> float:
        """Return the position of a level, or raise TrialError if the values have no order."""
        if not self.ordered:
            raise TrialError(f"{name} has no order; use one_of, or make it Choice(..., ordered=True)")
        return self.number(self.clean(name, value))

    def natural(self, numbers: Array) -> NDArray[Any]:
        """Return the values as an array of numbers or text where all are, else of objects."""
        return self._table[numbers.astype(np.intp)]

    def restore(self, numbers: Array) -> list[Any]:
        """Return the values at positions."""
        values: list[Any] = self._objects[numbers.astype(np.intp)].tolist()
        return values

    @cached_property
    def _codes(self) -> dict[str, int]:
        return {canonical_json(value): code for code, value in enumerate(self.values)}

    @cached_property
    def _table(self) -> NDArray[Any]:
        return make_table(self.values)

    @cached_property
    def _objects(self) -> NDArray[Any]:
        return np.fromiter(self.values, dtype=object, count=len(self.values))
