"""The strategies of the oracle: one file, one class, one axis of `Degrees` each."""

from trainwright.plan.parallel.mesh import AXES
from trainwright.plan.parallel.strategies.channel import Channel
from trainwright.plan.parallel.strategies.context import Context
from trainwright.plan.parallel.strategies.data import Data
from trainwright.plan.parallel.strategies.expert import Expert
from trainwright.plan.parallel.strategies.filter import Filter
from trainwright.plan.parallel.strategies.pipeline import Pipeline
from trainwright.plan.parallel.strategies.spatial import Spatial
from trainwright.plan.parallel.strategies.strategy import Exchange, Limit, Load, Strategy
from trainwright.plan.parallel.strategies.tensor import Tensor

__all__ = ["STRATEGIES", "Exchange", "Limit", "Load", "Strategy"]

STRATEGIES: tuple[Strategy, ...] = (
    Tensor(),
    Context(),
    Filter(),
    Channel(),
    Spatial(),
    Expert(),
    Data(),
    Pipeline(),
)
"""In the order of the axes of `Degrees`: the first changes fastest over the ranks."""

for _each in STRATEGIES:
    if _each.axis not in AXES:
        raise ImportError(
            f"strategy {type(_each).__name__}: its axis {_each.axis!r} is no field of Degrees; allowed: "
            f"{', '.join(AXES)}, or one more field there, {_each.axis}: int = 1"
        )
