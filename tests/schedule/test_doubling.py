"""Doubling lends what a reservation leaves idle, gets it back at the first rung, and lends nothing that it needs."""

import pytest

from trainwright.schedule import Desk, Doubling, Move, Rest, Start, Work


class Queue:
    def __init__(self, count):
        self.left = list(range(count))

    def next_work(self):
        return Work(self.left.pop(0)) if self.left else None

    def waits(self):
        return bool(self.left)


def desk_that_reserves(wait_seconds, *, backfill=True):
    """Five trials on five nodes; at 1000 s the first has earned four nodes and the second has freed one."""
    policy = Doubling(start=4, factor=4, wait_seconds=wait_seconds, backfill=backfill)
    desk = Desk(
        policy, Queue(7), policy.room(20, 4), slots=20, rungs=(1, 2, 4, 8), survival=lambda seat: (0.5, 0.25, 0.1)
    )
    assert len(desk.plan(0.0)) == 5
    desk.reported(0, 1, 0.1, 1000.0)
    assert desk.plan(1000.0) == []
    desk.reported(1, 1, 0.9, 1000.0)
    desk.gone(1)
    return desk


def test_what_is_reserved_and_idle_is_lent_and_given_back():
    """A new trial runs to its first rung, gives the devices back, and goes on when the reservation has been met."""
    desk = desk_that_reserves(1e6)
    assert desk.plan(1000.0) == [Start(Work(5), (4, 5, 6, 7))]
    desk.reported(5, 1, 0.5, 2000.0)
    assert desk.plan(2000.0) == [Rest(5)]
    desk.rested(5)
    assert desk.plan(2000.0) == [Start(Work(6), (4, 5, 6, 7))]  # lent once more
    for trial in (2, 3, 6):
        desk.reported(trial, 1, 0.9, 3000.0)
        desk.gone(trial)
    actions = desk.plan(3000.0)
    assert [type(action) for action in actions] == [Move]
    assert (actions[0].trial, len(actions[0].block)) == (0, 16)
    desk.moved(0, 3000.0)
    desk.reported(4, 1, 0.9, 3000.0)
    desk.gone(4)
    assert desk.plan(3000.0) == [Start(Work(5, 1), (16, 17, 18, 19))]


@pytest.mark.parametrize(("wait_seconds", "backfill"), [(1e6, False), (500.0, True)])
def test_nothing_is_lent_beyond_the_reservation(wait_seconds, backfill):
    """Without backfill, or if an epoch takes longer than the reservation holds, the devices wait."""
    desk = desk_that_reserves(wait_seconds, backfill=backfill)
    assert desk.plan(1000.0) == []


def test_nothing_is_lent_that_others_are_about_to_complete():
    """Trials that are late at their last epoch are expected to free what is wanted at once."""
    desk = desk_that_reserves(1e6)
    for trial in (2, 3, 4):
        desk.seats[trial].rungs = 3  # their next report is their last
        desk.seats[trial].began = (8, 1000.0)
    assert desk.plan(1000.0) == []
