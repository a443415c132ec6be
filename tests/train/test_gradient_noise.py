"""The gradient noise scale is measured without bias, by micro-batches, by ranks and by steps in a row."""

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from rank_processes import on_processes
from trainwright.errors import TrialError
from trainwright.schedule.allocator.estimates import adascale_gain
from trainwright.train import Trial
from trainwright.train.assignment import Assignment

SIZE, SPREAD, BATCH = 50, 2.0, 16
MEAN = 0.5
TRUE = SPREAD**2 / MEAN**2  # as each of the SIZE entries has it


class Nobody:
    def leaves(self):
        return False

    def exchange(self, records):
        return True


class Linear(nn.Module):
    """The gradient of a sample is the sample itself."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(SIZE))

    def forward(self, x):
        return x @ self.weight


def measured(rank=0, world=1, micro_batch=BATCH, steps=600):
    draws = torch.Generator().manual_seed(1)
    data = TensorDataset(MEAN + SPREAD * torch.randn(steps * BATCH, SIZE, generator=draws))
    assignment = Assignment(
        trial=0, lease=1, params={}, seed=5, max_epochs=1, rank=rank, world_size=world, start_devices=world
    )
    model = Linear()
    run = Trial(assignment, Nobody()).prepare(
        model,
        torch.optim.SGD(model.parameters(), lr=1e-6),
        DataLoader(data, batch_size=BATCH),
        loss=lambda called, batch: called(batch[0]).mean(),
        micro_batch=micro_batch,
        learning_rate="adascale",
    )
    for batch in run.loader:
        run.step(batch)
    return run.noise_scale


@pytest.mark.parametrize("micro_batch", [4, BATCH])
def test_on_one_device(micro_batch):
    """By the first of four micro-batches, and by pairs of steps."""
    assert measured(micro_batch=micro_batch) == pytest.approx(TRUE, rel=0.2)


def _member(rank, folder):
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=2)
    found = [measured(rank, 2, micro) for micro in (4, BATCH)]
    dist.destroy_process_group()
    return found


def test_on_two_ranks(tmp_path):
    """By the gradients of the ranks before they are summed, with micro-batches and without; all ranks find the same."""
    found = on_processes(_member, [(rank, tmp_path) for rank in range(2)])
    assert found[0] == found[1]
    assert found[0] == pytest.approx([TRUE, TRUE], rel=0.2)


def test_adascale_gain():
    """Between 1, where there is no noise, and the ratio of the batches, where there is nothing else."""
    assert adascale_gain(0.0, 64, 16) == 1.0
    assert adascale_gain(1e12, 64, 16) == pytest.approx(4.0)
    # A step of variance v / batch and squared mean 1 (Johnson et al., equation 2).
    assert adascale_gain(32.0, 64, 16) == pytest.approx((32 / 16 + 1) / (32 / 64 + 1))


def test_adascale_rates():
    """The rate of the next step is the gain, from what was measured."""
    data = TensorDataset(MEAN + SPREAD * torch.randn(400, SIZE, generator=torch.Generator().manual_seed(1)))
    model = Linear()
    run = Trial(Assignment(trial=0, lease=1, params={}, seed=5, max_epochs=1), Nobody()).prepare(
        model,
        torch.optim.SGD(model.parameters(), lr=1e-6),
        DataLoader(data, batch_size=4),
        loss=lambda called, batch: called(batch[0]).mean(),
        batch=[(1, 16)],
        learning_rate="adascale",
    )
    assert run.learning_rate_scale == 1.0
    for batch in run.loader:
        run.step(batch)
    assert run.batch == 16
    assert run.learning_rate_scale == adascale_gain(run.noise_scale, 16, 4)
    assert 1.0 < run.learning_rate_scale < 4.0


def test_what_it_needs():
    model = Linear()
    with pytest.raises(TrialError, match=r"measure gradients in run\.step; give loss=f"):
        Trial(Assignment(trial=0, lease=1, params={}, seed=5, max_epochs=1), Nobody()).prepare(
            model, torch.optim.SGD(model.parameters(), lr=0.1), learning_rate="adascale"
        )
