"""Columns of a space as Optuna's distributions, and back: one for each kind of axis."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from trainwright.space import Space
from trainwright.space.axes import Axis, Code, Grid, Linear, Log, RoundedLog
from trainwright.space.parameters import Varying
from trainwright.space.row_schema import names_in, order_by_needs

__all__ = ["Coordinate", "coordinates"]


@dataclass(frozen=True, kw_only=True)
class Coordinate:
    """One column as Optuna sees it: a number, a place on a grid, or the place of a choice."""

    name: str
    index: int
    conditional: bool
    distribution: Any
    axis: Axis

    @property
    def continuous(self) -> bool:
        """Whether it has a value for every unit."""
        return self.axis.continuous

    def suggest(self, trial: Any) -> float:
        """Return the unit of what an Optuna trial suggests."""
        it = self.distribution
        if hasattr(it, "choices"):
            return float(trial.suggest_categorical(self.name, it.choices))
        ask: Callable[..., float] = trial.suggest_float if self.continuous else trial.suggest_int
        return self._unit(ask(self.name, it.low, it.high, log=it.log))

    def value(self, unit: float) -> float:
        """Return Optuna's value of a unit."""
        if isinstance(self.axis, Grid):
            points = float(self.axis.points[0])
            # The cell that the unit lies in; unit 1 belongs to the last one.
            return int(min(points - 1, unit * points // 1))
        number = float(self.axis.to_numbers(np.array([unit]))[0])
        return number if self.continuous else int(number)

    def _unit(self, value: float) -> float:
        if isinstance(self.axis, Grid):
            return float((value + 0.5) / self.axis.points[0])
        return float(self.axis.to_units(np.array([float(value)]))[0])


def coordinates(space: Space) -> list[Coordinate]:
    """Return the columns of a space, each after those that its condition compares."""
    from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution

    parameters = {name: p for name, p in space.parameters.items() if isinstance(p, Varying)}
    places = {name: index for index, name in enumerate(parameters)}
    by_name = {}
    for name, parameter in parameters.items():
        axis = parameter.axis
        shape: Any
        if isinstance(axis, Linear | Log):
            shape = FloatDistribution(float(axis.low[0]), float(axis.high[0]), log=isinstance(axis, Log))
        elif isinstance(axis, RoundedLog):
            shape = IntDistribution(int(axis.low[0]), int(axis.high[0]), log=True)
        else:
            count = axis.count or 1
            # Optuna sees places only: the values, and how they are rounded, stay the space's own.
            shape = CategoricalDistribution(range(count)) if isinstance(axis, Code) else IntDistribution(0, count - 1)
        conditional = parameter.when is not None
        by_name[name] = Coordinate(
            name=name, index=places[name], conditional=conditional, distribution=shape, axis=axis
        )
    # A parameter is suggested after those that decide whether it is active.
    needs = {name: names_in(parameter.when) for name, parameter in parameters.items()}
    return [by_name[name] for name in order_by_needs(needs, "conditions") if name in by_name]
