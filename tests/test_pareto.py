"""Fronts, ranks and hypervolume against their definitions, on small cases and in any order."""

from itertools import combinations, pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainwright.pareto import hypervolume, non_dominated, ranks, reference_of


@st.composite
def losses(draw, most=12):
    """Rows of few different values, so that equal ones and ties are common."""
    objectives = draw(st.integers(1, 4))
    rows = draw(st.lists(st.tuples(*[st.integers(0, 4)] * objectives), min_size=1, max_size=most))
    return np.array(rows, dtype=np.float64)


def dominates(one, other):
    return bool(np.all(one <= other) and np.any(one < other))


def union_of_boxes(rows, reference):
    """Inclusion and exclusion over all subsets of the boxes between rows and reference."""
    total = 0.0
    for count in range(1, len(rows) + 1):
        for chosen in combinations(rows, count):
            total -= (-1) ** count * np.prod(np.maximum(0.0, reference - np.max(chosen, axis=0)))
    return total


@given(losses())
def test_the_front_by_its_definition(rows):
    expected = [not any(dominates(other, row) for other in rows) for row in rows]
    assert non_dominated(rows).tolist() == expected


def test_infinite_losses_have_ranks():
    """A loss that is not finite is the worst there is, alone or among others."""
    worst = np.inf
    assert ranks(np.array([[1.0, worst], [worst, worst], [1.0, worst], [2.0, 3.0]])).tolist() == [0, 1, 0, 0]
    assert ranks(np.array([[worst, worst]])).tolist() == [0]


def test_no_rows_have_no_front():
    assert non_dominated(np.empty((0, 2))).shape == (0,)
    assert hypervolume(np.empty((0, 3)), np.ones(3)) == 0.0


@given(losses())
def test_a_rank_is_one_more_than_that_of_the_worst_dominator(rows):
    found = ranks(rows)
    for row, rank in zip(rows, found, strict=True):
        above = [r for other, r in zip(rows, found, strict=True) if dominates(other, row)]
        assert rank == (max(above) + 1 if above else 0)


@given(losses(most=8), st.randoms())
def test_hypervolume_is_the_union_of_boxes_in_any_order(rows, random):
    """Inclusion-exclusion at up to 8 points; to the last bit the same however the rows are ordered."""
    reference = np.full(rows.shape[1], 3.5)
    volume = hypervolume(rows, reference)
    assert volume == pytest.approx(union_of_boxes(rows, reference), abs=1e-9)
    shuffled = rows.tolist()
    random.shuffle(shuffled)
    assert hypervolume(np.array(shuffled), reference) == volume


@given(losses())
def test_hypervolume_never_falls_as_rows_are_added(rows):
    reference = reference_of(rows)
    volumes = [hypervolume(rows[:count], reference) for count in range(len(rows) + 1)]
    assert all(after >= before - 1e-12 for before, after in pairwise(volumes))
    assert volumes[1] > 0.0  # every row is better than the reference


def test_hypervolume_of_a_sphere():
    """Points of the unit sphere fill its octant as they grow dense: 1 - pi / 6 seen from (1, 1, 1)."""
    angles = (np.arange(20) + 0.5) / 20 * np.pi / 2
    theta, phi = (grid.ravel() for grid in np.meshgrid(angles, angles))
    sphere = np.column_stack([np.sin(theta) * np.cos(phi), np.sin(theta) * np.sin(phi), np.cos(theta)])
    assert hypervolume(1.0 - sphere, np.ones(3)) == pytest.approx(np.pi / 6, abs=0.06)


def test_a_reference_lies_a_tenth_of_the_range_beyond_the_worst():
    found = reference_of(np.array([[0.0, 5.0, -3.0], [10.0, 5.0, -3.0]]))
    assert found == pytest.approx([11.0, 5.5, -2.7])
