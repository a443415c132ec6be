"""Timings that are disturbed, and plans that lose little by them."""

import itertools
import math

import numpy as np
import pytest
from allocation_for_tests import GB, devices, ensemble
from benchmarks.serve.placement_oracles import rates_of

from trainwright.ensemble.library.cost import time_calls, time_quartiles
from trainwright.randomness import rng
from trainwright.serve import TimeTables, allocate
from trainwright.serve.placement.integer_program import PlacementProblem
from trainwright.serve.placement.units import MemberFootprint, MemoryModel

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


def measured_tables(seed):
    machine = Machine(seed)
    seconds = np.array(
        [time_calls([machine.call(seconds) for seconds in row], 0.8, machine.clock) for row in true_seconds(seed)]
    )
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
    assert rates_of(judge, [plan.matrix])[0] >= 0.9 * best.expected["value"]


def test_spread():
    """The quartiles of a call that takes 1 to 5 ms in turn; the median is that of `time_calls`."""
    now, turn = [0.0], itertools.cycle([1, 2, 3, 4, 5])

    def call():
        now[0] += 1e-3 * next(turn)

    assert time_quartiles([call], 0.0, lambda: now[0]) == [pytest.approx((2e-3, 3e-3, 4e-3))]
    assert time_calls([call], 0.0, lambda: now[0]) == [pytest.approx(3e-3)]


def test_rounds():
    """At least five and at most 200, until the time is over; calls take turns."""
    steady, turns = [0.0], []

    def call(name):
        def run():
            turns.append(name)
            steady[0] += 0.01

        return run

    assert time_calls([call("a"), call("b")], 0.0, lambda: steady[0]) == [pytest.approx(0.01)] * 2
    assert [{*turns[start : start + 2]} for start in range(0, 10, 2)] == [{"a", "b"}] * 5
    assert len(turns) == 10
    machine = Machine(0)
    time_calls([machine.call(0.01)], math.inf, machine.clock)
    assert machine.made == 200
    machine = Machine(0)
    time_calls([machine.call(0.01)], 1.0, machine.clock)
    assert 1.0 <= machine.now <= 1.5
