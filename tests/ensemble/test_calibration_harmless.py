"""Calibration that does not harm: where there is nothing to correct it does nothing; where there is, it helps."""

import numpy as np
import pytest

from trainwright.ensemble import Ensemble, leave
from trainwright.ensemble.combine.calibration import calibrate
from trainwright.ensemble.metrics import cross_entropy

FRESH = 4000


def drawn(draws, rows, classes, temperature):
    """Return probabilities, and classes drawn from them at a temperature."""
    told = draws.dirichlet(np.ones(classes), rows)
    true = told ** (1.0 / temperature)
    true /= true.sum(axis=1, keepdims=True)
    return told, (true.cumsum(axis=1) < draws.random((rows, 1))).sum(axis=1).clip(0, classes - 1)


def gain(seed, rows, classes, temperature):
    """Return what calibration on some rows gains on fresh ones; None if it does nothing."""
    draws = np.random.default_rng(seed)
    found = calibrate(*drawn(draws, rows, classes, temperature))
    if found.applied == 1.0:
        return None
    told, labels = drawn(draws, FRESH, classes, temperature)
    return float((cross_entropy(told, labels) - cross_entropy(found.apply(told), labels)).mean())


@pytest.mark.parametrize("classes", [2, 3, 10])
def test_perfect_probabilities_stay(classes):
    """Of 150 draws of 150 rows it touches one at most; plain fitting to the rows acts, and harms, in some of ten."""
    acted = [found for seed in range(150) if (found := gain(seed, 150, classes, 1.0)) is not None]
    assert len(acted) <= 1


@pytest.mark.parametrize("temperature", [0.5, 2.5])
def test_wrong_probabilities_are_mended(temperature):
    found = [gain(seed, 600, 3, temperature) for seed in range(20)]
    assert all(one is not None and one > 0.02 for one in found)


def test_perfect_variances_stay():
    acted = 0
    for seed in range(150):
        draws = np.random.default_rng(seed)
        told = np.stack([np.zeros((150, 1)), np.exp(draws.normal(size=(150, 1)))], axis=-1)
        acted += calibrate(told, np.sqrt(told[..., 1]) * draws.normal(size=(150, 1))).applied != 1.0
    assert acted <= 1


def test_what_it_scores_is_what_it_predicts(study):
    """After `calibrated`, `predictions`, `score` and `report` are all of the calibrated probabilities."""
    draws = np.random.default_rng(0)
    parts = {"selection": 300, "calibration": 600, "test": 500}
    data = {name: drawn(draws, rows, 2, 3.0) for name, rows in parts.items()}
    for number in range(2):
        leave(
            study.trial(number),
            predictions={name: one[0] for name, one in data.items()},
            targets={name: one[1] for name, one in data.items()},
        )
    plain = Ensemble(members=study.library().members, weights=(0.5, 0.5))
    found = plain.calibrated()
    assert found.calibration.applied > 1.5
    told, labels = data["test"]
    expected = found.calibration.apply(told)
    np.testing.assert_allclose(found.predictions(), expected, atol=2e-3)
    np.testing.assert_allclose(plain.predictions(), told, atol=2e-3)
    for metric in ("cross_entropy", "accuracy", "squared_error"):
        by_hand = {
            "cross_entropy": cross_entropy(expected, labels).mean(),
            "accuracy": (expected.argmax(axis=1) == labels).mean(),
            "squared_error": ((expected - np.eye(2)[labels]) ** 2).sum(axis=1).mean(),
        }[metric]
        assert found.score("test", metric) == pytest.approx(by_hand, abs=2e-3)
    assert found.score("test", "cross_entropy") < plain.score("test", "cross_entropy") - 0.02
    report = found.report()
    assert (
        report.losses["test"]
        == pytest.approx(report.after["nll"])
        == pytest.approx(found.score("test", "cross_entropy"))
    )
    assert report.before["nll"] == pytest.approx(plain.score("test", "cross_entropy"), abs=2e-3)
    assert found.calibrated().calibration == found.calibration  # fitted to the plain mean, however often it is asked
