"""Timings that are disturbed: intervals that hold, and plans that lose little by them."""

import math

import numpy as np
import pytest
from allocation_for_tests import GB, devices, ensemble

from trainwright.randomness import rng
from trainwright.serve import TimeTables, allocate
from trainwright.serve.placement.integer_program import PlacementProblem
from trainwright.serve.placement.memory_model import MemberFootprint, MemoryModel
from trainwright.serve.placement.repeated_timing import ENOUGH, interval, timed
from trainwright.serve.placement.timing import _ENOUGH_SECONDS

BATCHES = tuple(1 << power for power in range(10))
MEMBERS = 3
MEMORY = MemoryModel(footprints=(MemberFootprint(weight_bytes=10, row_bytes=1),) * MEMBERS)


class Machine:
    """A clock, and calls that take their time on a machine that others use too.

    Each takes up to half as long again at random, one in ten many times as long, and everything twice as long while
    another program runs, which it does every few moments.
    """

    def __init__(self, seed):
        self.now, self.made = 0.0, 0
        self._draws = rng(seed, "test-repeated", 0)

    def clock(self):
        return self.now

    def call(self, seconds):
        def run():
            noise = math.exp(0.2 * abs(self._draws.standard_normal()))
            stalled = 5.0 * self._draws.random() if self._draws.random() < 0.1 else 0.0
            busy = 2.0 if math.sin(40.0 * self.now) > 0.3 else 1.0
            self.now += seconds * (noise * busy + stalled)
            self.made += 1

        return run


def true_seconds(seed):
    """Return the seconds [members, batches] of a batch: a fixed part and a part by row, which differ widely."""
    draws = rng(seed, "test-repeated-members", 0)
    fixed, row = np.exp(draws.uniform(-10, -7, (MEMBERS, 1))), np.exp(draws.uniform(-15, -11, (MEMBERS, 1)))
    return fixed + row * np.array(BATCHES)


def measured_tables(seed, **limits):
    machine = Machine(seed)
    told = [
        timed([machine.call(seconds) for seconds in row], clock=machine.clock, **{"seconds": _ENOUGH_SECONDS, **limits})
        for row in true_seconds(seed)
    ]
    seconds = np.array([[median for median, _ in row] for row in told])
    return TimeTables(batches=BATCHES, seconds={"cuda-model": seconds})


@pytest.mark.parametrize("seed", range(12))
def test_a_plan_by_disturbed_timings_loses_little(seed):
    """Beside the best plan by true times, it answers at least 0.9 as much; and no batch is far from the best one."""
    found = devices(GB)
    known = TimeTables(batches=BATCHES, seconds={"cuda-model": true_seconds(seed)})
    best = allocate(ensemble(1, 2, 3), found, tables=known, memory=MEMORY)
    plan = allocate(ensemble(1, 2, 3), found, tables=measured_tables(seed), memory=MEMORY)
    judge = PlacementProblem(
        devices=found,
        units=plan.units,
        batches=BATCHES,
        seconds=known.of_units(plan.units, found),
        memory=MEMORY,
    )
    assert judge.rate(plan.matrix) >= 0.9 * best.expected["value"]


@pytest.mark.parametrize("count", [6, 9, 20, 50, 200])
def test_intervals_hold_the_median(count):
    """In 19 of 20 cases or so, whatever the distribution."""
    held = 0
    for draw in range(400):
        values = np.exp(rng(draw, "test-interval", count).standard_normal(count))
        median, off = interval(values.tolist())
        held += abs(1.0 - median) <= 2 * off * median  # the interval need not be even around the median
    assert held >= 0.9 * 400


def test_repeats_end_when_they_are_enough():
    """At once where nothing disturbs; else after so many rounds, or when the time is over. Calls take turns."""
    steady, turns = [0.0], []

    def call(name):
        def run():
            turns.append(name)
            steady[0] += 0.01

        return run

    assert timed([call("a"), call("b")], clock=lambda: steady[0]) == [(pytest.approx(0.01), pytest.approx(0.0))] * 2
    assert [{*turns[start : start + 2]} for start in range(0, 10, 2)] == [{"a", "b"}] * 5
    assert len(turns) == 10
    machine = Machine(0)
    timed([machine.call(0.01)], most=30, seconds=math.inf, clock=machine.clock)
    assert machine.made == 30
    machine = Machine(0)
    timed([machine.call(0.01)], most=10**6, seconds=1.0, clock=machine.clock)
    assert 1.0 <= machine.now <= 1.5
    machine = Machine(0)
    [(_, off)] = timed([machine.call(0.01)], most=10**6, seconds=math.inf, clock=machine.clock)
    assert off <= ENOUGH
