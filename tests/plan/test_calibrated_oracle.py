"""`Oracle.fit`: figures of a cluster from measured steps, by the same forecasts that users are given."""

from dataclasses import replace

import numpy as np
import pytest

from trainwright.cluster import Cluster
from trainwright.errors import InputError
from trainwright.model.describe.transformer import describe_transformer
from trainwright.plan import Degrees, MeasuredRun, Oracle

PRESET = Cluster.preset("abci-v100", nodes=16)
PROFILE = describe_transformer(hidden=512, layers=8, heads=8, sequence=256, vocabulary=8000)


def machine():
    """Return the preset with a slower device, a slower network, and an overhead."""
    device = replace(PRESET.device, flops={name: 0.6 * rate for name, rate in PRESET.device.flops.items()})
    inside, *outside = PRESET.tiers
    tiers = (inside, *(replace(tier, bandwidth=0.4 * tier.bandwidth) for tier in outside))
    memory = 0.6 * device.memory_bandwidth
    return replace(PRESET, device=replace(device, memory_bandwidth=memory), tiers=tiers, overhead_seconds=4e-3)


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
    """Fitted to at most 16 devices, runs on 32 and 64 are predicted to 2 %; the preset errs by more than 20 %."""
    fitted = Oracle(PRESET).fit(measured(SEEN))
    assert max(errors(fitted, measured(UNSEEN))) < 0.02
    assert min(errors(Oracle(PRESET), measured(UNSEEN))) > 0.2
    assert fitted.cluster.verified


def test_what_is_left_over_makes_the_intervals():
    """With 5 % of noise the intervals are about as wide, and the fit still helps."""
    fitted = Oracle(PRESET).fit(measured(SEEN, noise=0.05))
    assert 0.02 < fitted.cluster.errors["compute"] < 0.1
    low, high = fitted.forecast(PROFILE, UNSEEN[0]).interval
    assert 1.05 < high / low < 1.4
    assert max(errors(fitted, measured(UNSEEN))) < 0.1


def test_too_few_runs_are_refused():
    with pytest.raises(InputError, match=r"runs: got 2; allowed: more than the \d figures to fit \(compute, bandwidth"):
        Oracle(PRESET).fit(measured([layout(2), layout(8)]))
    with pytest.raises(InputError, match="allowed: one or more runs, each above 0 seconds"):
        Oracle(PRESET).fit([])


def test_a_fitted_cluster_is_a_file(tmp_path):
    """What was fitted is part of the cluster, so that its file gives the same forecasts."""
    fitted = Oracle(PRESET).fit(measured(SEEN))
    fitted.cluster.save(tmp_path / "mine.toml")
    again = Oracle(Cluster.load(tmp_path / "mine.toml"))
    assert errors(again, measured(UNSEEN)) == pytest.approx(errors(fitted, measured(UNSEEN)), abs=1e-6)
