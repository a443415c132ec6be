"""The curve of memory against time of a chain: where more memory makes a step faster, and where baselines stand."""

from dataclasses import dataclass

import numpy as np

from trainwright.model.chain import Chain
from trainwright.plan.memory.known_plans import checkpointing_plans
from trainwright.plan.memory.persistent import PersistentTable
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
    """Return the trade-offs of a chain.

    One table for all memories says where a step of the curve is; at most `points` of these are planned anew, each with
    slots of its own budget (at a fifth of the memory the shared table would have a hundred).
    """
    full, least = full_bytes(chain), minimal_bytes(chain)
    room = full - chain.fixed_bytes
    unit = max(1, -(-room // slots))
    values = PersistentTable(chain, unit=unit, slots=-(-room // unit)).values
    # Budgets at which the table says that a step gets faster; of too many an even choice.
    steps = np.flatnonzero(np.isfinite(values[1:]) & (values[1:] < values[:-1])) + 1
    if len(steps) > points - 2:
        steps = steps[np.unique(np.linspace(0, len(steps) - 1, points - 2).round().astype(int))]
    budgets = sorted({least, full, *(chain.fixed_bytes + int(step) * unit for step in steps)})
    found: list[TradeOffPoint] = []
    for budget in budgets:
        if not least <= budget <= full:
            continue
        plan = plan_chain(chain, budget=budget, solver="dp", slots=slots)
        if not found or plan.seconds < found[-1].seconds * (1 - 1e-9):
            found.append(TradeOffPoint(peak_bytes=plan.peak_bytes, seconds=plan.seconds))
    baselines = []
    for name, operations in checkpointing_plans(chain).items():
        simulation = simulate(chain, operations)
        baselines.append(TradeOffPoint(peak_bytes=simulation.peak_bytes, seconds=simulation.seconds, name=name))
    return TradeOffCurve(points=tuple(found), baselines=tuple(baselines), minimal_bytes=least, full_bytes=full)
