"""Calibration after averaging, and the measures of how right probabilities and intervals are."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trainwright.ensemble.combine.calibration import (
    calibrate,
    score_probabilities,
)
from trainwright.ensemble.metrics import cross_entropy, normal_crps, normal_nll
from trainwright.errors import EnsembleError


def classes(temperature, rows=3000, seed=0):
    """Return probabilities whose truth is drawn from them at another temperature, and the classes drawn."""
    draws = np.random.default_rng(seed)
    logits = 2.0 * draws.normal(size=(rows, 4))
    told, true = (np.exp(scale * logits) for scale in (1.0, 1 / temperature))
    told, true = (odds / odds.sum(axis=1, keepdims=True) for odds in (told, true))
    return told, (true.cumsum(axis=1) < draws.random((rows, 1))).sum(axis=1)


class TestTemperature:
    @settings(max_examples=20)
    @given(seed=st.integers(0, 1000), temperature=st.sampled_from([0.4, 1.0, 3.0]))
    def test_against_a_grid(self, seed, temperature):
        told, labels = classes(temperature, rows=200, seed=seed)
        found = calibrate(told, labels)
        grid = np.exp(np.linspace(math.log(0.05), math.log(20), 400))
        losses = [cross_entropy(_tempered(told, t), labels).mean() for t in grid]
        assert cross_entropy(_tempered(told, found.fitted), labels).mean() <= min(losses) + 1e-9

    def test_finds_the_true_one(self):
        told, labels = classes(2.5)
        found = calibrate(told, labels)
        assert found.fitted == pytest.approx(2.5, rel=0.1)
        assert found.applied == pytest.approx(found.fitted, rel=0.01)  # shrunk, by less the more rows there are
        before, after = score_probabilities(told, labels), score_probabilities(found.apply(told), labels)
        assert after["nll"] < before["nll"] - 0.1
        assert after["ece"] < before["ece"] / 3
        assert after["brier"] < before["brier"]
        assert after["accuracy"] == before["accuracy"]
        np.testing.assert_array_equal(found.apply(told).argmax(axis=1), told.argmax(axis=1))

    def test_kept_only_if_it_helps(self):
        """Probabilities that are right stay as they are, to the bit."""
        told, labels = classes(1.0, rows=300, seed=4)
        found = calibrate(told, labels)
        assert found.applied == 1.0
        assert found.apply(told) is told

    def test_too_few_rows(self):
        with pytest.raises(EnsembleError, match="got 1 rows; allowed: at least 2"):
            calibrate(np.array([[0.5, 0.5]]), np.array([0]))


class TestVariance:
    def test_scale(self):
        """Variances told too small by a factor of 4 come out right, and the likelihood has its maximum there."""
        draws = np.random.default_rng(0)
        targets = 2.0 * draws.normal(size=(2000, 1))
        told = np.stack([np.zeros((2000, 1)), np.ones((2000, 1))], axis=-1)
        found = calibrate(told, targets)
        assert found.fitted == pytest.approx(4.0, rel=0.1)
        best = normal_nll(found.apply(told), targets).mean()
        for factor in (0.9, 1.1):
            other = np.stack([told[..., 0], told[..., 1] * found.fitted * factor], axis=-1)
            assert normal_nll(other, targets).mean() > best


class TestMeasures:
    def test_ece_by_hand(self):
        """Each row a bin: |0.6 - 1|, |0.6 - 0| and twice |0.9 - 1|."""
        told = np.array([[0.6, 0.4], [0.4, 0.6], [0.9, 0.1], [0.9, 0.1]])
        assert score_probabilities(told, np.array([0, 0, 0, 0]))["ece"] == pytest.approx(0.3)

    def test_ece_of_right_probabilities_falls_with_rows(self):
        few, many = (score_probabilities(*classes(1.0, rows=rows))["ece"] for rows in (100, 20_000))
        assert many < 0.02 < few

    def test_crps_against_integral(self):
        """The closed form is the integral of the squared distance of the distribution functions."""
        from scipy.special import ndtr

        grid = np.linspace(-20, 20, 400_001)
        integral = ((ndtr((grid - 0.3) / 0.7) - (grid >= 1.1)) ** 2).sum() * (grid[1] - grid[0])
        assert normal_crps(np.array([[[0.3, 0.49]]]), np.array([[1.1]])) == pytest.approx(integral, abs=1e-4)


def _tempered(told, temperature):
    odds = np.maximum(told, 1e-7) ** (1 / temperature)
    return odds / odds.sum(axis=1, keepdims=True)
