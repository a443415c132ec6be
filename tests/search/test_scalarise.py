"""Scalarisations by hand values and by what defines them, penalties, and weights."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainwright.search.bayes.scalarisation import SCALARISATIONS, penalised, simplex

Y = np.array([[0.2, 1.0], [0.6, 0.0], [0.1, -0.5]])  # [objectives, rows]
W = np.array([0.5, 0.25, 0.25])


def test_values_by_hand():
    expected = {
        "linear": [0.5 * 0.2 + 0.25 * 0.6 + 0.25 * 0.1, 0.5 - 0.125],
        "chebyshev": [0.15, 0.5],
        "augmented": [0.15 + 0.001 * (0.1 + 0.15 + 0.025), 0.5 + 0.001 * 0.625],
    }
    for name, values in expected.items():
        assert SCALARISATIONS[name](Y, W) == pytest.approx(values)


@given(st.lists(st.floats(-1, 1), min_size=3, max_size=3), st.lists(st.floats(0.01, 1), min_size=3, max_size=3))
def test_pbi_and_its_relative_by_their_definitions(y, w):
    """PBI is p |w| + 5 |y - p w|, p = w.y / w.w; the other y' U diag(1, 10, 10) U' y, U's first column along w."""
    y, w = np.array(y), np.array(w)
    p = w @ y / (w @ w)
    pbi = p * np.linalg.norm(w) + 5 * np.linalg.norm(y - p * w)
    assert SCALARISATIONS["pbi"](y[:, None], w)[0] == pytest.approx(pbi, abs=1e-6)
    U = np.linalg.qr(np.column_stack([w, np.eye(3)[:, :2] + 0.01]))[0]
    quadratic = y @ U @ np.diag([1.0, 10.0, 10.0]) @ U.T @ y
    assert SCALARISATIONS["quadratic"](y[:, None], w)[0] == pytest.approx(quadratic, abs=1e-9)


@pytest.mark.parametrize("name", SCALARISATIONS)
def test_many_weights_at_once_are_one_by_one(name):
    many = np.random.default_rng(0).dirichlet(np.ones(3), 7)
    together = SCALARISATIONS[name](Y, many)
    assert together.shape == (7, 2)
    assert together == pytest.approx(np.array([SCALARISATIONS[name](Y, w) for w in many]))


def test_every_objective_pays_twice_for_what_is_beyond_a_bound():
    targets = np.array([[0.2, 0.9], [0.5, 0.5], [0.3, 0.8]])  # two objectives, one constraint
    found = penalised(targets, 2, np.array([np.inf, np.inf, 0.5]))
    assert found == pytest.approx(np.array([[0.2, 0.9 + 0.6], [0.5, 0.5 + 0.6]]))
    both = penalised(targets, 2, np.array([0.4, np.inf, 0.5]))
    assert both == pytest.approx(np.array([[0.2, 0.9 + 1.6], [0.5, 0.5 + 1.6]]))


def test_weights_are_uniform_on_the_simplex():
    """Mean 1 / m, and each weight's law 1 - (1 - x)^(m - 1)."""
    generator = np.random.default_rng(0)
    drawn = np.array([simplex(generator, 4) for _ in range(4000)])
    assert drawn.sum(axis=1) == pytest.approx(1.0)
    assert drawn.mean(axis=0) == pytest.approx(0.25, abs=0.01)
    for x in (0.1, 0.3, 0.6):
        assert np.mean(drawn[:, 0] <= x) == pytest.approx(1 - (1 - x) ** 3, abs=0.025)
