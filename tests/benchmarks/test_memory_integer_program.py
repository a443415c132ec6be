"""The integer program that grows by variables and rows: HiGHS with a known solution."""

import pytest
from benchmarks.memory.integer_program import Integer


def test_an_integer_programme_that_knows_a_cost():
    """Better solutions are found, worse ones are not looked for; both tell what no solution is below."""
    programme = Integer()
    one, other = programme.variable(3.0), programme.variable(2.0, whole=False)
    programme.row([(one, 1.0), (other, 1.0), (None, 5.0)], 1.5, 1.75)
    free, better, worse = (programme.solve(10.0, gap=0.0, known=known) for known in (float("inf"), 5.0, 3.0))
    assert free.values == pytest.approx([1.0, 0.5], abs=1e-5)
    assert better.values == pytest.approx([1.0, 0.5], abs=1e-5)
    assert free.bound == pytest.approx(4.0, abs=1e-5)
    assert better.bound == pytest.approx(4.0, abs=1e-5)
    assert worse.values is None
    assert worse.bound == pytest.approx(3.0)
    assert free.finished
    assert worse.finished
