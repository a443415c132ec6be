"""Patience and Plateau, which look at one curve, against going through all of it."""

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from streams import judge, streams

from trainwright.errors import ScheduleError
from trainwright.schedule import Continue, Patience, Plateau, Stop
from trainwright.schedule.rules.promotion_rule import CONTINUE


@settings(max_examples=60)
@given(events=streams(most=60), epochs=st.integers(1, 12), delta=st.sampled_from([0.0, 0.5, 3.0]))
def test_patience_equals_going_through_the_curve(events, epochs, delta):
    """Stop iff the best up to `epochs` epochs ago is at most `min_delta` above the best up to now."""
    rule = Patience(epochs=epochs, min_delta=delta)
    index, curves = rule.empty(), {}
    for trial, epoch, loss in events:
        index, verdict = judge(rule, index, trial, epoch, loss)
        curve = curves.setdefault(trial, {})
        curve[epoch] = loss
        before = [value for at, value in curve.items() if at <= epoch - epochs]
        if before:
            now, then = min(curve.values()), min(before)
            assert isinstance(verdict, Stop if now >= then - delta else Continue)
            assert (verdict.reason.value, verdict.reason.threshold) == (now, then - delta)
        else:
            assert verdict == CONTINUE


@settings(max_examples=60)
@given(events=streams(most=20), window=st.integers(2, 4), tolerance=st.sampled_from([0.0, 0.1, 0.5]))
def test_plateau_equals_going_through_the_curve(events, window, tolerance):
    """Stop iff the last `window` losses span at most `tolerance` times what all of them span."""
    rule = Plateau(window=window, tolerance=tolerance)
    index, curves = rule.empty(), {}
    for trial, epoch, loss in events:
        index, verdict = judge(rule, index, trial, epoch, loss)
        curve = curves.setdefault(trial, [])
        curve.append(loss)
        last, finite = curve[-window:], [value for value in curve if math.isfinite(value)]
        if len(curve) <= window or math.inf in last:
            assert verdict == CONTINUE
        else:
            flat = max(last) - min(last) <= tolerance * (max(finite) - min(finite))
            assert isinstance(verdict, Stop if flat else Continue)


def test_patience_is_a_quarter_of_the_length():
    """Rounded up, and the window need not begin at the first report."""
    assert [Patience(max_epochs=length).window for length in (1, 4, 5, 27)] == [1, 1, 2, 7]
    rule = Patience(max_epochs=8)
    index, verdict = judge(rule, rule.empty(), 0, 1, 1.0)
    for epoch, loss, kind in ((2, 0.9, Continue), (3, 0.95, Continue), (4, 0.9, Stop)):
        index, verdict = judge(rule, index, 0, epoch, loss)
        assert isinstance(verdict, kind)


@pytest.mark.parametrize(
    ("make", "sentence"),
    [
        (Patience, "Patience.epochs: got None; allowed: a whole number of epochs >= 1, or give max_epochs"),
        (lambda: Patience(epochs=0), "Patience.epochs: got 0; allowed: a whole number of epochs >= 1, or None"),
        (lambda: Patience(epochs=2, min_delta=-1), "Patience.min_delta: got -1; allowed: a number >= 0"),
        (lambda: Plateau(window=1), "Plateau.window: got 1; allowed: a whole number of reports >= 2"),
        (lambda: Plateau(tolerance=1), "Plateau.tolerance: got 1; allowed: a number from 0 to below 1"),
        (lambda: Plateau(max_epochs=0), "Plateau.max_epochs: got 0; allowed: a whole number of epochs >= 1, or None"),
    ],
)
def test_bad_settings(make, sentence):
    with pytest.raises(ScheduleError) as caught:
        make()
    assert str(caught.value) == sentence
