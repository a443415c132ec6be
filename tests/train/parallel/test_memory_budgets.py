"""A trial within a memory budget: the parameters of one without, on one rank or two, over checkpoints and batches."""

import copy
import dataclasses

import pytest
import torch
from rank_group import on_ranks, plan_of
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from trainwright import memory
from trainwright.errors import BudgetExceeded, InfeasibleBudget, TrialError, UnsupportedPlan
from trainwright.train import Trial
from trainwright.train.assignment import Assignment
from trainwright.train.parallel.recompute.sample_step import tracked_peak

BATCH, EPOCHS = 256, 2


class Heard:
    def __init__(self):
        self.records = []

    def leaves(self):
        return False

    def exchange(self, records):
        self.records += records
        return True


class Branched(nn.Module):
    """Dropout, batch normalisation, a layer that is never used, and one that is used twice."""

    def __init__(self):
        super().__init__()
        self.first, self.unused = nn.Linear(6, 32), nn.Linear(6, 6)
        self.layers = nn.ModuleList(nn.Sequential(nn.Linear(32, 32), nn.BatchNorm1d(32), nn.GELU()) for _ in range(5))
        self.drop, self.last = nn.Dropout(0.3), nn.Linear(32, 4)

    def forward(self, x):
        x = self.layers[0](self.first(x))
        for layer in self.layers:
            x = x + layer(x)
        return self.last(self.drop(x))


class Used(Branched):
    """Every parameter is trained; none is used twice, where autocast would add up gradients in another order."""

    def __init__(self):
        super().__init__()
        del self.unused

    def forward(self, x):
        x = self.first(x)
        for layer in self.layers:
            x = x + layer(x)
        return self.last(self.drop(x))


def data(count=768):
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(count, 6, generator=generator)
    return TensorDataset(x, x[:, :4].sin())


def loss_of(model, batch):
    x, y = batch
    return (model(x) - y).square().mean()


def trial_of(rank=0, world=1, directory=None, heard=None):
    assignment = Assignment(
        trial=0, lease=1, params={}, seed=5, max_epochs=EPOCHS, rank=rank, world_size=world, start_devices=world,
        directory=directory,
    )  # fmt: skip
    return Trial(assignment, heard or Heard())


def train(trial, *, stop_after=EPOCHS, own_loop=False, make=Branched, **settings):
    """Return the losses of epochs, all parameters, buffers and optimizer state, and the memory plan."""
    torch.manual_seed(3)
    model = make()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    batches = DataLoader(data(), batch_size=BATCH, shuffle=True, generator=torch.Generator().manual_seed(1))
    loss = None if own_loop else loss_of
    run = trial.prepare(model, optimizer, batches, loss=loss, find_unused_parameters=make is Branched, **settings)
    losses = []
    for epoch in trial.epochs(stop_after):
        found = []
        for batch in run.loader:
            if own_loop:
                loss = loss_of(run.model, batch)
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
            else:
                loss = run.step(batch)
            found.append(loss.item())
        losses.append((epoch, found))
        trial.report(loss=found[-1])
    plan = run.memory_plan
    state = [copy.deepcopy(run.items()["model"].state_dict()), copy.deepcopy(optimizer.state_dict()["state"])]
    trial.close()
    return losses, state, plan


def same(one, other):
    if isinstance(one, torch.Tensor):
        return torch.equal(one, other)
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(same(one[key], other[key]) for key in one)
    if isinstance(one, list):
        return len(one) == len(other) and all(map(same, one, other))
    return one == other


def as_lists(state):
    """Return a state as plain numbers, which go from process to process."""
    if isinstance(state, dict):
        return {key: as_lists(value) for key, value in state.items()}
    if isinstance(state, list):
        return list(map(as_lists, state))
    return state.tolist() if isinstance(state, torch.Tensor) else state


@pytest.fixture(scope="module")
def plain():
    return train(trial_of())


@pytest.mark.parametrize("settings", [{}, {"own_loop": True}], ids=["step", "own loop"])
def test_trains_as_without_a_budget(plain, settings):
    """Losses, parameters, buffers and the optimizer's state are equal to the last bit; what was planned is told."""
    heard = Heard()
    losses, state, plan = train(trial_of(heard=heard), memory=0.8, **settings)
    assert same([losses[0][1], losses[1][1], state], [plain[0][0][1], plain[0][1][1], plain[1]])
    assert plan.solver != "none"
    assert plan.peak_bytes <= plan.budget_bytes
    assert plan.chain.fixed["optimizer"] > 0
    (note,) = [each.body for each in heard.records if each.kind == "note"]
    assert note == {"name": "memory_plan", "value": plan.summary}


def test_accumulated_micro_batches(plain):
    """Gradients that add up over micro-batches are there from the start, and are so planned."""
    expected = train(trial_of(), micro_batch=128)
    found = train(trial_of(), micro_batch=128, memory=0.9)
    assert same(list(expected[:2]), list(found[:2]))
    assert found[2].chain.fixed["gradients"] > 0
    assert not same(plain[1], found[1])  # batch normalisation sees micro-batches


def test_resumes_within_a_budget(tmp_path):
    """Ended after an epoch within a budget, resumed with another: as one run without any."""
    whole = train(trial_of(directory=str(tmp_path / "whole")))
    folder = str(tmp_path / "cut")
    first = train(trial_of(directory=folder), stop_after=1, memory=0.8)
    second = train(trial_of(directory=folder), memory=0.9)
    assert same(whole[0], first[0] + second[0])
    assert same(whole[1], second[1])


def test_what_fits_is_left_as_it_is(plain):
    """With room for everything the model itself is run."""
    _, state, plan = train(trial_of(), memory="1 GiB")
    assert plan.solver == "none"
    assert same(state, plain[1])


def test_a_plan_is_a_budget(plain):
    """A plan made before is followed; a batch of more bytes than its sample is refused."""
    chain_model = Branched()
    made = memory.plan(chain_model, data()[:BATCH][0], budget=0.8)
    assert same(train(trial_of(), memory=made)[1], plain[1])
    small = memory.plan(chain_model, data()[:4][0].clone(), budget=1.0)
    with pytest.raises(BudgetExceeded, match=r"batch: got 6\.00 KiB, the plan is for at most 128 B"):
        train(trial_of(), memory=small)


def test_a_larger_batch_is_planned_anew():
    trial = trial_of()
    run = trial.prepare(Branched(), torch.optim.SGD([nn.Parameter(torch.ones(1))], lr=0.1), memory="480 kB")
    peaks = []
    for size in (128, 64, 256):
        x = torch.randn(size, 6)
        run.model(x).sum().backward()
        peaks.append((run.memory_plan.chain.input_bytes, run.memory_plan))
        assert tracked_peak(run.model, x) <= 480_000
        run.model.zero_grad()
    assert peaks[0] == peaks[1]
    assert peaks[2][0] == 256 * 6 * 4


@pytest.mark.parametrize(
    ("error", "match", "settings"),
    [
        (InfeasibleBudget, "allowed: at least .* raise the budget(,| or) shrink the batch", {"memory": "1 kB"}),
        (TrialError, r"slots=2 cuts batches .* and no plan, memory, sync_bn", {"memory": "1 GiB", "slots": 2}),
        (UnsupportedPlan, "a memory budget beside filter parallelism", {"memory": 0.5, "plan": plan_of(filter=2)}),
    ],
)
def test_refusals(error, match, settings):
    """What cannot be made to fit ends with a sentence that says how much is needed."""
    with pytest.raises(error, match=match):
        train(trial_of(), **settings)


@pytest.mark.parametrize("precision", ["fp32", "amp-bf16"])
@pytest.mark.parametrize("micro_batch", [BATCH, BATCH // 2])
def test_a_budget_with_a_plan_for_one_device(precision, micro_batch):
    """The plan's precision and micro-batches, the budget's recomputation: as the plan alone, to the last bit."""
    plan = plan_of(batch=BATCH, micro_batch=micro_batch, precision=precision)
    expected = train(trial_of(), plan=plan, make=Used)
    found = train(trial_of(), plan=dataclasses.replace(plan, recompute="full"), memory=0.9, make=Used)
    assert same(list(expected[:2]), list(found[:2]))
    assert found[2].solver != "none"
    assert found[2].peak_bytes <= found[2].budget_bytes
    assert ("gradients" in found[2].chain.fixed) is (micro_batch < BATCH)


def test_the_loss_is_not_cast_with_the_model():
    """A plan's precision is that of the model; the loss is measured as it is computed, outside autocast."""
    seen = set()

    def loss(model, batch):
        found = loss_of(model, batch)
        seen.add(torch.is_autocast_enabled("cpu"))
        return found

    trial, model = trial_of(), Branched()
    plan = plan_of(batch=BATCH, micro_batch=BATCH, precision="amp-bf16")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    run = trial.prepare(model, optimizer, DataLoader(data(), batch_size=BATCH), loss=loss, plan=plan, memory=0.95)
    run.step(next(iter(run.loader)))
    assert seen == {False}


def test_two_ranks(tmp_path):
    """DDP's gradients within a budget are DDP's without, also over micro-batches; its buckets are in the budget."""

    def check(**settings):
        def run(rank, world):
            losses, state, plan = train(trial_of(rank, world), **settings)
            told = None if plan is None else (plan.solver, plan.chain.fixed["reserve"])
            return losses, as_lists(state), told

        return run

    found = on_ranks(
        2,
        {
            "plain": check(),
            "memory": check(memory=0.9),
            "plain, micro": check(micro_batch=64),
            "memory, micro": check(memory=0.9, micro_batch=64),
            "plain, plan": check(plan=plan_of(data=2, batch=BATCH, micro_batch=BATCH // 2), make=Used),
            "memory, plan": check(plan=plan_of(data=2, batch=BATCH, micro_batch=BATCH // 2), make=Used, memory=0.9),
        },
        tmp_path,
    )
    for name in ("", ", micro", ", plan"):
        for plain, planned in zip(found[f"plain{name}"], found[f"memory{name}"], strict=True):
            assert same(list(plain[:2]), list(planned[:2])), planned
            assert planned[2][0] != "none"
            assert planned[2][1] >= sum(each.nbytes for each in Used().parameters())
