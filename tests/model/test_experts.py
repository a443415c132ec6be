"""Experts whose products are grouped, as current mixtures have them: counted, and planned as experts."""

import pytest
import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from trainwright.cluster import Cluster
from trainwright.model.profile import Profile
from trainwright.model.trace.flops import count_flops
from trainwright.plan import Degrees, Oracle

HIDDEN, INNER, EXPERTS, TOP = 32, 64, 4, 2


class Experts(nn.Module):
    """Gated experts; `grouped` has their products done at once, sorted by expert, else one expert after the other."""

    def __init__(self, *, grouped):
        super().__init__()
        self.grouped = grouped
        self.router = nn.Linear(HIDDEN, EXPERTS, bias=False)
        self.up = nn.Parameter(torch.randn(EXPERTS, HIDDEN, 2 * INNER) / 8)
        self.down = nn.Parameter(torch.randn(EXPERTS, INNER, HIDDEN) / 8)

    def forward(self, x):
        rows = x.flatten(0, 1)
        weights, chosen = self.router(rows).softmax(-1).topk(TOP, -1)
        order = chosen.flatten().argsort()
        given = rows[order // TOP]
        if self.grouped:
            ends = torch.nn.functional.one_hot(chosen.flatten(), EXPERTS).sum(0).cumsum(0).to(torch.int32)
            gate, up = torch._grouped_mm(given, self.up.to(given.dtype), offs=ends).chunk(2, -1)
            made = torch._grouped_mm(nn.functional.silu(gate) * up, self.down.to(given.dtype), offs=ends)
        else:  # evenly
            parts = given.chunk(EXPERTS)
            halves = [(part @ up).chunk(2, -1) for part, up in zip(parts, self.up, strict=True)]
            inner = [nn.functional.silu(gate) * up for gate, up in halves]
            made = torch.cat([part @ down for part, down in zip(inner, self.down, strict=True)])
        weighted = made * weights.flatten()[order][:, None]
        return x + torch.zeros_like(rows).index_add(0, order // TOP, weighted).view_as(x)


def model_of(*, grouped):
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(HIDDEN, HIDDEN), Experts(grouped=grouped), nn.Linear(HIDDEN, HIDDEN))


def loss_of(model, batch):
    return model(batch).float().square().mean()


@pytest.mark.parametrize("precision", ["fp32", "bf16", "amp-bf16"])
def test_grouped_products_are_counted_as_products_one_by_one(precision, capfd):
    """To what torch counts of experts done one after the other; nothing is left out, and the model is not run."""
    x = torch.randn(4, 16, HIDDEN)
    with FlopCounterMode(display=False) as counter:
        loss_of(model_of(grouped=False), x).backward()
    profile = Profile.trace(model_of(grouped=True), x, loss=loss_of, precision=precision)
    assert profile.origin == "traced"
    assert not profile.uncounted
    counted = sum(layer.forward_flops + layer.backward_flops for layer in profile.layers)
    assert counted == pytest.approx(counter.get_total_flops(), rel=0.02)
    assert {layer.experts for layer in profile.layers} == {0, EXPERTS}
    assert not capfd.readouterr().err  # torch logs each operation that fails on fake tensors


def test_experts_that_are_traced_are_divided_and_their_tokens_sent():
    profile = Profile.trace(model_of(grouped=True), torch.randn(4, 16, HIDDEN), loss=loss_of)
    oracle = Oracle(Cluster.preset("dgx-a100"))
    one, two = (oracle.estimate(profile, batch=8, degrees=Degrees(expert=parts)) for parts in (1, 2))
    assert two.state_bytes < one.state_bytes
    sent = [each for each in two.collectives if each.operation == "all_to_all"]
    assert sent
    assert sum(each.bytes * each.count for each in sent) > 0


@pytest.mark.parametrize(
    ("left", "right", "flops"),
    [
        ((24, 8), (3, 8, 5), 2 * 24 * 8 * 5),
        ((3, 24, 8), (8, 15), 2 * 24 * 8 * 15),
        ((24, 9), (9, 5), 2 * 24 * 9 * 5),
        ((3, 24, 8), (3, 8, 5), 2 * 3 * 24 * 8 * 5),
    ],
)
def test_what_falls_to_the_groups(left, right, flops):
    """Rows, columns or the inner size; or nothing, where both have a matrix for each."""
    arguments = [torch.empty(left, device="meta"), torch.empty(right, device="meta")]
    assert count_flops(torch.ops.aten._grouped_mm.default, arguments, []) == flops


class Unknown(nn.Module):
    def forward(self, x):
        return torch.ops.trainwright_tests.only_real(x)


@torch.library.custom_op("trainwright_tests::only_real", mutates_args=())
def only_real(x: torch.Tensor) -> torch.Tensor:
    """Return twice x."""
    return x * 2


@only_real.register_fake
def _(x):
    raise RuntimeError("no fake kernel for these strides")


only_real.register_autograd(lambda ctx, gradient: gradient * 2)


def test_an_operation_that_fails_on_fake_tensors_alone_is_run():
    """Once, by itself; that its work is not known is said."""
    model = nn.Sequential(nn.Linear(8, 8), Unknown(), nn.Linear(8, 4))
    profile = Profile.trace(model, torch.randn(3, 8))
    assert profile.origin == "traced"
    assert profile.uncounted == ("trainwright_tests.only_real.default",)


@pytest.mark.parametrize("precision", [pytest.param("fp32", marks=pytest.mark.slow), "amp-bf16"])
def test_a_mixture_of_transformers_is_counted_as_with_eager_experts(precision):
    """Within 2 % of the same model with its experts one after the other, where transformers is installed."""
    transformers = pytest.importorskip("transformers")
    counted = []
    for experts in ("eager", "grouped_mm"):
        config = transformers.MixtralConfig(
            vocab_size=128, hidden_size=64, intermediate_size=128, num_hidden_layers=2, num_attention_heads=4,
            num_key_value_heads=2, num_local_experts=4, use_cache=False, experts_implementation=experts,
        )  # fmt: skip
        model, x = transformers.MixtralForCausalLM(config), torch.randint(0, 128, (4, 16))
        profile = Profile.trace(
            model, x, loss=lambda model, batch: model(batch).logits.float().square().mean(), precision=precision
        )
        assert not profile.uncounted
        counted.append(sum(layer.forward_flops + layer.backward_flops for layer in profile.layers))
    assert counted[1] == pytest.approx(counted[0], rel=0.02)
