"""Doubling: new trials first, then who has earned devices in its order; never at a loss, and never for ever."""

import pytest

from trainwright.errors import ScheduleError
from trainwright.schedule import Doubling
from trainwright.schedule.allocator.device_allocator import DeviceAllocator
from trainwright.schedule.policies.allocation_policy import Action, PendingTrial


class Queue:
    def __init__(self, count):
        self.left = list(range(count))

    def next_trial(self, *, new=True):
        return PendingTrial(self.left.pop(0)) if self.left and new else None

    def waits(self):
        return bool(self.left)


def allocator_of(policy, slots, trials, **more):
    free_slots = policy.free_slots(slots, 4)
    return DeviceAllocator(
        policy,
        Queue(trials),
        free_slots,
        slots=slots,
        rungs=(1, 2, 4, 8),
        survival=lambda running: (0.5, 0.25, 0.1),
        **more,
    )


def test_new_trials_come_first_and_growth_when_none_waits():
    allocator = allocator_of(Doubling(start=4), 8, 3)
    assert len(allocator.plan(0.0)) == 2
    allocator.note_report(0, 1, 0.1, 1000.0)
    assert allocator.plan(1000.0) == []
    allocator.note_report(1, 1, 0.9, 1000.0)
    allocator.note_ended(1)
    assert allocator.plan(1000.0) == [Action("start", 2, (4, 5, 6, 7))]
    allocator.note_report(2, 1, 0.9, 2000.0)
    allocator.note_ended(2)
    assert allocator.plan(2000.0) == [Action("resize", 0, tuple(range(8)))]


def test_the_highest_rung_then_the_least_loss_is_served_first():
    allocator = allocator_of(Doubling(start=4, wait_seconds=5000.0), 20, 5)
    allocator.plan(0.0)
    for trial, loss in ((0, 0.3), (1, 0.2), (2, 0.1)):
        allocator.note_report(trial, 1, loss, 1000.0)
        assert allocator.plan(1000.0) == []
    allocator.note_report(0, 2, 0.3, 2000.0)
    assert allocator.plan(2000.0) == []
    for trial, moved in ((3, 0), (4, 2)):
        allocator.note_report(trial, 1, 0.9, 2000.0)
        allocator.note_ended(trial)
        (move,) = allocator.plan(2000.0)
        assert (move.trial, len(move.block)) == (moved, 8)


@pytest.mark.parametrize(
    ("restart", "speedup", "grows"),
    [(100.0, None, True), (1500.0, None, False), (100.0, 1.5, True), (100.0, 1.08, False), (0.0, 1.08, False)],
)
def test_nobody_grows_at_a_loss_or_beyond_the_knee(restart, speedup, grows):
    """Three epochs of 1000 s are expected: a restart, or the speed as measured, can make growth a loss."""
    allocator = allocator_of(Doubling(start=4), 8, 1)
    allocator.estimates.restart_seconds = restart
    for _ in range(3 if speedup else 0):
        allocator.estimates.saw_speedup(2, speedup)
    allocator.plan(0.0)
    allocator.note_report(0, 1, 0.5, 1000.0)
    assert bool(allocator.plan(1000.0)) is grows


def test_what_was_never_measured_is_tried_one_step_at_a_time():
    """A trial that has earned four times its devices gets twice, until somebody has shown what twice brings."""
    for measured, size in ((0, 8), (3, 16)):
        allocator = allocator_of(Doubling(start=4), 16, 1)
        for _ in range(measured):
            allocator.estimates.saw_speedup(2, 1.8)
        allocator.plan(0.0)
        allocator.note_report(0, 2, 0.5, 2000.0)
        (move,) = allocator.plan(2000.0)
        assert len(move.block) == size


def test_a_trial_that_growth_has_made_slower_goes_back():
    allocator = allocator_of(Doubling(start=4), 8, 1)
    allocator.plan(0.0)
    allocator.note_report(0, 1, 0.5, 1000.0)
    assert allocator.plan(1000.0) == [Action("resize", 0, tuple(range(8)))]
    allocator.note_resized(0, 1000.0)
    allocator.running[0].measured_from = (1, 1030.0)
    allocator.note_report(0, 2, 0.5, 3030.0)
    assert allocator.plan(3030.0) == [Action("resize", 0, (0, 1, 2, 3))]


def test_after_its_wait_it_takes_what_there_is():
    allocator = allocator_of(Doubling(start=4, factor=4, wait_seconds=500.0), 16, 3)
    for _ in range(3):
        allocator.estimates.saw_speedup(4, 3.0)
    allocator.plan(0.0)
    allocator.note_report(0, 1, 0.5, 1000.0)
    assert allocator.plan(1000.0) == []  # 16 are earned, 8 could be had
    assert allocator.wake_at == 1500.0
    assert allocator.plan(1500.0) == [Action("resize", 0, (*range(4), *range(12, 16)))]


@pytest.mark.parametrize("arguments", [{"mode": "wait"}, {"wait_seconds": 0}, {"mode": "block", "wait_seconds": 1.0}])
def test_refused(arguments):
    with pytest.raises(ScheduleError, match=r"Doubling\.(mode|wait_seconds): got .*; allowed: "):
        Doubling(**arguments)
