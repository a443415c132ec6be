"""Cutting a chain into stages."""

from itertools import combinations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from trainwright.cluster import Cluster
from trainwright.errors import InputError
from trainwright.model.profile import Profile
from trainwright.plan import Degrees, Forecast, Oracle
from trainwright.plan.pipeline.partition import shortest_longest_parts


@given(st.lists(st.integers(0, 9), min_size=1, max_size=8), st.integers(1, 8))
def test_the_slowest_stage_is_the_least_possible(seconds, most):
    """For every number of parts, no way to cut has a smaller largest sum."""
    most = min(most, len(seconds))
    for parts, ends in enumerate(shortest_longest_parts(np.array(seconds, dtype=float), most), start=1):
        assert len(ends) == parts
        assert ends[-1] == len(seconds)
        starts = [0, *ends[:-1]]
        assert all(start < end for start, end in zip(starts, ends, strict=True))
        largest = max(sum(seconds[start:end]) for start, end in zip(starts, ends, strict=True))
        best = min(
            max(sum(seconds[start:end]) for start, end in zip((0, *inner), (*inner, len(seconds)), strict=True))
            for inner in combinations(range(1, len(seconds)), parts - 1)
        )
        assert largest == best


class Tower(nn.Module):
    """Blocks between an embedding and a head that share their weights."""

    def __init__(self):
        super().__init__()
        self.words = nn.Embedding(20, 8)
        self.layers = nn.ModuleList(nn.Sequential(nn.Linear(8, 8), nn.Tanh()) for _ in range(4))
        self.head = nn.Linear(8, 20, bias=False)
        self.head.weight = self.words.weight

    def forward(self, words):
        x = self.words(words).relu()
        for layer in self.layers:
            x = x + layer(x)
        return self.head(x.tanh())


def loss_of(model, batch):
    return model(batch).square().mean()


@pytest.mark.parametrize("stages", [2, 6])
def test_stages_begin_with_modules_of_the_model(stages, tmp_path):
    """Neither with a loss nor between modules; a head whose weights are the embedding's is one of them."""
    profile = Profile.trace(Tower(), torch.zeros(4, 3, dtype=torch.int64), loss=loss_of)
    allowed = ["words", "layers", "layers.1", "layers.2", "layers.3", "head"]
    assert [begin for block in profile.blocks for begin in block.begins if begin] == allowed
    plan = Oracle(Cluster.preset("dgx-h100")).estimate(
        profile, batch=8, degrees=Degrees(pipeline=stages), micro=2, schedule="1f1b"
    )
    assert len(plan.cuts) == stages - 1
    plan.save(tmp_path / "plan.json")
    assert Forecast.load(tmp_path / "plan.json") == plan
    assert set(plan.cuts) <= set(allowed)
    assert sum(plan.stages) == sum(block.count for block in profile.blocks)
    with pytest.raises(InputError, match="pipeline: got 7; allowed: at most 6"):
        Oracle(Cluster.preset("dgx-h100")).estimate(
            profile, batch=8, degrees=Degrees(pipeline=7), micro=2, schedule="1f1b"
        )
