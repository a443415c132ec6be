"""Fitting by torch.compile: within the budget, with the gradients of the compiled model without one."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import nn

sys.path.insert(0, str(Path(__file__).resolve().parents[3] / "examples"))

from models import gpt, resnet
from trainwright import memory
from trainwright.errors import BudgetError, BudgetExceeded, InfeasibleBudget, PlanMismatch, UnsupportedModel
from trainwright.memory.compiled_plan import RunAgain, SavedValue, read_plan
from trainwright.memory.execute import compiled
from trainwright.memory.execute.allocated import allocated_bytes
from trainwright.memory.execute.measure import tracked_peak, train_once
from trainwright.memory.explain import explain_compiled

pytestmark = pytest.mark.filterwarnings("ignore:`torch.jit:DeprecationWarning")  # torch importing its own compiler
compiler = pytest.mark.skipif(shutil.which("g++") is None, reason="inductor's code for a CPU wants a C++ compiler")
BATCH = torch.linspace(-1, 1, 256 * 32).view(256, 32)


def net(layers=5):
    torch.manual_seed(0)
    rows = [(nn.Linear(32, 32), nn.BatchNorm1d(32), nn.GELU(), nn.Dropout(0.2)) for _ in range(layers)]
    return nn.Sequential(*(layer for row in rows for layer in row))


def trained(model, batch):
    """Gradients, buffers, result and the state of the generator after a step."""
    torch.manual_seed(3)
    model.zero_grad()
    out = model(batch)
    out.pow(2).sum().backward()
    return [*(each.grad for each in model.parameters()), *model.buffers(), out.detach(), torch.get_rng_state()]


def same(one, other):
    return all(map(torch.equal, one, other))


@pytest.mark.slow
def test_a_compiled_step_keeps_its_budget_and_its_gradients():
    """With operations as they are, all is bit by bit that of the eager model; buffers are written once."""
    fitted = memory.fit(net(), BATCH, budget=0.6, backend="compile", compiler="aot_eager")
    plan = fitted.plan
    assert plan.again
    assert plan.seconds_again > 0
    assert plan.peak_bytes <= plan.budget_bytes == int(0.6 * tracked_peak(net(), BATCH))
    assert plan.peak_bytes == pytest.approx(plan.simulated_bytes, rel=0.01)
    assert same(trained(net(), BATCH), trained(fitted, BATCH))
    assert list(fitted.state_dict()) == list(net().state_dict())
    with pytest.raises(BudgetExceeded, match="no larger than the sample"):
        fitted(torch.cat((BATCH, BATCH)))
    fitted.eval()
    assert torch.equal(fitted(BATCH), fitted(BATCH))


@pytest.mark.slow
@pytest.mark.parametrize("tries", [1, 3])
def test_the_least_budget_that_is_named_is_kept(tries):
    """A budget that nothing keeps is refused with one that is kept, whatever the number of compilations."""
    settings = {"backend": "compile", "compiler": "aot_eager", "tries": tries}
    with pytest.raises(InfeasibleBudget, match="least found") as refused:
        memory.fit(net(), BATCH, budget="60 KiB", **settings)
    least = refused.value.minimal_bytes
    assert sum(refused.value.owners.values()) == least
    fitted = memory.fit(net(), BATCH, budget=least, **settings)
    assert fitted.plan.peak_bytes <= least < tracked_peak(net(), BATCH)
    assert same(trained(net(), BATCH), trained(fitted, BATCH))
    with pytest.raises(InfeasibleBudget):
        memory.fit(net(), BATCH, budget=least - 1024, **settings)


@pytest.mark.slow
def test_where_the_search_overshoots_torchs_own_partitions_are_tried(monkeypatch):
    """What takes more than was foreseen: the last of three tries is what torch saves at one of its own budgets."""
    measured, peaks, saved = compiled.allocated_bytes, [], []

    def more(run, *, cuda):
        peaks.append(measured(run, cuda=cuda))
        return peaks[-1] + (2**20 if len(peaks) == 1 else 0)

    class Partition(compiled._Partition):
        def _chosen(self, gm, traced, plain, settings):
            own = [traced.step.tried(traced.named(compiled._saved_by_torch(gm, k, settings))) for k in compiled._KNOBS]
            choice = super()._chosen(gm, traced, plain, settings)
            saved.append(any((choice.saved == each.saved).all() for each in own))
            return choice

    monkeypatch.setattr(compiled, "allocated_bytes", more)
    monkeypatch.setattr(compiled, "_Partition", Partition)
    budget = int(0.8 * tracked_peak(net(), BATCH))
    fitted = memory.fit(net(), BATCH, budget=budget, backend="compile", compiler="aot_eager")
    assert len(saved) == 3
    assert saved[-1]
    assert fitted.plan.peak_bytes <= budget
    assert same(trained(net(), BATCH), trained(fitted, BATCH))


PLANNED = """
import sys
sys.path.insert(0, sys.argv[1])
from test_compiled import BATCH, net
from trainwright import memory
memory.fit(net(), BATCH, budget=0.6, backend="compile", compiler="aot_eager").plan.save(sys.argv[2])
"""


@pytest.mark.slow
def test_a_plan_of_another_process(tmp_path):
    """A plan from a file trains bit by bit as the model does, within its peak; for another graph it is refused."""
    path = tmp_path / "plan.json"
    subprocess.run([sys.executable, "-c", PLANNED, str(Path(__file__).parent), str(path)], check=True)
    plan = memory.CompiledPlan.load(path)
    assert plan.again
    assert {each.module for each in plan.again} <= {str(place) for place in range(20)}
    plain, fitted = net(), memory.apply(net(), plan)
    assert fitted.plan is plan
    assert same(trained(plain, BATCH), trained(fitted, BATCH))
    assert same(trained(plain, BATCH[:9]), trained(fitted, BATCH[:9]))  # the rest of an epoch is planned anew
    fitted.zero_grad()
    step = allocated_bytes(lambda: train_once(fitted, BATCH, None), cuda=False)
    assert step + plan.fixed_bytes == plan.peak_bytes
    with pytest.raises(BudgetExceeded, match="no larger than the sample"):
        fitted(torch.cat((BATCH, BATCH)))
    with pytest.raises(PlanMismatch, match="plan again") as refused:
        memory.apply(net(4), plan)(BATCH)
    assert "\n" not in str(refused.value)


def compiled_plan():
    """Return a plan as a fit would make it."""
    return memory.CompiledPlan(
        budget_bytes=4096, peak_bytes=4000, simulated_bytes=3900, fixed_bytes=1000, input_bytes=128,
        forward_seconds=0.5, compiler="aot_eager", graph="0123456789abcdef", torch_version="2.13.0",
        saved=(SavedValue("mm", "blocks.10", 512), SavedValue("t", "", 0)),
        again=(RunAgain("gelu", "blocks.9", 0.125), RunAgain("mul", "blocks.9", 0.25)),
    )  # fmt: skip


def test_a_plan_goes_through_a_file(tmp_path):
    """What is written is read; a plan of the other back-end, another schema, or half a file is refused."""
    plan, path = compiled_plan(), tmp_path / "plan.json"
    plan.save(path)
    assert memory.CompiledPlan.load(path) == read_plan(path) == plan
    assert plan.seconds_again == 0.375
    with pytest.raises(PlanMismatch, match="no memory plan"):
        memory.Plan.load(path)
    for content in ({"kind": "memory plan"}, plan.to_json() | {"schema": 9}, plan.to_json() | {"saved": [{}]}, [1]):
        with pytest.raises(PlanMismatch, match="allowed"):
            memory.CompiledPlan.from_json(content)


def test_what_a_module_leaves_to_backward():
    """Values and operations are told by module, in their order."""
    reports = explain_compiled(compiled_plan())
    assert [(each.module, each.saved, each.saved_bytes, each.again, each.again_seconds) for each in reports] == [
        ("", 1, 0, 0, 0), ("blocks.9", 0, 0, 2, 0.375), ("blocks.10", 1, 512, 0, 0),
    ]  # fmt: skip


@pytest.mark.slow
def test_fitting_changes_nothing():
    """Buffers, gradients and generators are as they were; what needs no plan is torch's own partition."""
    model = net(2)
    before = trained(model, BATCH)
    fitted = memory.fit(model, BATCH, budget="1 GiB", backend="compile", compiler="aot_eager", optimizer="adamw")
    held = [*(each.grad for each in model.parameters()), *model.buffers(), before[-2], torch.get_rng_state()]
    assert same(before, held)
    assert fitted.plan.peak_bytes <= fitted.plan.budget_bytes == 2**30


def test_allocations_are_seen():
    """The peak is that of what the step allocates, let go of or not."""

    def step():
        one = torch.empty(1000, dtype=torch.uint8)
        del one
        return torch.empty(300, dtype=torch.uint8), torch.empty(500, dtype=torch.uint8)

    assert allocated_bytes(step, cuda=False) == 1000


class Breaks(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(32, 32)

    def forward(self, x):
        return self.layer(x) if x.sum() > 0 else x


@pytest.mark.parametrize(
    ("model", "batch", "settings", "error", "says"),
    [
        (net, BATCH, {"backend": "jit"}, BudgetError, "eager, compile"),
        (net, BATCH, {"compiler": "gcc"}, BudgetError, "aot_eager"),
        (net, BATCH, {"tries": 0}, BudgetError, "tries"),
        (lambda: net().eval(), BATCH, {}, UnsupportedModel, "evaluation"),
        (net, BATCH[:, :3], {}, UnsupportedModel, "refuses it"),
        (lambda: net().requires_grad_(requires_grad=False), BATCH, {}, UnsupportedModel, "no parameter"),
        pytest.param(
            Breaks, BATCH, {}, UnsupportedModel, r"Breaks cannot be compiled as one graph \(.*\); allowed",
            marks=pytest.mark.slow,
        ),
    ],
)  # fmt: skip
def test_bad_input(model, batch, settings, error, says):
    """One sentence that names what is wrong."""
    with pytest.raises(error, match=says) as refused:
        memory.fit(model(), batch, **{"budget": 0.5, "backend": "compile", "compiler": "aot_eager"} | settings)
    assert "\n" not in str(refused.value)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("model", "batch", "share", "accumulate"),
    [
        (lambda: gpt.GPT((3, 2, 64), 100, 64, dropout=0.1), torch.arange(512).view(8, 64) % 100, 0.6, True),
        (lambda: resnet.resnet18(10, 8), torch.linspace(-1, 1, 8 * 3 * 64 * 64).view(8, 3, 64, 64), 0.9, False),
    ],
)
def test_example_models(model, batch, share, accumulate):
    """A GPT with dropout and tied weights, and a ResNet, within a budget and bit by bit."""

    def made():
        torch.manual_seed(0)
        return model()

    fitted = memory.fit(made(), batch, budget=share, backend="compile", compiler="aot_eager", accumulate=accumulate)
    assert fitted.plan.peak_bytes <= fitted.plan.budget_bytes
    assert fitted.plan.again
    plain, planned = made(), fitted
    for _ in range(1 + accumulate):
        assert same(trained(plain, batch), trained(planned, batch))


@pytest.mark.slow
@compiler
def test_inductor():
    """Compiled code within a budget, its gradients those of compiled code without one."""
    free = memory.fit(net(), BATCH, budget=1.0, backend="compile")
    tight = memory.fit(net(), BATCH, budget=0.93 * free.plan.peak_bytes / tracked_peak(net(), BATCH), backend="compile")
    assert tight.plan.peak_bytes <= tight.plan.budget_bytes < free.plan.peak_bytes
    for one, other in zip(trained(free, BATCH), trained(tight, BATCH), strict=True):
        torch.testing.assert_close(one, other)
