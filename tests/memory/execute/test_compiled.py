"""Fitting by torch.compile: within the budget, with the gradients of the compiled model without one."""

import shutil
import sys
from pathlib import Path

import pytest
import torch
from torch import nn

sys.path.insert(0, str(Path(__file__).resolve().parents[3] / "examples"))

from models import gpt, resnet
from trainwright import memory
from trainwright.errors import BudgetError, BudgetExceeded, InfeasibleBudget, UnsupportedModel
from trainwright.memory.execute.allocated import allocated_bytes
from trainwright.memory.execute.measure import tracked_peak

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
    assert plan.peak_bytes == pytest.approx(plan.simulated_bytes, rel=0.1)
    assert same(trained(net(), BATCH), trained(fitted, BATCH))
    assert list(fitted.state_dict()) == list(net().state_dict())
    with pytest.raises(BudgetExceeded, match="no larger than the sample"):
        fitted(torch.cat((BATCH, BATCH)))
    fitted.eval()
    assert torch.equal(fitted(BATCH), fitted(BATCH))


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
        pytest.param(net, BATCH, {"budget": "60 KiB"}, InfeasibleBudget, "least found", marks=pytest.mark.slow),
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
