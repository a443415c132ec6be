"""MadPipe: its targets are bounds on all placements of short chains, its steps are valid and near the best pattern."""

import math
from itertools import accumulate

import numpy as np
import pytest
from benchmarks.memory.pipelines import all_placements, best_period, drawn_problem

from trainwright.plan.pipeline import non_contiguous
from trainwright.plan.pipeline.partition import stage_holding
from trainwright.plan.pipeline.schedules import repeating_orders, simulate_orders


@pytest.mark.parametrize("seed", [0, 4, 8, *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(9, 40))])
def test_targets_are_bounds(seed):
    """The least valid period of any placement is no less than the least target; of contiguous ones it is the target."""
    problem, memory = drawn_problem(seed)
    search = problem.search(memory)
    periods = {True: math.inf, False: math.inf}
    for parts, devices in all_placements(problem):
        found = best_period(problem, parts, devices, memory)
        periods[False] = min(periods[False], found)
        if len(set(devices)) == len(devices):
            periods[True] = min(periods[True], found)
    high = search.alone * 1.01
    if search.placements(high, 1):
        assert search.least_target(1, high) <= periods[False] * (1 + 1e-5)
    if search.placements(high, -1):
        assert search.least_target(-1, high) == pytest.approx(periods[True], rel=1e-5)


@pytest.mark.parametrize("seed", range(20))
def test_steps_keep_to_the_memory(seed):
    """Counted from the order in time; every stage does each micro-batch once, and says what it has in flight."""
    problem, memory = drawn_problem(seed)
    for found in problem._special(memory):
        parts, chain = found.partition.parts, problem.chain
        assert [part.last + 1 for part in parts[:-1]] == [part.first for part in parts[1:]]
        for device, lane in enumerate(found.timeline.runs):
            own = [stage for stage, of in enumerate(found.devices) if of == device]
            assert len(lane) == len({(run.kind, run.chunk, run.microbatch) for run in lane})
            assert len(lane) == 2 * problem.microbatches * len(own)
            held = {
                stage: stage_holding(chain, parts[stage].first, _end(chain, parts[stage].last), weights=problem.weights)
                for stage in own
            }
            signs = [(1 if run.kind == "F" else -1, run.chunk) for run in lane]
            for stage in own:
                assert max(accumulate(sign for sign, of in signs if of == stage)) == parts[stage].flying
            if len(own) > 1:
                peak = max(accumulate(sign * held[of].each for sign, of in signs))
                beside = sum(each.fixed for each in held.values()) + max(each.temporary for each in held.values())
                assert peak + beside <= memory


def _end(chain, last):
    return len(chain.steps) if last == len(chain.stages) else last


@pytest.mark.parametrize("seed", range(12))
def test_orders_that_repeat_themselves(seed):
    """Packed, the load of the busiest device is always period enough; no step is shorter than its load."""
    rng = np.random.default_rng(seed)
    count, batches = int(rng.integers(2, 7)), 6
    devices = [0, 1, *rng.integers(0, 2, count - 2).tolist()]
    forward, back = rng.integers(0, 9, (2, count)).astype(float).tolist()
    links = rng.integers(0, 3, count - 1).astype(float).tolist()
    load = max(sum(forward[s] + back[s] for s in range(count) if devices[s] == d) for d in {*devices}) or 1.0
    for packed in (True, False):
        orders = repeating_orders(
            devices, forward, back, links, microbatches=batches, period=load, packed=packed
        )  # fmt: skip
        assert orders is not None or not packed
        if orders is not None:
            timeline = simulate_orders(orders, forward, back, links)
            alone = sum(forward) + sum(back) + 2 * sum(links)
            assert timeline.seconds >= max(alone, batches * load if load > 1.0 else 0.0)
            assert not packed or timeline.seconds <= (batches - 1) * load + alone + 2 * count * load


def test_a_coarser_grid_is_a_bound_too(monkeypatch):
    """Rounded down, the least target is at most the exact one."""
    problem, memory = drawn_problem(4)
    search = problem.search(memory)
    least = search.least_target(1, search.alone * 1.01)
    monkeypatch.setattr(non_contiguous, "_LABELS", ((5, 1 << 16),))
    assert search.least_target(1, search.alone * 1.01) <= least * (1 + 1e-5)
