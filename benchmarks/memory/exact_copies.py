"""The fastest of all schedules with copies to the host, for tiny chains: a bound for tests and benchmarks."""

import math

import numpy as np
from benchmarks.memory._exact_copies import search_with_copies

from trainwright.errors import ChainError
from trainwright.model.chain import Chain
from trainwright.plan.memory.exact import SearchResult
from trainwright.plan.memory.operations import Operation, OperationKind, Value
from trainwright.plan.memory.sizes import sizes_of

__all__ = ["solve_exact_with_copies"]

_STAGES, _TICKS, _SIZE = 6, 63, 31
"""What fits in the packed states of the search with copies."""


def solve_exact_with_copies(
    chain: Chain, budget_bytes: int, bandwidth: int, *, better_than_seconds: float = math.inf, states: int = 3_000_000
) -> SearchResult:
    """Search all schedules with copies over a link, `bandwidth` bytes a second each way at once, of a tiny chain.

    A state says where each value is (device, host, both, nowhere), what runs, what is being copied each way and how
    long either goes on; something may start whenever anything ends. That is more than a list of operations can say,
    which never waits with bytes that are free: its seconds are a lower bound of all lists, reached where the simulator
    gives `operations` the same. Up to 6 stages without options, every operation a whole number of 1 / bandwidth
    seconds, at most 63, every value at most 31 bytes; raises ChainError.
    """
    steps, sizes = chain.steps, sizes_of(chain)
    seconds = np.array([(step.no_grad_seconds, step.forward_seconds, step.backward_seconds) for step in steps])
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
    return SearchResult(
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
                operations.append(Operation(OperationKind.DELETE, dropped // 2, Value.OUTPUT))
                here.remove(dropped)
            dropped = 0
        if action in {0, 1, 3}:
            last = len(operations)
            operations.append(
                Operation(
                    (
                        OperationKind.FORWARD_ALL,
                        OperationKind.FORWARD_KEEP,
                        OperationKind.DELETE,
                        OperationKind.BACKWARD,
                    )[action],
                    what,
                )
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
                4: Operation(OperationKind.DELETE, what // 2, value),
                5: Operation(OperationKind.OFFLOAD, what // 2, value),
                6: Operation(OperationKind.PREFETCH, what // 2, value),
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
