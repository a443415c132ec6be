"""State as a tree and tensors: what goes in comes out, under names that wrappers and positions do not change."""

import collections
import json
import math
import signal
import tempfile
import types
from typing import NamedTuple

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import nn

from trainwright.checkpoint import CheckpointConfig, Manager
from trainwright.checkpoint.restore.loading import load_state
from trainwright.checkpoint.state.captured import canonical_names, capture_state
from trainwright.checkpoint.state.tree import decode_tree
from trainwright.errors import CheckpointStateError

DTYPES = (torch.float32, torch.float64, torch.bfloat16, torch.float16, torch.int64, torch.uint8, torch.bool)
NUMBERS = [
    np.dtype(code) for code in ("?", "i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8", "f2", "f4", "f8", "c8", "c16")
]


class Position(NamedTuple):
    """A named tuple as users write them."""

    epoch: int


def ordered(pairs, attributes):
    found = collections.OrderedDict(pairs)
    vars(found).update(attributes)
    return found


def array(dtype, shape, writable):
    found = np.arange(math.prod(shape)).reshape(shape).astype(dtype)
    found.flags.writeable = writable
    return found


def bits(dtype, content):
    """Return the scalar of some bits, NaN and infinities among them."""
    return np.dtype(dtype).type(content[0] % 2) if dtype.kind == "b" else np.frombuffer(content, dtype, 1)[0]


plain = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(2**70), 2**70),
    st.floats(allow_nan=True),
    st.text(max_size=8),
    st.binary(max_size=8),
    st.binary(max_size=8).map(bytearray),
    st.complex_numbers(allow_nan=False),
    st.sampled_from([torch.float32, torch.int8]),
)
shapes = st.lists(st.integers(0, 3), max_size=3).map(tuple)
scalars = st.one_of(
    st.builds(bits, st.sampled_from(NUMBERS), st.binary(min_size=16, max_size=16)),
    st.builds(np.longdouble, st.integers()),
    st.builds(np.datetime64, st.dates()),
    st.integers(-9, 9).map(lambda days: np.timedelta64(days, "D")),
)
arrays = st.builds(array, st.sampled_from(NUMBERS), shapes, st.booleans())
tensors = st.builds(
    lambda dtype, shape: torch.arange(math.prod(shape)).reshape(shape).to(dtype), st.sampled_from(DTYPES), shapes
)
parameters = st.builds(
    lambda size, grad: torch.nn.Parameter(torch.arange(float(size)), requires_grad=grad),
    st.integers(0, 3),
    st.booleans(),
)
keys = st.one_of(
    st.text(max_size=5), st.integers(), st.tuples(st.integers(), st.text(max_size=2)), st.integers(0, 99).map(np.int16)
)
factories = st.sampled_from([None, int, float, bool, str, list, dict, set, tuple])
trees = st.recursive(
    st.one_of(plain, scalars, arrays, tensors, parameters, shapes.map(torch.Size)),
    lambda inner: st.one_of(
        st.lists(inner, max_size=4),
        st.lists(inner, max_size=3).map(tuple),
        st.dictionaries(keys, inner, max_size=4),
        st.builds(ordered, st.dictionaries(keys, inner, max_size=3), st.dictionaries(st.just("_metadata"), inner)),
        st.builds(collections.defaultdict, factories, st.dictionaries(keys, inner, max_size=3)),
        st.dictionaries(st.integers(), st.one_of(st.integers(), scalars), max_size=3).map(collections.Counter),
    ),
    max_leaves=12,
)


def through(value):
    """Capture a value, write its tree down as JSON, and make it anew."""
    captured = capture_state({"item": value})
    every = captured.tensors | {alias: captured.tensors[name] for alias, name in captured.ties.items()}
    return decode_tree(json.loads(json.dumps(captured.tree, allow_nan=False)), every)["item"]


def same(one, other):
    """Tell whether two values are equal to the last bit, of the same types, in the same order."""
    if type(one) is not type(other):
        return False
    if isinstance(one, torch.Tensor):
        return (one.dtype, one.requires_grad) == (other.dtype, other.requires_grad) and torch.equal(one, other)
    if isinstance(one, np.ndarray | np.generic):
        return (one.dtype, one.shape, one.tobytes()) == (other.dtype, other.shape, other.tobytes())
    if isinstance(one, dict):
        call_factory = [getattr(each, "default_factory", None) for each in (one, other)]
        told = [[*each.items(), *getattr(each, "__dict__", {}).items()] for each in (one, other)]
        return call_factory[0] is call_factory[1] and same(*told)
    if isinstance(one, list | tuple):
        return len(one) == len(other) and all(map(same, one, other))
    return one == other or (one != one and other != other)


@settings(max_examples=200)
@given(value=trees)
def test_any_tree_comes_back(value):
    """Whatever is kept, nested in any way, is as it was, types included."""
    assert same(through(value), value)


class Holder:
    def __init__(self, value=None):
        self.value = value

    def state_dict(self):
        return {"value": self.value}

    def load_state_dict(self, state):
        self.value = state["value"]


@settings(max_examples=20, suppress_health_check=[HealthCheck.too_slow], deadline=None)
@given(value=trees)
def test_any_tree_comes_back_from_a_checkpoint(value):
    """By way of the files, as a run that resumes reads them."""
    config = CheckpointConfig(writer="sync")
    with tempfile.TemporaryDirectory() as folder:
        with Manager(folder, config=config, it=Holder(value)) as manager:
            manager.save(wait=True)
        back = Holder()
        with Manager(folder, config=config, it=back) as manager:
            manager.restore(mode="exact")
    assert same(back.value, value)


def test_arrays_that_are_not_in_one_piece():
    found = through({"every other": np.arange(4.0)[::2], "turned": np.arange(6).reshape(2, 3).T})
    assert found["every other"].tolist() == [0.0, 2.0]
    assert found["turned"].tolist() == [[0, 3], [1, 4], [2, 5]]


def test_marks_of_our_own_are_data_too():
    assert through({"$tensor": "x", "a": {"$float": 1}}) == {"$tensor": "x", "a": {"$float": 1}}


@pytest.mark.parametrize(
    ("value", "path", "kind"),
    [
        ({"a": [1, {"b": lambda: 0}]}, "item.a.1.b", "function"),
        (object(), "item", "object"),
        ({"a": {1, 2}}, "item.a", "set"),
        ({"a": collections.deque([1])}, "item.a", "deque"),
        (np.array(["text"]), "item", "ndarray"),
        (np.zeros(2, ">f4"), "item", "ndarray"),
        (np.zeros(2, np.longdouble), "item", "ndarray"),
        (np.ma.masked_array([1.0], [True]), "item", "MaskedArray"),
        (np.str_("text"), "item", "str_"),
        (signal.SIGTERM, "item", "Signals"),
        (collections.defaultdict(lambda: 0), "item", "defaultdict"),
        (types.MappingProxyType({}), "item", "mappingproxy"),
        (type("Own", (dict,), {})(), "item", "Own"),
        (type("Own", (list,), {})(), "item", "Own"),
        (type("Own", (float,), {})(1.5), "item", "Own"),
        (Position(1), "item", "Position"),
    ],
)
def test_what_cannot_be_kept(value, path, kind):
    """The sentence tells the path to it, what it is, and what is allowed."""
    with pytest.raises(CheckpointStateError, match=rf"^{path}: a checkpoint cannot keep {kind} .*; allowed: objects"):
        capture_state({"item": value})


@pytest.mark.parametrize(
    ("make", "kind"),
    [
        (lambda: torch.eye(2).to_sparse(), "torch.sparse_coo"),
        (lambda: torch.empty(2, device="meta"), "meta"),
    ],
)
def test_tensors_that_cannot_be_kept(make, kind):
    with pytest.raises(CheckpointStateError, match=f"item.x: a checkpoint cannot keep a {kind} tensor; allowed: dense"):
        capture_state({"item": {"x": make()}})


def test_names_do_not_tell_wrappers():
    """What data-parallel wrappers and compilers put in front is left out, but never so that two names become one."""
    assert canonical_names(["module.fc.weight", "module._orig_mod.fc.bias"]) == {
        "module.fc.weight": "fc.weight",
        "module._orig_mod.fc.bias": "fc.bias",
    }
    assert canonical_names(["module.fc", "fc"]) == {"module.fc": "module.fc", "fc": "fc"}
    assert canonical_names(["a.module.b", "a._fsdp_wrapped_module.c"]) == {
        "a.module.b": "a.module.b",
        "a._fsdp_wrapped_module.c": "a.c",
    }


class Wrapped(nn.Module):
    """As torch's own wrapper for data-parallel training."""

    def __init__(self, module):
        super().__init__()
        self.module = module


def stepped(*layers, rate=0.1):
    model = nn.Sequential(*layers)
    optimizer = torch.optim.Adam(model.parameters(), lr=rate)
    model(torch.ones(1, 3)).sum().backward()
    optimizer.step()
    return model, optimizer


def test_an_optimizer_knows_parameters_by_name():
    """Moments are named by parameter, and go to it wherever it stands in a new optimizer, wrapped or not."""
    model, optimizer = stepped(nn.Linear(3, 2), nn.Linear(2, 1))
    captured = capture_state({"model": Wrapped(model), "optimizer": optimizer})
    assert "optimizer.state.model.0.weight.exp_avg" in captured.tensors
    assert "model.1.bias" in captured.tensors
    assert {"model.0.weight", "optimizer.state.model.1.bias.exp_avg_sq"} <= captured.lazy
    other = nn.Sequential(nn.Linear(3, 2), nn.Linear(2, 1))
    groups = [{"params": [other[1].bias, other[0].weight]}, {"params": [other[1].weight, other[0].bias], "lr": 9.0}]
    moved = torch.optim.Adam(groups, lr=5.0)
    load_state({"model": other, "optimizer": moved}, captured.tree, captured.tensors)
    for one, two in zip(model.parameters(), other.parameters(), strict=True):
        assert torch.equal(one, two)
        assert torch.equal(optimizer.state[one]["exp_avg"], moved.state[two]["exp_avg"])
    assert [group["lr"] for group in moved.param_groups] == [0.1, 0.1]


def test_buffers_are_not_lazy():
    """Batch statistics change in the forward pass, so they are not left to be copied beside it."""
    captured = capture_state({"model": nn.BatchNorm1d(2)})
    assert captured.lazy == {"model.weight", "model.bias"}
    assert {"model.running_mean", "model.num_batches_tracked"} <= captured.tensors.keys()


def test_tied_tensors_are_kept_once():
    """One tensor under two names is one; views of other shape are not."""
    model = nn.ModuleDict({"in": nn.Embedding(5, 3), "out": nn.Linear(3, 5, bias=False)})
    model["out"].weight = model["in"].weight
    captured = capture_state({"model": model})
    assert captured.ties == {"model.out.weight": "model.in.weight"}
    assert list(captured.tensors) == ["model.in.weight"]
    base = torch.arange(4)
    captured = capture_state({"item": {"a": base, "b": base[:2], "c": base}})
    assert captured.ties == {"item.c": "item.a"}


def test_names_that_would_collide():
    """{"a": {"b": x}} and {"a.b": y} have one path, and two names."""
    value = {"a": {"b": torch.zeros(1)}, "a.b": torch.ones(1)}
    assert same(through(value), value)


def test_two_networks_with_equal_names():
    """Items keep the parameters of a generator and its critic apart."""
    one, two = nn.Linear(3, 1), nn.Linear(3, 1)
    optimizer = torch.optim.SGD([*one.parameters(), *two.parameters()], lr=0.1, momentum=0.9)
    (one(torch.ones(1, 3)) + 2 * two(torch.ones(1, 3))).sum().backward()
    optimizer.step()
    captured = capture_state({"generator": one, "critic": two, "optimizer": optimizer})
    buffers = {name for name in captured.tensors if name.endswith("weight.momentum_buffer")}
    assert buffers == {f"optimizer.state.{item}.weight.momentum_buffer" for item in ("generator", "critic")}


def test_a_schedule_with_a_counter():
    """MultiStepLR counts its milestones, and must get a counter back."""
    _, optimizer = stepped(nn.Linear(3, 1))
    schedule = torch.optim.lr_scheduler.MultiStepLR(optimizer, [2, 2, 5], gamma=0.5)
    captured = capture_state({"schedule": schedule})
    other = torch.optim.lr_scheduler.MultiStepLR(stepped(nn.Linear(3, 1))[1], [1])
    load_state({"schedule": other}, json.loads(json.dumps(captured.tree)), captured.tensors)
    assert other.milestones == collections.Counter({2: 2, 5: 1})
    assert other.state_dict() == schedule.state_dict()


def test_plain_items_change_in_place_if_they_can():
    """A dict or list of the user's own is filled again; a number comes back as a value."""
    captured = capture_state({"log": [1, 2], "best": {"loss": 0.5}, "count": 3, "x": torch.ones(2)})
    log, best, x = [], {"old": 1}, torch.zeros(2)
    values = load_state({"log": log, "best": best, "count": 0, "x": x}, captured.tree, captured.tensors)
    assert (log, best, values, x.tolist()) == ([1, 2], {"loss": 0.5}, {"count": 3}, [1.0, 1.0])
