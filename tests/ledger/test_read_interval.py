"""How often workers read: what all of a host together spend, whatever their number."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainwright.ledger.reader import first_pause, pause_after


@given(st.floats(1e-6, 1e3), st.integers(1, 2000), st.integers(1, 128))
def test_the_workers_of_a_host_read_for_a_small_part_of_its_processors(took, workers, cores):
    share = took / (took + pause_after(took, workers, cores))
    seldom = 30.0 * max(1.0, workers / (2 * cores))
    assert share <= 0.0201 or pause_after(took, workers, cores) == pytest.approx(seldom)
    if took < 0.5:
        assert workers * share / cores <= 1 / 24


@given(st.floats(0.0, 1.0, exclude_max=True), st.integers(1, 2000), st.integers(1, 128))
def test_those_that_begin_together_read_one_after_the_other(draw, workers, cores):
    assert first_pause(0.0, workers, cores) == 0.0
    assert first_pause(draw, workers, cores) <= pause_after(1e-4 * workers, workers, cores)
