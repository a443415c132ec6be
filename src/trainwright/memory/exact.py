"""The best of all plans of a short chain, persistent or not, by A*; and a proof of how far any plan can be from it.

A state is the set of bare outputs, the set of saved values (with their options), and the stage whose gradient has
arrived. Edges are forwards, the backward, and deletions at no cost. The estimate of what remains is admissible and
consistent: the backward of every stage to come, and the forward of those whose saved values are not alive.
"""

import math
from dataclasses import dataclass, replace

import numpy as np

from trainwright.errors import ChainError
from trainwright.memory.chain import Chain
from trainwright.memory.operations import Kind, Operation, Value, offload, prefetch
from trainwright.memory.simulate import simulate
from trainwright.memory.sizes import sizes_of
from trainwright.memory.skips import lightest

__all__ = ["Searched", "kept_within", "listed", "solve_exact", "solve_exact_with_copies"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Searched:
    """What a search has found: a plan better than its bound, or None, and what no plan can be faster than."""

    operations: tuple[Operation, ...] | None
    seconds: float
    lower_seconds: float
    finished: bool


def solve_exact(
    chain: Chain, budget_bytes: int, *, better_than_seconds: float = math.inf, states: int = 3_000_000
) -> Searched:
    """Search for the fastest plan within a budget (fixed bytes included) that takes less than a known one.

    The number of states grows like (options + 2)^L; beyond `states` of them the search ends unfinished, and its lower
    bound holds all the same. A finished search without operations proves that nothing is better than the known plan,
    or, without one, that the budget is infeasible.
    """
    from trainwright.memory._exact import search

    base = 2 + max(len(stage.options) + 1 for stage in chain.steps)
    room = budget_bytes - chain.fixed_bytes
    if (len(chain.steps) + 1) * math.log2(base) > 61 or room < 0:
        return Searched(operations=None, seconds=math.inf, lower_seconds=0.0, finished=room < 0)
    rows, seconds, lower = search(sizes_of(lightest(chain)), room, better_than_seconds, base, states)
    found = math.isfinite(seconds)
    searched = Searched(
        operations=listed(rows.tolist()) if found else None,
        seconds=float(seconds),
        lower_seconds=float(lower),
        finished=found or lower >= better_than_seconds,
    )
    return kept_within(searched, chain, budget_bytes)


def kept_within(searched: Searched, chain: Chain, budget_bytes: int) -> Searched:
    """Return what was found without the values that skip stages: a bound at least, and the best plan if it has room."""
    operations = searched.operations
    if not chain.skips or operations is None or simulate(chain, operations, budget_bytes=budget_bytes).fits:
        return searched
    return replace(searched, operations=None, seconds=math.inf, finished=False)


_STAGES, _TICKS, _SIZE = 6, 63, 31
"""What fits in the packed states of the search with copies."""


def solve_exact_with_copies(
    chain: Chain, budget_bytes: int, bandwidth: int, *, better_than_seconds: float = math.inf, states: int = 3_000_000
) -> Searched:
    """Search all schedules with copies over a link, `bandwidth` bytes a second each way at once, of a tiny chain.

    A state says where each value is (device, host, both, nowhere), what runs, what is being copied each way and how
    long either goes on; something may start whenever anything ends. That is more than a list of operations can say,
    which never waits with bytes that are free: its seconds are a lower bound of all lists, reached where the simulator
    gives `operations` the same. Up to 6 stages without options, every operation a whole number of 1 / bandwidth
    seconds, at most 63, every value at most 31 bytes; raises ChainError.
    """
    from trainwright.memory._exact_copies import search_with_copies

    steps, sizes = chain.steps, sizes_of(chain)
    seconds = np.array([(step.plain_seconds, step.forward_seconds, step.backward_seconds) for step in steps])
    ticks = np.rint(seconds * bandwidth).astype(np.int64)
    largest = max(step.saved_bytes for step in steps)
    if (
        len(chain.stages) > _STAGES
        or any(step.options for step in steps)
        or not np.allclose(ticks, seconds * bandwidth)
        or ticks.max() > _TICKS
        or largest > _SIZE
    ):
        raise ChainError(
            f"chain: got {len(chain.stages)} stages, the longest operation of {seconds.max() * bandwidth:g} / "
            f"bandwidth seconds, the largest value of {largest} bytes; allowed for the exact search with copies: "
            f"{_STAGES} stages without options, whole numbers up to {_TICKS}, {_SIZE} bytes"
        )
    most = int(sum(ticks[:, 1] + ticks[:, 2])) * (len(steps) + 2) + 4 * sum(step.saved_bytes for step in steps)
    known = better_than_seconds * bandwidth
    bound = most if math.isinf(known) else min(most, math.ceil(known - 1e-6))
    plain, forward, back = np.ascontiguousarray(ticks.T)
    rows, found, lower = search_with_copies(
        sizes, (plain, forward, back), budget_bytes - chain.fixed_bytes, bound, states
    )
    finished = math.isfinite(found)
    return Searched(
        operations=_scheduled(rows.tolist()) if finished else None,
        seconds=found / bandwidth,
        lower_seconds=min(lower / bandwidth, better_than_seconds),
        finished=finished or lower >= bound,
    )


def _scheduled(rows: list[list[int]]) -> tuple[Operation, ...]:
    """Write a schedule as operations: what starts while one is under way is listed before it, and waits its turn."""
    operations: list[Operation] = []
    here: set[int] = set()  # keys on the device
    last, dropped = 0, 0  # where the operation under way stands; the bare output that nobody reads after it
    for action, what, running in _without_idle_copies(rows):
        if not running and dropped:
            if dropped in here:
                operations.append(Operation(Kind.DELETE, dropped // 2, Value.OUTPUT))
                here.remove(dropped)
            dropped = 0
        if action in {0, 1, 3}:
            last = len(operations)
            operations.append(
                Operation((Kind.FORWARD_ALL, Kind.FORWARD_KEEP, Kind.DELETE, Kind.BACKWARD)[action], what)
            )
            if action == 3:
                here.discard(2 * what + 1)
                dropped = 2 * what - 2
            else:
                here.add(2 * what + (action == 0))
            continue
        value = Value.SAVED if what % 2 else Value.OUTPUT
        if action in {4, 7}:
            here.discard(what)
        elif action == 6:
            here.add(what)
        if action in {4, 5, 6}:
            made = {
                4: Operation(Kind.DELETE, what // 2, value),
                5: offload(value, what // 2),
                6: prefetch(value, what // 2),
            }
            operations.insert(last if running else len(operations), made[action])
            last += bool(running)
    return tuple(operations)


def _without_idle_copies(rows: list[list[int]]) -> list[list[int]]:
    """Write copies to the host that never come back as deletions."""
    kept: list[list[int]] = []
    returns: set[int] = set()  # keys that come back later
    for action, what, running in reversed(rows):
        if action == 6:
            returns.add(what)
        elif action in {0, 1}:
            returns.discard(2 * what + (action == 0))
        if action in {5, 7} and what not in returns:
            if action == 7:
                kept.append([4, what, running])
            continue
        if action == 5:
            returns.discard(what)
        kept.append([action, what, running])
    return kept[::-1]


def listed(rows: list[list[int]]) -> tuple[Operation, ...]:
    """Write a path as operations: what is dropped is dropped by name, or by the forward that read it."""
    operations: list[Operation] = []
    alive: dict[int, Value] = {}
    for kind, stage, option in rows:
        if kind == 0:
            if alive.get(stage) is Value.OUTPUT:
                operations.append(Operation(Kind.DELETE, stage, Value.OUTPUT))
            operations.append(Operation(Kind.FORWARD_ALL, stage, None, option))
            alive[stage] = Value.SAVED
        elif kind == 1:
            operations.append(Operation(Kind.FORWARD_KEEP, stage))
            alive[stage] = Value.OUTPUT
        elif kind == 3:
            operations.append(Operation(Kind.BACKWARD, stage))
            del alive[stage]
            if alive.get(stage - 1) is Value.OUTPUT:
                operations.append(Operation(Kind.DELETE, stage - 1, Value.OUTPUT))
                del alive[stage - 1]
        else:
            value = alive.pop(stage)
            if value is Value.OUTPUT and operations[-1] == Operation(Kind.FORWARD_KEEP, stage + 1):
                operations[-1] = Operation(Kind.FORWARD_DROP, stage + 1)
            else:
                operations.append(Operation(Kind.DELETE, stage, value))
    return tuple(operations)
