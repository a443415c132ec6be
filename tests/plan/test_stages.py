"""Cutting a chain into stages."""

from itertools import combinations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from trainwright.plan.stages import cuts


@given(st.lists(st.integers(0, 9), min_size=1, max_size=8), st.integers(1, 8))
def test_the_slowest_stage_is_the_least_possible(seconds, most):
    """For every number of parts, no way to cut has a smaller largest sum."""
    most = min(most, len(seconds))
    for parts, ends in enumerate(cuts(np.array(seconds, dtype=float), most), start=1):
        assert len(ends) == parts
        assert ends[-1] == len(seconds)
        starts = [0, *ends[:-1]]
        assert all(start < end for start, end in zip(starts, ends, strict=True))
        largest = max(sum(seconds[start:end]) for start, end in zip(starts, ends, strict=True))
        best = min(
            max(sum(seconds[start:end]) for start, end in zip((0, *inner), (*inner, len(seconds)), strict=True))
            for inner in combinations(range(1, len(seconds)), parts - 1)
        )
        assert largest == best
