"""Least squares on relative error against exact data, a fine grid, and times that are none."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trainwright.cluster.calibration.fit_cluster import fit_least_relative
from trainwright.cluster.calibration.timing import mean_of_middle, median_time, spread_of_middle
from trainwright.errors import InputError

SIZES = [256 * 4**k for k in range(10)]


@settings(max_examples=50)
@given(alpha=st.floats(1e-7, 1e-2), beta=st.floats(1e-12, 1e-7))
def test_exact_times_give_their_coefficients(alpha, beta):
    """Over nine orders of magnitude in size, since relative errors weigh small messages as much as large ones."""
    fit = fit_least_relative([[1.0, size] for size in SIZES], [alpha + beta * size for size in SIZES])
    assert fit.values == pytest.approx((alpha, beta), rel=1e-6)
    assert fit.error < 1e-9


@settings(max_examples=50)
@given(st.lists(st.tuples(st.floats(0.1, 10), st.floats(0.1, 10), st.floats(0.1, 10)), min_size=2, max_size=5))
def test_no_grid_point_is_better(rows):
    """On data that no coefficients explain, among all non-negative ones of a grid."""
    columns, seconds = np.array([row[:2] for row in rows]), np.array([row[2] for row in rows])
    fit = fit_least_relative(columns, seconds)
    assert min(fit.values) >= 0

    grid = np.stack(np.meshgrid(*[np.linspace(0, 20, 81)] * 2)).reshape(2, -1)
    losses = np.sum(((columns @ grid - seconds[:, None]) / seconds[:, None]) ** 2, axis=0)
    assert fit.error**2 * len(rows) <= losses.min() + 1e-9
    left = (columns @ fit.values - seconds) / seconds
    assert fit.error == pytest.approx(np.sqrt(np.mean(left**2)), abs=1e-9)


def test_negative_coefficients_are_none():
    """Times that fall with size get no negative bandwidth."""
    assert fit_least_relative([[1, 1], [1, 2], [1, 3]], [3.0, 2.0, 1.0]).values[1] == 0.0


@pytest.mark.parametrize("wrong", [0.0, -1e-6, math.nan, math.inf])
def test_times_that_are_none_are_refused(wrong):
    """A clock that stood still or was set back."""
    with pytest.raises(InputError, match=r"measured times: got .*; allowed: seconds > 0; .* measure again"):
        fit_least_relative([[1.0], [1.0]], [1.0, wrong])
    for of_repeats in (median_time, mean_of_middle):
        with pytest.raises(InputError, match="measured times"):
            of_repeats([1.0, wrong])
        with pytest.raises(InputError, match="got none"):
            of_repeats([])


def test_the_median_of_repeats():
    assert (median_time([3.0, 1.5, 2.0]), median_time([1.0, 2.0])) == (2.0, 1.5)


def test_the_middle_half_of_repeats():
    """Its mean, and a deviation that is the whole's of normal ones; the quarters at the ends do not count."""
    assert mean_of_middle([9.0, 1.0, 2.0, 4.0]) == 3.0
    assert mean_of_middle([900.0, 0.001, 2.0, 4.0]) == 3.0
    assert (mean_of_middle([5.0]), mean_of_middle([1.0, 2.0, 6.0])) == (5.0, 3.0)
    normal = np.random.default_rng(0).normal(7.0, 0.5, 10_000)
    assert spread_of_middle(normal) == pytest.approx(0.5, rel=0.03)
    assert spread_of_middle([*normal, *[1e9] * 1000]) == pytest.approx(0.5, rel=0.2)
    assert spread_of_middle([3.0]) == 0.0
