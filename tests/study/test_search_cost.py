"""What a search costs before it is submitted."""

import pytest

import trainwright as tw
from trainwright.cluster import Device, NetworkLevel
from trainwright.errors import InputError, TrainwrightError
from trainwright.model.describe.transformer import describe_transformer
from trainwright.plan import Degrees
from trainwright.study.forecast.search_plan import Predicted, plan_search

DEVICE = Device(memory_bytes=10**9, flops={"fp32": 15e12}, memory_bandwidth=900e9, launch_seconds=5e-6)
CLUSTER = tw.Cluster(
    1, 4, name="made-up", device=DEVICE, tiers=(NetworkLevel(name="inside", devices=4, alpha=9e-6, bandwidth=50e9),)
)
ORACLE = tw.Oracle(CLUSTER)
SPACE = tw.Space(layers=tw.Int(1, 4), batch=tw.Choice(8, 16), lr=tw.Float(1e-4, 1e-1, log=True))


def profile_of(params):
    profile = describe_transformer(
        hidden=128, layers=params["layers"], heads=4, sequence=64, vocabulary=500, precision="fp32"
    )
    return profile, params["batch"]


def serial(*, layers, batch, **choices):
    profile, _ = profile_of({"layers": layers, "batch": batch})
    return ORACLE.estimate(profile, batch=batch, degrees=Degrees(), **choices)


def cost(**changes):
    settings = {"trials": 8, "samples": 1600, "seeds": 2, "scheduler": tw.Scheduler(tw.FixedEpochs(2), tw.Fixed(1))}
    return plan_search(ORACLE, profile_of, space=SPACE, **{**settings, **changes}).cost


def test_hours_are_those_of_the_trials():
    """Without early stopping the device-hours are the sum of all epochs, each of the predicted seconds."""
    found = cost(seeds=1)
    task = Predicted(oracle=ORACLE, profile_of=profile_of, samples=1600)
    grid = [(layers, batch) for layers in range(1, 5) for batch in (8, 16)]
    each = {point: task.epoch_seconds(dict(zip(("layers", "batch"), point, strict=True))) for point in grid}
    assert each[3, 8] == 200 * serial(layers=3, batch=8).seconds_per_iteration
    assert 8 * 2 * min(each.values()) <= found.device_hours * 3600 <= 8 * 2 * max(each.values()) * 1.01
    assert found.device_hours <= found.device_hours_90
    assert found.wall_seconds * 4 >= found.device_hours * 3600 * 0.99
    assert (found.infeasible, found.trials) == (0.0, 8)


def test_early_stopping_costs_less():
    """ASHA's studies take less than those that train everything to the end."""
    full = cost(scheduler=tw.Scheduler(tw.FixedEpochs(8), tw.Fixed(1)), trials=12)
    early = cost(scheduler=tw.Scheduler(tw.ASHA(max_epochs=8), tw.Fixed(1)), trials=12)
    assert early.device_hours < 0.8 * full.device_hours


def test_what_does_not_fit_is_counted():
    """Configurations that need more memory than there is are a share, and take no time."""
    least = serial(layers=2, batch=8, micro=1, recompute="full").peak_bytes * 1.04
    assert least < serial(layers=4, batch=8, micro=1, recompute="full").peak_bytes
    found = cost(max_memory_bytes=least)
    assert 0 < found.infeasible < 1
    with pytest.raises(TrainwrightError, match="none of 16 configurations fits"):
        cost(max_memory_bytes=1000.0)


def test_refused():
    """A batch that a trial's devices do not divide is told."""
    with pytest.raises(InputError, match="multiple of 3"):
        cost(devices=3)
