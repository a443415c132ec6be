"""The arithmetic of the search benchmark against values worked out by hand."""

import numpy as np
import pytest
from benchmarks.search.measures import average_ranks, bootstrap, incumbents


def test_incumbent_is_the_best_so_far_and_the_first_of_equals_stays():
    assert incumbents(np.array([3.0, 5.0, 2.0, 2.0, 1.0])).tolist() == [0, 0, 2, 2, 4]


def test_equal_regrets_share_their_ranks():
    ranks = average_ranks([np.array([0.1, 0.0]), np.array([0.2, 0.0]), np.array([0.1, 0.5])])
    # first cell: 1.5, 3, 1.5; second cell: 1.5, 1.5, 3
    assert ranks.tolist() == [1.5, 2.25, 2.25]


def test_bootstrap_weighs_tables_equally_whatever_their_seeds():
    mean, low, high = bootstrap({"a": np.full(4, 1.0), "b": np.full(2, 3.0)})
    assert (mean, low, high) == (2.0, 2.0, 2.0)


def test_bootstrap_interval_of_two_seeds():
    """Means of two draws from {0, 1} are 0, 1/2, 1 with 1/4, 1/2, 1/4: the interval is the whole range."""
    assert bootstrap({"a": np.array([0.0, 1.0])}) == (0.5, 0.0, 1.0)


def test_bootstrap_agrees_with_the_normal_interval_for_many_seeds():
    values = np.random.default_rng(1).normal(size=400)
    mean, low, high = bootstrap({"a": values})
    half = 1.96 * values.std() / 20
    assert mean == pytest.approx(values.mean())
    assert (low, high) == (pytest.approx(mean - half, abs=0.01), pytest.approx(mean + half, abs=0.01))
