"""Every strategy comes to what one device comes to: losses, gradients, and parameters after several steps."""

from functools import partial

import pytest
import small_models
import torch
from rank_group import by_group, plan_of
from serial import apart, batches, distance, far, gradients, loss_of, seeded
from torch import nn

from trainwright.cluster import Cluster
from trainwright.errors import UnsupportedPlan
from trainwright.model.profile import Profile
from trainwright.plan import Degrees, Oracle
from trainwright.train import parallelise

pytestmark = pytest.mark.filterwarnings("ignore:FSDP2-wrapped module .* returned a view:UserWarning")

IMAGE, VOLUME = (3, 18, 16), (1, 9, 8, 8)


def case(make, shape, target, *, dtype=torch.float64, sync_bn=False, parts=1, plan=None, **degrees):
    def check(rank, world):
        settings = {name: world if value == "all" else value for name, value in degrees.items()}
        return distance(
            make, plan_of(**settings, **(plan or {})), shape, target, dtype=dtype, sync_bn=sync_bn, parts=parts
        )

    return check


def evaluated(_rank, _world):
    """Evaluate torch's own layers, which have a shorter way then."""
    x = batches((8, 6), (8, 16), torch.float64)[0][0]
    alone = seeded(small_models.Encoder, torch.float64).eval()
    ours = parallelise(seeded(small_models.Encoder, torch.float64), plan_of(context=2)).eval()
    with torch.no_grad():
        return apart(ours(x), alone(x))


def mixed(make, **degrees):
    """Return a check that is 0 if a step under autocast is about that of one device."""

    def check(_rank, _world):
        ours = parallelise(seeded(make, torch.float32), plan_of(**degrees, precision="amp-bf16"))
        alone = seeded(make, torch.float32)
        x, y = batches((8, 6), (8, 6), torch.float32)[0]
        with torch.autocast("cpu", torch.bfloat16):
            expected = (alone(x) - y).square().mean()
        expected.backward()
        mine = [each.chunk(ours.data_ranks)[ours.data_rank] for each in (x, y)]
        loss = ours.backward(loss_of, [(1.0, mine)])
        near = apart(loss, expected.detach()) < 0.01
        return 0.0 if near and far(gradients(ours.module), gradients(alone)) < 0.05 else 1.0

    return check


class Counting(small_models.Block):
    """A block that counts the positions it is given."""

    def forward(self, x):
        return super().forward(x + torch.arange(x.shape[1])[:, None])


class Forked(nn.Module):
    """Two lists of blocks, of which the second does not go on where the first ended."""

    def __init__(self):
        super().__init__()
        self.one, self.two = small_models.Transformer("chunk"), small_models.Transformer("chunk")

    def forward(self, x):
        return self.one(x) + self.two(x)


def refused(_rank, _world):
    """Return 0 if a block that works otherwise on a part of a sequence is refused."""
    model = small_models.Transformer("chunk")
    model.blocks[0] = Counting(16, 4, "chunk")
    ours = parallelise(model, plan_of(context=2))
    with pytest.raises(UnsupportedPlan, match="Counting does not do with a part of a sequence"):
        ours(torch.randn(2, 8, 6))
    with pytest.raises(UnsupportedPlan, match="a sequence of 7 cannot be divided by 2"):
        ours(torch.randn(2, 7, 6))
    with pytest.raises(UnsupportedPlan, match="Block is handed 8 positions where a rank has 4"):
        parallelise(Forked(), plan_of(context=2))(torch.randn(2, 8, 6))
    return 0.0


class Odd(nn.Module):
    """A part that no loss depends on, and a pair as result."""

    def __init__(self):
        super().__init__()
        self.one, self.other, self.idle = nn.Linear(6, 6), nn.Linear(6, 4), nn.Linear(2, 2)

    def forward(self, x):
        x = self.one(x)
        return self.other(x), x


def odd(_rank, _world):
    """Return 0 if every rank is told why a model's gradients, or what it returns, are not for a plan."""
    x, y = batches((6,), (4,), torch.float32)[0]
    ours = parallelise(Odd(), plan_of(data=2))
    loss = lambda model, batch: (model(batch[0])[0] - batch[1]).square().mean()  # noqa: E731
    with pytest.raises(UnsupportedPlan, match=r"the last loss did not depend on idle\.weight, idle\.bias, and other"):
        ours.backward(loss, [(1.0, (x, y))])
    cut = parallelise(seeded(Odd, torch.float32), plan_of(pipeline=2, schedule="1f1b", microbatches=2, cuts=("other",)))
    cut.backward(loss, [(1.0, (x, y))])
    with torch.no_grad():
        found, expected = cut.eval()(x), seeded(Odd, torch.float32)(x)
    return max(apart(one, other) for one, other in zip(found, expected, strict=True))


def refused_stages(_rank, _world):
    """Return 0 if all ranks are told why stages cannot be: values that only one has, stages in another order."""
    settings = {"pipeline": 2, "schedule": "1f1b", "microbatches": 2}
    part = [(1.0, batches((8, 6), (8, 6), torch.float32)[0])]
    asking = parallelise(small_models.Misplaced(asks=True), plan_of(**settings, cuts=("blocks.2",)))
    with pytest.raises(UnsupportedPlan, match="asks by __bool__ for values of stage 0 that later stages have not"):
        asking.backward(loss_of, part)
    uncalled = small_models.Misplaced()
    uncalled.unused = nn.Linear(2, 2)
    with pytest.raises(UnsupportedPlan, match="the model does not come to stage 1"):
        parallelise(uncalled, plan_of(**settings, cuts=("unused",))).backward(loss_of, part)
    with pytest.raises(UnsupportedPlan, match=r"Misplaced has no module 'layers\.1' to begin a stage"):
        parallelise(small_models.Misplaced(), plan_of(**settings, cuts=("layers.1",)))
    return 0.0


class Standardised(nn.Conv2d):
    """Its forward pass needs whole filters."""

    def forward(self, x):
        weight = self.weight - self.weight.mean((1, 2, 3), keepdim=True)
        return self._conv_forward(x, weight, self.bias)


def own_layers():
    """Layers that are not torch's own, between two that can be divided."""
    spectral = nn.utils.parametrizations.spectral_norm(nn.Conv2d(8, 8, 3))
    return nn.Sequential(
        nn.Conv2d(3, 8, 3), nn.ReLU(), Standardised(8, 8, 3), nn.Tanh(), spectral, nn.Conv2d(8, 5, 3), nn.Flatten(),
        nn.Linear(400, 5),
    )  # fmt: skip


def of_modes(_rank, _world):
    """Return 0 if a norm that keeps its statistics does so in a stage, too."""
    model = small_models.normed_at_the_end()
    model[1].eval()
    ours = parallelise(model, plan_of(pipeline=2, schedule="1f1b", microbatches=2))
    norms = [each for each in ours.module.modules() if isinstance(each, nn.BatchNorm2d)]
    return float(any(each.training == (each.num_features == 4) for each in norms))


def of_tokens(_rank, _world):
    """Return how far the loss of whole numbers is from that of one device, on every rank."""
    words = torch.randint(9, (8, 4), generator=torch.Generator().manual_seed(3))
    torch.manual_seed(7)
    model = nn.Sequential(nn.Embedding(9, 6), nn.Tanh(), nn.Linear(6, 9)).double()
    expected = model(words).square().mean().detach()
    ours = parallelise(model, plan_of(pipeline=2, schedule="1f1b", microbatches=4))
    loss = ours.backward(lambda model, batch: model(batch[0]).square().mean(), [(1.0, (words,))])
    return apart(loss, expected)


def of_the_oracle(rank, world):
    """Cut where a profile with a loss says; the loss is no stage."""
    make = partial(small_models.Transformer, "separate", depth=3)
    profile = Profile.trace(make(), batches(*TEXT, torch.float32)[0], loss=loss_of)
    plan = Oracle(Cluster.preset("dgx-h100")).estimate(
        profile, batch=8, degrees=Degrees(pipeline=world), micro=2, schedule="1f1b"
    )
    assert len(plan.cuts) == world - 1
    return distance(make, plan, *TEXT)


MLP = (small_models.mlp, (6,), (4,))
CNN = (small_models.convolutions, IMAGE, (5,))
CNN_BN = (partial(small_models.convolutions, norm=True), IMAGE, (5,))
NORMED = (small_models.normed_at_the_end, IMAGE, (5,))
CNN3D = (small_models.volumes, VOLUME, (4,))
UNET = (small_models.UNet, (3, 16, 12), (4, 16, 12))
TEXT = ((8, 6), (8, 6))
BLOCKS = {
    how: (partial(small_models.Transformer, how), *TEXT)
    for how in ("separate", "chunk", "split", "view", "mixed", "by heads", "transposed")
}
APART = (partial(small_models.Transformer, "apart"), *TEXT)
ENCODER = (small_models.Encoder, (8, 6), (8, 16))
CHAIN = (small_models.chain, *TEXT)
TIED = (small_models.Tied, (6,), (6,))
MIXTURE = (small_models.Mixture, *TEXT)
CROWDED = (partial(small_models.Mixture, crowded=True), *TEXT)

ON_TWO = {
    "data": case(*MLP, data=2),
    "data, convolutions": case(*CNN, data=2),
    "data, micro-batches": case(*MLP, data=2, parts=2),
    "data, synchronised norms": case(*CNN_BN, data=2, sync_bn=True),
    "ZeRO 1": case(*MLP, data=2, plan={"zero": 1}),
    "ZeRO 2": case(*MLP, data=2, plan={"zero": 2}),
    "ZeRO 3": case(*MLP, data=2, plan={"zero": 3}),
    "ZeRO 1, micro-batches": case(*MLP, data=2, plan={"zero": 1}, parts=2),
    "ZeRO 2, micro-batches": case(*MLP, data=2, plan={"zero": 2}, parts=2),
    "ZeRO 3, micro-batches": case(*MLP, data=2, plan={"zero": 3}, parts=4),
    "filter": case(*MLP, filter=2),
    "filter, convolutions": case(*CNN, filter=2),
    "filter, norms": case(*CNN_BN, filter=2),
    "filter, volumes": case(*CNN3D, filter=2),
    "filter, U-Net": case(*UNET, filter=2),
    "channel": case(*MLP, channel=2),
    "channel, convolutions": case(*CNN_BN, channel=2),
    "channel, volumes": case(*CNN3D, channel=2),
    "channel, micro-batches": case(*MLP, channel=2, parts=2),
    "spatial": case(*CNN, spatial=2),
    "spatial, volumes": case(*CNN3D, spatial=2),
    "spatial, synchronised norms": case(*CNN_BN, spatial=2, sync_bn=True),
    "spatial, norms of whole tensors": case(*NORMED, spatial=2, sync_bn=True),
    "spatial, U-Net": case(*UNET, spatial=2),
    **{f"tensor, {how}": case(*model, tensor=2) for how, model in BLOCKS.items()},
    "tensor, columns and row apart": case(*APART, tensor=2),
    "tensor, columns and row apart, all blocks again": case(*APART, tensor=2, plan={"recompute": "full"}),
    "tensor, frozen embedding": case(partial(small_models.fine_tuned, "separate"), *TEXT, tensor=2),
    "tensor, fused, frozen embedding": case(partial(small_models.fine_tuned, "view"), *TEXT, tensor=2),
    "tensor, torch's encoder": case(*ENCODER, tensor=2),
    "tensor, micro-batches": case(*BLOCKS["separate"], tensor=2, parts=2),
    "tensor, single precision": case(*BLOCKS["chunk"], tensor=2, dtype=torch.float32),
    **{f"context, {how}": case(*model, context=2) for how, model in BLOCKS.items()},
    "context, torch's encoder": case(*ENCODER, context=2),
    "context, micro-batches": case(*BLOCKS["chunk"], context=2, parts=2),
    "context, single precision": case(*BLOCKS["chunk"], context=2, dtype=torch.float32),
    "context, evaluation": evaluated,
    "context, mixed precision": mixed(small_models.Transformer, context=2),
    "expert, mixed precision": mixed(small_models.Mixture, expert=2),
    "context, positions in a block": refused,
    "pipeline, gpipe": case(*MLP, pipeline=2, plan={"schedule": "gpipe", "microbatches": 4}),
    "pipeline, 1f1b": case(*MLP, pipeline=2, plan={"schedule": "1f1b", "microbatches": 4, "stages": (2, 3)}),
    "pipeline, interleaved": case(
        *MLP, pipeline=2, plan={"schedule": "interleaved", "microbatches": 4, "chunks": 2, "stages": (1, 2, 1, 1)}
    ),
    "pipeline, fewer micro-batches than stages": case(*MLP, pipeline=2, plan={"schedule": "1f1b", "microbatches": 1}),
    "pipeline, blocks of a list": case(*BLOCKS["separate"], pipeline=2, plan={"schedule": "1f1b", "microbatches": 4}),
    "pipeline, within a block": case(
        *BLOCKS["view"],
        pipeline=2,
        plan={"schedule": "gpipe", "microbatches": 2, "cuts": ("blocks.0.norm2",)},
    ),
    "pipeline, U-Net": case(*UNET, pipeline=2, plan={"schedule": "gpipe", "microbatches": 2, "cuts": ("last",)}),
    "pipeline, a value beside": case(
        *UNET, pipeline=2, plan={"schedule": "1f1b", "microbatches": 2, "cuts": ("down",)}
    ),
    "pipeline, lent parameters": case(
        small_models.Misplaced, *TEXT, pipeline=2, plan={"schedule": "1f1b", "microbatches": 4, "cuts": ("blocks.2",)}
    ),
    "pipeline, refused": refused_stages,
    "pipeline, tokens": of_tokens,
    "models for no plan": odd,
    "filter, layers of one's own": case(own_layers, IMAGE, (5,), filter=2),
    "channel, layers of one's own": case(own_layers, IMAGE, (5,), channel=2),
    "pipeline, a norm in evaluation mode": of_modes,
    "pipeline, tied weights": case(
        *TIED, pipeline=2, plan={"schedule": "1f1b", "microbatches": 4, "cuts": ("layers.1",)}
    ),
    "expert": case(*MIXTURE, expert=2),
    "expert, micro-batches": case(*MIXTURE, expert=2, parts=2),
    "expert, all blocks again": case(*MIXTURE, expert=2, plan={"recompute": "full"}),
    "expert, a rank without tokens": case(*CROWDED, expert=2),
    "tensor, experts": case(*MIXTURE, tensor=2),
    "tensor, experts, a rank without tokens": case(*CROWDED, tensor=2),
    "expert, single precision": case(*MIXTURE, expert=2, dtype=torch.float32),
    "spatial, single precision": case(*CNN, spatial=2, dtype=torch.float32),
    "filter, single precision": case(*CNN, filter=2, dtype=torch.float32),
    "channel, single precision": case(*CNN, channel=2, dtype=torch.float32),
}
ON_FOUR = {
    "data": case(*MLP, data=4),
    "hybrid ZeRO": case(*MLP, data=4, plan={"zero": 3, "shard": 2}),
    "filter": case(*CNN_BN, filter=4),
    "channel": case(*CNN_BN, channel=4),
    "spatial": case(*CNN, spatial=4),
    "spatial, volumes": case(*CNN3D, spatial=4),
    "spatial, U-Net": case(*UNET, spatial=4),
    "tensor": case(*BLOCKS["chunk"], tensor=4),
    "context": case(*BLOCKS["chunk"], context=4),
    "tensor+context": case(*BLOCKS["separate"], tensor=2, context=2),
    "tensor+context, torch's encoder": case(*ENCODER, tensor=2, context=2, parts=2),
    "data+context": case(*BLOCKS["view"], data=2, context=2),
    "ZeRO 3 over contexts": case(*BLOCKS["chunk"], data=2, context=2, plan={"zero": 3, "shard": 4}),
    "ZeRO 3+context": case(*BLOCKS["chunk"], data=2, context=2, plan={"zero": 3}),
    "ZeRO 1+context, micro-batches": case(*ENCODER, data=2, context=2, plan={"zero": 1}, parts=2),
    "data+tensor": case(*BLOCKS["view"], data=2, tensor=2),
    "data+tensor, columns and row apart": case(*APART, data=2, tensor=2),
    "ZeRO 3+tensor, transposed": case(*BLOCKS["transposed"], data=2, tensor=2, plan={"zero": 3}),
    "ZeRO 3+tensor": case(*BLOCKS["chunk"], data=2, tensor=2, plan={"zero": 3}),
    "ZeRO 1+tensor, micro-batches": case(*BLOCKS["separate"], data=2, tensor=2, plan={"zero": 1}, parts=2),
    "pipeline": case(*CHAIN, pipeline=4, plan={"schedule": "1f1b", "microbatches": 4}),
    "pipeline, a value that skips stages": case(
        *UNET, pipeline=4, plan={"schedule": "1f1b", "microbatches": 4, "cuts": ("down", "up", "last")}
    ),
    "pipeline, lent parameters": case(
        small_models.Misplaced, *TEXT, pipeline=4, plan={"schedule": "gpipe", "microbatches": 2}
    ),
    "ZeRO 1+pipeline, lent parameters": case(
        small_models.Misplaced, *TEXT, data=2, pipeline=2, plan={"schedule": "1f1b", "microbatches": 2, "zero": 1}
    ),
    "data+pipeline": case(*MLP, data=2, pipeline=2, plan={"schedule": "1f1b", "microbatches": 2}),
    "tensor+pipeline": case(
        *CHAIN, tensor=2, pipeline=2, plan={"schedule": "1f1b", "microbatches": 4, "stages": (2, 3)}
    ),
    "data+pipeline, tied weights": case(
        *TIED, data=2, pipeline=2, plan={"schedule": "gpipe", "microbatches": 2, "cuts": ("layers.2",)}
    ),
    "tensor+pipeline, blocks of a list": case(
        *BLOCKS["chunk"], tensor=2, pipeline=2, plan={"schedule": "1f1b", "microbatches": 2}
    ),
    "ZeRO 3+pipeline": case(
        *BLOCKS["separate"], data=2, pipeline=2, plan={"schedule": "1f1b", "microbatches": 4, "zero": 3}
    ),
    "ZeRO 2+pipeline": case(
        *CHAIN, data=2, pipeline=2, plan={"schedule": "gpipe", "microbatches": 2, "zero": 2, "stages": (2, 3)}
    ),
    "ZeRO 1+pipeline": case(*MLP, data=2, pipeline=2, plan={"schedule": "1f1b", "microbatches": 2, "zero": 1}),
    "pipeline, cut by the oracle": of_the_oracle,
    "tensor+expert": case(*MIXTURE, tensor=2, expert=2),
    "tensor+expert, micro-batches": case(*CROWDED, tensor=2, expert=2, parts=2),
    "data+tensor, experts": case(*MIXTURE, data=2, tensor=2),
    "ZeRO 3+tensor, experts": case(*MIXTURE, data=2, tensor=2, plan={"zero": 3}),
    "tensor+pipeline, experts": case(*MIXTURE, tensor=2, pipeline=2, plan={"schedule": "1f1b", "microbatches": 2}),
    "expert+pipeline": case(*MIXTURE, expert=2, pipeline=2, plan={"schedule": "1f1b", "microbatches": 4}),
    "expert+pipeline, a rank without tokens": case(
        *CROWDED, expert=2, pipeline=2, plan={"schedule": "gpipe", "microbatches": 2}
    ),
    "tensor+context, experts": case(*MIXTURE, tensor=2, context=2),
    "expert": case(*MIXTURE, expert=4, parts=2),
    **{f"ZeRO {level}+expert": case(*MIXTURE, data=2, expert=2, plan={"zero": level}) for level in (1, 2, 3)},
    "ZeRO 1+expert, micro-batches": case(*CROWDED, data=2, expert=2, plan={"zero": 1}, parts=2),
    "data+expert": case(*MIXTURE, data=2, expert=2),
    "data+expert, a rank without tokens": case(*CROWDED, data=2, expert=2, parts=2),
    "data+filter": case(*CNN, data=2, filter=2),
    "data+filter, norms": case(*CNN_BN, data=2, filter=2, sync_bn=True),
    "data+filter, micro-batches": case(*MLP, data=2, filter=2, parts=2),
    "data+channel": case(*CNN, data=2, channel=2),
    **{f"ZeRO {level}+channel": case(*CNN, data=2, channel=2, plan={"zero": level}) for level in (1, 2, 3)},
    "ZeRO 3+channel, micro-batches": case(*MLP, data=2, channel=2, plan={"zero": 3}, parts=2),
    "data+spatial": case(*CNN, data=2, spatial=2),
    "data+spatial, norms of whole tensors": case(*NORMED, data=2, spatial=2, sync_bn=True),
    "data+spatial, micro-batches": case(*CNN, data=2, spatial=2, parts=2),
    "data+spatial, synchronised norms": case(*CNN_BN, data=2, spatial=2, sync_bn=True),
    "data+spatial, single precision": case(*CNN, data=2, spatial=2, dtype=torch.float32),
}


QUICK = (
    "context, chunk",
    "context, evaluation",
    "context, mixed precision",
    "context, positions in a block",
    "data",
    "expert",
    "expert, a rank without tokens",
    "expert, mixed precision",
    "ZeRO 3",
    "filter, norms",
    "channel, convolutions",
    "channel, layers of one's own",
    "models for no plan",
    "spatial",
    "spatial, volumes",
    "spatial, synchronised norms",
    "tensor, separate",
    "tensor, chunk",
    "pipeline, 1f1b",
)
GROUPS = {
    "two": (2, {name: ON_TWO[name] for name in QUICK}),
    "two, more": (2, {name: check for name, check in ON_TWO.items() if name not in QUICK}),
    "four": (4, ON_FOUR),
}


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    return by_group(GROUPS, tmp_path_factory)


@pytest.mark.parametrize(
    ("group", "name"),
    [
        pytest.param(group, name, marks=[] if group == "two" else pytest.mark.slow)
        for group, (_, checks) in GROUPS.items()
        for name in checks
    ],
)
def test_equal_to_one_device(found, group, name):
    """To 1e-10 in double precision, to 1e-5 in single."""
    for worst in found(group)[name]:
        assert isinstance(worst, float), worst
        assert worst <= (1e-5 if "single" in name else 1e-10)
