"""Profiles as chains: the stages that memory plans and pipelines take are those of the trace."""

import pytest
import torch
from torch import nn

import trainwright as tw
import trainwright.memory as tm
from trainwright.cluster import Cluster
from trainwright.errors import ProfileError
from trainwright.plan.memory.planning import full_bytes

DEVICE = Cluster.preset("dgx-a100").device


@pytest.fixture(scope="module")
def profile():
    layers = [layer for _ in range(6) for layer in (nn.Linear(32, 32), nn.Tanh())]
    return tw.Profile.trace(nn.Sequential(*layers), torch.rand(512, 32), optimizer=None)


def test_a_profile_is_a_chain(profile):
    """All stages, repeated ones as often as they run; the peak without a plan is that of the trace."""
    chain = profile.on(DEVICE).chain
    assert sum(stage.layers for stage in chain.stages) == len(profile.layers)
    assert chain.plain_seconds == pytest.approx(
        sum(layer.forward_seconds + layer.backward_seconds for layer in profile.on(DEVICE).layers)
    )
    assert full_bytes(chain) == profile.peak_bytes
    plan = tm.plan(profile.on(DEVICE), budget=0.9)
    assert plan.peak_bytes <= 0.9 * full_bytes(chain)
    pipeline = tm.pipeline(profile.on(DEVICE), stages=2, microbatches=4, memory="16 MiB")
    assert sum(part.last - part.first + 1 for part in pipeline.partition.parts) >= len(chain.stages)


def test_a_traced_profile_has_no_seconds(profile):
    with pytest.raises(ProfileError, match="layers without seconds"):
        tm.plan(profile, budget=0.7)
