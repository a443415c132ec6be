"""How a plan is made: the dynamic program, annealing beyond it, the exact search of short chains; all simulated.

And the curve of memory against time of a chain: where more memory makes a step faster, and where baselines stand.
"""

import math
from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np

from trainwright.errors import BudgetError, ChainError, InfeasibleBudget
from trainwright.model.chain import Chain
from trainwright.plan.byte_sizes import format_bytes, read_budget
from trainwright.plan.memory.known_plans import (
    checkpointing_plans,
    first_blocks,
    keep_all,
    lowest_plan,
    lowest_with_copies,
)
from trainwright.plan.memory.operations import Link, Operation
from trainwright.plan.memory.persistent import solve_persistent
from trainwright.plan.memory.plan_record import Plan
from trainwright.plan.memory.simulate import simulate
from trainwright.validators import check, one_of

__all__ = [
    "Solver",
    "TradeOffCurve",
    "TradeOffPoint",
    "full_bytes",
    "infeasible_budget",
    "minimal_bytes",
    "plan_chain",
    "trade_off_curve",
]

Solver = Literal["auto", "dp", "exact"]
_GAP = 1e-3
_FINE = 4  # times the slots, where rounding may cost more than _GAP
_LONGEST_FINE = 150  # stages
_STATES = 200_000  # of an exact search that was not asked for
_STATE_SECONDS = 5e-6


def plan_chain(
    chain: Chain,
    *,
    budget: str | float,
    offload: bool = False,
    bandwidth: float | Link | None = None,
    solver: Solver = "auto",
    slots: int = 500,
    search_seconds: float = math.inf,
) -> Plan:
    """Return the fastest plan found for a chain within a budget, with a lower bound on every plan.

    `dp` is the best persistent plan improved by annealing; `exact` searches until nothing better can exist; `auto` is
    `dp` and an exact search of bounded size. With `offload`, values may also wait on the host, behind a link of
    `bandwidth` bytes per second each way. `search_seconds` is about how long annealing and `auto`'s exact search may
    each take; they count their tries, so that a chain always has the same plan. Raises InfeasibleBudget.
    """
    # Late: kernels are compiled, and numba is loaded, where something is searched.
    from trainwright.plan.memory.exact import solve_exact
    from trainwright.plan.memory.offload import plan_offload
    from trainwright.plan.memory.phases import improve_plan

    check(solver, one_of(*get_args(Solver)), "solver", ChainError)
    if offload and bandwidth is None:
        raise BudgetError(
            "offload: got no bandwidth; allowed: bandwidth= in bytes per second, or a Link, such as "
            "tw.memory.measure_link() finds on a CUDA device"
        )
    budget_bytes = read_budget(budget, full_bytes(chain))
    everything = keep_all(chain)
    least = sum(min(each.forward_seconds + each.backward_seconds for each in step.choices) for step in chain.steps)
    if full_bytes(chain) <= budget_bytes:
        return Plan.of(chain, everything, budget_bytes=budget_bytes, solver="none", lower_seconds=least)
    operations = _persistent_plan(chain, budget_bytes, slots)
    found, lower = "dp", least
    # Short chains: search for anything faster, which also proves how fast a plan can be.
    if solver in {"auto", "exact"}:
        known = math.inf if operations is None else simulate(chain, operations, budget_bytes=budget_bytes).seconds
        states = int(min(_STATES, search_seconds / _STATE_SECONDS)) if solver == "auto" else 20_000_000
        searched = solve_exact(chain, budget_bytes, better_than_seconds=known * (1 - 1e-9), states=states)
        if searched.operations is not None:
            operations, known = searched.operations, searched.seconds
        lower = max(lower, known if searched.finished else min(known, searched.lower_seconds))
        found = "exact" if searched.finished else "dp"
        if solver == "exact" and not searched.finished:
            raise ChainError(
                f"solver: got 'exact' for {len(chain.stages)} stages, more than can be searched; allowed: chains of "
                "about 14 stages; take 'auto'"
            )
    # Longer ones: plans that drop values before their backward.
    if found == "dp" and operations is not None:
        operations = improve_plan(chain, budget_bytes, operations, search_seconds=search_seconds)
    # With copies: start from the plan without them, and from the one of the least budget.
    if offload and bandwidth is not None:
        link = Link.of(bandwidth)
        copied, needed = lowest_with_copies(chain)
        if needed > budget_bytes and operations is None:
            raise infeasible_budget(chain, budget_bytes, copies=True)
        joint = plan_offload(chain, budget_bytes, link, start=operations, lowest=copied, search_seconds=search_seconds)
        if joint is not None and joint != operations:
            return Plan.of(chain, joint, budget_bytes=budget_bytes, solver="joint", lower_seconds=least, link=link)
    if operations is None:
        raise infeasible_budget(chain, budget_bytes)
    return Plan.of(chain, operations, budget_bytes=budget_bytes, solver=found, lower_seconds=lower)


def full_bytes(chain: Chain) -> int:
    """Return the peak of a step without a plan: measured, or simulated as one that keeps everything."""
    if chain.plain_peak_bytes is not None:
        return chain.plain_peak_bytes
    return simulate(chain, keep_all(chain)).peak_bytes


def minimal_bytes(chain: Chain) -> int:
    """Return the least budget in which a persistent plan of the chain exists, to the byte, or that needs no plan."""
    return min(lowest_plan(chain)[1], full_bytes(chain))


def _persistent_plan(chain: Chain, budget_bytes: int, slots: int) -> tuple[Operation, ...] | None:
    """Return the best of the persistent plans that the simulator accepts, over roundings and slots."""
    lowest, needed = lowest_plan(chain)
    if needed > budget_bytes:
        return None
    found = [(simulate(chain, lowest).seconds, lowest)]
    # What people write by hand: as few of the first blocks as fit, run again one by one.
    by_hand = _first_blocks(chain, budget_bytes)
    if by_hand is not None:
        found.append((simulate(chain, by_hand).seconds, by_hand))
    # Finer slots help where rounding up costs a plan; on long chains they cost too much time.
    counts = (slots, slots * _FINE) if len(chain.stages) <= _LONGEST_FINE else (slots,)
    # Sizes are rounded: the simulator decides on each plan that comes out.
    for count in counts:
        for rounding in ("up", "nearest"):
            solved = solve_persistent(chain, budget_bytes, slots=count, rounding=rounding)
            if solved is not None:
                simulation = simulate(chain, solved.operations)
                if simulation.peak_bytes <= budget_bytes:
                    found.append((simulation.seconds, solved.operations))
        # More slots are of no use where a slot is a byte, or the bound of sizes rounded down is nearly reached.
        if budget_bytes - chain.fixed_bytes <= count:
            break  # one byte a slot
        bound = solve_persistent(chain, budget_bytes, slots=count, rounding="down")
        if bound is not None and min(seconds for seconds, _ in found) <= bound.seconds * (1 + _GAP):
            break
    return min(found, key=lambda each: each[0])[1]


def _first_blocks(chain: Chain, budget_bytes: int) -> tuple[Operation, ...] | None:
    """Return the plan that runs the least number of the first stages again, each by itself, that fits."""
    low, high = 0, len(chain.stages) + 1
    while high - low > 1:
        count = (low + high) // 2
        fits = simulate(chain, first_blocks(chain, count), budget_bytes=budget_bytes).fits
        low, high = (low, count) if fits else (count, high)
    return first_blocks(chain, high) if high <= len(chain.stages) else None


def infeasible_budget(
    chain: Chain, budget_bytes: int, *, copies: bool = False, enough_bytes: int | None = None
) -> InfeasibleBudget:
    """Say what the least budget is, without copies to the host or with them, and who needs it.

    `enough_bytes` is what the plain step has taken, where that was seen.
    """
    operations, needed = lowest_with_copies(chain) if copies else lowest_plan(chain)
    link = Link(to_host=math.inf, to_device=math.inf) if copies else None
    # The plan of the least budget says who holds the bytes at its peak.
    owners = dict(simulate(chain, operations, budget_bytes=needed, link=link).peak_owners)
    largest = sorted(owners.items(), key=lambda each: -each[1])[:4]
    parts = ", ".join(f"{owner} {format_bytes(size)}" for owner, size in largest)
    needed = min(needed, full_bytes(chain), *(() if enough_bytes is None else (enough_bytes,)))
    with_copies = lowest_with_copies(chain)[1]
    mend = "raise the budget or shrink the batch"
    if len(chain.stages) == 1:
        mend += "; the chain is one stage, with nothing to run again; name blocks inside it with stages="
    elif not copies and with_copies < needed:
        enough = f"at least {format_bytes(with_copies)}, {with_copies} bytes"
        mend = f"raise the budget, shrink the batch, or allow offload ({enough})"
    return InfeasibleBudget(
        f"budget: got {format_bytes(budget_bytes)} ({budget_bytes} bytes); allowed: at least {format_bytes(needed)} "
        f"({needed} bytes), the least possible for this chain{' with copies to the host' if copies else ''} ({parts}); "
        f"{mend}",
        minimal_bytes=needed,
        owners=owners,
    )


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
