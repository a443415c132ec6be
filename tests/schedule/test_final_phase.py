"""The final phase before a deadline: what is complete by then, whatever rule and policy there are."""

import math

import pytest

from trainwright.cluster import Cluster
from trainwright.engine.simulated.settings import Scaling, Simulated
from trainwright.engine.simulated.simulation import simulate
from trainwright.engine.simulated.state import SimulatedStudy
from trainwright.engine.simulated.task import Parametric
from trainwright.schedule import (
    ASHA,
    PASHA,
    AllocationPolicy,
    Doubling,
    Fixed,
    FixedEpochs,
    IEpoch,
    MarginalGain,
    Median,
    PromotionRule,
    Scheduler,
)

LENGTH, EPOCH = 27, 10.0
RULES: list[PromotionRule] = [
    FixedEpochs(LENGTH),
    ASHA(max_epochs=LENGTH),
    ASHA(max_epochs=LENGTH, kind="promotion"),
    PASHA(max_epochs=LENGTH),
    Median(max_epochs=LENGTH),
]
POLICIES: list[AllocationPolicy] = [Fixed(1), Fixed(2), Doubling(), MarginalGain(), MarginalGain(cap=2)]


def play(
    rule: PromotionRule, policy: AllocationPolicy, lengths: float, *, seed: int = 0, **limit: float
) -> SimulatedStudy:
    """Simulate a study on 8 devices that ends after so many times a whole trial."""
    setting = Simulated(
        cluster=Cluster(2, 4),
        task=Parametric(epoch_seconds=EPOCH, speed_jitter=0.0),
        task_devices=1,
        scaling=Scaling(alpha=0.7),
        restart_seconds=1.0,
    )
    end = limit or {"deadline_seconds": lengths * LENGTH * EPOCH}
    return simulate(Scheduler(rule, policy), setting, seed=seed, **end)


@pytest.mark.parametrize("policy", POLICIES, ids=repr)
@pytest.mark.parametrize("rule", RULES, ids=lambda rule: f"{type(rule).__name__}-{getattr(rule, 'kind', '')}")
def test_some_trial_is_complete(rule: PromotionRule, policy: AllocationPolicy) -> None:
    """A study of twice a trial's length has complete trials in time, and nothing is held beyond the deadline."""
    found = play(rule, policy, 2.0)
    assert found.full
    assert not found.stalled
    assert max(hold.end for hold in found.gantt) <= 2.0 * LENGTH * EPOCH


@pytest.mark.parametrize("kind", ["stopping", "promotion"])
def test_too_little_time_for_one_device(kind: str) -> None:
    """Half of a trial's time is enough for one that gets several devices, where without a deadline none is complete."""
    rule = ASHA(max_epochs=LENGTH, kind=kind)
    for seed in range(5):
        assert play(rule, MarginalGain(), 0.5, seed=seed).full
        assert not play(rule, Fixed(1), 0.5, seed=seed, wall_seconds=0.5 * LENGTH * EPOCH).full


def test_nothing_new_starts_at_the_end() -> None:
    """The last trial starts well before the deadline, which one that ignores it does not do."""
    rule = ASHA(max_epochs=LENGTH, kind="promotion")
    ours, other = (play(rule, MarginalGain(), 4.0, **end) for end in ({}, {"wall_seconds": 4.0 * LENGTH * EPOCH}))
    first = [min(hold.start for hold in run.gantt if hold.trial == run.trials - 1) for run in (ours, other)]
    assert first[0] < (4.0 - 0.3) * LENGTH * EPOCH < first[1]


def test_better_than_none_and_no_worse_later() -> None:
    """With more time the best complete trial is better in the mean."""
    rule = ASHA(max_epochs=LENGTH, kind="promotion")
    means = []
    for lengths in (0.5, 1.0, 2.0, 4.0):
        losses = [play(rule, MarginalGain(), lengths, seed=seed).full_loss for seed in range(8)]
        assert all(map(math.isfinite, losses))
        means.append(sum(losses) / len(losses))
    assert means == sorted(means, reverse=True)


def test_a_barrier_opens() -> None:
    """`IEpoch` goes on with the best that wait, though its budget in trials is not used."""
    found = play(IEpoch(top_k=3, max_epochs=LENGTH), MarginalGain(), 2.0)
    assert found.full
