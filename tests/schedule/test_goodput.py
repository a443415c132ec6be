"""Goodput: the model of step times, the choice of the batch, and studies that are scheduled by it."""

from dataclasses import replace

import numpy as np
import pytest

import trainwright as tw
from trainwright.engine.simulated.settings import GoodputScaling
from trainwright.engine.simulated.simulation import simulate
from trainwright.engine.simulated.task import Parametric
from trainwright.schedule.allocator.estimates import Goodput, StepShape, adascale_gain

REFERENCE, LIMIT = 64, 128


def seconds(shape):
    alone = shape.accumulate * (0.02 + 0.0005 * shape.micro_batch)
    return alone + (0.005 + 0.004 * np.log2(shape.devices) if shape.devices > 1 else 0.0)


def model(**settings):
    return Goodput(reference=REFERENCE, micro_batch=LIMIT, largest=2**20, **settings)


def test_the_fit_finds_the_terms():
    """Of steps that take what the model says, unseen ones are foreseen, in units of the first."""
    goodput = model()
    shapes = [StepShape(*each) for each in [(1, 64, 1), (1, 128, 1), (1, 128, 2), (2, 64, 1), (4, 32, 1), (4, 128, 2)]]
    unit = None
    for shape in shapes:
        unit = goodput.observe(shape, seconds(shape), unit)
    assert unit == seconds(shapes[0])
    for shape in [StepShape(2, 128, 1), StepShape(8, 16, 1), StepShape(8, 128, 4)]:
        assert goodput.expect(shape) == pytest.approx(seconds(shape) / unit, rel=0.03)


def test_trials_of_other_sizes_speak_of_one_model():
    """A trial ten times as slow adds what it knows of shapes, and does not change what is known of others."""
    goodput = model()
    first, second = StepShape(1, 64, 1), StepShape(2, 64, 1)
    goodput.observe(first, 0.05)
    unit = goodput.observe(first, 0.5)
    goodput.observe(second, 0.6, unit)
    assert goodput.times == {first: 1.0, second: 1.2}


@pytest.mark.parametrize("noise", [0.0, 50.0, 1000.0, 1e6])
@pytest.mark.parametrize("devices", [1, 4, 16])
def test_the_batch_is_that_of_the_largest_goodput(devices, noise):
    """Of all doublings up to twice the largest that was tried, by brute force."""
    goodput = model(times={StepShape(1, 64, 1): 1.0, StepShape(1, 128, 4): 3.0, StepShape(4, 128, 2): 2.0})
    batches = [REFERENCE << doublings for doublings in range(6)]
    rates = {
        batch: adascale_gain(noise, batch, REFERENCE) / goodput.expect(goodput.shape(devices, batch))
        for batch in batches
        if batch <= 2 * 1024
    }
    best = max(rates, key=rates.get)
    expected = best if rates[best] > 1.05 * rates[REFERENCE] else REFERENCE
    assert goodput.choose_batch(devices, noise) == expected
    assert goodput.rate(devices, np.array([noise]))[0] == pytest.approx(max(rates.values()))


def scaling(**settings):
    shape = model().shape
    return GoodputScaling(
        step_seconds=lambda devices, batch: seconds(shape(devices, batch)),
        noise=lambda epoch: 300.0 * (1 + epoch),
        reference=REFERENCE,
        micro_batch=LIMIT,
        largest=4096,
        **settings,
    )


def study(policy, *, chooses, trials):
    engine = tw.Simulated(
        cluster=tw.Cluster(4, 4),
        task=Parametric(epoch_seconds=1000.0, speed_jitter=0.0),
        task_devices=1,
        scaling=scaling(chooses=chooses),
        restart_seconds=50.0,
    )
    rule = tw.ASHA(max_epochs=8, eta=2)
    return simulate(tw.Scheduler(rule, policy), engine, trials=trials, seed=1)


@pytest.mark.parametrize(("trials", "most"), [(16, 0.7), (64, 0.8)])
def test_devices_and_batch_together(trials, most):
    """Sooner than a batch by goodput on fixed devices, and than growth with the batch held; the batch grows."""
    held = study(tw.Fixed(1), chooses=False, trials=trials)
    batch = study(tw.Fixed(1), chooses=True, trials=trials)
    devices = study(tw.MarginalGain(), chooses=False, trials=trials)
    both = study(tw.MarginalGain(), chooses=True, trials=trials)
    assert batch.makespan_seconds < held.makespan_seconds
    assert both.makespan_seconds < 1.001 * min(batch.makespan_seconds, devices.makespan_seconds)
    assert both.makespan_seconds < most * held.makespan_seconds
    assert both.digest == study(tw.MarginalGain(), chooses=True, trials=trials).digest


def test_held_batches_are_as_fast_as_measured():
    """Without a choice an epoch takes the reference step's seconds, on any devices."""
    found = study(tw.Fixed(4), chooses=False, trials=1)
    shape = model().shape
    expected = 8 * 1000.0 * seconds(shape(4, REFERENCE)) / seconds(shape(1, REFERENCE))
    assert found.makespan_seconds == pytest.approx(expected)


def test_bad_input():
    with pytest.raises(tw.TrainwrightError, match=r"GoodputScaling\.reference: got 0; allowed: a whole number >= 1"):
        replace(scaling(), reference=0)
