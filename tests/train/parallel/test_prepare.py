"""A trial trains by a plan: the samples, losses and parameters of one device, and its checkpoints."""

import pytest
import small_models
import torch
from rank_group import on_ranks, plan_of
from torch.utils.data import DataLoader, TensorDataset

from trainwright.errors import TrialError, UnsupportedPlan
from trainwright.train import Loader, Trial
from trainwright.train.assignment import Assignment

pytestmark = pytest.mark.filterwarnings("ignore:FSDP2-wrapped module .* returned a view:UserWarning")

EPOCHS, BATCH = 2, 8


class Nobody:
    def leaves(self):
        return False

    def exchange(self, records):
        return True


def data():
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(24, 6, generator=generator, dtype=torch.float64)
    return TensorDataset(x, x[:, :4].sin())


def loss_of(model, batch):
    x, y = batch
    return (model(x) - y).square().mean()


def overflowing(model, batch):
    """Return a loss of the same value, whose scaled gradient is infinite for one sample, on the rank that has it."""
    x, y = batch
    found = model(x)
    steep = 1e300 * (found.sum() - found.sum().detach()) if bool((x[:, 0] == data()[5][0][0]).any()) else 0.0
    return (found - y).square().mean() + steep


def trial_of(rank, world, directory=None):
    assignment = Assignment(
        trial=0, lease=1, params={}, seed=5, max_epochs=EPOCHS, rank=rank, world_size=world,
        start_devices=world, directory=directory,
    )  # fmt: skip
    return Trial(assignment, Nobody())


def train(trial, plan=None, loader="torch", make=small_models.mlp, epochs=EPOCHS, *, loss=loss_of, **settings):
    """Return the mean loss of each epoch, of at most so many, and the parameters and buffers that this rank has."""
    torch.manual_seed(3)
    model = make().double()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 1, gamma=0.5)
    if loader == "torch":
        batches = DataLoader(data(), batch_size=BATCH, shuffle=True, generator=torch.Generator().manual_seed(1))
    else:
        batches = Loader(data(), global_batch=BATCH, trial=trial)
    run = trial.prepare(model, optimizer, batches, loss=loss, schedule=schedule, plan=plan, **settings)
    losses = []
    for _ in trial.epochs():
        losses.append(sum(run.step(batch).item() for batch in run.loader))
        schedule.step()
        trial.report(loss=losses[-1])
        if len(losses) == epochs:
            break
    named = (run.model.module if plan is not None else run.model).state_dict()
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
    "expert": {"expert": 2},
    "tensor, experts": {"tensor": 2},
}
CLIPPED = list(PLANS)
RESUMED = [("filter", "ZeRO 3"), ("pipeline", "pipeline"), ("pipeline", "ZeRO 3"), ("data", "pipeline")]
RESUMED += [("expert", "ZeRO 3"), ("data", "expert"), ("tensor, experts", "expert")]
TRAINED = [("torch" if place % 2 else "ours", name) for place, name in enumerate(PLANS)] + [("torch", "filter")]


def mixture():
    return small_models.Mixture(4)


def model_of(*plans):
    """Return what makes a model that plans divide."""
    return mixture if any("expert" in plan for plan in plans) else small_models.mlp


def normed():
    """Return layers with a norm in either of two stages."""
    return torch.nn.Sequential(
        torch.nn.Linear(6, 8), torch.nn.BatchNorm1d(8), torch.nn.Linear(8, 8), torch.nn.BatchNorm1d(8),
        torch.nn.Linear(8, 4),
    )  # fmt: skip


def planned(loader, name):
    return lambda rank, world: train(trial_of(rank, world), plan_of(**PLANS[name]), loader, model_of(name))


def clipped(name, *, alone=False):
    """Return a check that trains with losses that are scaled, one step's too far, and clipped gradients."""

    def check(rank, world):
        scaler = torch.amp.GradScaler("cpu", init_scale=2.0**127)
        plan = None if alone else plan_of(**PLANS[name])
        settings = {"loss": overflowing, "scaler": scaler, "max_gradient_norm": 0.05}
        return train(trial_of(rank, world), plan, make=model_of(name), **settings)

    return check


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

    def resumed(before, after, make):
        """Return a check that trains an epoch by one plan, and goes on by another."""

        def check(rank, world):
            study = str(folder / f"{before} {after} {make.__name__}")
            first, _ = train(trial_of(rank, world, study), plan_of(**PLANS[before]), make=make, epochs=1)
            rest, parameters = train(trial_of(rank, world, study), plan_of(**PLANS[after]), make=make)
            return first + rest, parameters

        return check

    checks = {f"{loader}, {name}": planned(loader, name) for loader, name in TRAINED}
    checks |= {f"{name}, clipped": clipped(name) for name in CLIPPED}
    checks |= {
        **{f"{before}, then {after}": resumed(before, after, model_of(before, after)) for before, after in RESUMED},
        "stages with buffers": lambda rank, world: train(
            trial_of(rank, world), plan_of(**PLANS["pipeline"]), make=normed
        ),
        "stages with buffers, resumed": resumed("pipeline", "pipeline", normed),
        "too many devices": refused(UnsupportedPlan, "for 4 devices, but torch.distributed has 2 ranks", data=4),
        "other batch": refused(TrialError, "the plan is for batches of 16, the loader gives 8", data=2, batch=16),
    }
    return on_ranks(2, checks, folder)


@pytest.fixture(scope="module")
def alone():
    return {
        (loader, make): train(trial_of(0, 1), loader=loader, make=make)
        for loader in ("torch", "ours")
        for make in (small_models.mlp, mixture)
    }


@pytest.mark.parametrize(("loader", "name"), TRAINED)
def test_a_trial_by_a_plan_is_the_trial(found, alone, loader, name):
    """Same samples in every step whichever ranks take the same, same losses, same parameters to 1e-10."""
    equal(found[f"{loader}, {name}"], alone[loader, model_of(name)])


@pytest.mark.parametrize("name", CLIPPED)
def test_gradients_are_clipped_over_all_shards(found, name):
    """By the norm of the whole model's gradient, after unscaling; no rank steps where one overflowed."""
    equal(found[f"{name}, clipped"], clipped(name, alone=True)(0, 1))


@pytest.mark.parametrize(("before", "after"), RESUMED)
def test_a_checkpoint_goes_from_one_plan_to_another(found, alone, before, after):
    """Stages too, whose ranks have each a part of the model, of its optimizer's state, and of its buffers."""
    equal(found[f"{before}, then {after}"], alone["torch", model_of(before, after)])


def test_stages_keep_their_buffers(found):
    for whole, resumed in zip(found["stages with buffers"], found["stages with buffers, resumed"], strict=True):
        counts = [value for name, value in whole[1].items() if "num_batches" in name]
        assert counts == [EPOCHS * 3 * 4]  # three batches of four micro-batches, and nothing else went through
        assert resumed == whole


@pytest.mark.parametrize("name", ["too many devices", "other batch"])
def test_what_cannot_be_is_refused(found, name):
    assert found[name] == [True, True]


def equal(told, alone):
    """Check losses, and what the ranks have together."""
    losses, parameters = alone
    held = {}
    for each in told:
        assert isinstance(each, tuple), each
        assert each[0] == pytest.approx(losses, rel=1e-10)
        held |= each[1]
    assert held.keys() == parameters.keys()
    for key, value in parameters.items():
        torch.testing.assert_close(torch.tensor(held[key]), torch.tensor(value), rtol=1e-10, atol=1e-12)
