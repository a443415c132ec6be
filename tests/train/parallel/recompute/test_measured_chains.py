"""No model that is measured makes a chain that is refused, and the same fit is not refused now and then."""

import itertools
import os
import resource
import sys
import time
from types import SimpleNamespace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from trainwright import memory
from trainwright.errors import BudgetExceeded
from trainwright.memory import load_chain
from trainwright.plan.memory.planning import full_bytes, minimal_bytes
from trainwright.train.parallel.recompute import fitting, measured_stage, sample_step
from trainwright.train.parallel.recompute.sample_step import Stopwatch


class Several(nn.Module):
    """Results of many kinds, as encoders and decoders have them; a branch makes it one stage."""

    def __init__(self, outputs, layers, width, tied):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(width, width, bias=False) for _ in range(layers))
        self.heads = nn.ModuleList(nn.Linear(width, 4 * width, bias=False) for _ in range(outputs))
        if tied:
            self.heads[-1].weight = self.heads[0].weight

    def forward(self, x):
        hidden = []
        for layer in self.layers:
            x = layer(x)
            hidden.append(x)
        if x.sum() > 1e30:  # a look at a value
            return x
        wide = [head(x) for head in self.heads]
        return sum(each.mean() for each in wide), wide, hidden


@settings(max_examples=25, deadline=None)
@given(
    outputs=st.integers(1, 4), layers=st.integers(1, 4), width=st.sampled_from([4, 16, 33]),
    rows=st.sampled_from([1, 8, 65]), tied=st.booleans(), loss=st.sampled_from(["none", "first", "one", "all"]),
    accumulate=st.booleans(),
)  # fmt: skip
def test_every_model_makes_a_chain(*, outputs, layers, width, rows, tied, loss, accumulate):
    """Whatever of its results a loss uses: a peak is never taken to be below what is there."""
    losses = {
        "none": None,
        "first": lambda out: out[0],
        "one": lambda out: out[1][-1].square().mean(),
        "all": lambda out: out[0] + sum(each.sum() for each in (*out[1], *out[2])),
    }
    model = Several(outputs, layers, width, tied)
    chain = load_chain(model, torch.randn(rows, width), loss=losses[loss], accumulate=accumulate)
    assert memory.Chain.from_json(chain.to_json()) == chain


class Skipping(nn.Module):
    """What its first layer makes is read again behind its blocks."""

    def __init__(self):
        super().__init__()
        self.first = nn.Linear(64, 2048)
        self.blocks = nn.ModuleList(nn.Sequential(nn.Linear(64, 256), nn.GELU(), nn.Linear(256, 64)) for _ in range(8))

    def forward(self, x):
        first = self.first(x)
        x = first[:, :64] * 2
        for block in self.blocks:
            x = block(x)
        return x * first.sin().sum(1, keepdim=True)


class Positions(nn.Module):
    """Adds the first rows of a table that is a buffer, as image transformers do; `count` is written."""

    def __init__(self, width):
        super().__init__()
        self.first = nn.Linear(width, width)
        self.register_buffer("table", torch.randn(10_000 * width))
        self.register_buffer("count", torch.zeros(256))

    def forward(self, x):
        self.count.add_(1)
        return self.first(x) + self.table.view(-1, x.shape[1])[: len(x)]


def test_a_buffer_is_counted_once():
    """A view of it is no new value; only of what a stage writes a rerun needs a copy."""
    model, sample = nn.Sequential(Positions(8), *net()), torch.randn(256, 8)
    table, count = model[0].table.nbytes, model[0].count.nbytes
    chain = load_chain(model, sample)
    assert chain.fixed["buffers"] == table + 2 * count
    assert all(stage.saved_bytes < table for stage in chain.stages)
    plain = sample_step.tracked_peak(model, sample)
    assert memory.plan(model, sample, budget=1.0).peak_bytes < plain + table
    module = memory.fit(model, sample, budget=int(0.8 * plain))
    assert sample_step.tracked_peak(module, sample) <= 0.8 * plain


def net():
    return nn.Sequential(*(nn.Sequential(nn.Linear(8, 32), nn.GELU(), nn.Linear(32, 8)) for _ in range(8)))


@pytest.mark.parametrize("odd", range(1, 7))
def test_steps_that_take_more_than_their_plans_are_planned_anew(odd, monkeypatch):
    """Up to six plans in a row whose steps take some bytes that nobody measured; then one that keeps to the budget."""
    taken, true = [], fitting.tracked_peak

    def more(*args, **settings):
        found = true(*args, **settings)
        taken.append(found)
        return found + (budget - found + 64 if len(taken) <= odd else 0)

    sample = torch.randn(256, 8)
    budget = int(0.7 * memory.plan(net(), sample, budget=1.0).peak_bytes)
    monkeypatch.setattr(fitting, "tracked_peak", more)
    module = memory.fit(net(), sample, budget=budget)
    assert taken[-1] <= budget
    assert module.plan.peak_bytes <= budget


def test_a_step_that_never_keeps_to_its_plan_is_told(monkeypatch):
    budget = int(0.7 * memory.plan(net(), torch.randn(256, 8), budget=1.0).peak_bytes)
    monkeypatch.setattr(fitting, "tracked_peak", lambda *_, **__: budget + 64)
    with pytest.raises(BudgetExceeded, match="a step took"):
        memory.fit(net(), torch.randn(256, 8), budget=budget)


@pytest.mark.slow
@pytest.mark.parametrize("budget", [3_829_000, 3_999_000, 4_091_000])
def test_fifty_fits_agree(budget):
    """Blocks of one kind, and budgets that are just enough for some plan."""
    for _ in range(50):
        model = nn.Sequential(*(nn.Sequential(nn.Linear(32, 128), nn.GELU(), nn.Linear(128, 32)) for _ in range(8)))
        assert memory.fit(model, torch.randn(512, 32), budget=budget).plan.peak_bytes <= budget


class Frozen(dict):
    """Settings that refuse to be changed, as diffusers has them."""

    def clear(self):
        raise TypeError

    update = clear


def test_settings_that_nobody_may_change_stay_as_they_are():
    model = net()
    model.config = Frozen(width=8)
    assert memory.fit(model, torch.randn(256, 8), budget=0.7).config == {"width": 8}


def test_a_stopwatch_counts_what_the_thread_waits_for_but_a_processor(monkeypatch):
    """Of two seconds by the clock it worked a tenth, and was half a second ready to run on a busy machine."""
    clock, worked, waited = iter([10.0, 12.0]), iter([5.0, 5.1]), iter([1.0, 1.5])
    times = SimpleNamespace(perf_counter=lambda: next(clock), thread_time=lambda: next(worked))
    monkeypatch.setattr(sample_step, "time", times)
    monkeypatch.setattr(sample_step, "_waited_seconds", lambda: next(waited))
    assert Stopwatch(()).read() == 1.5


def test_a_stopwatch_never_reads_less_than_the_thread_has_worked(monkeypatch):
    """The system may count a wait that was over before: a block that seems to take nothing would always run again."""
    waits = iter([0.0, 99.0])
    monkeypatch.setattr(sample_step, "_waited_seconds", lambda: next(waits))
    watch, began = Stopwatch(()), time.thread_time()
    while time.thread_time() < began + 0.01:
        pass
    assert 0.01 <= watch.read() < 1


@pytest.mark.parametrize("second", [-1, 1])
def test_what_a_step_leaves_over_makes_a_faster_plan_if_that_keeps_to_the_budget(monkeypatch, second):
    model, sample = Skipping(), torch.randn(256, 64)
    chain = load_chain(model, sample)
    budget = (full_bytes(chain) + minimal_bytes(chain)) // 2
    by_forecast = memory.plan(chain, budget=budget)
    over = chain.fixed["between stages"]
    peaks = iter([by_forecast.peak_bytes - over, budget + second])
    monkeypatch.setattr(fitting, "tracked_peak", lambda *_, **__: next(peaks))
    monkeypatch.setattr(fitting, "measure_chain", lambda *_, **__: chain)
    plan = memory.fit(model, sample, budget=budget).plan
    assert (plan.seconds < by_forecast.seconds) == (second < 0)
    assert plan.peak_bytes <= budget
    assert plan.budget_bytes == budget


@pytest.mark.skipif(sys.platform != "linux" or "MALLOC_TRIM_THRESHOLD_" in os.environ, reason="glibc's default malloc")
def test_a_planned_step_gets_its_pages_once():
    """The heap keeps what a step frees: otherwise the system zeroes all of it again in every step."""
    model = nn.Sequential(*(nn.Sequential(nn.Linear(64, 256), nn.GELU(), nn.Linear(256, 64)) for _ in range(6)))
    sample = torch.randn(4096, 64)
    planned = memory.fit(model, sample, budget=0.6)
    counted = []
    for _ in range(15):
        counted.append(resource.getrusage(resource.RUSAGE_THREAD).ru_minflt)
        planned(sample).sum().backward()
        model.zero_grad()
    # A system that is short of memory takes pages away, in any one step.
    faults = min(after - before for before, after in itertools.pairwise(counted[1:]))
    assert faults * resource.getpagesize() < 0.1 * planned.plan.peak_bytes


def test_equal_blocks_are_measured_once_and_timed_twice(monkeypatch):
    runs = []
    monkeypatch.setattr(measured_stage.StageRuns, "seconds", lambda _: runs.append(1) or (len(runs), 1.0))
    chain = load_chain(net(), torch.randn(256, 8, requires_grad=True))
    assert len(runs) == 2
    assert {stage.forward_seconds for stage in chain.stages} == {1}
