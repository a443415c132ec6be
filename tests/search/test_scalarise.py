"""Penalties for broken bounds, and weights of objectives."""

import numpy as np
import pytest

from trainwright.search.bayes.loop import add_penalties, draw_weights


def test_every_objective_pays_twice_for_what_is_beyond_a_bound():
    targets = np.array([[0.2, 0.9], [0.5, 0.5], [0.3, 0.8]])  # two objectives, one constraint
    found = add_penalties(targets, 2, np.array([np.inf, np.inf, 0.5]))
    assert found == pytest.approx(np.array([[0.2, 0.9 + 0.6], [0.5, 0.5 + 0.6]]))
    both = add_penalties(targets, 2, np.array([0.4, np.inf, 0.5]))
    assert both == pytest.approx(np.array([[0.2, 0.9 + 1.6], [0.5, 0.5 + 1.6]]))


def test_weights_are_uniform_on_the_simplex():
    """Mean 1 / m, and each weight's law 1 - (1 - x)^(m - 1)."""
    generator = np.random.default_rng(0)
    drawn = np.array([draw_weights(generator, 4) for _ in range(4000)])
    assert drawn.sum(axis=1) == pytest.approx(1.0)
    assert drawn.mean(axis=0) == pytest.approx(0.25, abs=0.01)
    for x in (0.1, 0.3, 0.6):
        assert np.mean(drawn[:, 0] <= x) == pytest.approx(1 - (1 - x) ** 3, abs=0.025)
