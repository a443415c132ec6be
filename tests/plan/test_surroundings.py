"""Input, checkpoints and failures around a step."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from oracle_cases import make_cluster, make_convolutions

from trainwright.cluster.device import DeviceFailures, Storage
from trainwright.errors import InputError
from trainwright.plan import Degrees, Input, Oracle, Saving
from trainwright.plan.plan_query import best_interval, inflation
from trainwright.randomness import rng


@given(st.floats(1.0, 300.0), st.floats(600.0, 1e6))
def test_no_interval_is_better(cost, mtbf):
    """A little more or less often is never better."""
    (tau,) = best_interval(cost, np.array([mtbf]))

    def wasted(each):
        return np.expm1((each + cost) / mtbf) / each

    assert wasted(tau) <= min(wasted(tau * 0.99), wasted(tau * 1.01)) * (1 + 1e-9)


def test_closed_form_is_what_failures_do():
    """The mean of simulated jobs with exponential failures is within one percent."""
    saving = Saving(seconds=20.0, restart_seconds=60.0, interval_seconds=300.0)
    cluster = make_cluster(failure=DeviceFailures(device_mtbf_hours=16.0))
    mtbf = 16.0 * 3600 / 16
    _, factor = inflation(saving, cluster, np.array([16.0]))
    generator = rng(0, "failures", 0)
    segments, total = 40_000, 0.0
    for _ in range(segments):  # each ends when its work and its save came through without a failure
        while (until := generator.exponential(mtbf)) < 320.0:
            total += until
            while (again := generator.exponential(mtbf)) < 60.0:  # restarts fail too
                total += again
            total += 60.0
        total += 320.0
    assert factor[0] == pytest.approx(total / (segments * 300.0), rel=0.01)


def test_no_failures_leave_the_saves():
    """With an infinite time between failures a job takes 1 + C / tau times its work."""
    saves, factor = inflation(Saving(seconds=36.0), make_cluster(), np.array([1.0, 16.0]))
    assert saves.tolist() == factor.tolist() == [1.01, 1.01]


def test_bytes_of_a_checkpoint_need_a_speed():
    """A save's bytes become seconds by the storage's speed; without one the sentence says what to give."""
    assert Saving(bytes=3e9).blocking(make_cluster(storage=Storage(write=1e9))) == 3.0
    with pytest.raises(InputError, match=r"storage\.write"):
        Saving(bytes=3e9).blocking(make_cluster())


def test_input_is_the_slowest_of_its_ways():
    """Decoding, a node's disk and the shared file system: whoever takes longest, beside the step or not."""
    profile = make_convolutions()
    cluster = make_cluster(storage=Storage(node_read=1e6, shared_read=1e7))
    oracle = Oracle(cluster)
    degrees = Degrees(data=8)  # two nodes
    plain = oracle.estimate(profile, batch=64, degrees=degrees)

    def waited(**settings):
        return oracle.estimate(profile, batch=64, degrees=degrees, input=Input(**settings)).breakdown.input

    step = plain.seconds_per_iteration
    assert waited(bytes=1e5) == pytest.approx(32 * 1e5 / 1e6 - step)
    assert waited(bytes=1e5, prefetch=False) == pytest.approx(32 * 1e5 / 1e6)
    assert waited(bytes=1e5, decode=1.0, workers=4) == pytest.approx(32 / 4 - step)
    assert waited(bytes=1e5, cached=True) == 0.0
    alone = make_cluster(storage=Storage(shared_read=1e6))
    shared = Oracle(alone).estimate(profile, batch=64, degrees=degrees, input=Input(bytes=1e5, prefetch=False))
    assert shared.breakdown.input == pytest.approx(6.4)


def test_goals():
    """Failures make large jobs worse for time to solution; device-hours favour few devices; memory many."""
    profile = make_convolutions((3, 64, 64), 32)
    cluster = make_cluster(failure=DeviceFailures(device_mtbf_hours=2.0))
    saving = Saving(seconds=30.0)
    best = {
        goal: Oracle(cluster).rank(profile, batch=16, goal=goal, saving=saving)[0]
        for goal in ("time", "device-hours", "time-to-solution", "memory")
    }
    assert best["device-hours"].devices <= best["time-to-solution"].devices <= best["time"].devices
    samples = 10**6
    for goal, measure in (
        ("time", lambda plan: plan.seconds_per_iteration),
        ("device-hours", lambda plan: plan.device_hours(samples)),
        ("time-to-solution", lambda plan: plan.seconds_to_solution(samples)),
        ("memory", lambda plan: plan.peak_bytes),
    ):
        assert measure(best[goal]) <= min(map(measure, best.values())) * (1 + 1e-9)


@pytest.mark.parametrize(
    "make",
    [
        lambda: Input(bytes=-1),
        lambda: Input(workers=0),
        lambda: Saving(seconds=-1.0),
        lambda: Saving(interval_seconds=0),
    ],
)
def test_refused(make):
    """Negative costs."""
    with pytest.raises(InputError, match="allowed"):
        make()
