"""A trial trains by a plan: the samples, losses and parameters of one device, and its checkpoints."""

import pytest
import small_models
import torch
from rank_group import on_ranks, plan_of
from torch.utils.data import DataLoader, TensorDataset

from trainwright.errors import TrialError, UnsupportedPlan
from trainwright.train import Assignment, Loader, Trial

pytestmark = [
    pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:FSDP2-wrapped module .* returned a view:UserWarning"),
]

EPOCHS, BATCH = 2, 8


class Nobody:
    def exchange(self, records):
        return True


def data():
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(24, 6, generator=generator, dtype=torch.float64)
    return TensorDataset(x, x[:, :4].sin())


def loss_of(model, batch):
    x, y = batch
    return (model(x) - y).square().mean()


def trial_of(rank, world, directory=None):
    assignment = Assignment(
        trial=0, lease=1, params={}, seed=5, max_epochs=EPOCHS, rank=rank, world_size=world,
        start_devices=world, directory=directory,
    )  # fmt: skip
    return Trial(assignment, Nobody())


def train(trial, plan=None, loader="torch", make=small_models.mlp):
    """Return the mean loss of each epoch, and the parameters that this rank has."""
    torch.manual_seed(3)
    model = make().double()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 1, gamma=0.5)
    if loader == "torch":
        batches = DataLoader(data(), batch_size=BATCH, shuffle=True, generator=torch.Generator().manual_seed(1))
    else:
        batches = Loader(data(), global_batch=BATCH, trial=trial)
    run = trial.prepare(model, optimizer, batches, loss=loss_of, schedule=schedule, plan=plan)
    losses = []
    for _ in trial.epochs():
        losses.append(sum(run.step(batch).item() for batch in run.loader))
        schedule.step()
        trial.report(loss=losses[-1])
    named = dict((run.model.module if plan is not None else run.model).named_parameters())
    trial.close()
    return losses, {
        name: getattr(each, "full_tensor", lambda each=each: each)().tolist() for name, each in named.items()
    }


PLANS = {
    "data": {"data": 2},
    "data, two micro-batches": {"data": 2, "micro_batch": 2},
    "ZeRO 3": {"data": 2, "zero": 3},
    "filter": {"filter": 2},
    "channel": {"channel": 2},
    "pipeline": {"pipeline": 2, "schedule": "1f1b", "microbatches": 4},
}
TRAINED = [("torch" if place % 2 else "ours", name) for place, name in enumerate(PLANS)] + [("torch", "filter")]


def planned(loader, name):
    return lambda rank, world: train(trial_of(rank, world), plan_of(**PLANS[name]), loader)


def refused(error, match, **settings):
    """Return a check that prepare says why it cannot be."""

    def check(rank, world):
        folder = settings.pop("directory", None)
        with pytest.raises(error, match=match):
            train(trial_of(rank, world, folder), plan_of(**settings))
        return True

    return check


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    folder = tmp_path_factory.mktemp("ranks")

    def kept(rank, world):
        """Train by one plan, and restore by another."""
        study = str(folder / "study")
        _, trained = train(trial_of(rank, world, study), plan_of(filter=2))
        losses, restored = train(trial_of(rank, world, study), plan_of(data=2, zero=3))
        return not losses and restored == trained

    checks = {f"{loader}, {name}": planned(loader, name) for loader, name in TRAINED}
    checks |= {
        "checkpoint": kept,
        "too many devices": refused(UnsupportedPlan, "for 4 devices, but torch.distributed has 2 ranks", data=4),
        "other batch": refused(TrialError, "the plan is for batches of 16, the loader gives 8", data=2, batch=16),
        "stages in a checkpoint": refused(
            UnsupportedPlan, "not kept in checkpoints", pipeline=2, microbatches=2, directory=str(folder / "refused")
        ),
    }
    return on_ranks(2, checks, folder)


@pytest.fixture(scope="module")
def alone():
    return {loader: train(trial_of(0, 1), loader=loader) for loader in ("torch", "ours")}


@pytest.mark.parametrize(("loader", "name"), TRAINED)
def test_a_trial_by_a_plan_is_the_trial(found, alone, loader, name):
    """Same samples in every step whichever ranks take the same, same losses, same parameters to 1e-10."""
    losses, parameters = alone[loader]
    held = {}
    for told in found[f"{loader}, {name}"]:
        assert isinstance(told, tuple), told
        assert told[0] == pytest.approx(losses, rel=1e-10)
        held |= told[1]
    assert held.keys() == parameters.keys()
    for key, value in parameters.items():
        torch.testing.assert_close(torch.tensor(held[key]), torch.tensor(value), rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("name", ["checkpoint", "too many devices", "other batch", "stages in a checkpoint"])
def test_around_it(found, name):
    """A checkpoint goes from one plan to another; what cannot be is refused in a sentence."""
    assert found[name] == [True, True]
