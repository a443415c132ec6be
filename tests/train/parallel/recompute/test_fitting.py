"""Fitting a model into a budget: what is tracked stays within it, and what was predicted is what happens."""

import copy

import pytest
import torch
from torch import nn

from trainwright import memory
from trainwright.errors import BudgetError, InfeasibleBudget, InputError, PlanMismatch, UnsupportedModel
from trainwright.plan.memory.planning import full_bytes, minimal_bytes
from trainwright.train.parallel.recompute import fitting
from trainwright.train.parallel.recompute.measure import measure_chain
from trainwright.train.parallel.recompute.sample_step import tracked_peak

pytestmark = pytest.mark.usefixtures("steady_clock")


def net():
    torch.manual_seed(0)
    blocks = [layer for place in range(6) for layer in (nn.Conv2d(8 if place else 3, 8, 3, padding=1), nn.ReLU())]
    return nn.Sequential(*blocks, nn.BatchNorm2d(8), nn.Flatten(), nn.Dropout(0.2), nn.Linear(8 * 256, 10))


SAMPLE = torch.linspace(-1, 1, 16 * 3 * 256).view(16, 3, 16, 16)


@pytest.fixture(scope="module")
def chain(steady_clock):
    return measure_chain(net(), SAMPLE)


@pytest.mark.parametrize("share", [1.0, 0.7, 0.5, 0.0])
def test_budgets_are_kept(chain, share):
    """Tracked bytes of a step are within the budget and the prediction, and at most 2 % below it."""
    budget = max(int(full_bytes(chain) * share), minimal_bytes(chain))
    module = memory.fit(net(), SAMPLE, budget=budget)
    tracked = tracked_peak(module, SAMPLE)
    assert tracked <= module.plan.peak_bytes <= budget
    assert tracked >= 0.98 * module.plan.peak_bytes


@pytest.mark.parametrize("share", [0.9, 0.8, 0.7])
def test_what_stages_take_together_is_in_the_peak_of_the_plan(share, monkeypatch):
    """Also where the budget has room for it."""
    more = 1 << 15
    monkeypatch.setattr(fitting, "tracked_peak", lambda *given, **named: tracked_peak(*given, **named) + more)
    plan = memory.fit(net(), SAMPLE, budget=share).plan
    alone = memory.apply(net(), plan)
    assert tracked_peak(alone, SAMPLE) + more <= plan.peak_bytes == plan.simulation.peak_bytes <= plan.budget_bytes


@pytest.mark.parametrize("frozen", [False, True])
@pytest.mark.parametrize("room", [0.0, 0.5])
def test_a_stage_of_several_operations_is_not_foreseen_with_more_than_it_takes(frozen, room):
    """A gradient that arrives goes when the first operation has read it, and a layer that is frozen makes none."""
    torch.manual_seed(0)
    rows = [(nn.Conv2d(8, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.MaxPool2d(3, 1, 1)) for _ in range(3)]
    model = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), *(layer for row in rows for layer in row), nn.Conv2d(8, 8, 3))
    for part in model[:1] if frozen else ():
        part.requires_grad_(requires_grad=False)
    sample = torch.randn(8, 3, 32, 32)
    chain = measure_chain(model, sample)
    least, full = minimal_bytes(chain), full_bytes(chain)
    plan = memory.plan(chain, budget=int(least + room * (full - least)))
    assert plan.solver != "none"
    tracked = tracked_peak(memory.apply(model, plan), sample)
    assert 0.98 * plan.peak_bytes <= tracked <= plan.peak_bytes


class Writes(nn.Module):
    """Changes in place what a layer made and another reads."""

    def __init__(self):
        super().__init__()
        self.one, self.other, self.last = nn.Linear(8, 8), nn.Linear(8, 8), nn.Linear(8, 8)

    def forward(self, x):
        made = self.one(x)
        seen = self.other(made)
        made.mul_(2)
        return self.last(seen)


def test_what_does_not_train_by_itself_is_refused():
    """In one sentence, with autograd's."""
    with pytest.raises(UnsupportedModel, match="refuses it") as refused:
        memory.fit(Writes(), torch.ones(4, 8), budget=0.5)
    assert "\n" not in str(refused.value)


def test_one_stage_has_nothing_to_run_again():
    """The least budget is never above that of no plan, and what is one stage is told so."""
    chain = memory.Chain(stages=(memory.Stage(forward_seconds=1, backward_seconds=1, output_bytes=64, saved_bytes=64),),
                         plain_peak_bytes=100)  # fmt: skip
    assert minimal_bytes(chain) == 100
    with pytest.raises(InfeasibleBudget, match="one stage, with nothing to run again") as refused:
        memory.plan(chain, budget=99)
    assert refused.value.minimal_bytes == 100
    assert memory.plan(chain, budget=100).solver == "none"


def test_measuring_changes_nothing():
    """Parameters, buffers, gradients and random generators are as they were."""
    model = net()
    model(SAMPLE).sum().backward()
    before = copy.deepcopy(model), [p.grad.clone() for p in model.parameters()], torch.get_rng_state()
    memory.fit(model, SAMPLE, budget=0.8)
    assert all(
        torch.equal(a, b) for a, b in zip(model.state_dict().values(), before[0].state_dict().values(), strict=True)
    )
    assert all(torch.equal(p.grad, old) for p, old in zip(model.parameters(), before[1], strict=True))
    assert torch.equal(torch.get_rng_state(), before[2])


def test_a_models_own_generator_draws_nothing_while_it_is_measured():
    class Noisy(nn.Module):
        def __init__(self):
            super().__init__()
            self.generator = torch.Generator().manual_seed(3)
            self.layer = nn.Linear(8, 8)

        def forward(self, x):
            return self.layer(x) * torch.rand(x.shape, generator=self.generator)

    model = Noisy()
    before = model.generator.get_state()
    measure_chain(nn.Sequential(nn.Linear(8, 8), model), torch.randn(4, 8))
    assert torch.equal(model.generator.get_state(), before)


def test_a_plan_from_a_file_trains_alike(chain, tmp_path):
    """A saved plan, applied to the same model, gives the same gradients; to another it is refused."""
    memory.plan(net(), SAMPLE, budget=0.7).save(tmp_path / "plan.json")
    plan = memory.Plan.load(tmp_path / "plan.json")
    plain, planned = net(), memory.apply(net(), plan)
    for model in (plain, planned):
        torch.manual_seed(3)
        model(SAMPLE).pow(2).sum().backward()
    assert all(torch.equal(a.grad, b.grad) for a, b in zip(plain.parameters(), planned.parameters(), strict=True))
    with pytest.raises(PlanMismatch, match="stage 2 differs first"):
        memory.apply(nn.Sequential(nn.Conv2d(3, 8, 3), nn.Tanh()), plan)


def test_loss_and_optimizer_count():
    """A loss is a stage of its own, an optimizer's state is part of every budget."""
    targets = torch.arange(16) % 10
    told = measure_chain(
        net(), (SAMPLE,), loss=lambda out: nn.functional.cross_entropy(out, targets), optimizer="adamw"
    )
    assert told.loss.name == "loss"
    assert told.loss.saved_bytes > 0
    gradients = sum(stage.parameter_gradient_bytes for stage in told.stages)
    assert told.fixed["optimizer"] == 2 * gradients > 0
    again = measure_chain(net(), (SAMPLE,), accumulate=True)
    assert again.fixed["gradients"] == gradients
    assert not any(stage.parameter_gradient_bytes for stage in again.stages)


@pytest.mark.parametrize(
    ("act", "error", "says"),
    [
        (lambda: memory.fit(net(), SAMPLE, budget="1 KiB"), InfeasibleBudget, "the least possible"),
        (lambda: memory.fit(net(), SAMPLE, budget="8 parsecs"), BudgetError, "8 parsecs"),
        (lambda: memory.fit(net(), SAMPLE, budget=0.5, optimizer="adm"), InputError, "did you mean 'adam"),
        (lambda: memory.fit(net(), SAMPLE[:, :2], budget=0.5), UnsupportedModel, r"stage 1 \(0:2\)"),
        (
            lambda: memory.fit(net().requires_grad_(requires_grad=False), SAMPLE, budget=0.5),
            UnsupportedModel,
            "no parameter",
        ),
        (lambda: memory.fit(net().eval(), SAMPLE, budget=0.5), UnsupportedModel, "evaluation mode"),
        (lambda: memory.plan(net(), budget=0.5), UnsupportedModel, "sample"),
    ],
)
def test_bad_input(act, error, says):
    """One sentence that names what is wrong."""
    with pytest.raises(error, match=says):
        act()


def test_named_stages():
    """Patterns say which modules are the stages; a pattern of nothing is told."""
    model = nn.Sequential(*(nn.Sequential(nn.Linear(8, 32), nn.GELU(), nn.Linear(32, 8)) for _ in range(6)))
    module = memory.fit(model, torch.randn(256, 8), budget=0.9, stages=["[135]"])
    assert [stage.name for stage in module.plan.chain.stages] == ["1", "3", "5"]
    with pytest.raises(UnsupportedModel, match=r"'layers.\*', which no module of Sequential matches"):
        memory.plan(model, torch.randn(256, 8), budget=0.7, stages=["layers.*"])
