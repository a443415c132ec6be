"""Measured seconds, predicted seconds, and profiles as files."""

import json
import math
from dataclasses import replace

import pytest
import torch
from torch import nn
from zoo import small

import trainwright as tw
from trainwright.cluster import Device
from trainwright.cluster.calibration.timing import fastest
from trainwright.errors import InputError, ProfileError
from trainwright.model.measure.profiling import TraceOptions, time_operations
from trainwright.model.trace.recording import record_step

DEVICE = Device(kind="test", flops={"fp32": 1e12, "bf16": 4e12}, memory_bandwidth=1e11, launch_seconds=1e-6)


def test_measured_layers_and_residual_add_up_to_the_step():
    model, sample = small("mlp")
    profile = tw.Profile.measured(model, sample, repeats=2, warmup=1)
    traced = tw.Profile.trace(model, sample)
    assert (profile.origin, profile.hash) == ("measured", traced.hash)
    for layer in profile.layers:
        assert layer.origin == "measured"
        assert layer.forward_seconds > 0
        assert math.isfinite(layer.backward_seconds)
    parts = sum(x.forward_seconds + x.backward_seconds for x in profile.layers)
    assert parts + profile.framework_seconds > 0
    assert profile.framework_seconds != 0


def test_smaller_batches_are_measured_too():
    """The batch halved up to six times, where the model takes it; the chain stays as it is."""

    class Picky(nn.Linear):
        def forward(self, x):
            return super().forward(x.view(-1, 8, 4))

    profile = tw.Profile.measured(nn.Sequential(nn.Linear(4, 4), nn.ReLU()), torch.rand(24, 4), repeats=1, warmup=0)
    assert profile.smaller_batches == (1, 3, 6, 12)
    for times in (profile.smaller_framework_seconds, *(layer.smaller_forward_seconds for layer in profile.layers)):
        assert len(times) == 4
    picky = tw.Profile.measured(Picky(4, 4), torch.rand(64, 4), repeats=1, warmup=0)
    assert picky.smaller_batches == (8, 16, 32)  # rows come in eights
    assert profile.hash == tw.Profile.trace(nn.Sequential(nn.Linear(4, 4), nn.ReLU()), torch.rand(24, 4)).hash


def test_equal_operations_are_timed_once():
    """Six equal layers cost as many runs as one; an operation is timed for each of its places."""
    calls = []

    def clock(run):
        calls.append(run)
        run()
        return 1.0

    def timed(layers):
        calls.clear()
        model = nn.Sequential(*(nn.Linear(8, 8, bias=False) for _ in range(layers)))
        step = TraceOptions(model=model, sample=torch.zeros(2, 8), optimizer=None).step(fake=True)
        recording = record_step(step, granule_bytes=64)
        places = range(*recording.parts["forward"])
        seconds, failed = time_operations(
            recording.operations, places, device=torch.device("cpu"), repeats=4, clock=clock
        )
        assert not failed
        return sum(seconds.values()), len(calls)

    assert timed(1) == (1.0, 4)
    assert timed(6) == (6.0, 4)


@pytest.mark.parametrize("seconds", [0.0, -1e-3, math.nan, math.inf])
def test_clocks_that_stand_still_or_go_back_are_refused(seconds):
    times = iter([1e-3, seconds, 1e-3])
    with pytest.raises(InputError, match=r"measured times: got .*measure again"):
        fastest(lambda: None, repeats=3, clock=lambda run: next(times))


def test_the_least_time_counts_after_the_warm_up():
    runs, times = [], iter([3.0, 2.0, 4.0])
    assert fastest(lambda: runs.append(1), warmup=5, repeats=3, clock=lambda run: (run(), next(times))[1]) == 2.0
    assert len(runs) == 8


@pytest.mark.parametrize("settings", [{"repeats": 0}, {"warmup": -1}, {"repeats": True}])
def test_counts_out_of_range(settings):
    with pytest.raises(ProfileError, match="allowed: a whole number"):
        tw.Profile.measured(nn.Linear(2, 2), torch.zeros(1, 2), **settings)


def test_the_roofline_is_the_slower_of_work_and_traffic():
    model, sample = small("gpt")
    profile = tw.Profile.trace(model, sample)
    predicted = profile.on(DEVICE)
    for before, after in zip(profile.layers, predicted.layers, strict=True):
        work, traffic = before.forward_flops / 1e12, before.forward_bytes / 1e11
        assert after.forward_seconds == pytest.approx(max(work, traffic) + before.launches * 1e-6)
        assert after.origin == "roofline"
    assert predicted.hash == profile.hash
    half = profile.on(replace(DEVICE, efficiency={"linear": 0.5}))
    busy = [i for i, layer in enumerate(profile.layers) if layer.kind == "linear"]
    assert all(half.layers[i].forward_seconds >= predicted.layers[i].forward_seconds for i in busy)


def test_measured_seconds_stay():
    model, sample = small("mlp")
    profile = tw.Profile.trace(model, sample)
    layers = tuple(replace(layer, forward_seconds=9.0, origin="measured") for layer in profile.blocks[0].layers)
    profile = replace(profile, blocks=(replace(profile.blocks[0], layers=layers), *profile.blocks[1:]))
    assert profile.on(DEVICE).layers[0].forward_seconds == 9.0
    assert profile.on(DEVICE).layers[-1].origin == "roofline"


def test_a_device_of_unknown_speed():
    profile = tw.Profile(name="m", batch=1, blocks=())
    with pytest.raises(ProfileError, match=r"no time can be predicted for bf16; .*it has fp32"):
        replace(profile, precision="bf16").on(Device(flops={"fp32": 1.0}, memory_bandwidth=1.0))
    with pytest.raises(ProfileError, match="no time can be predicted for fp32"):
        profile.on(Device(flops={"fp32": 1.0}))


def test_round_trip(tmp_path):
    model, sample = small("gpt")
    profile = tw.Profile.trace(model, sample)
    for version in (profile, profile.on(DEVICE)):
        version.save(tmp_path / "profile.json")
        assert tw.Profile.load(tmp_path / "profile.json") == version
    wider, _ = small("mlp")
    assert tw.Profile.trace(wider, torch.zeros(4, 32)).hash != profile.hash


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"schema": 7}, "schema: got 7; allowed: 2; trace the model again"),
        ({"torch_version": "1.0.0"}, "traced by torch 1.0.0, here is torch 2"),
        ({"batch": 3}, "is not that of its content"),
        ({"colour": "red"}, "colour: unknown key; allowed: "),
        ({"blocks": [3]}, "block 1: got 3; allowed: a table of keys"),
        ({"blocks": [{"layers": [{"name": "x"}]}]}, "block 1, name: missing"),
    ],
)
def test_files_that_are_refused(tmp_path, change, words):
    path = tmp_path / "profile.json"
    tw.Profile(name="m", batch=2, blocks=()).save(path)
    path.write_text(json.dumps(json.loads(path.read_text()) | change))
    with pytest.raises(ProfileError) as caught:
        tw.Profile.load(path)
    assert words in str(caught.value)
    assert str(path) in str(caught.value)


def test_files_that_are_none(tmp_path):
    with pytest.raises(ProfileError, match="there is no such file"):
        tw.Profile.load(tmp_path / "nothing.json")
    (tmp_path / "text.json").write_text("{")
    with pytest.raises(ProfileError, match="it is no JSON"):
        tw.Profile.load(tmp_path / "text.json")
    (tmp_path / "list.json").write_text("[]")
    with pytest.raises(ProfileError, match="got list; allowed: an object"):
        tw.Profile.load(tmp_path / "list.json")
