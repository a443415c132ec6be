"""Bytes of a plan beside the peak of the traced step, the optimizer's own temporaries among them."""

from dataclasses import replace

import pytest
from oracle_cases import make_cluster

from trainwright.model.profile import Profile
from trainwright.plan import Degrees, Oracle

torch = pytest.importorskip("torch")
nn = torch.nn


def wide():
    """Weights that take more than activations do, so that a step needs most when it updates."""
    return nn.Sequential(*(each for _ in range(4) for each in (nn.Linear(256, 256), nn.ReLU())))


def traced(optimizer="adamw", precision="fp32"):
    return Profile.trace(wide(), torch.randn(8, 256), optimizer=optimizer, precision=precision)


def estimate(profile, optimizer="adamw", precision="fp32", **degrees):
    batch = profile.batch * degrees.get("data", 1)
    found = Oracle(make_cluster()).estimate(
        profile, batch=batch, degrees=Degrees(**degrees), optimizer=optimizer, precision=precision
    )
    return found.peak_bytes


@pytest.mark.parametrize(("optimizer", "precision"), [("adamw", "fp32"), ("sgd", "fp32"), ("adamw", "amp-bf16")])
def test_the_traced_step_itself(optimizer, precision):
    profile = traced(optimizer, precision)
    assert estimate(profile, optimizer, precision) == profile.peak_bytes
    assert estimate(profile, optimizer, precision, data=2) >= profile.peak_bytes


def test_the_update_counts():
    """AdamW makes two numbers for each element of the weight in work; plain SGD makes none."""
    profile = traced()
    weight = 256 * 256 * 4
    assert 2 * weight <= profile.update_bytes <= 2 * weight + 4096
    assert traced("sgd").update_bytes == 0
    without = replace(profile, update_bytes=0, peak_bytes=None)
    estimated = estimate(replace(profile, peak_bytes=None))
    assert estimated > estimate(without)
    assert estimated == pytest.approx(profile.peak_bytes, rel=0.01)


def test_all_weights_at_once():
    """An optimizer that takes copies of all weights takes them of those that a device updates."""

    def foreach(parameters):
        return torch.optim.AdamW(parameters, foreach=True)

    whole = Profile.trace(wide(), torch.randn(8, 256), optimizer=foreach)
    assert whole.update_bytes >= whole.gradient_bytes
    assert estimate(replace(whole, peak_bytes=None)) == pytest.approx(whole.peak_bytes, rel=0.01)
    halves = estimate(whole, pipeline=2) - estimate(replace(whole, update_bytes=0), pipeline=2)
    assert 0 < halves < whole.update_bytes
