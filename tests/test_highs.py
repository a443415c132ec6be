"""What integer programmes print, and what they do not."""

import ctypes
import sys
import threading

import numpy as np
import pytest
import scipy.optimize

from trainwright.highs import solve_integer

LINE = b"HighsMipSolverData::transformNewIntegerFeasibleSolution tmpSolver.run();\n"


@pytest.mark.parametrize("threads", [1, 2])
def test_what_highs_prints_is_held_back_and_nothing_else(capfd, monkeypatch, threads):
    """The line that HiGHS prints from C is gone; what else was written meanwhile comes, from C and from Python.

    Beside other threads nothing is held back.
    """

    def printing(*arguments, **settings):
        ctypes.CDLL(None).printf(LINE + b"from C\n")
        sys.stdout.write("from Python\n")
        return original(*arguments, **settings)

    original = scipy.optimize.milp
    monkeypatch.setattr(scipy.optimize, "milp", printing)
    monkeypatch.setattr(threading, "active_count", lambda: threads)
    solved = solve_integer(
        np.array([-1.0, -2.0]), np.array([1, 0]), (0.0, 5.0), (np.array([[1.0, 1.0]]), 0.0, 6.5), limit_seconds=5, gap=0
    )
    sys.stdout.write("after\n")
    ctypes.CDLL(None).fflush(None)
    assert solved.x == pytest.approx([1.0, 5.0])
    lines = sorted(capfd.readouterr().out.splitlines())
    assert lines == [*([LINE.decode().strip()] if threads > 1 else []), "after", "from C", "from Python"]
