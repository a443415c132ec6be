"""The keyed permutation: a bijection for every size, found place by place, and without visible pattern."""

import itertools
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainwright.train.sampling import Permutation


def test_a_bijection_for_sizes_up_to_4096():
    for size in (*range(1, 520), *range(521, 4097, 97), 4095, 4096):
        found = Permutation(size, 7, size)(np.arange(size))
        assert (np.bincount(found, minlength=size) == 1).all(), size


@given(size=st.integers(1, 10**15), seed=st.integers(0, 2**63 - 1), data=st.data())
def test_place_by_place_is_as_all_at_once(size, seed, data):
    """A value depends on its own place alone, and stays within the size, however large that is."""
    places = data.draw(st.lists(st.integers(0, size - 1), min_size=1, max_size=20, unique=True))
    permutation = Permutation(size, seed, 3)
    values = permutation(places)
    assert len(set(values.tolist())) == len(places)
    assert values.min() >= 0
    assert values.max() < size
    assert values.tolist() == [int(permutation(place)) for place in places]


def test_equal_keys_equal_orders():
    places = np.arange(100)
    first = Permutation(100, 5, 1)(places)
    assert (Permutation(100, 5, 1)(places) == first).all()
    for other in (Permutation(100, 6, 1), Permutation(100, 5, 2), Permutation(100, 5, 1, "other")):
        assert (other(places) != first).any()


def test_an_order_is_the_same_for_ever():
    """A change here would change the order of every run that goes on from a checkpoint of an older version."""
    assert Permutation(10, 0, 1)(range(10)).tolist() == [3, 4, 1, 0, 9, 7, 2, 8, 6, 5]


@pytest.mark.parametrize("size", [2, 3, 4])
def test_all_orders_of_few_are_drawn_alike(size):
    """Chi squared over all permutations of a small size stays below five standard deviations of its mean."""
    draws = 40 * math.factorial(size)
    counts = dict.fromkeys(itertools.permutations(range(size)), 0)
    for number in range(draws):
        counts[tuple(Permutation(size, 0, number)(range(size)).tolist())] += 1
    freedom = len(counts) - 1
    assert sum((count - 40) ** 2 / 40 for count in counts.values()) < freedom + 5 * math.sqrt(2 * freedom)


def test_neighbours_are_strangers():
    """Over a large size, the step from one place to the next is spread evenly, and no trend is left."""
    size = 50_000
    values = Permutation(size, 1, 3)(np.arange(size))
    steps = np.histogram(np.diff(values) % size, 100)[0]
    assert ((steps - steps.mean()) ** 2 / steps.mean()).sum() < 99 + 5 * math.sqrt(2 * 99)
    assert abs(np.corrcoef(np.arange(size), values)[0, 1]) < 5 / math.sqrt(size)
    assert abs(np.corrcoef(values[:-1], values[1:])[0, 1]) < 5 / math.sqrt(size)
