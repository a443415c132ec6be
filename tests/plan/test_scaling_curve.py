"""Scaling curves: monotone, interpolated; what the simulated engine takes."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st
from oracle_cases import make_cluster, make_convolutions

from trainwright.engine.simulated.settings import Scaling
from trainwright.errors import InputError
from trainwright.plan import Oracle
from trainwright.plan.forecast import ScalingCurve


def made(seconds, devices=None):
    devices = devices or tuple(2**power for power in range(len(seconds)))
    return ScalingCurve(
        devices=devices,
        seconds=tuple(seconds),
        low=tuple(seconds),
        high=tuple(seconds),
    )


@given(st.lists(st.floats(0.01, 100.0), min_size=1, max_size=6), st.floats(1.0, 80.0), st.floats(1.0, 80.0))
def test_more_devices_are_never_slower(seconds, some, others):
    """Whoever has more may leave them idle."""
    curve = made(seconds)
    fewer, more = sorted((some, others))
    assert curve.seconds_on(more) <= curve.seconds_on(fewer) * (1 + 1e-12)
    assert curve.seconds_on(1) == seconds[0]


def test_between_and_outside():
    """Half the seconds for twice the devices is a straight line; beyond the last point nothing is gained."""
    curve = made((8.0, 4.0, 2.0))
    assert curve.seconds_on(3) == pytest.approx(8.0 / 3)
    assert curve.seconds_on(64) == 2.0
    assert curve.speedups()[2.0] == pytest.approx(2.0)
    late = made((math.inf, 4.0, 2.0))
    assert late.seconds_on(1) == math.inf
    assert late.seconds_on(2) == 4.0
    with pytest.raises(InputError, match="nothing fits"):
        late.speedups()


def test_the_simulated_engine_takes_it():
    """The oracle's curve becomes the engine's `Scaling`, with the same speed-ups."""
    oracle = Oracle(make_cluster())
    profile = make_convolutions((3, 64, 64, 64), 64)
    curve = oracle.scaling_curve(profile, batch=64, devices=(1, 2, 4, 8))
    scaling = Scaling(curve=curve.speedups())
    for devices, seconds in zip(curve.devices, curve.seconds, strict=True):
        assert scaling.speedup(devices) == pytest.approx(curve.seconds[0] / seconds)
        assert seconds == oracle.rank(profile, batch=64, devices=devices)[0].seconds_per_iteration
    assert all(low <= seconds <= high for low, seconds, high in zip(curve.low, curve.seconds, curve.high, strict=True))


def test_what_does_not_fit_is_infinite():
    """Numbers of devices on which nothing fits are marked."""
    oracle = Oracle(make_cluster())
    profile = make_convolutions((3, 64, 64, 64), 64)
    least = min(plan.peak_bytes for plan in oracle.rank(profile, batch=64, devices=1, goal="memory"))
    curve = oracle.scaling_curve(profile, batch=64, devices=(1, 4), max_memory_bytes=least - 1)
    assert [math.isfinite(each) for each in curve.seconds] == [False, True]
    assert curve.seconds[0] == math.inf


@pytest.mark.parametrize("devices", [(), (1, 1), (2, 1), (0, 1)])
def test_refused(devices):
    """Numbers that do not rise."""
    with pytest.raises(InputError, match="ScalingCurve"):
        made((1.0,) * len(devices), devices=devices or (1, 2))
