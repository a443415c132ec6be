"""Gradient accumulation: stopped within a step and resumed, the step is that of a run that was not stopped."""

import pytest
import torch
from torch import nn

from trainwright.errors import TrialError
from trainwright.train import Accumulation


def run(model, accumulation, optimizer, batches):
    for batch in batches:
        (model(batch).square().mean() / accumulation.every).backward()
        if accumulation.full():
            optimizer.step()
            optimizer.zero_grad()


def setting():
    torch.manual_seed(0)
    model = nn.Linear(3, 2)
    return model, Accumulation(model, every=3), torch.optim.SGD(model.parameters(), lr=0.1)


@pytest.mark.parametrize("stop", range(1, 7))
def test_stopped_within_a_step(stop):
    batches = torch.arange(24.0).reshape(8, 3) / 24
    whole, *rest = setting()
    run(whole, *rest, batches)
    model, accumulation, optimizer = setting()
    run(model, accumulation, optimizer, batches[:stop])
    after, again, other = setting()
    after.load_state_dict(model.state_dict())
    other.load_state_dict(optimizer.state_dict())
    again.load_state_dict(accumulation.state_dict())
    run(after, again, other, batches[stop:])
    assert torch.equal(after.weight, whole.weight)


def test_at_the_edge_of_a_step_no_gradients_are_kept():
    model, accumulation, optimizer = setting()
    run(model, accumulation, optimizer, torch.ones(3, 3))
    model(torch.ones(3)).sum().backward()  # of something else
    assert accumulation.state_dict() == {"phase": 0, "every": 3, "gradients": {}}


def test_what_was_loaded_is_a_copy():
    model, accumulation, optimizer = setting()
    run(model, accumulation, optimizer, torch.ones(1, 3))
    state = accumulation.state_dict()
    other, again, _ = setting()
    again.load_state_dict(state)
    other.weight.grad += 1
    assert not torch.equal(model.weight.grad, other.weight.grad)


def test_bad_input():
    with pytest.raises(TrialError, match="every must be a whole number >= 1, got 0"):
        Accumulation(nn.Linear(1, 1), every=0)
    with pytest.raises(TrialError, match="within a step of 4 micro-batches, got every=3; restore it with every=4"):
        setting()[1].load_state_dict({"phase": 1, "every": 4, "gradients": {}})
