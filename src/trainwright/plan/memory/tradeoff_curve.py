"""The trade-off curve of memory against time of a chain: where more memory makes a step faster; and the baselines."""

from dataclasses import dataclass

import numpy as np

from trainwright.model.chain import Chain
from trainwright.plan.memory.known_plans import checkpointing_plans
from trainwright.plan.memory.planning import full_bytes, minimal_bytes, plan_chain
from trainwright.plan.memory.simulate import simulate

__all__ = ["TradeOffCurve", "TradeOffPoint", "trade_off_curve"]


@dataclass(frozen=True, kw_only=True, slots=True)
class TradeOffPoint:
    """A plan's peak and time; `name` is "plan", or a baseline's."""

    peak_bytes: int
    seconds: float
    name: str = "plan"


@dataclass(frozen=True, kw_only=True, slots=True)
class TradeOffCurve:
    """Plans from the least feasible budget to that of keeping everything, and torch's checkpointing as baselines."""

    points: tuple[TradeOffPoint, ...]
    """By growing peak; each is faster than all before it."""
    baselines: tuple[TradeOffPoint, ...]
    minimal_bytes: int
    full_bytes: int


def trade_off_curve(chain: Chain, *, points: int = 16, slots: int = 500) -> TradeOffCurve:
    """Return the trade-offs of a chain at so many even budgets from the least to that of keeping everything."""
    full, least = full_bytes(chain), minimal_bytes(chain)
    found: list[TradeOffPoint] = []
    for budget in np.linspace(least, full, points).astype(int).tolist():
        plan = plan_chain(chain, budget=budget, solver="dp", slots=slots)
        if not found or plan.seconds < found[-1].seconds * (1 - 1e-9):
            found.append(TradeOffPoint(peak_bytes=plan.peak_bytes, seconds=plan.seconds))
    baselines = []
    for name, operations in checkpointing_plans(chain).items():
        simulation = simulate(chain, operations)
        baselines.append(TradeOffPoint(peak_bytes=simulation.peak_bytes, seconds=simulation.seconds, name=name))
    return TradeOffCurve(points=tuple(found), baselines=tuple(baselines), minimal_bytes=least, full_bytes=full)
