"""Layers that a strategy puts others in the place of, or divides: one that does more than torch's trains as alone.

Every kind of such a layer x what a user makes of it x strategy, against one process; else `UnsupportedPlan` is raised.
"""

from dataclasses import dataclass
from functools import partial

import pytest
import torch
from rank_group import by_group, on_ranks, plan_of
from serial import distance
from small_models import Attention, Gated
from torch import nn
from torch.nn import functional
from torch.nn.utils import parametrize

from trainwright.errors import UnsupportedPlan
from trainwright.train import parallelise

pytestmark = pytest.mark.filterwarnings("ignore:FSDP2-wrapped module .* returned a view:UserWarning")

LAYERS = ("Conv1d", "Conv2d", "Conv3d", "Linear")
NORMS = ("BatchNorm1d", "BatchNorm2d", "BatchNorm3d")
DIVIDED = ("column", "row", "fused", "MultiheadAttention", "LayerNorm", "Block")
HOWS = ("plain", "super", "own", "hook", "parametrised", "patched", "parameter hook")


def mixed(x):
    """Return what needs all features, or all channels, of a tensor."""
    dim = 1 if x.ndim > 3 else -1
    return torch.tanh(x) * (1 + x.mean(dim, keepdim=True))


def minus_mean(weight):
    return weight - weight.mean()


class MinusMean(nn.Module):
    def forward(self, weight):
        return minus_mean(weight)


def first_of(found):
    return (mixed(found[0]), *found[1:]) if isinstance(found, tuple) else mixed(found)


def own_body(kind):
    """Return a forward pass that calls torch's functions itself, as subclasses do that do not ask their base."""
    if kind.startswith("Batch"):

        def forward(self, x):
            self.num_batches_tracked.add_(self.training)
            found = functional.batch_norm(
                x, self.running_mean, self.running_var, self.weight, self.bias, self.training, self.momentum, self.eps
            )
            return mixed(found)

    elif kind == "Linear":

        def forward(self, x):
            return functional.linear(x, minus_mean(self.weight), self.bias)

    elif kind == "LayerNorm":

        def forward(self, x):
            return mixed(functional.layer_norm(x, self.normalized_shape, self.weight, self.bias, self.eps))

    elif kind == "MultiheadAttention":

        def forward(self, query, key, value, **_):
            q, k, v = functional.linear(query, self.in_proj_weight, self.in_proj_bias).chunk(3, -1)
            return self.out_proj(functional.scaled_dot_product_attention(q, k, v)), None

    else:

        def forward(self, x):
            return self._conv_forward(x, minus_mean(self.weight), self.bias)

    return forward


def by_hand(self, x):
    """Normalise by the statistics of what is there, without torch's function."""
    dims = [dim for dim in range(x.ndim) if dim != 1]
    mean, variance = x.mean(dims, keepdim=True), x.var(dims, unbiased=False, keepdim=True)
    shape = (1, -1, *(1 for _ in x.shape[2:]))
    return (x - mean) * (variance + self.eps).rsqrt() * self.weight.view(shape) + self.bias.view(shape)


def made(kind, how, *args, **settings):
    """Return a layer of torch's kind as a user has it."""
    base = getattr(nn, kind)
    if how == "super":

        class Layer(base):
            def forward(self, *given, **named):
                return first_of(super().forward(*given, **named))

        return Layer(*args, **settings)
    if how == "own":
        return type("Own", (base,), {"forward": own_body(kind)})(*args, **settings)
    if how == "by hand":
        return type("ByHand", (base,), {"forward": by_hand})(*args, **settings)
    layer = base(*args, **settings)
    weight = "in_proj_weight" if kind == "MultiheadAttention" else "weight"
    if how == "hook":
        layer.register_forward_hook(lambda _, __, found: first_of(found))
    elif how == "parametrised":
        parametrize.register_parametrization(layer, weight, MinusMean())
    elif how == "patched":
        inner = layer.forward
        layer.forward = lambda *given, **named: first_of(inner(*given, **named))
    elif how == "parameter hook":
        getattr(layer, weight).register_hook(lambda gradient: gradient / 2)
    return layer


def network(kind, how):
    """Return a small network with such a layer in its middle."""
    if kind in {"Linear", "BatchNorm1d"}:
        middle = made(kind, how, *((8, 8) if kind == "Linear" else (8,)))
        return nn.Sequential(nn.Linear(6, 8), middle, nn.Tanh(), nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 4))
    dims = kind[-2:]
    conv, pool = getattr(nn, f"Conv{dims}"), getattr(nn, f"AdaptiveAvgPool{dims}")
    settings = {"padding": 1} if kind.startswith("Conv") else {}
    middle = made(kind, how, *((8, 8, 3) if settings else (8,)), **settings)
    return nn.Sequential(
        conv(3, 8, 3, padding=1), middle, nn.Tanh(), conv(8, 8, 3), nn.Tanh(), pool(1), nn.Flatten(), nn.Linear(8, 4)
    )


class Multihead(nn.Module):
    def __init__(self, how):
        super().__init__()
        self.inner = made("MultiheadAttention", how, 16, 4, batch_first=True)

    def forward(self, x):
        return self.inner(x, x, x, need_weights=False)[0]


class Block(nn.Module):
    """A transformer block with one such layer."""

    def __init__(self, kind, how):
        super().__init__()
        norm = how if kind == "LayerNorm" else "plain"
        self.norm1, self.norm2 = made("LayerNorm", norm, 16), nn.LayerNorm(16)
        if kind == "MultiheadAttention":
            self.attention = Multihead(how)
        else:
            self.attention = Attention(16, 4, "chunk" if kind == "fused" else "separate")
        self.mlp = Gated(16)
        if kind == "column":
            self.mlp.gate_proj = made("Linear", how, 16, 32)
        elif kind == "row":
            self.mlp.down_proj = made("Linear", how, 32, 16)
        elif kind == "fused":
            self.attention.qkv = made("Linear", how, 16, 48)

    def forward(self, x):
        x = x + self.attention(self.norm1(x))
        return x + self.mlp(self.norm2(x))


class Transformer(nn.Module):
    def __init__(self, kind, how):
        super().__init__()
        self.first = nn.Linear(6, 16)
        self.blocks = nn.ModuleList([Block(kind, how), Block(kind, "plain")])
        if (kind, how) == ("Block", "hook"):  # it needs all of the sequence
            self.blocks[1].register_forward_hook(lambda _, __, found: found * (1 + found.mean(1, keepdim=True)))
        self.last = nn.Linear(16, 6)

    def forward(self, x):
        x = self.first(x)
        for block in self.blocks:
            x = block(x)
        return self.last(x)


def check(kind, how, plan, *, sync_bn=False):
    """Return a check that finds how far training is from one process, or why the plan is refused."""
    make = Transformer if kind in DIVIDED else network
    if kind in DIVIDED:
        shape, target = (8, 6), (8, 6)
    else:
        shape, target = ((6,) if kind in {"Linear", "BatchNorm1d"} else (3, *(int(kind[-2]) * [6]))), (4,)

    def run(_rank, _world):
        try:
            return distance(make, plan_of(**plan), shape, target, sync_bn=sync_bn, kind=kind, how=how)
        except UnsupportedPlan as error:
            return str(error)

    return run


PLANS = {
    "data": {"data": 2},
    "ZeRO 3": {"data": 2, "zero": 3},
    "filter": {"filter": 2},
    "channel": {"channel": 2},
    "spatial": {"spatial": 2},
    "tensor": {"tensor": 2},
    "context": {"context": 2},
}
CHECKS = {
    (plan, kind, how): check(kind, how, settings, sync_bn=True)
    for plan, settings in PLANS.items()
    for kind in (DIVIDED if set(settings) & {"tensor", "context"} else LAYERS + NORMS)
    for how in (*HOWS, *(["by hand"] if kind in NORMS else []))
    if kind != "Block" or how in {"plain", "hook"}
    if plan != "spatial" or kind[-2:] in {"2d", "3d"}  # it divides images and volumes
}
REFUSED = {
    **{(plan, kind, "by hand"): "without torch.nn.functional.batch_norm" for plan in PLANS for kind in NORMS},
    **{key: "hook" for key in CHECKS if key[2] == "parameter hook" and key[0] in {"ZeRO 3", "tensor"}},
    **{
        ("tensor", kind, how): "of its own"
        for kind in ("column", "row", "fused", "MultiheadAttention")
        for how in ("super", "own", "hook", "parametrised", "patched")
        if how == "parametrised" or kind in {"fused", "MultiheadAttention"}
    },
    ("context", "Block", "hook"): "hooks",
}
"""What a refusal says; everything else trains. Filter and channel parallel ranks have the same samples."""
for plan_kind_how in [key for key in REFUSED if key[2] == "by hand" and key[0] in {"filter", "channel"}]:
    del REFUSED[plan_kind_how]
# Every kind by every strategy, and of what a user makes of it two in turn: each strategy meets each way several times.
OFTEN = [key for key in CHECKS if key[1] in {"Conv2d", "BatchNorm2d", "fused", "LayerNorm", "Block"}]
QUICK = [key for place, key in enumerate(OFTEN) if place % 2 == 0 or key[1] == "Block" or key[2] == "by hand"]
GROUPS = {
    "two": (2, {key: CHECKS[key] for key in QUICK}),
    "two, more": (2, {key: each for key, each in CHECKS.items() if key not in QUICK}),
}


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    return by_group(GROUPS, tmp_path_factory)


@pytest.mark.parametrize(
    ("group", "plan", "kind"),
    [
        pytest.param(group, *each, marks=[] if group == "two" else pytest.mark.slow)
        for group, (_, checks) in GROUPS.items()
        for each in dict.fromkeys(key[:2] for key in checks)
    ],
)
def test_a_layer_of_the_users_own_trains_as_alone_or_is_refused(found, group, plan, kind):
    """To 1e-10 in double precision."""
    for key, results in found(group).items():
        if key[:2] != (plan, kind):
            continue
        for each in results:
            if key in REFUSED:
                assert isinstance(each, str), (key, each)
                assert "cannot be set up" in each, key
                assert REFUSED[key] in each, (key, each)
            else:
                assert isinstance(each, float), (key, each)
                assert each <= 1e-10, key


def test_a_norm_that_is_not_torchs_is_synchronised_too(tmp_path):
    """A module that calls batch_norm for itself; one without running statistics; and one in evaluation mode."""
    shape = (3, 6, 6)
    checks = {
        name: lambda _rank, _world, make=make: distance(make, plan_of(data=2), shape, (4,), sync_bn=True)
        for name, make in {"of one's own": own_norm, "no running statistics": stateless, "frozen": frozen}.items()
    }
    found = on_ranks(2, checks, tmp_path)
    for name, results in found.items():
        assert all(isinstance(each, float) and each <= 1e-10 for each in results), (name, results)


class OwnNorm(nn.Module):
    """Statistics of its own, and torch's function."""

    def __init__(self):
        super().__init__()
        self.register_buffer("running_mean", torch.zeros(8))
        self.register_buffer("running_var", torch.ones(8))

    def forward(self, x):
        return functional.batch_norm(x, self.running_mean, self.running_var, training=self.training)


def around(norm):
    return nn.Sequential(
        nn.Conv2d(3, 8, 3), norm, nn.Tanh(), nn.Conv2d(8, 8, 3), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 4)
    )


def own_norm():
    return around(OwnNorm())


def stateless():
    return around(nn.BatchNorm2d(8, track_running_stats=False))


def frozen():
    model = around(nn.BatchNorm2d(8))
    model[1].eval()
    return model


@dataclass
class Output:
    logits: torch.Tensor


class WithOutput(nn.Sequential):
    """What it returns has a class of its own, as the image models of transformers do."""

    def forward(self, x):
        return Output(super().forward(x))


def test_images_by_name_and_results_of_a_class(tmp_path):
    def check(rank, world, axis):
        torch.manual_seed(0)
        layers = nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Conv2d(8, 8, 3), nn.Flatten(), nn.Linear(128, 2)
        model, images = WithOutput(*layers), torch.randn(8, 3, 8, 8)
        expected = model(images).logits.square().mean().item()
        ours = parallelise(model, plan_of(**{axis: 2}))
        loss = ours.backward(lambda module, x: module(x=x).logits.square().mean(), [(1.0, images)])
        return abs(loss.item() - expected) < 1e-6

    checks = {axis: partial(check, axis=axis) for axis in ("filter", "channel", "spatial")}
    assert on_ranks(2, checks, tmp_path) == {axis: [True, True] for axis in checks}
