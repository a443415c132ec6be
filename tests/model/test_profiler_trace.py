"""Traces of torch.profiler as profiles: real ones of this machine, and hand-made ones of kernels."""

import gzip
import itertools
import json
import math
from contextlib import nullcontext

import pytest
import torch
from click.testing import CliRunner
from torch import nn
from torch.profiler import ProfilerActivity, record_function, schedule
from torch.utils.checkpoint import checkpoint

import trainwright as tw
from trainwright.cli import plan
from trainwright.cluster import Cluster, Device
from trainwright.errors import ProfileError


class Block(nn.Module):
    def __init__(self, width, again=False):
        super().__init__()
        self.norm, self.up, self.down, self.again = (
            nn.LayerNorm(width),
            nn.Linear(width, 4 * width),
            nn.Linear(4 * width, width),
            again,
        )

    def body(self, x):
        return x + self.down(nn.functional.gelu(self.up(self.norm(x))))

    def forward(self, x):
        return checkpoint(self.body, x, use_reentrant=False) if self.again else self.body(x)


def images(again=False):
    return nn.Sequential(
        nn.Conv2d(3, 16, 3),
        nn.BatchNorm2d(16),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(784, 32),
        Block(32, again),
    ), torch.randn(8, 3, 16, 16)


def attention(again=False):
    return nn.Sequential(
        nn.TransformerEncoderLayer(32, 4, 64, batch_first=True, dropout=0.1), Block(32, again)
    ), torch.randn(4, 12, 32)


def record(path, model, sample, *, steps=2, accumulate=1, shapes=True, scheduled=True, context=nullcontext):
    """Record steps as a user does."""
    optimizer = torch.optim.AdamW(model.parameters())
    with torch.profiler.profile(
        activities=[ProfilerActivity.CPU],
        record_shapes=shapes,
        schedule=schedule(wait=0, warmup=1, active=steps, repeat=1) if scheduled else None,
    ) as profiler:
        for _ in range(steps + scheduled):
            optimizer.zero_grad()
            for _ in range(accumulate):
                with context():
                    loss = model(sample).square().mean()
                loss.backward()
            optimizer.step()
            profiler.step()
    profiler.export_chrome_trace(str(path))
    return path


@pytest.mark.parametrize("make", [pytest.param(images, marks=pytest.mark.slow), attention])
@pytest.mark.parametrize(
    "options",
    [{}, {"accumulate": 2}, {"shapes": False}, {"scheduled": False}, {"again": True}, {"precision": "amp-bf16"}],
    ids=str,
)
def test_a_recorded_step_becomes_the_seconds_of_its_layers(tmp_path, make, options):
    """All of a step is told apart; the oracle takes it as its own."""
    options = dict(options)
    precision = options.pop("precision", "fp32")
    again = options.pop("again", False)
    model, sample = make(again)
    context = (lambda: torch.autocast("cpu", torch.bfloat16)) if precision != "fp32" else nullcontext
    path = record(tmp_path / "step.json.gz", model, sample, context=context, **options)
    profile = tw.Profile.measured(model, sample, profiler_trace=path, precision=precision)
    assert (profile.origin, profile.hash) == ("measured", tw.Profile.trace(model, sample, precision=precision).hash)
    took = profile.step_seconds
    passes = options.get("accumulate", 1)
    layers = sum(layer.forward_seconds + layer.backward_seconds for layer in profile.layers)
    rest = took["step"] - took["update"] - passes * (layers + profile.framework_seconds)
    # What ran twice, or had no counterpart, is all that is left out.
    assert -1e-9 <= rest <= (0.6 if again else 0.05) * took["step"]
    for layer in profile.layers:
        if layer.kind in {"linear", "conv", "attention"}:
            assert layer.forward_seconds > 0 < layer.backward_seconds
    machine = Cluster(device=Device(kind="x", flops={"fp32": 1e9, "bf16": 1e9}, memory_bandwidth=1e9))
    plan = tw.Oracle(machine).rank(profile, batch=profile.batch, devices=1, precision=precision)[0]
    assert plan.breakdown.compute == pytest.approx(layers)
    assert plan.breakdown.framework == pytest.approx(profile.framework_seconds)


def test_each_module_has_its_own_seconds(tmp_path):
    """Those of the operators inside a user's own record_function around the module."""

    class Named(nn.Module):
        def __init__(self, name, inner):
            super().__init__()
            self.name, self.inner = name, inner

        def forward(self, x):
            with record_function(self.name):
                return self.inner(x)

    widths = (32, 1024, 256, 2048)
    inner = [nn.Linear(a, b) for a, b in itertools.pairwise(widths)]
    model, sample = nn.Sequential(*(Named(f"here {i}", each) for i, each in enumerate(inner))), torch.randn(512, 32)
    path = record(tmp_path / "step.json", model, sample)
    profile = tw.Profile.measured(model, sample, profiler_trace=path)
    events = json.loads(path.read_text())["traceEvents"]
    for place, layer in enumerate(profile.layers[:3]):
        spans = [(each["ts"], each["ts"] + each["dur"]) for each in events if each.get("name") == f"here {place}"]
        inside = [
            each["dur"]
            for each in events
            if each.get("name") == "aten::addmm" and any(start <= each["ts"] < end for start, end in spans)
        ]
        assert len(spans) == len(inside) == 2
        assert layer.forward_seconds == pytest.approx(1e-6 * sum(inside) / 2)


def kernels(path, *, step=1000.0):
    """Write a trace of one linear layer on a GPU, with an exchange of which half is hidden."""
    kinds = iter(range(1, 99))
    events = []

    def operator(name, at, dims, *launched, inside=None):
        number = next(kinds)
        call = {"ph": "X", "cat": "cpu_op", "tid": 1, "ts": at, "dur": 9.0}
        events.append({**call, "name": name, "args": {"External id": number, "Input Dims": dims}})
        for start, duration in launched:
            events.append(
                {
                    "ph": "X",
                    "cat": "kernel",
                    "name": "gemm",
                    "tid": 7,
                    "ts": start,
                    "dur": duration,
                    "args": {"External id": number},
                }
            )

    operator("aten::addmm", 0, [[8], [4, 16], [16, 8]], (100, 30.0))
    operator("aten::sum", 20, [[4, 8]], (130, 1.0))
    operator("aten::mm", 40, [[8, 4], [4, 16]], (200, 20.0), (220, 5.0))
    events.append(
        {
            "ph": "X",
            "cat": "kernel",
            "name": "ncclDevKernel_AllReduce",
            "tid": 9,
            "ts": 215.0,
            "dur": 20.0,
            "args": {"External id": 99},
        }
    )
    for cat, start, duration in (("user_annotation", 60, 10), ("gpu_user_annotation", 300, 70)):
        events.append(
            {"ph": "X", "cat": cat, "name": "Optimizer.step#SGD.step", "tid": 1, "ts": start, "dur": duration}
        )
    events.append({"ph": "X", "cat": "user_annotation", "name": "ProfilerStep#1", "tid": 1, "ts": 0, "dur": step})
    path.write_text(json.dumps({"traceEvents": events}))
    return path


def test_kernels_belong_to_the_operators_that_launched_them(tmp_path):
    model, sample = nn.Linear(16, 8), torch.randn(4, 16)
    profile = tw.Profile.measured(model, sample, profiler_trace=kernels(tmp_path / "gpu.json"))
    linear = next(layer for layer in profile.layers if layer.kind == "linear")
    assert linear.forward_seconds == pytest.approx(30e-6)
    assert math.isclose(linear.backward_seconds, 25e-6, rel_tol=0.05)
    assert profile.step_seconds == pytest.approx(
        {"step": 1e-3, "communication": 20e-6, "exposed": 10e-6, "update": 70e-6}
    )


@pytest.mark.parametrize(
    ("write", "words"),
    [
        (lambda path, whole: path.write_text(whole[: len(whole) // 2]), "it is no JSON"),
        (lambda path, whole: path.write_bytes(gzip.compress(whole.encode())[:-20]), "it cannot be read"),
        (lambda path, whole: path.write_text("{}"), "it has no traceEvents"),
        (lambda path, whole: path.write_text('{"traceEvents": []}'), "it has no operators"),
        (lambda path, whole: path.write_text(whole.replace("aten::", "x::")), "has 0 % of the work"),
    ],
    ids=["torn", "torn gzip", "other JSON", "no operators", "another model"],
)
def test_what_is_no_trace_of_the_model_is_refused_in_a_sentence(tmp_path, write, words):
    model, sample = images()
    whole = record(tmp_path / "step.json", model, sample).read_text()
    path = tmp_path / ("torn.json.gz" if words == "it cannot be read" else "torn.json")
    write(path, whole)
    with pytest.raises(ProfileError, match=f"profiler trace .*: {words}.*; allowed: "):
        tw.Profile.measured(model, sample, profiler_trace=path)


@pytest.mark.parametrize("shapes", [True, False])
def test_another_batch_or_depth_is_noticed(tmp_path, shapes):
    """By shapes, where there are some; without, by numbers of operators that are no whole passes."""
    model, sample = images()
    path = record(tmp_path / "step.json", model, sample, shapes=shapes)
    deeper = nn.Sequential(*model, Block(32))
    with pytest.raises(ProfileError, match="of the work of this model"):
        tw.Profile.measured(deeper, sample, profiler_trace=path)
    if shapes:
        with pytest.raises(ProfileError, match="on batches like the sample"):
            tw.Profile.measured(model, sample[:2], profiler_trace=path)


def test_the_command_takes_a_trace(tmp_path, monkeypatch):
    """It says what the step went to, plans with it, and refuses a model of which no operators are known."""
    (tmp_path / "traced_model.py").write_text(
        "import torch\ndef build(): return torch.nn.Linear(16, 8)\ndef sample(): return torch.zeros(4, 16)\n"
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    path, config = kernels(tmp_path / "gpu.json"), tmp_path / "config.json"
    config.write_text('{"model_type": "llama"}')
    options = ["--cluster", "dgx-a100", "--devices", "1", "--batch", "4", "--trace", str(path), "--json"]
    said = CliRunner().invoke(plan.app, ["traced_model:build", "--sample", "traced_model:sample", *options])
    assert said.exit_code == 0, said.output
    assert "0.001 s a step, of it 7e-05 s the update and 1e-05 s waiting for exchanges (of 2e-05 s)" in said.output
    assert json.loads(said.output.splitlines()[-1])["profile"]["step_seconds"]["exposed"] == pytest.approx(1e-5)
    refused = CliRunner().invoke(plan.app, [str(config), *options])
    assert "--trace: got" in str(refused.exception), refused.output
