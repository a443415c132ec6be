"""What growth must never do, and what it must do in time: whatever the speed, the restarts, the budget."""

import math
from dataclasses import dataclass
from functools import cache

import numpy as np
import pytest

from trainwright.cluster import Cluster
from trainwright.engine.simulated.settings import Scaling, Simulated
from trainwright.engine.simulated.simulation import simulate
from trainwright.engine.simulated.task import Parametric
from trainwright.errors import EngineError
from trainwright.randomness import rng
from trainwright.schedule import ASHA, RASDA, Continue, Doubling, Fixed, MarginalGain, Reason, Scheduler, Stop

EPOCH = 1000.0
GROWING = [Doubling(start=4), MarginalGain(start=4)]
ROUNDING = 1.02

# Speed on 2 and 4 times 4 GPUs, measured by others (see benchmarks/schedule/speeds.py), the batch held.
MEASURED = [{2: 1.58, 4: 1.96}, {2: 1.21, 4: 1.42}, {2: 1.50, 4: 2.07}, {2: 1.77, 4: 2.33}]


@dataclass(frozen=True, kw_only=True)
class Drawn(ASHA):
    """ASHA whose every verdict is drawn: whoever survives does so whatever others had before, so that times compare."""

    def on_report(self, index, view, trial):
        if trial.epoch not in self.rungs:
            return Continue()
        survives = rng(view.seed, "drawn", trial.number, trial.epoch).random() < 1 / float(self.eta)
        return Continue() if survives else Stop(Reason(rule="Drawn", epoch=trial.epoch))


def cluster(scaling, restart, devices=64):
    return Simulated(
        cluster=Cluster(devices // 4, 4),
        task=Parametric(epoch_seconds=EPOCH),
        task_devices=4,
        scaling=scaling,
        restart_seconds=restart * EPOCH,
    )


def makespan(rule, policy, setting, trials, seeds):
    runs = [simulate(Scheduler(rule, policy), setting, trials=trials, seed=seed) for seed in seeds]
    return float(np.mean([run.makespan_seconds for run in runs]))


def drawn(case):
    """Return the case-th setting of a cluster: any exponent or measured curve, any restart; and a length of trials."""
    generator = rng(case, "growth", 0)
    scaling = Scaling(alpha=float(generator.uniform(0.2, 1.0)))
    if case % 3 == 0:
        scaling = Scaling(curve=MEASURED[case // 3 % len(MEASURED)])
    restart = (0.0, 0.1, 0.5, 2.0)[case % 4]
    return cluster(scaling, restart), int(generator.choice([4, 8, 16]))


@pytest.mark.parametrize("policy", GROWING, ids=lambda policy: type(policy).__name__)
@pytest.mark.parametrize("trials", [16, 64], ids=["at once", "queue"])
def test_growing_is_never_slower_than_not_growing(policy, trials):
    """Whatever the speed on more devices and the restarts; the same trials survive in both."""
    for case in range(12):
        setting, length = drawn(case)
        rule = Drawn(max_epochs=length, eta=2)
        grown, fixed = (makespan(rule, each, setting, trials, range(5)) for each in (policy, Fixed(4)))
        assert grown <= ROUNDING * fixed, (setting, length)


@pytest.mark.parametrize("policy", GROWING, ids=lambda policy: type(policy).__name__)
@pytest.mark.parametrize("curve", [{2: 1.5, 4: 0.9}, {2: 1.0, 4: 0.8}, {2: 0.32, 4: 0.38}], ids=str)
@pytest.mark.parametrize("trials", [16, 64], ids=["at once", "queue"])
def test_where_more_devices_are_slower_few_pay_for_it(policy, curve, trials):
    """Somebody has to find it out, and goes back; by `MarginalGain` one with little to lose, by `Doubling` more."""
    rule, setting = ASHA(max_epochs=8, eta=2), cluster(Scaling(curve=curve), 0.1)
    grown, fixed = (makespan(rule, each, setting, trials, range(5)) for each in (policy, Fixed(4)))
    allowed = {MarginalGain: 1.05, Doubling: 1.1 if curve[2] >= 1 else math.inf}
    assert grown <= allowed[type(policy)] * fixed


def test_complete_models_come_earlier_in_a_queue():
    """While new trials wait, those grow that have passed the last rung; the end comes no later for it."""
    rule, setting = ASHA(max_epochs=8, eta=2, cutoff="quantile"), cluster(Scaling(alpha=0.9), 0.1, devices=256)
    for seed in range(3):
        grown, fixed = (
            simulate(Scheduler(rule, policy), setting, trials=256, seed=seed)
            for policy in (MarginalGain(start=4), Fixed(4))
        )
        assert grown.first_full_seconds < 0.9 * fixed.first_full_seconds
        assert grown.makespan_seconds < fixed.makespan_seconds


@pytest.mark.parametrize("kind", ["rank", pytest.param("quantile", marks=pytest.mark.slow)])
@pytest.mark.parametrize(("alpha", "restart"), [(0.35, 0.1), (0.5, 0.1), (0.9, 2.0), (0.2, 0.0)])
def test_asha_that_grows_is_never_slower(kind, alpha, restart):
    """With the rule itself, whose survivors depend on who comes first: in the mean, at once and in a queue."""
    rule, setting = ASHA(max_epochs=8, eta=2, cutoff=kind), cluster(Scaling(alpha=alpha), restart, devices=128)
    for trials in (32, 128):
        fixed = makespan(rule, Fixed(4), setting, trials, range(8))
        for policy in GROWING:
            assert makespan(rule, policy, setting, trials, range(8)) <= ROUNDING * fixed


def test_rasda_is_faster_than_asha_at_half_the_exponent():
    """Which it is as `tw.RASDA`, and is not as published."""
    setting = cluster(Scaling(alpha=0.35), 0.1, devices=256)
    rule = ASHA(max_epochs=8, eta=2, cutoff="quantile")
    asha, ours, published = (
        makespan(scheduler.rule, scheduler.policy, setting, 256, range(4))
        for scheduler in (
            Scheduler(rule, Fixed(4)),
            RASDA(max_epochs=8, start=4),
            RASDA(max_epochs=8, start=4, as_published=True),
        )
    )
    assert ours < asha < published


# A budget of time.

LENGTH = 8
BUDGETS = {
    "trials": {"trials": 16},
    "wall, fits": {"wall_seconds": 2.0 * LENGTH * EPOCH},
    "wall, does not fit": {"wall_seconds": 0.8 * LENGTH * EPOCH},
    "devices, fits": {"device_seconds": 2.0 * LENGTH * EPOCH * 64},
    "devices, does not fit": {"device_seconds": 0.8 * LENGTH * EPOCH * 64},
    "both": {"trials": 1000, "wall_seconds": 1.5 * LENGTH * EPOCH},
}


@cache
def budgeted(policy, name):
    rule, setting = ASHA(max_epochs=LENGTH, eta=2), cluster(Scaling(alpha=0.9), 0.05)
    return [simulate(Scheduler(rule, policy), setting, seed=seed, **BUDGETS[name]) for seed in range(8)]


@pytest.mark.parametrize("policy", GROWING, ids=lambda policy: type(policy).__name__)
@pytest.mark.parametrize("name", BUDGETS)
def test_trials_grow_whatever_ends_the_study(policy, name):
    """Some trial grows, more are complete than on fixed devices, and their best is no worse."""
    grown, fixed = budgeted(policy, name), budgeted(Fixed(4), name)
    assert all(run.resizes for run in grown)
    if name == "trials":
        assert all(run.trials == 16 for run in grown)
        return
    assert sum(run.full for run in grown) > sum(run.full for run in fixed)
    losses = [np.mean([run.full_loss for run in runs]) for runs in (grown, fixed)]
    assert losses[0] <= losses[1] + 0.005
    if "not" in name:
        assert not any(run.full for run in fixed)


@pytest.mark.parametrize("policy", [Fixed(4), *GROWING], ids=lambda policy: type(policy).__name__)
@pytest.mark.parametrize("name", [name for name in BUDGETS if name != "trials"])
def test_a_budget_of_time_is_kept(policy, name):
    """The study ends when it is used: at that second of the clock, or when so much was held."""
    budget = BUDGETS[name]
    for run in budgeted(policy, name):
        if "wall_seconds" in budget:
            assert run.makespan_seconds == pytest.approx(budget["wall_seconds"])
        else:
            assert run.device_seconds == pytest.approx(budget["device_seconds"])
        assert not run.stalled


def test_new_trials_start_while_they_can_be_complete():
    """In a long study most of the time nobody grows: trials are tried, as many as on fixed devices."""
    rule, setting = ASHA(max_epochs=LENGTH, eta=2), cluster(Scaling(alpha=0.9), 0.05)
    tried = [
        np.mean([simulate(Scheduler(rule, policy), setting, seed=s, wall_seconds=64 * EPOCH).trials for s in range(4)])
        for policy in (Fixed(4), *GROWING)
    ]
    assert min(tried[1:]) > 0.9 * tried[0]


@pytest.mark.parametrize(
    ("budget", "sentence"),
    [
        ({}, "nothing ends the study; give trials, deadline_seconds, wall_seconds or device_seconds"),
        ({"wall_seconds": 0.0}, "wall_seconds: got 0.0; allowed: a number > 0, or None"),
        ({"device_seconds": math.inf}, "device_seconds: got inf; allowed: a number > 0, or None"),
        ({"trials": 1.5}, "trials: got 1.5; allowed: a whole number >= 1"),
    ],
)
def test_budgets_that_are_none(budget, sentence):
    with pytest.raises(EngineError, match=sentence):
        simulate(Scheduler(ASHA(max_epochs=4)), Simulated(cluster=Cluster()), seed=0, **budget)
