"""Stacking: it conforms, learns what each member is worth, and is chosen only where it helps."""

import numpy as np
import pytest

from trainwright.ensemble import EnsembleSettings
from trainwright.ensemble.combine.rules import PlainMean, combine, combine_arrived, make_rule
from trainwright.ensemble.combine.stacking import LinearStacking, Stacking, choose_rule
from trainwright.errors import EnsembleError
from trainwright.testing.combination import CombinationConformance


class TestStacking(CombinationConformance):
    def make_rule(self):
        return Stacking(factors=(0.4, 0.1, 0.3, 0.7), offsets=(0.0, 0.0, 0.0))


class TestLinear(CombinationConformance):
    def make_rule(self):
        return LinearStacking(factors=(0.4, 0.1, 0.3, 0.2), offsets=(0.0, 0.0, 0.0))


def test_linear_finds_the_weights():
    """Two members with errors of their own, one of them off by a scale and an offset; in whatever unit."""
    draws = np.random.default_rng(0)
    truth = draws.normal(size=(400, 2))
    for unit in (1e-3, 1e4):
        members = [unit * (truth + 0.3 * draws.normal(size=truth.shape)), unit * (0.5 * truth + 1)]
        head = LinearStacking().fit([one[:200] for one in members], unit * truth[:200])
        found = combine(head, [one[200:] for one in members], [1, 1])
        assert np.abs(found - unit * truth[200:]).mean() < 0.15 * unit


def test_chosen_where_it_helps():
    """`auto` keeps the weighted mean of equals, and takes a head where one member is noise."""
    draws = np.random.default_rng(3)
    truth = draws.normal(size=(300, 1))
    equal = [truth + 0.1 * draws.normal(size=truth.shape) for _ in range(3)]
    assert choose_rule(equal, truth + 3 * draws.normal(size=truth.shape), "values").name == "weighted"
    noisy = [equal[0], 5 * draws.normal(size=truth.shape)]
    assert choose_rule(noisy, truth, "values").name == "linear"
    assert choose_rule(equal[:1], truth, "values").name == "weighted"
    moments = np.stack([equal[0], np.ones_like(truth)], axis=-1)
    assert choose_rule([moments, moments], truth, "moments").name == "mixture"


def test_auto_in_settings(study):
    for number in range(3):
        study.leave(number)
    assert EnsembleSettings(rule="auto").choose(study.library()).ensemble.rule.name in {"weighted", "stacking"}


def test_found_by_name_and_fitted(study):
    """By its name in settings it is fitted on the selection rows; its numbers make it again."""
    for number in range(3):
        study.leave(number)
    found = EnsembleSettings(rule="stacking").choose(study.library()).ensemble
    assert len(found.rule.factors) == len(found.members)
    assert make_rule(found.rule.to_json(), "classes") == found.rule
    with pytest.raises(
        EnsembleError, match="'stacking' for predictions that are values; allowed: weighted, mean, linear"
    ):
        make_rule("stacking", "values")
    with pytest.raises(EnsembleError, match=r"rule: got 'stackin'; allowed: .*did you mean 'stacking'"):
        EnsembleSettings(rule="stackin")


@pytest.mark.parametrize(
    ("setting", "value"), [("share", "x"), ("share", None), ("share", float("nan")), ("share", 2.0), ("factors", ["x"])]
)
def test_damaged_numbers_are_refused(setting, value):
    """An export's manifest may hold anything."""
    with pytest.raises(EnsembleError, match=f"rule 'stacking': {setting}: got "):
        make_rule({"name": "stacking", "factors": [1.0], "offsets": [0.0], setting: value}, "classes")


class TestStackingFit:
    def library(self, rows=600):
        """Two good members and one that is noise."""
        draws = np.random.default_rng(1)
        labels = draws.integers(0, 3, rows)
        values = []
        for skill in (2.0, 2.0, 0.0):
            scores = draws.normal(size=(rows, 3))
            scores[np.arange(rows), labels] += skill
            odds = np.exp(scores)
            values.append(odds / odds.sum(axis=1, keepdims=True))
        return values, labels

    def test_weighs_by_worth(self):
        values, labels = self.library()
        head = Stacking().fit([value[:300] for value in values], labels[:300])
        assert min(head.factors[:2]) > 0.5 > abs(head.factors[2])
        rest = [value[300:] for value in values]
        losses = [
            -np.log(combine(rule, rest, [1, 1, 1])[np.arange(300), labels[300:]]).mean() for rule in (head, PlainMean())
        ]
        assert losses[0] < losses[1] - 0.05

    def test_noise_stays_near_equal_weights(self):
        """Where nothing can be learned the strongest pull wins."""
        draws = np.random.default_rng(2)
        values = [np.full((60, 4), 0.25) + 0.01 * draws.random((60, 4)) for _ in range(3)]
        values = [value / value.sum(axis=1, keepdims=True) for value in values]
        head = Stacking().fit(values, draws.integers(0, 4, 60))
        np.testing.assert_allclose(head.factors, 1 / 3, atol=0.05)

    def test_missing_member(self):
        head = Stacking(factors=(1.0, 1.0), offsets=(0.0, 0.0))
        assert head.without(frozenset({0})).name == "weighted"
        np.testing.assert_allclose(combine_arrived(head, {1: np.array([[0.9, 0.1]])}, [0.5, 0.5]), [[0.9, 0.1]])

    def test_refusals(self):
        head, value = Stacking(factors=(1.0, 1.0), offsets=(0.0, 0.0)), np.array([[0.9, 0.1]])
        with pytest.raises(EnsembleError, match=r"got 1 members of 2 columns; allowed: the 0 members"):
            combine(Stacking(), [value], [1])
        with pytest.raises(EnsembleError, match="got 2 members of 3 columns; allowed: the 2 members and 2 columns"):
            combine(head, [np.full((1, 3), 1 / 3)] * 2, [1, 1])
        with pytest.raises(EnsembleError, match="got 1 members of 2 columns; allowed: the 2 members"):
            combine(head, [value], [1])
        with pytest.raises(EnsembleError, match="got 4 rows; allowed: at least 10"):
            Stacking().fit([np.tile(value, (4, 1))], np.zeros(4, dtype=int))
