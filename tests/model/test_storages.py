"""The storage tracker counts what is alive, once, by owner, on fake tensors as on real ones."""

import gc

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch._subclasses.fake_tensor import FakeTensorMode

from trainwright.errors import InputError
from trainwright.model.trace.storages import StorageTracker


def exact(**settings):
    return StorageTracker(granule_bytes=1, **settings)


def test_views_and_in_place_operations_count_once():
    with exact() as tracker:
        x = torch.zeros(100)
        view = x[10:20].view(2, 5)
        x.neg_()
        x.abs_()
        assert tracker.live_bytes == 400
        del x
        assert tracker.live_bytes == 400  # the view keeps the storage
        del view
        assert tracker.live_bytes == 0
    assert tracker.peak_bytes == 400


def test_tied_parameters_count_once():
    first, second = torch.nn.Linear(8, 8, bias=False), torch.nn.Linear(8, 8, bias=False)
    second.weight = first.weight
    tracker = exact()
    tracker.watch([*first.parameters(), *second.parameters()], "parameters")
    tracker.restart_peak()
    assert tracker.peak_by_owner == {"parameters": 8 * 8 * 4}


def test_what_an_operation_returns_counts_until_it_goes():
    with exact() as tracker:
        a = torch.zeros(10)
        b = (a + a) * a  # the sum goes when the product is there
        assert (tracker.live_bytes, tracker.peak_bytes) == (80, 120)
        tracker.restart_peak()
        assert tracker.peak_bytes == 80
        del a, b
    assert (tracker.live_bytes, tracker.peak_bytes) == (0, 80)


def test_what_a_kernel_takes_and_gives_back_is_in_the_peak():
    """A sort of single numbers has their places beside its results, and a copy of both."""
    seen = []
    numbers = torch.rand(1 << 16)
    tracker = exact(on_workspace=seen.append)
    tracker.watch(numbers, "numbers")
    with tracker:
        found = numbers.sort()
    results = found.values.nbytes + found.indices.nbytes
    assert tracker.live_bytes == numbers.nbytes + results
    assert seen == [tracker.peak_by_owner["workspaces"]]
    assert tracker.peak_bytes == tracker.live_bytes + seen[0] > tracker.live_bytes
    # Another profiler is not disturbed: what is alive counts as before.
    with torch.autograd.profiler.profile(use_cpu=True), exact() as unmeasured:
        found = numbers.sort()
    assert unmeasured.peak_bytes == results


def test_owners_at_the_peak():
    weight = torch.zeros(6, requires_grad=True)
    tracker = exact()
    tracker.watch([weight], "parameters")
    with tracker:
        with tracker.owner("forward"):
            loss = weight.exp().sum()
        with tracker.owner("backward"):
            loss.backward()
        at_peak = tracker.peak_by_owner
        tracker.watch(weight.grad, "gradients")
        del loss
    assert sum(at_peak.values()) == tracker.peak_bytes
    assert at_peak["parameters"] == 24
    assert at_peak["forward"] >= 24
    tracker.restart_peak()
    assert tracker.peak_by_owner == {"parameters": 24, "gradients": 24}


def test_storages_are_rounded_up_to_granules():
    tracker = StorageTracker(granule_bytes=512)
    tracker.watch([torch.zeros(1), torch.zeros(128), torch.zeros(129)], "other")
    assert tracker.peak_bytes == 512 + 512 + 1024
    with pytest.raises(InputError, match="granule_bytes: got 0; allowed: a whole number >= 1"):
        StorageTracker(granule_bytes=0)


def test_a_resized_storage_counts_as_large_as_it_is():
    with exact() as tracker:
        x = torch.zeros(10)
        x.untyped_storage().resize_(0)
        x.untyped_storage().resize_(400)
        x.detach()
        assert tracker.live_bytes == 400


def test_parts_of_a_sparse_tensor_count():
    with exact() as tracker:
        dense = torch.eye(4)
        sparse = dense.to_sparse()
        del dense
        assert tracker.live_bytes == 4 * 4 + 2 * 4 * 8  # values, and indices of eight bytes
        del sparse


operations = st.sampled_from(["new", "view", "add", "add_", "drop"])
steps = st.lists(st.tuples(operations, st.integers(0, 9), st.integers(0, 9)), max_size=30)


def run(steps):
    """Run random operations on a pool of tensors; return the live bytes after each, and the pool."""
    pool, live = [torch.zeros(16)], []
    with exact() as tracker:
        tracker.watch(pool, "other")
        for what, i, j in steps:
            a, b = pool[i % len(pool)], pool[j % len(pool)]
            if what == "drop" and len(pool) > 1:
                pool.pop(i % len(pool))
            elif what == "add_":
                a.add_(b)
            elif what == "add":
                pool.append(a + b)
            elif what != "drop":
                pool.append(a.view(16) if what == "view" else torch.zeros(16))
            del a, b
            live.append((tracker.live_bytes, len({tensor.untyped_storage()._cdata for tensor in pool}) * 64))
    return live


@settings(max_examples=50)
@given(steps)
def test_live_bytes_are_those_of_the_distinct_storages_that_can_be_reached(steps):
    """Against a count by hand, on real tensors and on fake ones."""
    live = run(steps)
    assert all(tracked == counted for tracked, counted in live)
    with FakeTensorMode():
        assert run(steps) == live


@pytest.mark.parametrize("optimizer", ["SGD", "AdamW"])
def test_a_step_on_fake_tensors_holds_what_a_real_one_holds(optimizer):
    def step():
        model = torch.nn.Sequential(torch.nn.Linear(64, 256), torch.nn.ReLU(), torch.nn.Linear(256, 10))
        x = torch.randn(32, 64)
        update = getattr(torch.optim, optimizer)(model.parameters())
        tracker = exact()
        tracker.watch([*model.parameters(), x], "model")
        with tracker:
            for _ in range(2):
                update.zero_grad()
                with tracker.owner("forward"):
                    loss = model(x).sum()
                loss.backward()
                del loss
                update.step()
        held = tracker.peak_by_owner
        workspace = held.pop("workspaces", 0)  # of which fake tensors have none
        return tracker.peak_bytes - workspace, held, tracker.live_bytes

    real = step()
    gc.collect()
    with FakeTensorMode():
        assert step() == real
