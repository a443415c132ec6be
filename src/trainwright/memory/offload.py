"""Rematerialisation and offloading together: plans of larger budgets, made to fit by sending values to the host.

For several budgets between the real one and that of keeping everything, the best rematerialisation plan is taken.
Where its operations need more bytes than there are, the values whose next reader is farthest leave for the host right
after their last reader (Belady's rule, which sends the earliest activations first), and come back, in the order in
which they are read, from the first operation on at which they fit until they are read. The simulator decides which
of these plans is the fastest; with the real budget and no copies among them, offloading never loses time. This is a
search through plans that a joint dynamic programme (POFO, NeurIPS 2021) orders differently; it proves no optimum.
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass

from trainwright.memory.baselines import keep_all
from trainwright.memory.chain import Chain
from trainwright.memory.link import Link
from trainwright.memory.operations import Kind, Operation, Value, offload, prefetch
from trainwright.memory.persistent import lowest_plan, solve_persistent
from trainwright.memory.simulate import simulate

__all__ = ["plan_offload", "with_copies"]

_LEVELS = 16
_SLOTS = 250


def plan_offload(
    chain: Chain, budget_bytes: int, link: Link, *, start: tuple[Operation, ...] | None = None
) -> tuple[Operation, ...] | None:
    """Return the fastest plan found within a budget with copies over a link; None if none was found.

    `start` is a plan without copies that fits, if there is one.
    """
    best, seconds = start, math.inf
    if start is not None:
        seconds = simulate(chain, start, budget_bytes=budget_bytes).seconds
    full = simulate(chain, keep_all(chain)).peak_bytes
    tried: dict[int, float] = {}

    def attempt(levels: Iterable[int]) -> None:
        nonlocal best, seconds
        for level in levels:
            if level in tried:
                continue
            tried[level] = math.inf
            for operations in _plans(chain, level, full):
                copied = with_copies(chain, operations, budget_bytes)
                if copied is None:
                    continue
                simulation = simulate(chain, copied, budget_bytes=budget_bytes, link=link)
                if simulation.fits:
                    tried[level] = min(tried[level], simulation.seconds)
                    if simulation.seconds < seconds:
                        best, seconds = copied, simulation.seconds

    step = max(1, (full - budget_bytes) // _LEVELS)
    attempt([budget_bytes + step * each for each in range(_LEVELS)])
    attempt([full])
    while step > max(1, full // 500) and math.isfinite(min(tried.values())):  # closer around the best so far
        step //= 2
        middle = min(tried, key=lambda level: tried[level])
        attempt([max(budget_bytes, middle - step), min(full, middle + step)])
    return best


def _plans(chain: Chain, level: int, full: int) -> list[tuple[Operation, ...]]:
    if level >= full:
        return [keep_all(chain)]
    solved = solve_persistent(chain, level, slots=_SLOTS)
    if solved is not None:
        return [solved.operations]
    lowest, needed = lowest_plan(chain)
    return [lowest] if needed <= level else []


@dataclass(slots=True)
class _Gap:
    """Between two readers, at places `after` and `before` of the list, a value only waits."""

    value: Value
    stage: int
    size: int
    after: int
    before: int


def with_copies(chain: Chain, operations: tuple[Operation, ...], budget_bytes: int) -> tuple[Operation, ...] | None:
    """Return the operations with the copies that let them run within a budget, or None if none can.

    Without a link's speed: the copies make room in time or the simulator lets work wait.
    """
    needs, gaps = _profile(chain, operations)
    chosen: list[_Gap] = []
    for place in range(len(operations)):
        while needs[place] > budget_bytes:
            waiting = [gap for gap in gaps if gap.after < place < gap.before]
            if not waiting:
                return None
            gap = max(waiting, key=lambda each: (each.before, each.size))
            gaps.remove(gap)
            chosen.append(gap)
            for each in range(gap.after + 1, gap.before):
                needs[each] -= gap.size
    leaving: dict[int, list[Operation]] = {}
    coming: dict[int, list[Operation]] = {}
    last = 0
    for gap in sorted(chosen, key=lambda each: each.before):
        leaving.setdefault(gap.after + 1, []).append(offload(gap.value, gap.stage))
        begin = gap.before
        while begin > gap.after + 2 and needs[begin - 1] + gap.size <= budget_bytes:
            begin -= 1
        begin = last = max(begin, min(last, gap.before))
        for each in range(begin, gap.before):
            needs[each] += gap.size
        coming.setdefault(begin, []).append(prefetch(gap.value, gap.stage))
    listed: list[Operation] = []
    for place, operation in enumerate(operations):
        listed += [*leaving.get(place, []), *coming.get(place, []), operation]
    return tuple(listed)


def _profile(chain: Chain, operations: tuple[Operation, ...]) -> tuple[list[int], list[_Gap]]:
    """Return the bytes that each operation needs, and where values only wait."""
    steps = chain.steps
    needs: list[int] = []
    gaps: list[_Gap] = []
    alive: dict[tuple[Value, int], tuple[int, int, int]] = {}  # bytes, option, last reader
    gradient = grown = 0
    for place, operation in enumerate(operations):
        stage = operation.stage
        if operation.value is not None:
            alive.pop((operation.value, stage))
            needs.append(0)
            continue
        step = steps[stage - 1]
        reads = [(Value.OUTPUT, stage - 1) if (Value.OUTPUT, stage - 1) in alive else (Value.SAVED, stage - 1)]
        if operation.kind is Kind.BACKWARD:
            reads.append((Value.SAVED, stage))
        for key in reads:
            if key in alive:
                size, option, before = alive[key]
                if place > before + 1 and size:
                    gaps.append(_Gap(key[0], key[1], size, before, place))
                alive[key] = (size, option, place)
        held = chain.fixed_bytes + gradient + grown + sum(size for size, _, _ in alive.values())
        if operation.kind is Kind.BACKWARD:
            way = step.choices[alive.pop((Value.SAVED, stage))[1]]
            made = steps[stage - 2].delta_bytes if stage > 1 else chain.input_gradient_bytes
            grown += step.parameter_gradient_bytes
            needs.append(held + made + step.parameter_gradient_bytes + way.backward_temporary_bytes)
            gradient = made
        elif operation.kind is Kind.FORWARD_ALL:
            way = step.choices[operation.option]
            needs.append(held + way.saved_bytes + way.forward_temporary_bytes)
            alive[Value.SAVED, stage] = (way.saved_bytes, operation.option, place)
        else:
            needs.append(held + step.output_bytes + step.plain_temporary_bytes)
            alive[Value.OUTPUT, stage] = (step.output_bytes, 0, place)
            if operation.kind is Kind.FORWARD_DROP:
                alive.pop((Value.OUTPUT, stage - 1), None)
    return needs, gaps
