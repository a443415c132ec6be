"""Fitting by torch.compile and its activation budget: within the budget, with the gradients of the eager model."""

import sys
from pathlib import Path

import pytest
import torch
from torch import nn

sys.path.insert(0, str(Path(__file__).resolve().parents[4] / "examples"))

from models import resnet
from trainwright import memory
from trainwright.errors import BudgetError, BudgetExceeded, InfeasibleBudget, UnsupportedModel
from trainwright.train.parallel.recompute.compiled import allocated_bytes
from trainwright.train.parallel.recompute.sample_step import tracked_peak

pytestmark = pytest.mark.filterwarnings("ignore:`torch.jit:DeprecationWarning")  # torch importing its own compiler
BATCH = torch.linspace(-1, 1, 256 * 32).view(256, 32)
EAGER = {"backend": "compile", "compiler": "aot_eager"}


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
    """Gradients, buffers and generators are the eager model's bit by bit; its plan trains alike."""
    fitted = memory.fit(net(), BATCH, budget=0.75, **EAGER)
    plan = fitted.plan
    assert plan.saved_share < 1.0
    assert plan.peak_bytes <= plan.budget_bytes == int(0.75 * tracked_peak(net(), BATCH))
    assert same(trained(net(), BATCH), trained(fitted, BATCH))
    with pytest.raises(BudgetExceeded, match="no larger than the sample"):
        fitted(torch.cat((BATCH, BATCH)))
    fitted.eval()
    assert torch.equal(fitted(BATCH), fitted(BATCH))
    applied = memory.apply(net(), plan)
    assert same(trained(net(), BATCH), trained(applied, BATCH))
    with pytest.raises(InfeasibleBudget, match="least measured") as refused:
        memory.fit(net(), BATCH, budget="60 KiB", **EAGER)
    least = refused.value.minimal_bytes
    assert sum(refused.value.owners.values()) == least
    assert memory.fit(net(), BATCH, budget=least, **EAGER).plan.peak_bytes <= least


@pytest.mark.slow
def test_a_residual_network():
    """Budgets of a network with buffers: bit by bit, and the state of an optimizer is part of the peak."""

    def made():
        torch.manual_seed(0)
        return resnet.resnet18(10, 8)

    batch = torch.linspace(-1, 1, 8 * 3 * 64 * 64).view(8, 3, 64, 64)
    fitted = memory.fit(made(), batch, budget=1.0, optimizer="adamw", **EAGER)
    assert fitted.plan.peak_bytes <= fitted.plan.budget_bytes
    assert same(trained(made(), batch), trained(fitted, batch))


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
        (net, BATCH, {"backend": "jit"}, BudgetError, "'eager', 'compile'"),
        (net, BATCH, {"compiler": "gcc"}, BudgetError, "aot_eager"),
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
        memory.fit(model(), batch, **{"budget": 0.5, **EAGER} | settings)
    assert "\n" not in str(refused.value)
