"""The strategies of the oracle: one file, one class, one axis of `Degrees` each."""

from trainwright.plan.mesh import AXES
from trainwright.plan.strategies._strategy import Exchange, Limit, Load, Strategy
from trainwright.plan.strategies.channel import Channel
from trainwright.plan.strategies.context import Context
from trainwright.plan.strategies.data import Data
from trainwright.plan.strategies.expert import Expert
from trainwright.plan.strategies.filter import Filter
from trainwright.plan.strategies.pipeline import Pipeline
from trainwright.plan.strategies.spatial import Spatial
from trainwright.plan.strategies.tensor import Tensor

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
