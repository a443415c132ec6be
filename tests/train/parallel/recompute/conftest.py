"""A clock that does not depend on the machine: plans that are compared byte by byte must not change with its load."""

from itertools import cycle

import pytest

from trainwright.train.parallel.recompute.sample_step import Stopwatch


@pytest.fixture(scope="module")
def steady_clock():
    """Every measurement reads one of a few times, in turn."""
    milliseconds = cycle((3.0, 1.0, 4.0, 1.5, 9.0, 2.6, 5.3))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Stopwatch, "read", lambda _: next(milliseconds) / 1000)
        yield
