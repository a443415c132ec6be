"""RASDA is ASHA by quantiles times doubling."""

import pytest

from trainwright.cluster import Cluster
from trainwright.engine.simulated.settings import Simulated
from trainwright.engine.simulated.simulation import simulate
from trainwright.engine.simulated.task import Parametric
from trainwright.errors import ScheduleError
from trainwright.schedule import ASHA, RASDA, Doubling, DoublingAsPublished, Scheduler


def test_it_is_a_rule_times_a_policy():
    rule = ASHA(max_epochs=64, min_epochs=1, eta=2, cutoff="quantile")
    assert RASDA(max_epochs=64, start=4) == Scheduler(rule, Doubling(start=4))
    assert RASDA(max_epochs=64, start=4, as_published=True) == Scheduler(rule, DoublingAsPublished(start=4))
    assert RASDA(max_epochs=64, start=4, cap=16).policy == Doubling(start=4, cap=16)
    with pytest.raises(ScheduleError, match=r"Doubling\.start: got 0"):
        RASDA(max_epochs=64, start=0)


@pytest.mark.parametrize("devices", [4, 8, 12, 64])
@pytest.mark.parametrize(
    "policy",
    [
        Doubling(start=4),
        Doubling(start=4, cap=8),
        Doubling(start=4, factor=4, wait_seconds=1.0),
    ],
)
def test_doubling_never_stalls(devices, policy):
    """Whatever the size of the cluster: what cannot be had is not waited for for ever; the published one waits."""
    setting = Simulated(cluster=Cluster(devices // 4, 4), task=Parametric(epoch_seconds=100.0))
    rule = ASHA(max_epochs=32, min_epochs=1, eta=2)
    for trials in (devices // 4, devices):
        run = simulate(Scheduler(rule, policy), setting, trials=trials, seed=1)
        assert not run.stalled
        assert run.full >= 1
    if devices < 4 * 2**5:
        published = simulate(Scheduler(rule, DoublingAsPublished(start=4)), setting, trials=devices // 4, seed=1)
        assert published.stalled


def test_the_published_policy_names_what_it_would_wait_for():
    """Before the study starts, and of the preset only."""
    rule = ASHA(max_epochs=8, min_epochs=1, eta=2)  # three rungs
    assert DoublingAsPublished(start=4).check(32, 4, rule) is None
    sentence = "a trial that passes all rungs wants 32 devices, the engine has 16"
    assert sentence in DoublingAsPublished(start=4).check(16, 4, rule)
    assert Doubling(start=4).check(16, 4, rule) is None
    with pytest.raises(ScheduleError, match="got 'block' with cap or wait_seconds"):
        Doubling(mode="block", cap=4)
