"""The screen: what is not finite is named, what jumps is suspected, and nothing else."""

import math

import pytest
import torch

from trainwright.checkpoint import CheckpointConfig, HealthCheck, Manager, Retention
from trainwright.checkpoint.save.health_check import Norms, norms_of
from trainwright.checkpoint.save.shard_file import plan_shard_file


def norms(**tensors):
    layout = plan_shard_file(tensors)
    memory = bytearray(layout.size)
    for place in layout.places:
        content = tensors[place.name].contiguous().view(-1).view(torch.uint8)
        memory[place.start : place.start + place.size] = bytes(content.tolist())
    return norms_of(layout, memoryview(memory), frozenset(tensors))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16, torch.float8_e5m2])
def test_norms(dtype):
    """They are those of torch, in pieces or not."""
    values = torch.linspace(-1, 1, 70_001).to(dtype)
    expected = float(torch.linalg.vector_norm(values.double()))
    assert norms(x=values)["x"] == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("place", [0, 40_000, 70_000])
def test_one_value_spoils_it(value, place):
    values = torch.ones(70_001, dtype=torch.bfloat16)
    values[place] = value
    found = norms(good=torch.ones(3), bad=values)
    assert math.isnan(found["bad"])
    assert found["good"] == pytest.approx(math.sqrt(3))


def test_large_values_are_finite():
    """A norm that overflows its type is no value that is not finite."""
    assert norms(x=torch.full((8,), 3e38))["x"] == pytest.approx(math.sqrt(8) * 3e38)
    assert norms(x=torch.full((8,), 1e308, dtype=torch.float64))["x"] == math.inf


def test_other_kinds_are_left_alone():
    assert norms(count=torch.ones(3, dtype=torch.int64), empty=torch.empty(0), x=torch.zeros(1)) == {"x": 0.0}


def test_a_jump_is_suspected():
    """A drift, as of training, is none; neither is the first that is seen of a tensor."""
    known = Norms(HealthCheck())
    for step in range(20):
        assert known.suspects({"x": 10 + 0.1 * step, "still": 5.0}) == []
    assert known.suspects({"x": 30.0, "still": 5.001, "new": 9.0}) == ["x"]
    assert known.suspects({"x": 12.0, "still": 6.0}) == ["still"]


def test_a_suspect_is_kept_and_marked(tmp_path):
    """It is published with its mark; the newest good one stays beside it whatever the policy."""
    model = torch.nn.Linear(3, 1)
    config = CheckpointConfig(writer="sync", retention=Retention(last=1))
    with Manager(tmp_path, config=config, model=model) as manager:
        for step in range(6):
            manager.steps = step
            if step >= 4:
                with torch.no_grad():
                    model.weight.mul_(1000)
            manager.save()
        verdicts = [record.verdict for record in manager.history]
    assert verdicts == ["good"] * 4 + ["suspect: model.weight"] * 2
    assert sorted(path.name for path in tmp_path.iterdir()) == ["step-000000000003", "step-000000000005"]
