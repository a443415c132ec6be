"""Extrapolate: its thresholds, and how many coming winners it ends, beside a rule that keeps the best half."""

import numpy as np
import pytest
from streams import judge

from trainwright.errors import ScheduleError
from trainwright.randomness import rng
from trainwright.schedule import Continue, Extrapolate, Reason, Reported, RuleView, Stop, TrialView


def complete(rule, index, trial, losses):
    for epoch, loss in losses.items():
        index = rule.fold(index, Reported(trial=trial, epoch=epoch, losses=(loss,)))
    return index


def test_who_is_worse_than_all_who_ended_well_is_stopped():
    """Of four complete trials the best three count: the worst of them at epoch 3 is the threshold there.

    At epochs 1 and 9 they were equal or the other way round, which foretells nothing.
    """
    rule = Extrapolate(max_epochs=27, share=0.75, min_trials=4)
    index = rule.empty()
    for trial, (at_3, last) in enumerate([(0.4, 0.1), (0.5, 0.2), (0.9, 0.3)]):
        index = complete(rule, index, trial, {1: 2.0, 3: at_3, 9: 1 - last, 27: last})
    index, verdict = judge(rule, index, 7, 3, 5.0)
    assert verdict == Continue(Reason(rule="Extrapolate", epoch=3, value=5.0))
    index = complete(rule, index, 3, {1: 2.0, 3: 7.0, 9: 0.1, 27: 0.9})
    index, verdict = judge(rule, index, 4, 3, 0.9)
    assert verdict == Continue(Reason(rule="Extrapolate", epoch=3, value=0.9, threshold=0.9))
    index, verdict = judge(rule, index, 5, 4, 0.91)  # later than the rung, which it has not passed before
    assert verdict == Stop(Reason(rule="Extrapolate", epoch=3, value=0.91, threshold=0.9))
    seen = TrialView(number=7, epoch=3, losses=(5.0,))
    assert isinstance(rule.on_report(index, RuleView(remaining=0), seen), Continue), "a verdict stays as it was"
    index, verdict = judge(rule, index, 6, 3, float("inf"))
    assert isinstance(verdict, Stop)
    index, verdict = judge(rule, index, 8, 9, 5.0)
    assert verdict == Continue(Reason(rule="Extrapolate", epoch=9, value=5.0))


FAMILIES = {
    "power": lambda t, g, n: g.normal(0, 1, n)[:, None] + 2 * t ** -g.uniform(0.3, 1.5, n)[:, None],
    "exponential": lambda t, g, n: g.normal(0, 1, n)[:, None] + 3 * np.exp(-t * g.uniform(0.03, 0.3, n)[:, None]),
    # The worse a trial begins, the better it ends: a schedule that decays late.
    "crossing": lambda t, g, n: g.uniform(0, 1, n)[:, None] * (1 - 3 * (t / 50) ** 2),
    "unrelated": lambda t, g, n: g.normal(0, 1, n)[:, None] * (t < 30) + g.normal(0, 1, n)[:, None] * (t >= 30),
}


@pytest.mark.parametrize("family", FAMILIES)
def test_hardly_any_coming_winner_is_ended(family):
    """Per trial, on generated curves: at most a tenth of those that would have become the best so far."""
    rule = Extrapolate(max_epochs=50, min_epochs=5)
    winners, ended, saved = np.sum([recall(rule, curves(family, seed)) for seed in range(20)], axis=0)
    assert winners > 30
    assert ended <= 0.1 * winners
    if family in {"power", "exponential"}:
        assert saved > 0.1 * 20 * 60 * 50


def test_where_ranks_change_the_rank_at_an_epoch_ends_more_of_them():
    """The baseline: a trial goes on while it is among the better half of all at its epoch."""
    for family in ("crossing", "unrelated"):
        tables = [curves(family, seed) for seed in range(20)]
        ours, theirs = (
            np.sum([recall(rule, table) for table in tables], axis=0)[1]
            for rule in (Extrapolate(max_epochs=50, min_epochs=5), BetterHalf())
        )
        assert ours < theirs / 2


class BetterHalf:
    rungs = Extrapolate(max_epochs=50, min_epochs=5).rungs

    def empty(self):
        return {rung: [] for rung in self.rungs}

    def fold(self, index, event):
        if event.epoch in index:
            index[event.epoch].append(event.losses[0])
        return index

    def on_report(self, index, view, trial):
        worse = trial.epoch in index and trial.loss > np.median(index[trial.epoch])
        return Stop(Reason(rule="half", epoch=trial.epoch)) if worse else Continue()


def curves(family, seed):
    """Return 60 curves of 50 epochs, with noise."""
    generator = rng(seed, "curves", 0)
    values = FAMILIES[family](np.arange(1, 51)[None, :], generator, 60)
    return values + 0.02 * generator.standard_normal(values.shape)


def recall(rule, table):
    """Play trials one after another; return coming winners after the tenth trial, those ended, and epochs saved."""
    index, best, winners, ended, saved = rule.empty(), np.inf, 0, 0, 0
    for trial, losses in enumerate(table):
        stopped = None
        for epoch in (*rule.rungs, 50):
            index, verdict = judge(rule, index, trial, epoch, float(losses[epoch - 1]))
            if isinstance(verdict, Stop):
                stopped = epoch
                break
        if losses[-1] < best and trial >= 10:
            winners += 1
            ended += stopped is not None
        best = min(best, losses[-1])
        saved += 0 if stopped is None else 50 - stopped
    return winners, ended, saved


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"share": 0}, "share: got 0; allowed: a number above 0 and at most 1"),
        ({"share": "half"}, "share: got 'half'; allowed"),
        ({"min_trials": 0}, "min_trials: got 0; allowed: a whole number"),
        ({"min_epochs": 28}, "min_epochs: got 28, above max_epochs 27; allowed: 1 to max_epochs"),
    ],
)
def test_refused(settings, sentence):
    with pytest.raises(ScheduleError, match=rf"Extrapolate\.{sentence}"):
        Extrapolate(**{"max_epochs": 27, **settings})
