"""Number and bytes of what ranks exchange in an iteration are those of the oracle's list."""

from collections import Counter
from functools import partial

import pytest
import small_models
from by_hand import batch_of, profile_of, transformer_of
from collective_counter import Tally
from rank_group import alone_among, on_ranks
from torch import nn

from trainwright.cluster import Cluster
from trainwright.plan import Degrees, Oracle
from trainwright.train import parallelise

pytestmark = pytest.mark.filterwarnings("ignore:FSDP2-wrapped module .* returned a view:UserWarning")

BATCH = 8


def mlp():
    return nn.Sequential(nn.Linear(6, 12), nn.Tanh(), nn.Linear(12, 8), nn.ReLU(), nn.Linear(8, 4))


def composed():
    return nn.Sequential(*(nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 8)) for _ in range(3)))


def even():
    return nn.Sequential(*(nn.Linear(8, 8) for _ in range(8)))


def images():
    return nn.Sequential(
        nn.Conv2d(3, 4, 3, padding=1), nn.ReLU(), nn.MaxPool2d(3, stride=2, padding=1),
        nn.Conv2d(4, 6, 5, padding=2), nn.ReLU(), nn.Conv2d(6, 4, 1), nn.Flatten(), nn.Linear(256, 4),
    )  # fmt: skip


def broad():
    return nn.Sequential(*(nn.Sequential(nn.Linear(1024, 1024), nn.ReLU()) for _ in range(3)))


class Text(nn.Module):
    """Two transformer blocks alone."""

    def __init__(self, width=16, heads=4):
        super().__init__()
        self.blocks = nn.ModuleList([small_models.Block(width, heads, "chunk") for _ in range(2)])

    def forward(self, x):
        for block in self.blocks:
            x = block(x)
        return x


MODELS = {
    "mlp": (mlp, (6,), None),
    "even": (even, (8,), None),
    "composed": (composed, (8,), None),
    "images": (images, (3, 16, 16), None),
    "broad": (broad, (1024,), None),
    "broad text": (partial(Text, 1024, 1024), (4, 1024), transformer_of(1024, 1024, 4)),
    "text": (Text, (8, 16), transformer_of(16, 4, 8)),
}


def estimate(model, shape, transformer, degrees, *, batch=BATCH, **settings):
    """Return the oracle's plan for a model."""
    blocks = {"Text": lambda: model.blocks}.get(type(model).__name__, lambda: None)()
    if isinstance(model, nn.Sequential) and isinstance(model[0], nn.Sequential):
        blocks = list(model)
    profile = profile_of(model, batch_of(BATCH, *shape), blocks=blocks, transformer=transformer)
    oracle = Oracle(Cluster.preset("dgx-a100", nodes=128))
    return oracle.estimate(profile, batch=batch, degrees=Degrees(**degrees), **settings)


def listed(plan):
    """Return number and bytes by operation and axis of the plan's list."""
    found = {}
    for each in plan.collectives:
        axis = "+".join(name for name in each.axis.split("+") if getattr(plan.degrees, name) > 1)
        number, total = found.get((each.operation, axis), (0, 0))
        found[each.operation, axis] = number + each.count, total + each.count * each.bytes
    return found


def counted(name, degrees, *, batch=BATCH, **settings):
    """Return a check that gives what this rank exchanges in its third iteration, and what the plan lists."""

    def check(rank, world):
        make, shape, transformer = MODELS[name]
        model = make()
        plan = estimate(model, shape, transformer, degrees, batch=batch, **settings)
        ours = parallelise(model, plan)
        x = batch_of(batch, *shape).chunk(ours.data_ranks)[ours.data_rank]

        def loss(model, batch):
            return model(batch).square().mean()

        parts = [x] if plan.degrees.pipeline > 1 else x.split(plan.micro_batch)
        for _ in range(3):  # in the first a pipeline tells its shapes, in the second DDP arranges its buckets
            with Tally(ours.mesh) as tally:
                ours.backward(loss, [(1 / len(parts), part) for part in parts])
        found = tally.totals()
        number, size = found.pop(
            ("all_reduce", "all" if len(ours.mesh.mesh_dim_names) > 1 else ours.mesh.mesh_dim_names[0])
        )
        # The mean of the loss, for the user.
        found |= {("all_reduce", ours.mesh.mesh_dim_names[0]): (number - 1, size - 4)} if number > 1 else {}
        if plan.degrees.pipeline > 1:
            found.pop(("broadcast", "pipeline"))
        return found, listed(plan)

    return check


CASES = {
    "data": counted("mlp", {"data": 2}),
    "data, micro-batches": counted("mlp", {"data": 2}, micro=2),
    "zero1": counted("mlp", {"data": 2}, zero=1),
    "zero1, micro-batches": counted("mlp", {"data": 2}, zero=1, micro=2),
    "zero2, micro-batches": counted("mlp", {"data": 2}, zero=2, micro=2),
    "fsdp": counted("composed", {"data": 2}, zero=3),
    "fsdp, micro-batches": counted("composed", {"data": 2}, zero=3, micro=2),
    "filter": counted("mlp", {"filter": 2}),
    "channel": counted("mlp", {"channel": 2}),
    "channel, images": counted("images", {"channel": 2}),
    "spatial": counted("images", {"spatial": 2}),
    "tensor": counted("text", {"tensor": 2}),
    "context": counted("text", {"context": 2}),
    "context, micro-batches": counted("text", {"context": 2}, micro=2),
    "gpipe": counted("even", {"pipeline": 2}, micro=2, schedule="gpipe"),
    "1f1b": counted("even", {"pipeline": 2}, micro=2, schedule="1f1b"),
    "interleaved": counted("even", {"pipeline": 2}, micro=2, schedule="interleaved", chunks=2),
}


MANY = {
    "fsdp": counted("broad", {"data": 1024}, zero=3, batch=1024),
    "tensor": counted("broad text", {"tensor": 1024}, batch=2),
    "data+tensor": counted("broad text", {"tensor": 8, "data": 128}, batch=128),
    "fsdp+tensor": counted("broad text", {"tensor": 8, "data": 128}, zero=3, batch=128),
}


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    return on_ranks(2, CASES, tmp_path_factory.mktemp("ranks"))


@pytest.mark.parametrize("name", CASES)
def test_number_and_bytes_are_those_of_the_list(found, name):
    """Each rank's collectives; of messages those of both ranks together, as the list has those of one in the middle."""
    told = found[name]
    assert all(isinstance(each, tuple) for each in told), told
    sends = Counter()
    for got, _ in told:
        number, size = got.pop(("send", "spatial" if name == "spatial" else "pipeline"), (0, 0))
        sends.update(number=number, size=size)
    for got, expected in told:
        wanted = {key: value for key, value in expected.items() if key[0] != "send"}
        assert got == wanted
    messages = [value for key, value in told[0][1].items() if key[0] == "send"]
    number, size = messages[0] if messages else (0, 0)
    if name == "spatial":  # the gradient of the images, which nobody asks for: a row each way
        number, size = number - 2, size - 2 * 4 * BATCH * 3 * 16
    more = 1.5 if name == "interleaved" else 1  # of four stages three hand on, and two ranks have two each
    assert (sends["number"], sends["size"]) == (more * number, more * size)


@pytest.fixture(scope="module")
def among_many():
    return alone_among(1024, MANY)


@pytest.mark.parametrize("name", MANY)
def test_on_1024_ranks(among_many, name):
    """One rank of 1,024 whose group is a fake that moves nothing."""
    got, expected = among_many[name]
    if "+" in name:  # the list divides the biases of rows as well: four of 1,024, of which a rank has all
        number, _ = expected[key := ("reduce_scatter" if "fsdp" in name else "all_reduce", "data")]
        expected[key] = number, expected[key][1] + 4 * 4 * (1024 - 128)
    if name == "fsdp+tensor":
        number, size = expected["all_gather", "data"]
        expected["all_gather", "data"] = number, size + 2 * 4 * 4 * (1024 - 128)
    assert got == expected
