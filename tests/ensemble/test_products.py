"""Sums of logarithms through products, beside numpy's logarithms."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from trainwright.ensemble.selection.log_sums import TERMS, log_sums


@settings(max_examples=25)
@given(
    seed=st.integers(0, 10**6),
    blocks=st.sampled_from([1, 3, 511, 512, 513, 1030]),
    low=st.sampled_from([-7.0, -1.0]),
    high=st.sampled_from([0.0, 9.0]),
)
def test_sums_of_logs(seed, blocks, low, high):
    """To 1e-12 relative over all terms that selection can meet, for any length and any subset of rows."""
    draws = np.random.default_rng(seed)
    total = 10.0 ** draws.uniform(low, high, blocks * TERMS)
    added = (10.0 ** draws.uniform(-7, 0, (5, blocks * TERMS))).astype(np.float32)
    if low == -7.0 and high == 0.0:
        total[:] = 1e-7  # the least nearly everywhere: products near the end of what a double holds
        added[1] = 0.0
    wanted = np.array([4, 1, 0])
    expected = np.log(total + added[wanted].astype(np.float64))
    found = log_sums(total, added, wanted)
    np.testing.assert_allclose(found, expected.sum(axis=1), rtol=0, atol=1e-12 * np.abs(expected).sum())


def test_greatest_terms():
    total = np.full(TERMS * 2, 1e9)
    np.testing.assert_allclose(
        log_sums(total, np.zeros((1, TERMS * 2), dtype=np.float32), np.array([0])), TERMS * 2 * np.log(1e9), rtol=1e-14
    )
