"""Values that skip stages in real runs: peaks foreseen, never below those tracked, gradients to the bit."""

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional

from trainwright import memory
from trainwright.errors import InfeasibleBudget
from trainwright.model.trace.step import call_model
from trainwright.plan.memory.planning import full_bytes, minimal_bytes
from trainwright.train.parallel.recompute.measure import measure_chain
from trainwright.train.parallel.recompute.sample_step import loss_of, tracked_peak


class Levels(nn.Module):
    """A U-Net in small: halved by pooling behind a level, or by a convolution that reads what skips too."""

    def __init__(self, levels=3, width=4, *, pooled=True, gated=False):
        super().__init__()
        self.pooled, self.gated = pooled, gated
        widths = [width * 2**level for level in range(levels + 1)]
        pairs = list(pairwise(widths))
        self.enter = nn.Conv2d(1, width, 3, padding=1)
        self.mid = nn.ModuleList(
            nn.Sequential(nn.BatchNorm2d(each), nn.ReLU(), nn.Conv2d(each, each, 3, padding=1), nn.ReLU())
            for each in widths
        )
        self.down = nn.ModuleList(nn.Conv2d(a, b, 1 if pooled else 2, 1 if pooled else 2) for a, b in pairs)
        self.up = nn.ModuleList(nn.ConvTranspose2d(b, a, 2, 2) for a, b in reversed(pairs))
        self.out = nn.ModuleList(
            nn.Sequential(nn.Conv2d(each * (1 if gated else 2), each, 3, padding=1), nn.Tanh())
            for each in reversed(widths[:-1])
        )

    def forward(self, x):
        x, skips = self.enter(x), []
        for mid, down in zip(self.mid, self.down, strict=False):
            x = mid(x)
            skips.append(x)
            x = down(functional.max_pool2d(x, 2) if self.pooled else x)
        x = self.mid[-1](x)
        for up, out in zip(self.up, self.out, strict=True):
            skip, x = skips.pop(), up(x)
            x = out(x * torch.sigmoid(skip) if self.gated else torch.cat([skip, x], 1))
        return x


class Taps(nn.Module):
    """Many layers; what some make is read behind the next eight and more, in several ways, once or twice."""

    def __init__(self, seed):
        super().__init__()
        rng = np.random.default_rng(seed)
        count = int(rng.integers(12, 18))
        self.layers = nn.ModuleList(nn.Conv2d(8, 8, 3, padding=1) for _ in range(count))
        self.after = [str(rng.choice(["relu", "tanh", "gelu", "none"])) for _ in range(count)]
        self.taps = {}
        for _ in range(2):
            made = int(rng.integers(0, count // 4))
            for read in {int(each) for each in rng.integers(made + 9, count, size=2)}:
                self.taps.setdefault(read, []).append((made, str(rng.choice(["add", "mul", "gate", "mean"]))))
        self.shown = [str(rng.choice(["same", "tanh", "relu", "double"])) for _ in range(count)]

    def forward(self, x):
        acts = {"relu": torch.relu, "tanh": torch.tanh, "gelu": functional.gelu, "double": lambda v: v * 2}
        made, read = {}, {number for taps in self.taps.values() for number, _ in taps}
        for number, layer in enumerate(self.layers):
            x = acts.get(self.after[number], lambda v: v)(layer(x))
            if number in read:
                made[number] = acts.get(self.shown[number], lambda v: v)(x)
            for source, how in self.taps.get(number, ()):
                skip = made[source]
                if how == "mean":
                    x = x + skip.mean((2, 3), keepdim=True)
                else:
                    x = x + skip if how == "add" else x * (skip if how == "mul" else torch.sigmoid(skip))
        return x


def with_times(chain, seed):
    """Return a chain with times drawn anew: other plans, the same on every machine."""
    rng = np.random.default_rng(seed)
    stages = []
    for each in chain.stages:
        seconds = float(rng.integers(1, 10))
        stages.append(
            replace(each, forward_seconds=seconds, backward_seconds=2 * seconds, no_grad_forward_seconds=seconds)
        )
    return replace(chain, stages=tuple(stages))


def step(model, batch, state):
    model.load_state_dict(state)
    model.zero_grad()
    torch.manual_seed(1)
    loss_of(call_model(model, batch), None).backward()
    return [each.grad.clone() for each in model.parameters()]


def check(model, batch, shares, *, seed=0, within=0.02, **settings):
    """Plan at shares of the peak, down to the least, and compare with real steps; return how many plans there were."""
    chain = with_times(measure_chain(model, batch, offload="offload" in settings), seed)
    assert chain.fixed["between stages"] > 0
    state = {name: each.clone() for name, each in model.state_dict().items()}
    wanted = step(model, batch, state)
    least, count = minimal_bytes(chain), 0
    for share in shares:
        budget = int(share * full_bytes(chain)) if settings else max(least, int(share * full_bytes(chain)))
        try:
            plan = memory.plan(chain, budget=budget, solver="dp", slots=100, **settings)
        except InfeasibleBudget:
            continue
        planned = memory.apply(model, plan)
        peak = tracked_peak(planned, batch)
        assert peak <= plan.peak_bytes <= budget
        assert plan.peak_bytes <= (1 + within) * peak
        assert all(map(torch.equal, wanted, step(planned, batch, state)))
        count += 1
    return count


@pytest.mark.parametrize("kind", [{"pooled": True, "gated": True}, {"pooled": False}])
def test_levels(kind):
    """Peaks are never below the tracked ones, whether the next stage reads what skips too or not."""
    torch.manual_seed(0)
    assert check(Levels(2, 8, **kind), torch.randn(2, 1, 48, 48), (0.6,), within=0.08) == 1


def test_copies():
    """Where values also wait on the host, those that skip stages do not, and are counted."""
    torch.manual_seed(0)
    model, batch = Levels(2, 8, pooled=False, gated=True), torch.randn(2, 1, 48, 48)
    assert check(model, batch, (0.9,), within=0.05, offload=True, bandwidth=1e6)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(6))
def test_random_modules(seed):
    """Whatever is read behind many layers, however often: a fitted model keeps its budget."""
    torch.manual_seed(seed)
    model, batch = Taps(seed), torch.randn(8, 8, 24, 24)
    state = {name: each.clone() for name, each in model.state_dict().items()}
    wanted = step(model, batch, state)
    for share in (0.8, 0.6):
        planned = memory.fit(model, batch, budget=share)
        assert tracked_peak(planned, batch) <= planned.plan.budget_bytes
        assert all(map(torch.equal, wanted, step(planned, batch, state)))


@pytest.mark.slow
@pytest.mark.parametrize("pooled", [False, True])
@pytest.mark.parametrize("levels", [2, 3, 4])
def test_more_levels(levels, pooled):
    """Never below the tracked peak; above, by what a rerun does not make that comes right before its backward."""
    torch.manual_seed(0)
    for seed in range(3):
        model = Levels(levels, 8, pooled=pooled)
        assert check(model, torch.randn(2, 1, 64, 64), (0.8, 0.6, 0.5, 0.4, 0.0), seed=seed, within=0.3) == 5
