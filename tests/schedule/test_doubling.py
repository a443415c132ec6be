"""Doubling: new trials first, then who has earned devices in its order; never at a loss, and never for ever."""

import pytest

from trainwright.errors import ScheduleError
from trainwright.schedule import Desk, Doubling, Move, Start, Work


class Queue:
    def __init__(self, count):
        self.left = list(range(count))

    def next_work(self, *, new=True):
        return Work(self.left.pop(0)) if self.left and new else None

    def waits(self):
        return bool(self.left)


def desk_of(policy, slots, trials, **more):
    room = policy.room(slots, 4)
    return Desk(
        policy, Queue(trials), room, slots=slots, rungs=(1, 2, 4, 8), survival=lambda seat: (0.5, 0.25, 0.1), **more
    )


def test_new_trials_come_first_and_growth_when_none_waits():
    desk = desk_of(Doubling(start=4), 8, 3)
    assert len(desk.plan(0.0)) == 2
    desk.reported(0, 1, 0.1, 1000.0)
    assert desk.plan(1000.0) == []
    desk.reported(1, 1, 0.9, 1000.0)
    desk.gone(1)
    assert desk.plan(1000.0) == [Start(Work(2), (4, 5, 6, 7))]
    desk.reported(2, 1, 0.9, 2000.0)
    desk.gone(2)
    assert desk.plan(2000.0) == [Move(0, tuple(range(8)))]


def test_the_highest_rung_then_the_least_loss_is_served_first():
    desk = desk_of(Doubling(start=4, wait_seconds=5000.0), 20, 5)
    desk.plan(0.0)
    for trial, loss in ((0, 0.3), (1, 0.2), (2, 0.1)):
        desk.reported(trial, 1, loss, 1000.0)
        assert desk.plan(1000.0) == []
    desk.reported(0, 2, 0.3, 2000.0)
    assert desk.plan(2000.0) == []
    for trial, moved in ((3, 0), (4, 2)):
        desk.reported(trial, 1, 0.9, 2000.0)
        desk.gone(trial)
        (move,) = desk.plan(2000.0)
        assert (move.trial, len(move.block)) == (moved, 8)


@pytest.mark.parametrize(
    ("restart", "speedup", "grows"),
    [(100.0, None, True), (1500.0, None, False), (100.0, 1.5, True), (100.0, 1.08, False), (0.0, 1.08, False)],
)
def test_nobody_grows_at_a_loss_or_beyond_the_knee(restart, speedup, grows):
    """Three epochs of 1000 s are expected: a restart, or the speed as measured, can make growth a loss."""
    desk = desk_of(Doubling(start=4), 8, 1)
    desk.estimates.restart_seconds = restart
    for _ in range(3 if speedup else 0):
        desk.estimates.saw_speedup(2, speedup)
    desk.plan(0.0)
    desk.reported(0, 1, 0.5, 1000.0)
    assert bool(desk.plan(1000.0)) is grows


def test_what_was_never_measured_is_tried_one_step_at_a_time():
    """A trial that has earned four times its devices gets twice, until somebody has shown what twice brings."""
    for measured, size in ((0, 8), (3, 16)):
        desk = desk_of(Doubling(start=4), 16, 1)
        for _ in range(measured):
            desk.estimates.saw_speedup(2, 1.8)
        desk.plan(0.0)
        desk.reported(0, 2, 0.5, 2000.0)
        (move,) = desk.plan(2000.0)
        assert len(move.block) == size


def test_a_trial_that_growth_has_made_slower_goes_back():
    desk = desk_of(Doubling(start=4), 8, 1)
    desk.plan(0.0)
    desk.reported(0, 1, 0.5, 1000.0)
    assert desk.plan(1000.0) == [Move(0, tuple(range(8)))]
    desk.moved(0, 1000.0)
    desk.seats[0].began = (1, 1030.0)
    desk.reported(0, 2, 0.5, 3030.0)
    assert desk.plan(3030.0) == [Move(0, (0, 1, 2, 3))]


def test_after_its_wait_it_takes_what_there_is():
    desk = desk_of(Doubling(start=4, factor=4, wait_seconds=500.0), 16, 3)
    for _ in range(3):
        desk.estimates.saw_speedup(4, 3.0)
    desk.plan(0.0)
    desk.reported(0, 1, 0.5, 1000.0)
    assert desk.plan(1000.0) == []  # 16 are earned, 8 could be had
    assert desk.wake_at == 1500.0
    assert desk.plan(1500.0) == [Move(0, (*range(4), *range(12, 16)))]


@pytest.mark.parametrize("arguments", [{"mode": "wait"}, {"wait_seconds": 0}, {"mode": "block", "wait_seconds": 1.0}])
def test_refused(arguments):
    with pytest.raises(ScheduleError, match=r"Doubling\.(mode|wait_seconds): got .*; allowed: "):
        Doubling(**arguments)
