"""Models whose steps differ, and blocks that leave values elsewhere than in their results: planned to the bit."""

import copy

import pytest
import torch
from torch import nn

from trainwright import memory
from trainwright.errors import InfeasibleBudget, UnsupportedModel
from trainwright.train.parallel.recompute.sample_step import tracked_peak
from trainwright.train.parallel.recompute.stage_calls import find_stages

WIDTH = 32
BATCH = torch.linspace(-1, 1, 512 * WIDTH).view(512, WIDTH)


class Block(nn.Module):
    """A residual block that may leave its auxiliary loss somewhere."""

    def __init__(self, leave=lambda *_: None):
        super().__init__()
        self.inner, self.leave = nn.Sequential(nn.Linear(WIDTH, 96), nn.GELU(), nn.Linear(96, WIDTH)), leave

    def forward(self, x, losses):
        y = x + self.inner(x)
        self.leave(self, losses, y.square().mean())
        return y


class Other(Block):
    """A block of another class."""


class Net(nn.Module):
    """Blocks in a row, some of which a step leaves out, and the sum of what they left."""

    def __init__(self, kinds, leave=lambda *_: None, losses=lambda: None, total=lambda _, losses: 0):
        super().__init__()
        self.blocks = nn.ModuleList(kind(leave) for kind in kinds)
        self.losses, self.total, self.dropped = losses, total, ()

    def forward(self, x):
        losses = self.losses()
        for place, block in enumerate(self.blocks):
            if place not in self.dropped:
                x = block(x, losses)
        return x.square().mean() + self.total(self, losses)


def put(self, losses, value):
    losses[len(losses)] = value


LEFT = {
    "in a list": (lambda _, losses, value: losses.append(value), list, lambda _, losses: sum(losses)),
    "in a mapping": (put, dict, lambda _, losses: sum(losses.values())),
    "in an attribute": (lambda self, _, value: setattr(self, "loss", value), lambda: None,
                        lambda self, _: sum(block.loss for block in self.blocks)),
}  # fmt: skip


def trained(model, dropped=()):
    model.dropped = dropped
    model.zero_grad()
    loss = model(BATCH)
    loss.backward()
    return [loss.detach(), *(each.grad for each in model.parameters() if each.grad is not None)]


def same(one, other):
    return all(torch.equal(a, b) for a, b in zip(one, other, strict=True))


@pytest.mark.parametrize("where", LEFT)
def test_losses_that_blocks_leave_elsewhere(where):
    """Losses beside the results are planned for, with gradients to the bit, within the budget."""
    model = Net([Block] * 6, *LEFT[where])
    plain = copy.deepcopy(model)
    module = memory.fit(model, BATCH, budget=0.6)
    assert module.plan.solver != "none"
    assert same(trained(plain), trained(module))
    assert tracked_peak(module, BATCH) <= module.plan.budget_bytes


@pytest.mark.parametrize("dropped", [(0, 5), (2, 3), (1, 2, 3, 4, 5)])
def test_a_step_that_calls_more_blocks_than_the_sample(dropped):
    """With layers dropped at random the budget is that of all of them."""
    model = Net([Block] * 6)
    plain = copy.deepcopy(model)
    full = tracked_peak(model, BATCH)
    model.dropped = dropped
    module = memory.fit(model, BATCH, budget=int(0.6 * full))
    assert len(module.plan.chain.stages) == 6
    for others in ((), (4,), dropped):
        assert same(trained(plain, others), trained(module, others))
        assert tracked_peak(module, BATCH) <= module.plan.budget_bytes


def test_blocks_of_two_classes_in_turn():
    """The blocks of a list inside a model are stages, whatever stands beside them."""
    model = nn.ModuleDict({"model": Net([Block, Other] * 3)})
    assert find_stages(model) == tuple(f"model.blocks.{place}" for place in range(6))


class Functional(nn.Module):
    """Layers whose saved values lie between them: no plan takes less than a plain step."""

    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(nn.Conv1d(WIDTH, 2 * WIDTH, 1) for _ in range(4))

    def forward(self, x):
        for layer in self.layers:
            one, other = layer(x).chunk(2, 1)
            x = x + one.tanh() * other.sigmoid()
        return x


def test_the_least_budget_is_no_more_than_a_plain_step_takes():
    """What a refusal names is what the plan of the least memory has taken."""
    model, sample = Functional(), torch.randn(4, WIDTH, 64)
    full = tracked_peak(model, sample)
    with pytest.raises(InfeasibleBudget) as refused:
        memory.fit(model, sample, budget=full // 2)
    assert refused.value.minimal_bytes <= full
    assert memory.fit(model, sample, budget=refused.value.minimal_bytes).plan.solver == "none"


class Forces(nn.Module):
    """An energy whose negative gradient is the result."""

    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh()) for _ in range(3))

    def forward(self, x):
        y = x = x.detach().requires_grad_()
        for layer in self.layers:
            y = layer(y)
        return torch.autograd.grad(y.sum(), x, create_graph=True)[0]


def test_a_forward_that_takes_a_gradient_is_told_so():
    """Second derivatives through blocks are refused by name."""
    with pytest.raises(UnsupportedModel, match="create_graph=True"):
        memory.fit(Forces(), BATCH, budget=0.6)
