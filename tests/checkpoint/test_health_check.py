"""The health check: tensors with a value that is not finite are named, and no others."""

import math

import pytest
import torch

from trainwright.checkpoint.save.shard_file import plan_shard_file
from trainwright.checkpoint.save.snapshot import find_nonfinite


def find(**tensors):
    layout = plan_shard_file(tensors)
    memory = bytearray(layout.size)
    for place in layout.places:
        content = tensors[place.name].contiguous().view(-1).view(torch.uint8)
        memory[place.start : place.start + place.size] = bytes(content.tolist())
    return find_nonfinite(layout, memoryview(memory), frozenset(tensors))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16, torch.float8_e5m2])
@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("place", [0, 40_000, 70_000])
def test_one_value_spoils_it(dtype, value, place):
    values = torch.ones(70_001)
    values[place] = value
    assert find(good=torch.ones(3), bad=values.to(dtype)) == ["bad"]


def test_large_values_are_finite():
    """A norm that overflows its type is no value that is not finite."""
    assert find(x=torch.full((8,), 3e38), y=torch.full((8,), 1e308, dtype=torch.float64)) == []


def test_other_kinds_are_left_alone():
    assert find(count=torch.ones(3, dtype=torch.int64), empty=torch.empty(0), x=torch.zeros(1)) == []
