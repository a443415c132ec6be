"""MarginalGain: its filling is the optimum, it gives devices back, and nobody starves."""

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainwright.errors import ScheduleError
from trainwright.schedule import MarginalGain
from trainwright.schedule.allocator.device_allocator import DeviceAllocator
from trainwright.schedule.policies.allocation_policy import Action, PendingTrial
from trainwright.schedule.policies.marginal_gain import Rows, minimise_makespan

times = st.integers(1, 30).map(float)


@given(st.data(), st.integers(1, 4), st.integers(1, 4), st.integers(0, 12))
def test_filling_is_the_optimum(data, trials, choices, supply):
    """Against all assignments: no other within the supply has an earlier last end."""
    first = data.draw(st.lists(times, min_size=trials, max_size=trials))
    more = data.draw(
        st.lists(st.lists(times | st.just(float("inf")), min_size=trials, max_size=trials), min_size=choices - 1,
                 max_size=choices - 1)
    )  # fmt: skip
    ends = np.array([first, *more])
    costs = np.cumsum([[0] * trials, *[[2**k] * trials for k in range(choices - 1)]], axis=0).astype(float)
    picked = minimise_makespan(ends, costs, float(supply))
    columns = range(trials)
    assert sum(costs[k, j] for j, k in zip(columns, picked, strict=True)) <= supply
    best = min(
        max(ends[k, j] for j, k in zip(columns, levels, strict=True))
        for levels in itertools.product(range(choices), repeat=trials)
        if sum(costs[k, j] for j, k in zip(columns, levels, strict=True)) <= supply
    )
    assert max(ends[k, j] for j, k in zip(columns, picked, strict=True)) == best


@given(st.lists(st.tuples(st.booleans(), st.integers(0, 80)), max_size=200))
def test_rows_against_a_dictionary(steps):
    rows, plain = Rows(), {}
    for keep, trial in steps:
        if keep:
            values = tuple(float(trial * 10 + len(plain) + k) for k in range(len(Rows.NAMES)))
            rows.put(trial, *values)
            plain[trial] = values
        elif trial in plain:
            rows.drop(trial)
            del plain[trial]
    assert set(rows.trials) == set(plain)
    for trial, values in plain.items():
        assert tuple(rows.column(name)[rows.place(trial)] for name in Rows.NAMES) == values


class Queue:
    def __init__(self, count):
        self.left = list(range(count))

    def next_trial(self, *, new=True):
        return PendingTrial(self.left.pop(0)) if self.left else None

    def waits(self):
        return bool(self.left)


def allocator_of(policy, slots, trials, per_node=4):
    free_slots = policy.free_slots(slots, per_node)
    return DeviceAllocator(
        policy, Queue(trials), free_slots, slots=slots, rungs=(1, 2, 4, 8), survival=lambda running: (0.5, 0.25, 0.1)
    )


def test_nobody_grows_while_new_trials_wait_and_who_ends_last_does_when_none_does():
    allocator = allocator_of(MarginalGain(start=4), 8, 3)
    assert [action.block for action in allocator.plan(0.0)] == [(0, 1, 2, 3), (4, 5, 6, 7)]
    allocator.note_report(0, 1, 0.5, 1000.0)
    assert allocator.plan(1000.0) == []
    allocator.note_report(1, 1, 0.9, 1100.0)
    allocator.note_ended(1)
    assert allocator.plan(1100.0) == [Action("start", 2, (4, 5, 6, 7))]
    allocator.note_report(2, 1, 0.9, 2100.0)
    allocator.note_ended(2)
    asked = allocator.plan(2100.0)
    assert [action.kind for action in asked] == ["replan"]
    allocator.note_report(0, 2, 0.4, 2200.0)
    assert allocator.plan(2200.0) == [Action("resize", 0, tuple(range(8)))]


def test_a_trial_that_goes_on_has_passed_the_rungs_up_to_its_epoch():
    """A promoted or interrupted trial has what is left before it, not what it has behind it."""
    allocator = allocator_of(MarginalGain(start=4), 4, 0)
    allocator.source.next_trial = lambda new: PendingTrial(3, 2) if 3 not in allocator.running else None
    assert allocator.plan(0.0) == [Action("start", 3, (0, 1, 2, 3))]
    running = allocator.running[3]
    assert (running.rungs, running.rung_epoch) == (2, 2)
    assert allocator.remaining_epochs(running) == (4 - 2) + 0.5 * (8 - 4)


def test_who_tries_growth_first_is_worse_where_both_have_come():
    """A trial that is an epoch ahead has a lower loss, and is none the better for it: it was worse at the rung."""
    allocator = allocator_of(MarginalGain(), 4, 4)
    allocator.estimates.restart_seconds = 1.0
    allocator.plan(0.0)
    for at, trial, epoch, loss in (
        (1000.0, 0, 1, 0.5),
        (1100.0, 1, 1, 0.6),
        (2000.0, 0, 2, 0.25),
        (2200.0, 1, 2, 0.35),
    ):
        allocator.note_report(trial, epoch, loss, at)
        assert allocator.plan(at) == []
    for trial in (2, 3):
        allocator.note_ended(trial)
    allocator.note_report(1, 3, 0.2, 3300.0)
    allocator.plan(3300.0)
    assert {trial: running.size for trial, running in allocator.running.items()} == {0: 1, 1: 2}


def test_growth_that_is_not_worth_a_restart_does_not_happen():
    allocator = allocator_of(MarginalGain(start=4), 8, 1)
    allocator.estimates.restart_seconds = 10_000.0
    allocator.plan(0.0)
    allocator.note_report(0, 1, 0.5, 1000.0)
    assert allocator.plan(1000.0) == []


def test_a_trial_gives_half_back_to_work_that_comes_later():
    allocator = allocator_of(MarginalGain(start=4), 8, 1)
    allocator.plan(0.0)
    allocator.note_report(0, 1, 0.5, 1000.0)
    assert allocator.plan(1000.0) == [Action("resize", 0, tuple(range(8)))]
    allocator.note_resized(0, 1000.0)
    allocator.source.left.append(1)
    allocator.note_report(0, 2, 0.5, 1600.0)
    allocator.note_report(0, 4, 0.5, 2800.0)
    allocator.note_report(0, 7, 0.5, 4600.0)  # an epoch is left: it gives little up, a start gains much
    assert allocator.plan(4600.0) == [Action("resize", 0, (0, 1, 2, 3))]
    allocator.note_resized(0, 4600.0)
    assert allocator.plan(4600.0) == [Action("start", 1, (4, 5, 6, 7))]


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ({"start": 0}, "start: got 0; allowed: a whole number of devices >= 1"),
        ({"start": 4, "cap": 2}, "cap: got 2; allowed: a whole number >= start=4, or None"),
        ({"delta": -1}, "delta: got -1; allowed: a number >= 0"),
    ],
)
def test_refused(arguments, sentence):
    with pytest.raises(ScheduleError, match=rf"MarginalGain.{sentence}"):
        MarginalGain(**arguments)


def test_an_engine_that_is_too_small():
    with pytest.raises(ScheduleError, match=r"MarginalGain\.start: got 4, the engine has 2 slots; allowed: 1 to 2"):
        MarginalGain(start=4).check(2, 2, None)
