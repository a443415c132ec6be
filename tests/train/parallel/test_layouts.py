"""What a layout recomputes, by blocks or within a budget, changes no bit, and its ranks train as one device does."""

import itertools
from functools import cache

import pytest
import small_models
import torch
from rank_group import by_group, plan_of
from serial import apart, batches, gradients, loss_of

from trainwright.errors import UnsupportedPlan
from trainwright.train import parallelise

pytestmark = [
    pytest.mark.filterwarnings("ignore:FSDP2-wrapped module .* returned a view:UserWarning"),
    pytest.mark.filterwarnings(
        "ignore:The .grad attribute of a Tensor that is not a leaf:UserWarning"
    ),  # torch.compile
    pytest.mark.filterwarnings("ignore:`torch.jit:DeprecationWarning"),
]

PIPELINE = {"schedule": "1f1b", "microbatches": 4}
STRATEGIES = {
    1: {"serial": {}},
    2: {
        "data": {"data": 2},
        "ZeRO 1": {"data": 2, "zero": 1},
        "ZeRO 3": {"data": 2, "zero": 3},
        "tensor": {"tensor": 2},
        "context": {"context": 2},
        "pipeline": {"pipeline": 2, **PIPELINE},
    },
    4: {
        "data and tensor": {"data": 2, "tensor": 2},
        "ZeRO 3": {"data": 4, "zero": 3},
        "data and pipeline": {"data": 2, "pipeline": 2, **PIPELINE},
    },
}
WITHIN_BUDGETS = {"serial", "data"}  # pipelines: test_placed_pipelines
SAVINGS = {"blocks again": {"recompute": "full"}, "budget": {"memory": 0.8}}
PRECISIONS = ("fp32", "amp-bf16")
COMPILED: dict[int, list[dict[str, int]]] = {1: [{}], 2: [{"data": 2}], 4: []}


def trained(**settings):
    """Return losses, gradients and parameters of three steps as this rank has them, and the memory plan's solver."""
    torch.manual_seed(7)
    ours = parallelise(small_models.Transformer("separate"), plan_of(**settings))
    optimizer = torch.optim.SGD(ours.parameters(), lr=0.1)
    found = {}
    for step, batch in enumerate(batches((8, 6), (8, 6), torch.float32, samples=64)):
        mine = tuple(each.chunk(ours.data_ranks)[ours.data_rank] for each in batch)
        found[f"loss {step}"] = ours.backward(loss_of, [(1.0, mine)])
        found |= {f"{name}, {step}": _whole(each) for name, each in gradients(ours.module).items()}
        optimizer.step()
        optimizer.zero_grad()
    found |= {name: _whole(each) for name, each in ours.module.named_parameters()}
    return found, getattr(ours.memory_plan, "solver", "")


def _whole(tensor):
    return tensor.full_tensor().detach() if hasattr(tensor, "full_tensor") else tensor.detach().clone()


def check(strategy, precision, saving, tolerance):
    """Return which tensors are other bits than without recomputation, how far they are from one device, the solver."""

    def run(_rank, _world):
        plain, _ = trained(precision=precision, **strategy)
        again, solver = trained(precision=precision, **strategy, **saving)
        other = [name for name in plain if not torch.equal(plain[name], again[name])]
        alone = on_one_device(precision)
        far = {name: apart(each, alone[name]) for name, each in plain.items()}
        return other, [name for name, distance in far.items() if distance > tolerance], solver

    return run


@cache
def on_one_device(precision):
    """Return the same of the model itself."""
    torch.manual_seed(7)
    model = small_models.Transformer("separate")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    found = {}
    for step, (x, y) in enumerate(batches((8, 6), (8, 6), torch.float32, samples=64)):
        with torch.autocast("cpu", torch.bfloat16, enabled=precision == "amp-bf16"):
            out = model(x)
        loss = (out - y).square().mean()
        loss.backward()
        found[f"loss {step}"] = loss.detach()
        found |= {f"{name}, {step}": each.grad.clone() for name, each in model.named_parameters()}
        optimizer.step()
        optimizer.zero_grad()
    return found | {name: each.detach() for name, each in model.named_parameters()}


def compiled(**settings):
    """Return a check that blocks, compiled, train what they train as they are; on one device within a budget too."""

    def run(_rank, world):
        plain, _ = trained(**settings)
        ours = [trained(compile="aot_eager", **settings)[0]]
        if world == 1:
            ours.append(trained(compile="aot_eager", memory=0.9, **settings)[0])
        return [name for found in ours for name in plain if apart(found[name], plain[name]) > 1e-4]

    return run


CASES = [
    (world, name, precision, saving)
    for world, strategies in STRATEGIES.items()
    for name, precision, saving in itertools.product(strategies, PRECISIONS, SAVINGS)
    if saving != "budget" or name in WITHIN_BUDGETS
]
# In half precision the rules are those of float32, but for ZeRO, which casts, and pipelines, which send.
QUICK = [case for case in CASES if case[0] == 2 and (case[2] == "fp32" or case[1] in {"ZeRO 3", "pipeline"})]
GROUPS = {
    (world, quick): (
        world,
        {
            f"{name}, {precision}, {saving}": check(
                STRATEGIES[world][name], precision, SAVINGS[saving], 1e-3 if precision == "fp32" else 0.1
            )
            for of, name, precision, saving in CASES
            if of == world and ((of, name, precision, saving) in QUICK) is quick
        }
        | {f"compiled {number}": compiled(**settings) for number, settings in enumerate(COMPILED[world]) if quick},
    )
    for world, quick in itertools.product(STRATEGIES, (True, False))
}


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    return by_group(GROUPS, tmp_path_factory)


@pytest.mark.parametrize(
    ("world", "name", "precision", "saving"),
    [pytest.param(*case, marks=[] if case in QUICK else pytest.mark.slow) for case in CASES],
)
def test_recomputation_with_any_strategy(found, world, name, precision, saving):
    quick = (world, name, precision, saving) in QUICK
    for outcome in found((world, quick))[f"{name}, {precision}, {saving}"]:
        assert not isinstance(outcome, str), outcome
        other, far, solver = outcome
        assert other == []
        assert far == []
        assert (solver not in {"", "none"}) is (saving == "budget" and "pipeline" not in name)


@pytest.mark.parametrize(
    ("world", "number"),
    [
        pytest.param(world, at, marks=[] if world == 2 else pytest.mark.slow)
        for world, some in COMPILED.items()
        for at in range(len(some))
    ],
)
def test_compiled_blocks(found, world, number):
    for outcome in found((world, True))[f"compiled {number}"]:
        assert outcome == [], outcome


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"spatial": 2, "memory": 0.5}, "a memory budget beside spatial parallelism; allowed: data"),
        ({"pipeline": 2, "data": 2, "memory": 0.5}, "a memory budget beside replicated pipeline parallelism; allowed"),
        ({"pipeline": 2, "zero": 3, "data": 2, "memory": 0.5}, "beside replicated pipeline parallelism with ZeRO 3"),
        ({"tensor": 2, "compile": "inductor"}, "compile='inductor' beside tensor parallelism; allowed"),
        (
            {"data": 2, "tensor": 2, "zero": 3, "memory": 0.5},
            "a memory budget beside tensor parallelism with ZeRO 3; al",
        ),
    ],
)
def test_what_cannot_be_combined(settings, sentence):
    with pytest.raises(UnsupportedPlan, match=sentence):
        parallelise(small_models.mlp(), plan_of(**settings))
