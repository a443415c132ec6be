"""`Oracle.fit`: figures of a cluster from measured steps, by the same forecasts that users are given."""

from dataclasses import replace

import numpy as np
import pytest

from trainwright.cluster import Cluster
from trainwright.errors import InputError
from trainwright.model.describe.transformer import describe_transformer
from trainwright.plan import Degrees, MeasuredRun, Oracle
from trainwright.plan.fit.fit_runs import fit_clusters, fit_runs

PRESET = Cluster.preset("abci-v100", nodes=16)
PROFILE = describe_transformer(hidden=512, layers=8, heads=8, sequence=256, vocabulary=8000)


def machine():
    """Return the preset with a slower device, a slower network, and an overhead."""
    device = replace(PRESET.device, flops={name: 0.6 * rate for name, rate in PRESET.device.flops.items()})
    inside, *outside = PRESET.tiers
    tiers = (inside, *(replace(tier, bandwidth=0.4 * tier.bandwidth) for tier in outside))
    memory = 0.6 * device.memory_bandwidth
    return replace(
        PRESET, device=replace(device, memory_bandwidth=memory), tiers=tiers, overhead_seconds=4e-3, overlap=0.5
    )


def layout(data, zero=0, batch=None):
    return Oracle(PRESET).estimate(PROFILE, batch=batch or 4 * data, degrees=Degrees(data=data), zero=zero).layout


def measured(layouts, noise=0.0):
    """Return runs as the machine takes them, each a little longer or shorter."""
    oracle, generator = Oracle(machine()), np.random.default_rng(0)
    return [
        MeasuredRun(
            profile=PROFILE,
            layout=one,
            seconds=oracle.forecast(PROFILE, one).seconds_per_iteration * float(np.exp(noise * generator.normal())),
        )
        for one in layouts
    ]


SEEN = [layout(data, zero) for data in (1, 2, 4, 8, 16) for zero in ((0, 3) if data > 1 else (0,))]
UNSEEN = [layout(32), layout(64, 3), layout(64, batch=512)]


def errors(oracle, runs):
    pairs = [(oracle.forecast(run.profile, run.layout).seconds_per_iteration, run.seconds) for run in runs]
    return [abs(predicted / seconds - 1) for predicted, seconds in pairs]


def test_larger_runs_are_predicted():
    """Fitted to at most 16 devices, 32 and 64 are predicted to 5 %, to 20 % with twice the samples a device."""
    fitted = Oracle(PRESET).fit(measured(SEEN))
    *same, more = errors(fitted, measured(UNSEEN))
    assert max(same) < 0.05
    assert more < 0.2
    assert min(errors(Oracle(PRESET), measured(UNSEEN))) > 0.2
    assert fitted.cluster.verified


def test_what_is_left_over_makes_the_intervals():
    """With 30 % of noise the intervals are wider than without, and wider yet for more devices than any run had."""
    exact, noisy = (Oracle(PRESET).fit(measured(SEEN, noise=noise)) for noise in (0.0, 0.3))
    assert noisy.cluster.errors["runs"] > exact.cluster.errors["runs"]
    widths = []
    for place in (SEEN[-1], UNSEEN[0], UNSEEN[1]):
        low, high = noisy.forecast(PROFILE, place).interval
        widths.append(high / low)
    assert 1.2 < widths[0] < widths[1] < widths[2] < 4


def test_one_run_is_enough():
    """What a run does not tell stays where it was, and is called so."""
    fit = fit_runs(PRESET, measured([SEEN[0]]))
    assert abs(fit.residuals[0]) < 0.05
    assert {each.state for each in fit.constants.values()} == {"not identified"}
    with pytest.raises(InputError, match="allowed: one or more runs, each above 0 seconds"):
        Oracle(PRESET).fit([])


def test_milliseconds_are_told_from_seconds():
    """Runs that all take a thousand times as long as they can are in another unit."""
    large, oracle = (
        describe_transformer(hidden=2048, layers=24, heads=16, sequence=2048, vocabulary=32000),
        Oracle(PRESET),
    )
    runs = [oracle.estimate(large, batch=8 * data, degrees=Degrees(data=data), zero=3) for data in (8, 16)]
    runs = [MeasuredRun(profile=large, layout=run.layout, seconds=run.seconds_per_iteration * 1e3) for run in runs]
    with pytest.raises(InputError, match="not milliseconds"):
        fit_runs(PRESET, runs)


def test_runs_beyond_what_the_machine_can_are_seen():
    """Steps faster than the device's peak leave constants at their bounds, which the fit names."""
    runs = [replace(run, seconds=run.seconds / 30) for run in measured(SEEN)]
    assert "efficiency linear" in fit_runs(PRESET, runs).at_bounds


def test_one_factor_for_several_machines():
    """Two machines that are as much slower than their sheets, each by few runs, are found together."""
    other = replace(PRESET, device=replace(PRESET.device, flops={"fp32": 2 * PRESET.device.flops["fp32"]}))
    fits = fit_clusters([(PRESET, measured(SEEN)), (other, measured(SEEN[:2]))])
    assert len(fits) == 2
    name = "efficiency linear"
    assert fits[0].constants[name].value == pytest.approx(fits[1].constants[name].value)
    assert [len(fit.residuals) for fit in fits] == [len(SEEN), 2]


def test_a_fitted_cluster_is_a_file(tmp_path):
    """What was fitted is part of the cluster, so that its file gives the same forecasts."""
    fitted = Oracle(PRESET).fit(measured(SEEN))
    fitted.cluster.save(tmp_path / "mine.toml")
    again = Oracle(Cluster.load(tmp_path / "mine.toml"))
    assert errors(again, measured(UNSEEN)) == pytest.approx(errors(fitted, measured(UNSEEN)), abs=1e-6)
