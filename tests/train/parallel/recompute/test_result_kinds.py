"""What models return, and hand from block to block, in containers of every kind: planned, with gradients to the bit."""

import collections
import dataclasses
from types import MappingProxyType
from typing import Any, NamedTuple

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from trainwright import memory
from trainwright.errors import TrainwrightError
from trainwright.train import Trial
from trainwright.train.assignment import Assignment
from trainwright.train.parallel.recompute.trees import flatten_tree, map_only, tensors_of, unflatten_tree


class Named(NamedTuple):
    x: torch.Tensor


@dataclasses.dataclass
class Plain:
    x: torch.Tensor
    note: str = "kept"


@dataclasses.dataclass(frozen=True)
class Frozen:
    x: torch.Tensor


@dataclasses.dataclass(frozen=True, slots=True)
class Slotted:
    x: torch.Tensor


@dataclasses.dataclass
class Initialised:
    """One that does something when it is made."""

    x: torch.Tensor
    made: str = dataclasses.field(init=False)

    def __post_init__(self):
        self.made = "once"


@dataclasses.dataclass
class Output(collections.OrderedDict):
    """As Hugging Face's outputs: a dataclass whose fields are also items."""

    x: torch.Tensor
    other: Any = None

    def __post_init__(self):
        self["x"] = self.x


class Attributes(dict):
    def __getattr__(self, name):
        return self[name]


class Opaque:
    """What nobody can look into."""

    def __init__(self, x):
        self.x = x


KINDS = {
    "tensor": (lambda x: x, lambda y: y),
    "tuple": (lambda x: (x, 1), lambda y: y[0]),
    "list": (lambda x: [x], lambda y: y[0]),
    "dict": (lambda x: {"x": x}, lambda y: y["x"]),
    "OrderedDict": (lambda x: collections.OrderedDict(x=x), lambda y: y["x"]),
    "NamedTuple": (Named, lambda y: y.x),
    "dataclass": (Plain, lambda y: y.x),
    "frozen dataclass": (Frozen, lambda y: y.x),
    "dataclass with slots": (Slotted, lambda y: y.x),
    "dataclass in a tuple": (lambda x: (Plain(x), "a"), lambda y: y[0].x),
    "dataclass in a dataclass in a dict": (lambda x: {"a": Plain(Frozen(x))}, lambda y: y["a"].x.x),
    "dataclass that does something": (Initialised, lambda y: y.x),
    "dataclass that is a dict": (Output, lambda y: y["x"]),
    "dict of one's own": (lambda x: Attributes(x=x), lambda y: y.x),
    "UserDict": (lambda x: collections.UserDict(x=x), lambda y: y["x"]),
    "mapping": (lambda x: MappingProxyType({"x": x}), lambda y: y["x"]),
}
QUICK = ("dict", "dataclass", "frozen dataclass", "dataclass in a tuple", "mapping")
ALL = [pytest.param(kind, marks=[] if kind in QUICK else pytest.mark.slow) for kind in KINDS]
LAYERS, WIDTH, ROWS = 4, 16, 64


class Layer(nn.Module):
    """It takes and returns a value of a kind."""

    def __init__(self, kind):
        super().__init__()
        self.pack, self.unpack = kind
        self.inner = nn.Sequential(nn.Linear(WIDTH, 2 * WIDTH), nn.GELU(), nn.Linear(2 * WIDTH, WIDTH))

    def forward(self, value):
        return self.pack(torch.tanh(self.inner(self.unpack(value))))


class Net(nn.Module):
    """Its layers hand on values of one kind, its result is of another."""

    def __init__(self, result, between="tensor"):
        super().__init__()
        self.pack, self.unpack, self.first = KINDS[result][0], KINDS[between][1], KINDS[between][0]
        self.layers = nn.Sequential(*(Layer(KINDS[between]) for _ in range(LAYERS)))

    def forward(self, x):
        return self.pack(self.unpack(self.layers(self.first(x))))


def made(*kinds):
    torch.manual_seed(0)
    return Net(*kinds), torch.randn(ROWS, WIDTH)


def gradients_of(model, out, kind):
    KINDS[kind][1](out).square().sum().backward()
    return [each.grad for each in model.parameters()]


def loss_of(kind):
    return lambda out: KINDS[kind][1](out).square().sum()


def check(kind, model, module, x):
    """Gradients and the result's kind are those of the model."""
    expected_out = model(x)
    expected = gradients_of(model, expected_out, kind)
    model.zero_grad()
    out = module(x)
    assert type(out) is type(expected_out)
    found = gradients_of(model, out, kind)
    assert all(map(torch.equal, found, expected))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("loss", [True, False], ids=["loss", "none"])
def test_results_of_every_kind_are_fitted(kind, loss):
    model, x = made(kind)
    module = memory.fit(model, x, budget=0.8, loss=loss_of(kind) if loss else None)
    assert module.plan.solver != "none"
    check(kind, model, module, x)


@pytest.mark.parametrize("kind", ALL)
@pytest.mark.parametrize("loss", [True, False], ids=["loss", "none"])
def test_results_of_every_kind_are_planned(kind, loss):
    model, x = made(kind)
    plan = memory.plan(model, x, budget=0.8, loss=loss_of(kind) if loss else None)
    assert plan.solver != "none"
    check(kind, model, memory.apply(model, plan), x)


class Nobody:
    def leaves(self):
        return False

    def exchange(self, _records):
        return True


def trial_of():
    settings = {"trial": 0, "lease": 1, "params": {}, "seed": 5, "max_epochs": 1, "rank": 0, "world_size": 1}
    return Trial(Assignment(**settings, start_devices=1, directory=None), Nobody())


@pytest.mark.parametrize("kind", ALL)
@pytest.mark.parametrize("loss", [True, False], ids=["loss", "none"])
def test_results_of_every_kind_are_prepared(kind, loss):
    model, x = made(kind)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    of_batch = (lambda called, batch: loss_of(kind)(called(batch))) if loss else None
    run = trial_of().prepare(model, optimizer, loss=of_batch, memory=0.8)
    if loss:
        run.step(x)
        optimizer.zero_grad()
    check(kind, model, run.model, x)
    assert run.memory_plan.solver != "none"


@pytest.mark.parametrize("kind", KINDS)
def test_values_of_every_kind_go_from_block_to_block(kind):
    model, x = made("tensor", kind)
    module = memory.fit(model, x, budget=0.8, loss=loss_of("tensor"))
    assert len(module.plan.chain.stages) >= LAYERS
    check("tensor", model, module, x)


@pytest.mark.parametrize("places", [("result",), ("between",)])
@pytest.mark.parametrize("loss", [True, False], ids=["loss", "none"])
def test_what_nobody_can_look_into_is_refused_in_a_sentence_or_works(places, loss, monkeypatch):
    """No error but the package's own leaves it."""
    monkeypatch.setitem(KINDS, "opaque", (Opaque, lambda y: y.x))
    model, x = made(*(["opaque"] if "result" in places else ["tensor", "opaque"]))
    kind = "opaque" if "result" in places else "tensor"
    try:
        module = memory.fit(model, x, budget=0.8, loss=loss_of(kind) if loss else None)
    except TrainwrightError:
        return
    check(kind, model, module, x)


def wraps(values):
    names = st.lists(st.sampled_from("abc"), unique=True, max_size=3)
    return st.one_of(
        st.lists(values, max_size=3),
        st.tuples(values, values),
        values.map(Plain),
        values.map(Slotted),
        values.map(Named),
        names.flatmap(lambda keys: st.fixed_dictionaries(dict.fromkeys(keys, values))),
        names.flatmap(lambda keys: st.fixed_dictionaries(dict.fromkeys(keys, values)).map(Attributes)),
        names.flatmap(lambda keys: st.fixed_dictionaries(dict.fromkeys(keys, values)).map(MappingProxyType)),
    )


TREES = st.recursive(
    st.one_of(st.none(), st.integers(), st.just("a"), st.builds(torch.zeros, st.integers(0, 3))), wraps
)


@given(TREES)
def test_a_tree_is_made_again_from_its_leaves(tree):
    """Of the same kinds and values; its specification holds no tensor."""
    leaves, spec = flatten_tree(tree)
    again = unflatten_tree(leaves, spec)
    assert flatten_tree(again)[1] == spec
    assert type(again) is type(tree)
    assert all(one is other for one, other in zip(flatten_tree(again)[0], leaves, strict=True))
    assert not tensors_of(dataclasses.asdict(spec) if dataclasses.is_dataclass(spec) else spec)
    ones = map_only(torch.Tensor, torch.ones_like, tree)
    assert all(each.all() for each in tensors_of(ones))
    assert len(tensors_of(ones)) == len(tensors_of(tree))
