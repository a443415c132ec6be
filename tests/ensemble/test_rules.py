"""Combination rules: the conformance kit for each of them, and what each is by its formula."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trainwright.ensemble.combine.rules import (
    RULES,
    NormalMixture,
    PlainMean,
    WeightedMean,
    combine,
    make_rule,
)
from trainwright.errors import EnsembleError
from trainwright.testing.combination import CombinationConformance


class TestWeighted(CombinationConformance):
    def make_rule(self):
        return WeightedMean()


class TestMean(CombinationConformance):
    def make_rule(self):
        return PlainMean()


class TestMixture(CombinationConformance):
    def make_rule(self):
        return NormalMixture()


def test_every_rule_is_tested():
    kits = [kind for kind in CombinationConformance.__subclasses__() if kind.__module__ == __name__]
    assert {kit().make_rule().name for kit in kits} == set(RULES) - {
        "stacking",
        "linear",
    }  # which have tests of their own


@st.composite
def members(draw, most=5):
    """Probabilities of a few members with many ties, and weights."""
    count, rows, classes = draw(st.integers(1, most)), draw(st.integers(1, 4)), draw(st.integers(2, 4))
    numbers = st.lists(st.integers(0, 3), min_size=classes, max_size=classes).filter(any)
    values = np.array(draw(st.lists(numbers, min_size=count * rows, max_size=count * rows)), dtype=float)
    weights = draw(st.lists(st.integers(1, 4), min_size=count, max_size=count))
    return (values / values.sum(axis=1, keepdims=True)).reshape(count, rows, classes), [w / 10 for w in weights]


class TestFormulas:
    @settings(max_examples=60)
    @given(members())
    def test_means(self, given_):
        values, weights = given_
        np.testing.assert_allclose(
            combine(WeightedMean(), values, weights), np.average(values, axis=0, weights=weights)
        )
        np.testing.assert_allclose(combine(PlainMean(), values, weights), values.mean(axis=0))

    def test_mixture_against_draws(self):
        """PlainMean and variance are those of a million draws from the mixture."""
        draws = np.random.default_rng(0)
        means, deviations, weights = np.array([-1.0, 0.5, 2.0]), np.array([0.3, 1.0, 0.1]), [0.2, 0.5, 0.3]
        pairs = np.stack([means, deviations**2], axis=-1)[:, None, None, :]
        found = combine(NormalMixture(), pairs, weights)[0, 0]
        who = draws.choice(3, 10**6, p=weights)
        sample = means[who] + deviations[who] * draws.normal(size=10**6)
        assert found[0] == pytest.approx(sample.mean(), abs=5e-3)
        assert found[1] == pytest.approx(sample.var(), rel=5e-3)

    def test_mixture_far_from_zero(self):
        """Means of 1e9 that differ by 1e-3: the naive formula has lost every digit."""
        pairs = np.array([[[[1e9, 1e-6]]], [[[1e9 + 1e-3, 1e-6]]]])
        apart = (pairs[1, 0, 0, 0] - pairs[0, 0, 0, 0]) / 2  # as float64 can hold it
        assert combine(NormalMixture(), pairs, [1, 1])[0, 0, 1] == pytest.approx(1e-6 + apart**2, rel=1e-9)


class TestRefusals:
    def test_name_and_kind(self):
        with pytest.raises(EnsembleError, match=r"got 'stackin'; allowed: .*did you mean 'stacking'"):
            make_rule("stackin", "classes")
        with pytest.raises(EnsembleError, match="got 'stacking' for predictions that are values; allowed: weighted"):
            make_rule("stacking", "values")
        with pytest.raises(EnsembleError, match="got 'weighted' for predictions that are moments; allowed: mixture"):
            make_rule(WeightedMean(), "moments")
        with pytest.raises(EnsembleError, match="'mean': got setting 'power'; allowed: none"):
            make_rule({"name": "mean", "power": [1]}, "classes")
