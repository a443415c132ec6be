"""When a manager saves: intervals by steps, seconds and cost, and the end of the allocation."""

import itertools
import math

import pytest

from trainwright.checkpoint.config import CheckpointConfig
from trainwright.checkpoint.policy.save_policy import Costs, SavePolicy, exact_interval
from trainwright.checkpoint.save.saver import SaveHandle
from trainwright.errors import CheckpointConfigError


class Clock:
    """Seconds that pass when told."""

    def __init__(self):
        self.now = 1000.0

    def __call__(self):
        return self.now


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def pace(clock, monkeypatch):
    """Return a function that makes a pace under this clock, in an allocation that lasts so long."""

    def make(lasts=None, **settings):
        if lasts is not None:
            monkeypatch.setenv("SLURM_JOB_END_TIME", str(clock.now + lasts))
        return SavePolicy(CheckpointConfig(**settings), alone=False, clock=clock, steady=clock)

    monkeypatch.delenv("SLURM_JOB_END_TIME", raising=False)
    return make


def record(cost=1.0, persist=2.0, verdict="good"):
    return SaveHandle(
        step=1, blocking_seconds=cost / 4, slowdown_seconds=3 * cost / 4, persist_seconds=persist, verdict=verdict
    )


def waits(pace, clock, most=1e6):
    """Let time pass until a save is due; return how long that took."""
    began = clock.now
    while not pace.is_due(0) and clock.now - began < most:
        clock.now += 0.5
    return clock.now - began


class TestInterval:
    def test_steps(self, pace):
        """So many after the last save, whatever the clock says."""
        counted = pace(interval=10)
        assert [counted.is_due(steps) for steps in (1, 9, 10, 11)] == [False, False, True, True]
        counted.note_save(11)
        assert [counted.is_due(steps) for steps in (20, 21)] == [False, True]

    def test_seconds(self, pace, clock):
        timed = pace(interval=90.0)
        assert waits(timed, clock) == 90
        timed.note_save(3)
        assert waits(timed, clock) == 90

    def test_auto_learns_what_saves_cost(self, pace, clock):
        """After a first save at one minute, the optimum for the median cost of blocking and slow-down together."""
        auto = pace(mtbf_seconds=10_000.0)
        assert waits(auto, clock) == 60
        auto.note_save(1)
        for cost in (1.0, 5.0, 1.0):
            auto.note_end(record(cost))
        optimum = exact_interval(Costs(mtbf_seconds=10_000, cost_seconds=1))
        assert waits(auto, clock) == pytest.approx(optimum, abs=0.5)
        auto.note_save(2)
        assert waits(auto, clock) == pytest.approx(optimum, abs=0.5)

    def test_saves_that_failed_teach_nothing(self, pace, clock):
        auto = pace()
        auto.note_end(record(1e9, verdict="failed: no room"))
        assert waits(auto, clock) == 60

    def test_never_before_the_last_one_is_on_disk(self, pace, clock):
        auto = pace()
        auto.note_end(record(0.001, persist=500.0))
        assert waits(auto, clock) == pytest.approx(500, abs=0.5)

    def test_a_slow_down_below_zero_is_noise(self, pace, clock):
        auto = pace(mtbf_seconds=20_000.0)
        auto.note_end(SaveHandle(step=1, blocking_seconds=1.0, slowdown_seconds=-9.0, verdict="good"))
        assert waits(auto, clock) == pytest.approx(exact_interval(Costs(mtbf_seconds=20_000, cost_seconds=1)), abs=0.5)


class TestEndOfAllocation:
    def test_the_last_commit_lands_in_time(self, pace, clock):
        """Equal spacings, the last commit the margin before the end, and nothing after it."""
        end = clock.now + 2000
        auto, commits = pace(lasts=2000, mtbf_seconds=20_000.0, margin_seconds=100.0), []
        while clock.now < end:
            clock.now += 0.5
            if auto.is_due(0):
                auto.note_save(0)
                commits.append(clock.now + 8)
                clock.now += 2
                auto.note_end(record(2.0, persist=8.0))
        assert end - commits[-1] == pytest.approx(100, abs=3)
        gaps = [after - before for before, after in itertools.pairwise(commits[1:])]
        assert max(gaps) - min(gaps) < 6
        assert len(commits) in {7, 8, 9}

    def test_a_short_allocation_is_saved_once_at_half_its_time(self, pace, clock):
        """Before it is known what a save costs."""
        assert waits(pace(lasts=50), clock) == 25

    def test_too_late(self, pace, clock):
        """What is left is shorter than a save: it is told, one is begun, and no more."""
        auto = pace(lasts=100, margin_seconds=0.0)
        clock.now += 50
        auto.note_save(1)
        with pytest.warns(
            UserWarning, match=r"50.0 s are left before the end of the allocation and a save takes 60.0 s"
        ):
            auto.note_end(record(60.0, persist=60.0))
        assert auto.is_due(1)
        auto.note_save(1)
        assert waits(auto, clock, 1e4) == 1e4

    def test_a_save_of_one_s_own_does_not_count_as_the_last(self, pace, clock):
        """Asked for in the middle of the last spacing, it shifts the plan; the end is still saved."""
        auto = pace(lasts=400, mtbf_seconds=1e6, margin_seconds=20.0)
        clock.now += 60
        auto.note_save(1)
        auto.note_end(record(1.0, persist=1.0))
        clock.now += 100
        auto.note_save(2)
        auto.note_end(record(1.0, persist=1.0))
        assert waits(auto, clock) == pytest.approx(400 - 160 - 20 - 1, abs=1)


class TestSettings:
    @pytest.mark.parametrize(
        ("settings", "sentence"),
        [
            (
                {"signals": ("USR1",)},
                r"signals: got 'USR1'; allowed: names such as 'SIGUSR1' \(did you mean 'SIGUSR1'\?\)",
            ),
            ({"grace_seconds": 3.0}, r"grace_seconds: got 3.0; allowed: a number of seconds > 5"),
            ({"margin_seconds": math.nan}, r"margin_seconds: got nan; allowed: a number >= 0"),
            ({"hook": "sbatch"}, r"hook: got 'sbatch'; allowed: None, SlurmRequeue\(\)"),
        ],
    )
    def test_refusals(self, settings, sentence):
        with pytest.raises(CheckpointConfigError, match=sentence):
            CheckpointConfig(**settings)
