"""ASHA against brute force: at every event, all records of a rung are sorted anew."""

import math
from collections import defaultdict
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from streams import VIEW, judge, streams

from trainwright.errors import ScheduleError
from trainwright.schedule import ASHA, Continue, Reported, Stop, TrialView
from trainwright.schedule.rules.promotion_rule import CONTINUE, Ended

ETAS = [2, 3, 4, Fraction(3, 2), 2.5, 7]


@settings(max_examples=60)
@given(events=streams(), eta=st.sampled_from(ETAS), least=st.integers(1, 3))
def test_rank_equals_sorting_all_records(events, eta, least):
    """A trial goes on iff it is among the max(1, floor(n / eta)) best (loss, number) of its rung, itself included."""
    rule = ASHA(max_epochs=40, min_epochs=least, eta=eta)
    index, records, reached, latest = rule.empty(), defaultdict(list), defaultdict(int), defaultdict(lambda: CONTINUE)
    for trial, epoch, loss in events:
        index, verdict = judge(rule, index, trial, epoch, loss)
        new = [rung for rung in rule.rungs if reached[trial] < rung <= epoch]
        for rung in new:
            records[rung].append((loss, trial))
        if not new:
            assert verdict == (latest[trial] if isinstance(latest[trial], Stop) else CONTINUE)
            continue
        reached[trial], latest[trial] = new[-1], verdict
        ranked = sorted(records[new[-1]])
        kept = max(1, math.floor(len(ranked) / Fraction(eta)))
        assert isinstance(verdict, Continue if ranked.index((loss, trial)) < kept else Stop)
        assert verdict.reason.epoch == new[-1]
        assert (verdict.reason.value, verdict.reason.threshold) == (loss, ranked[kept - 1][0])


@settings(max_examples=60)
@given(events=streams(), eta=st.sampled_from(ETAS))
def test_quantile_equals_numpys(events, eta):
    """The threshold is numpy's linear 1/eta quantile of the losses before; equality and the first arrival go on."""
    rule = ASHA(max_epochs=40, eta=eta, cutoff="quantile")
    index, records, reached = rule.empty(), defaultdict(list), defaultdict(int)
    for trial, epoch, given_loss in events:
        loss = 1e6 if given_loss == math.inf else given_loss  # numpy interpolates between infinities as NaN
        index, verdict = judge(rule, index, trial, epoch, loss)
        new = [rung for rung in rule.rungs if reached[trial] < rung <= epoch]
        if new:
            reached[trial] = new[-1]
            before = records[new[-1]]
            threshold = np.quantile(before, float(1 / Fraction(eta))) if before else loss
            assert verdict.reason.threshold == pytest.approx(threshold, rel=1e-9, abs=1e-9)
            assert isinstance(verdict, Continue) == (loss <= verdict.reason.threshold)
        for rung in new:
            records[rung].append(loss)


def test_quantile_between_infinities():
    """Failed comparisons stay comparisons: an infinite threshold lets every finite loss go on."""
    rule = ASHA(max_epochs=9, cutoff="quantile")
    index = rule.empty()
    for trial in range(4):
        index, verdict = judge(rule, index, trial, 1, math.inf)
        assert isinstance(verdict, Continue)
        assert verdict.reason.threshold == math.inf
    index, verdict = judge(rule, index, 4, 1, 1e300)
    assert isinstance(verdict, Continue)


def test_a_report_reaches_every_rung_up_to_its_epoch():
    """A trial that reports at epoch 10 for the first time stands in the rungs 1, 3 and 9, and is judged at 9."""
    rule = ASHA(max_epochs=27)
    index, verdict = judge(rule, rule.empty(), 0, 10, 0.5)
    assert verdict.reason.epoch == 9
    for epoch in (1, 3, 9):
        _, verdict = judge(rule, index, 1, epoch, 0.6)
        assert isinstance(verdict, Stop)
        assert (verdict.reason.epoch, verdict.reason.threshold) == (epoch, 0.5)


def test_a_restart_changes_nothing():
    """Epochs repeated after a restart are recorded once, and a stopped trial stays stopped."""
    rule = ASHA(max_epochs=9, min_epochs=1, eta=2)
    index = rule.empty()
    index, _ = judge(rule, index, 0, 1, 0.1)
    index, verdict = judge(rule, index, 1, 1, 0.9)
    assert isinstance(verdict, Stop)
    index, again = judge(rule, index, 1, 1, 0.0)
    assert again == verdict
    index, verdict = judge(rule, index, 2, 1, 0.05)
    assert verdict.reason.threshold == 0.05  # of three, one goes on; the repetition did not make it four


def test_failed_trials_take_no_place():
    """A trial that fails before a rung is not counted there."""
    rule = ASHA(max_epochs=9, min_epochs=1, eta=2)
    index = rule.empty()
    for trial in range(10):
        index = rule.fold(index, Ended(trial=trial, failed=True))
    assert index == rule.empty()


def test_next_epoch_and_survival():
    """The next verdict falls at the next rung, then at the end; each rung halves the chance for eta = 2."""
    rule = ASHA(max_epochs=20, min_epochs=1, eta=2)
    at = {epoch: TrialView(number=0, epoch=epoch, losses=(0.0,)) for epoch in (0, 1, 5, 16, 19)}
    assert [rule.next_epoch(rule.empty(), view) for view in at.values()] == [1, 2, 8, 20, 20]
    assert [len(rule.survival(rule.empty(), VIEW, view)) for view in at.values()] == [5, 4, 2, 0, 0]
    assert rule.survival(rule.empty(), VIEW, at[5]) == (0.5, 0.25)


@pytest.mark.parametrize("cutoff", ["rank", "quantile"])
def test_no_decision_compares_all_trials(cutoff):
    """With 20,000 trials in a rung a report is compared with a few of them, as with 1,000."""
    looks = 0

    class Counted(float):
        def __lt__(self, other):
            nonlocal looks
            looks += 1
            return float(self) < float(other)

    rule = ASHA(max_epochs=3, cutoff=cutoff)
    losses = np.random.default_rng(0).random(20_000).tolist()
    index, most = rule.empty(), []
    for trial, loss in enumerate(losses):
        before = looks
        index = rule.fold(index, Reported(trial=trial, epoch=1, losses=(Counted(loss),)))
        most.append(looks - before)
    assert max(most) <= 2 * math.log2(20_000)


@pytest.mark.parametrize(
    ("settings_", "sentence"),
    [
        ({"max_epochs": 0}, "ASHA.max_epochs: got 0; allowed: a whole number of epochs >= 1"),
        ({"max_epochs": 2.5}, "ASHA.max_epochs: got 2.5; allowed: a whole number of epochs >= 1"),
        ({"max_epochs": None}, "ASHA.max_epochs: got None; allowed: a whole number of epochs >= 1"),
        ({"max_epochs": True}, "ASHA.max_epochs: got True; allowed: a whole number of epochs >= 1"),
        (
            {"max_epochs": 9, "min_epochs": 0},
            "ASHA.min_epochs: got 0; allowed: a whole number of epochs >= 1, or None for three rungs",
        ),
        ({"max_epochs": 9, "min_epochs": 10}, "ASHA.min_epochs: got 10, above max_epochs 9; allowed: 1 to max_epochs"),
        ({"max_epochs": 9, "eta": 1}, "ASHA.eta: got 1; allowed: a number > 1, usually 2, 3 or 4"),
        ({"max_epochs": 9, "eta": -2}, "ASHA.eta: got -2; allowed: a number > 1, usually 2, 3 or 4"),
        ({"max_epochs": 9, "eta": math.nan}, "ASHA.eta: got nan; allowed: a number > 1, usually 2, 3 or 4"),
        ({"max_epochs": 9, "eta": math.inf}, "ASHA.eta: got inf; allowed: a number > 1, usually 2, 3 or 4"),
        ({"max_epochs": 9, "eta": "three"}, "ASHA.eta: got 'three'; allowed: a number > 1, usually 2, 3 or 4"),
        ({"max_epochs": 9, "cutoff": "top"}, "ASHA.cutoff: got 'top'; allowed: 'rank', 'quantile', 'adaptive'"),
    ],
)
def test_bad_settings(settings_, sentence):
    with pytest.raises(ScheduleError) as caught:
        ASHA(**settings_)
    assert str(caught.value) == sentence


def test_as_many_first_epochs_as_epochs_is_no_rung():
    """min_epochs == max_epochs is allowed: no comparison, every trial runs its length."""
    assert ASHA(max_epochs=5, min_epochs=5).rungs == ()


@pytest.mark.parametrize(("foretells", "least", "most"), [(True, 1 / 3, 0.4), (False, 0.8, 1.0)])
def test_an_adaptive_cut_follows_what_a_rung_foretells(foretells, least, most):
    """Where the first rung ranks as the second does it passes 1/eta; where it says nothing nearly everybody."""
    rule, draws = ASHA(max_epochs=9, min_epochs=1, cutoff="adaptive"), np.random.default_rng(0)
    index, passed = rule.empty(), []
    for trial in range(600):
        early, late = draws.random(2)
        index, verdict = judge(rule, index, trial, 1, early)
        passed.append(isinstance(verdict, Continue))
        if passed[-1]:
            index, _ = judge(rule, index, trial, 3, early if foretells else late)
    assert least - 0.05 <= np.mean(passed[300:]) <= most
