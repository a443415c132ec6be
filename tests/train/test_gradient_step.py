"""Loss scaling and clipping in `run.step` are those that a loop by hand has, to the bit."""

import pytest
import torch
from torch import nn
from torch.nn.functional import mse_loss
from torch.utils.data import DataLoader, TensorDataset

from trainwright.errors import TrialError
from trainwright.train import Trial
from trainwright.train.assignment import Assignment


class Nobody:
    def leaves(self):
        return False

    def exchange(self, records):
        return True


def trial():
    return Trial(Assignment(trial=0, lease=1, params={}, seed=5, max_epochs=2), Nobody())


def parts():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 1))
    x = torch.randn(24, 6)
    loader = DataLoader(TensorDataset(x, x.sum(1, keepdim=True)), batch_size=8)
    return model, torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9), loader


def loss_of(model, batch):
    return mse_loss(model(batch[0]), batch[1])


def by_hand(*, micro, limit, scaler):
    model, optimizer, loader = parts()
    for batch in loader:
        optimizer.zero_grad()
        for x, y in zip(*(each.split(micro) for each in batch), strict=True):
            scaler.scale(loss_of(model, (x, y))).mul(micro / 8).backward()
        scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(model.parameters(), limit)
        scaler.step(optimizer)
        scaler.update()
    return model


@pytest.mark.parametrize("scale", [None, 2.0**10, 2.0**127])
@pytest.mark.parametrize("micro", [2, 8])
def test_equal_to_a_loop_by_hand(scale, micro):
    """With and without accumulation, without overflow and with steps that are left out."""
    model, optimizer, loader = parts()
    scaler = None if scale is None else torch.amp.GradScaler("cpu", init_scale=scale, backoff_factor=2.0**-10)
    run = trial().prepare(
        model, optimizer, loader, loss=loss_of, micro_batch=micro, scaler=scaler, max_gradient_norm=0.1
    )
    first = nn.utils.parameters_to_vector(model.parameters()).clone()
    losses = [run.step(batch) for batch in run.loader]
    theirs = torch.amp.GradScaler("cpu", init_scale=scale or 1.0, backoff_factor=2.0**-10, enabled=scale is not None)
    expected = nn.utils.parameters_to_vector(by_hand(micro=micro, limit=0.1, scaler=theirs).parameters())
    assert torch.equal(nn.utils.parameters_to_vector(model.parameters()), expected)
    assert not torch.equal(first, expected)
    if scale != 2.0**127:
        assert all(torch.isfinite(loss) for loss in losses)
        assert run.gradient_norm > 0.1, "clipping did nothing"


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"max_gradient_norm": 0.0}, "prepare: max_gradient_norm: got 0.0; allowed: a number > 0"),
        ({"scaler": 65536.0}, "prepare: scaler: got 65536.0; allowed: a torch.amp.GradScaler"),
        ({"loss": None, "max_gradient_norm": 1.0}, "prepare: max_gradient_norm and scaler are for run.step"),
    ],
)
def test_bad_input(settings, sentence):
    model, optimizer, loader = parts()
    with pytest.raises(TrialError, match=sentence.replace("(", "[(]")):
        trial().prepare(model, optimizer, loader, **{"loss": loss_of, **settings})
