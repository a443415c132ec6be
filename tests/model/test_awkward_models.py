"""Models off the beaten track: what a traced step holds is what a real one does."""

import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.utils._pytree import tree_leaves
from zoo import HeldStorages

import trainwright as tw
from trainwright.plan import Degrees


class Recurrent(nn.Module):
    """The library that runs it keeps a workspace of a size of its own."""

    def __init__(self):
        super().__init__()
        self.words, self.layers, self.end = nn.Embedding(50, 8), nn.LSTM(8, 16, batch_first=True), nn.Linear(16, 4)

    def forward(self, x):
        return self.end(self.layers(self.words(x))[0][:, -1])


class Twin(nn.Module):
    """One part runs on two inputs, given by keywords; a mapping comes out."""

    def __init__(self):
        super().__init__()
        self.part = nn.Sequential(nn.Conv1d(2, 8, 3, padding=2, dilation=2, groups=2), nn.GELU(), nn.Flatten())

    def forward(self, *, left, right):
        left, right = self.part(left), self.part(right)
        return {"near": functional.cosine_similarity(left, right), "sizes": [left.norm(dim=1), None]}


class Spectral(nn.Module):
    """Complex weights."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(3, 4, 8, 5, dtype=torch.cfloat))

    def forward(self, x):
        return torch.fft.irfft2(torch.einsum("bixy,ioxy->boxy", torch.fft.rfft2(x), self.weight), s=x.shape[-2:])


class Stabilised(nn.Module):
    """A maximum is out of the graph: what its node saves goes in the forward, as no backward comes by."""

    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(32, 32) for _ in range(3))

    def forward(self, x):
        for layer in self.layers:
            made = layer(x)
            x = (made - (made * 2).exp().amax(-1, keepdim=True).detach()).tanh()
        return x


class Unread(nn.Module):
    """A part that nothing runs: it gets no gradient, so that the optimizer keeps nothing for it."""

    def __init__(self):
        super().__init__()
        self.used, self.unread = nn.Linear(16, 8), nn.Linear(64, 64)

    def forward(self, x):
        return self.used(x)


class Clamped(nn.Module):
    """Gradients are clamped by hooks on values, which no forward without gradients can have."""

    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(32, 32) for _ in range(3))

    def forward(self, x):
        for layer in self.layers:
            made = layer(x)
            made.register_hook(lambda gradient: gradient.clamp(-1, 1))
            x = made.tanh()
        return x


def partly_frozen():
    model = nn.Sequential(nn.Linear(16, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 4))
    model[2].requires_grad_(False)
    return model


def normed():
    """Autocast leaves a group norm in the input's precision, its weights in theirs."""
    return nn.Sequential(nn.Conv2d(3, 16, 3), nn.GroupNorm(4, 16), nn.ReLU6(), nn.ConvTranspose2d(16, 8, 2, stride=2))


AWKWARD = {
    "recurrent": (Recurrent, lambda: torch.randint(50, (8, 12)), "fp32"),
    "group norm, mixed": (normed, lambda: torch.randn(8, 3, 16, 16), "amp-bf16"),
    "twin": (Twin, lambda: {"left": torch.randn(4, 2, 16), "right": torch.randn(4, 2, 16)}, "fp32"),
    "spectral": (Spectral, lambda: torch.randn(4, 3, 8, 8), "fp32"),
    "stabilised": (Stabilised, lambda: torch.randn(64, 32), "fp32"),
    "clamped": (Clamped, lambda: torch.randn(64, 32), "fp32"),
    "unread": (Unread, lambda: torch.randn(8, 16), "fp32"),
    "frozen": (partly_frozen, lambda: torch.randn(8, 16), "fp32"),
    "weight norm": (
        lambda: nn.Sequential(nn.utils.parametrizations.weight_norm(nn.Linear(16, 64)), nn.PReLU(), nn.Linear(64, 4)),
        lambda: torch.randn(8, 16),
        "fp32",
    ),
}
if torch.backends.cpu.get_cpu_capability().startswith("AVX512"):
    # Without it torch has no LSTM in bf16.
    AWKWARD["recurrent, mixed"] = (Recurrent, AWKWARD["recurrent"][1], "amp-bf16")


def loss_of(model, sample):
    out = model(**sample) if isinstance(sample, dict) else model(sample)
    return sum(leaf.float().square().mean() for leaf in tree_leaves(out) if isinstance(leaf, torch.Tensor))


def tracked(model, sample, precision):
    """Return the peak of the second step of a training loop as anybody writes it."""
    optimizer = torch.optim.AdamW([each for each in model.parameters() if each.requires_grad], lr=1e-3)
    tracker = HeldStorages()

    def step():
        with torch.autocast("cpu", torch.bfloat16, enabled=precision == "amp-bf16"):
            loss = loss_of(model, sample)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()

    step()
    state = [value for states in optimizer.state.values() for value in states.values()]
    tracker.watch([*model.parameters(), *model.buffers(), *tree_leaves(sample), *state], "held")
    with tracker:
        step()
    return tracker.held_peak_bytes


@pytest.mark.parametrize("name", AWKWARD)
def test_the_traced_peak_is_that_of_a_training_loop(name):
    make, sample, precision = AWKWARD[name]
    torch.manual_seed(0)
    model, sample = make(), sample()
    profile = tw.Profile.trace(model, sample, loss=loss_of, precision=precision)
    assert profile.peak_bytes == pytest.approx(tracked(model, sample, precision), rel=5e-3)
    assert profile.origin == "traced"


def test_recurrent_layers_have_work():
    """Two multiply-adds of each weight for every element of a sequence, twice that backward."""
    model, sample = Recurrent(), torch.randint(50, (8, 12))
    layer = next(each for each in tw.Profile.trace(model, sample).layers if each.name == "layers")
    weights = sum(each.numel() for each in model.layers.parameters() if each.dim() == 2)
    assert layer.forward_flops == 2 * 8 * 12 * weights
    assert layer.backward_flops == 2 * layer.forward_flops


@pytest.mark.parametrize(("make", "trained"), [(Unread, 136), (partly_frozen, 1348)])
def test_weights_without_gradients_have_no_state_on_any_number_of_devices(make, trained):
    """Divided or not, a plan holds all weights, and gradients and state of those that are trained only."""
    torch.manual_seed(0)
    model = make()
    whole = sum(each.numel() for each in model.parameters())
    profile = tw.Profile.trace(model, torch.randn(8, 16), loss=loss_of)
    assert (profile.weight_elements, profile.trainable_elements) == (whole, trained)
    oracle = tw.Oracle(tw.Cluster.preset("dgx-a100"))
    state = 4 * whole + 8 * trained
    for settings, least, exchanged in (
        ({}, state, 4 * trained),
        ({"zero": 1}, 4 * whole + 4 * trained, 4 * trained),
        ({"zero": 3}, state / 2, 4 * trained),
    ):
        plan = oracle.estimate(profile, batch=16, degrees=Degrees(data=2), **settings)
        gathered = 8 * whole if settings.get("zero") == 3 else 0  # two units at a time
        assert least <= plan.peak_bytes <= least + gathered + profile.peak_bytes
        gradients = sum(each.bytes * each.count for each in plan.collectives if each.phase == "gradient")
        assert gradients == exchanged
