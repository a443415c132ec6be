"""The median rule against brute force over all curves."""

import math
from collections import defaultdict

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from streams import judge, streams

from trainwright.errors import ScheduleError
from trainwright.schedule import Continue, Median, Stop, TrialView
from trainwright.schedule.rules.promotion_rule import CONTINUE


@settings(max_examples=60)
@given(events=streams(), least=st.integers(1, 4), interval=st.integers(1, 4), trials=st.sampled_from([1, 2, 5]))
def test_equals_going_through_all_curves(events, least, interval, trials):
    """At a compared epoch: stop iff the best loss is above the median of the others' mean losses up to that epoch."""
    rule = Median(min_epochs=least, interval=interval, min_trials=trials)
    index, curves = rule.empty(), defaultdict(dict)
    for trial, epoch, loss in events:
        index, verdict = judge(rule, index, trial, epoch, loss)
        curves[trial][epoch] = loss
        if epoch < least or (epoch - least) % interval:
            assert verdict == CONTINUE or isinstance(verdict, Stop)  # a stop stays one
            continue
        means = [
            sum(value for at, value in curve.items() if at <= epoch) / sum(at <= epoch for at in curve)
            for other, curve in curves.items()
            if other != trial and epoch in curve
        ]
        if len(means) < trials:
            assert verdict == CONTINUE
            continue
        median, best = _median(means), min(curves[trial].values())
        assert verdict.reason.threshold == pytest.approx(median, rel=1e-9, abs=1e-9)
        assert (verdict.reason.value, verdict.reason.epoch) == (best, epoch)
        if median == math.inf or abs(best - median) > 1e-9:
            assert isinstance(verdict, Stop if best > median else Continue)


def _median(values):
    """Return the middle, or halfway between the two in the middle; numpy makes NaN of a finite and an infinite one."""
    ordered = sorted(values)
    middle = ordered[(len(ordered) - 1) // 2], ordered[len(ordered) // 2]
    return middle[1] if math.inf in middle else float(np.mean(middle))


def test_budgets_are_never_mixed():
    """A trial at epoch 2 is compared with what the others had at epoch 2, however far and good they are by now."""
    rule = Median(min_trials=1)
    index = rule.empty()
    for epoch, loss in enumerate([1.0, 0.8, 0.1, 0.0], start=1):
        index, _ = judge(rule, index, 0, epoch, loss)
    index, _ = judge(rule, index, 1, 1, 0.9)
    index, verdict = judge(rule, index, 1, 2, 0.9)
    assert verdict.reason.threshold == pytest.approx(0.9)  # the mean of 1.0 and 0.8
    assert isinstance(verdict, Continue)


def test_the_best_loss_counts_and_not_the_last():
    """A trial that was good once stays in when a late epoch is bad."""
    rule = Median(min_trials=1)
    index = rule.empty()
    for epoch in (1, 2):
        index, _ = judge(rule, index, 0, epoch, 0.5)
    index, _ = judge(rule, index, 1, 1, 0.4)
    index, verdict = judge(rule, index, 1, 2, 9.0)
    assert isinstance(verdict, Continue)


def test_a_trial_is_judged_beside_five_others():
    """The least number of others if none is given."""
    rule = Median()
    index, stopped = rule.empty(), []
    for trial in range(7):
        index, verdict = judge(rule, index, trial, 1, float(trial))
        stopped.append(isinstance(verdict, Stop))
    assert stopped == [False] * 5 + [True] * 2


def test_next_epoch():
    """The next verdict falls at the next compared epoch: 2, 5, 8, ..."""
    rule = Median(min_epochs=2, interval=3)
    views = [TrialView(number=0, epoch=epoch, losses=(0.0,)) for epoch in range(7)]
    assert [rule.next_epoch(rule.empty(), view) for view in views] == [2, 2, 5, 5, 5, 8, 8]


@pytest.mark.parametrize(
    ("settings_", "sentence"),
    [
        ({"min_epochs": 0}, "Median.min_epochs: got 0; allowed: a whole number of epochs >= 1, or None"),
        ({"interval": 1.0}, "Median.interval: got 1.0; allowed: a whole number of epochs >= 1"),
        ({"min_trials": 0}, "Median.min_trials: got 0; allowed: a whole number >= 1"),
        ({"max_epochs": "9"}, "Median.max_epochs: got '9'; allowed: a whole number of epochs >= 1, or None"),
    ],
)
def test_bad_settings(settings_, sentence):
    with pytest.raises(ScheduleError) as caught:
        Median(**settings_)
    assert str(caught.value) == sentence


@pytest.mark.parametrize(("length", "first"), [(None, 1), (5, 1), (27, 1), (28, 2), (52, 2), (270, 10)])
def test_the_first_compared_epoch_is_a_share_of_the_length(length, first):
    rule = Median(max_epochs=length)
    assert rule.first_epoch == first
    assert rule.next_epoch(rule.empty(), TrialView(number=0, epoch=0, losses=())) == first
