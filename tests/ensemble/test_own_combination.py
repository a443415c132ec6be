"""The example of a combination rule of one's own, stacking: it conforms, and learns what each member is worth."""

import importlib.metadata
import importlib.util
import sys
from pathlib import Path

import numpy as np
import pytest

from trainwright import plugins
from trainwright.ensemble.combine.rules import PlainMean, combine, combine_arrived, make_rule
from trainwright.errors import EnsembleError
from trainwright.testing.combination import CombinationConformance

FILE = Path(__file__).parents[2] / "examples" / "plugins" / "stacking.py"
SPEC = importlib.util.spec_from_file_location("stacking", FILE)
EXAMPLE = sys.modules["stacking"] = importlib.util.module_from_spec(SPEC)
SPEC.loader.exec_module(EXAMPLE)
Stacking = EXAMPLE.Stacking


@pytest.fixture(autouse=True)
def installed(monkeypatch):
    """Install the rule as the entry point that a distribution of its own would have."""
    group = "trainwright.combinations"
    point = importlib.metadata.EntryPoint("stacking", "stacking:Stacking", group)
    find = importlib.metadata.entry_points

    def entry_points(**which):
        return [point] if which == {"group": group} else find(**which)

    monkeypatch.setattr(plugins, "entry_points", entry_points)
    plugins._read_group.cache_clear()
    yield
    plugins._read_group.cache_clear()


class TestStacking(CombinationConformance):
    def make_rule(self):
        return Stacking(powers=(0.4, 0.1, 0.3, 0.7), offsets=(0.0, 0.0, 0.0))


def test_an_installed_rule_is_found_by_name_and_fitted(study):
    """By its name in settings it is fitted on the selection rows; its numbers make it again."""
    from trainwright.ensemble import EnsembleSettings

    for number in range(3):
        study.leave(number)
    found = EnsembleSettings(rule="stacking").choose(study.library()).ensemble
    assert len(found.rule.powers) == len(found.members)
    assert make_rule(found.rule.to_json(), "classes") == found.rule
    with pytest.raises(EnsembleError, match="'stacking' for predictions that are values; allowed: weighted, mean"):
        make_rule("stacking", "values")
    with pytest.raises(EnsembleError, match=r"rule: got 'stackin'; allowed: .*did you mean 'stacking'"):
        EnsembleSettings(rule="stackin")


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
        assert min(head.powers[:2]) > 0.5 > abs(head.powers[2])
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
        np.testing.assert_allclose(head.powers, 1 / 3, atol=0.05)

    def test_missing_member(self):
        head = Stacking(powers=(1.0, 1.0), offsets=(0.0, 0.0))
        assert head.without(frozenset({0})).name == "weighted"
        np.testing.assert_allclose(combine_arrived(head, {1: np.array([[0.9, 0.1]])}, [0.5, 0.5]), [[0.9, 0.1]])

    def test_refusals(self):
        head, value = Stacking(powers=(1.0, 1.0), offsets=(0.0, 0.0)), np.array([[0.9, 0.1]])
        with pytest.raises(EnsembleError, match=r"got 1 members of 2 classes; allowed: the 0 members .* Stacking\.fit"):
            combine(Stacking(), [value], [1])
        with pytest.raises(EnsembleError, match="got 2 members of 3 classes; allowed: the 2 members and 2 classes"):
            combine(head, [np.full((1, 3), 1 / 3)] * 2, [1, 1])
        with pytest.raises(EnsembleError, match="got 1 members of 2 classes; allowed: the 2 members"):
            combine(head, [value], [1])
        with pytest.raises(EnsembleError, match="got 4 rows; allowed: at least 10"):
            Stacking().fit([np.tile(value, (4, 1))], np.zeros(4, dtype=int))
