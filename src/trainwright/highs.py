"""Integer programmes by HiGHS, as scipy has it, without the line that it prints now and then whatever it is asked."""

import ctypes
import os
import sys
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__ = ["solve_integer"]

_LINE = b"HighsMipSolverData::transformNewIntegerFeasibleSolution tmpSolver.run();\n"


def solve_integer(
    cost: NDArray[np.float64],
    whole: NDArray[np.int64],
    bounds: tuple[Any, Any],
    rows: tuple[Any, Any, Any],
    *,
    limit_seconds: float,
    gap: float,
) -> Any:
    """Return scipy's result of least `cost` [columns] over x within `bounds` (least, most), some of them `whole`.

    `rows` are a sparse matrix and what its product with x is at least and at most. Ends after `limit_seconds` of the
    clock, or when the bound is within the share `gap` of the best.
    """
    from scipy.optimize import Bounds, LinearConstraint, milp

    options = {"time_limit": limit_seconds, "mip_rel_gap": gap}
    with _without_line():
        return milp(
            cost, integrality=whole, bounds=Bounds(*bounds), constraints=LinearConstraint(*rows), options=options
        )


@contextmanager
def _without_line() -> Iterator[None]:
    """Hold back what the process writes to standard output, and let it out afterwards, without HiGHS's line.

    It is C's `printf`, which no setting of HiGHS and nothing that Python has redirected reaches. Where other threads
    run, the line stays: they may write, or start processes that would keep the redirected output.
    """
    if threading.active_count() > 1:
        yield
        return
    library = ctypes.CDLL(None)
    with tempfile.TemporaryFile() as held:
        _flush(library)
        try:
            output = os.dup(1)
        except OSError:  # a process without standard output
            yield
            return
        try:
            os.dup2(held.fileno(), 1)
            yield
        finally:
            # C keeps a buffer of its own: what is in it belongs to the held output.
            _flush(library)
            os.dup2(output, 1)
            os.close(output)
            held.seek(0)
            rest = held.read().replace(_LINE, b"")
            while rest:
                rest = rest[os.write(1, rest) :]


def _flush(library: ctypes.CDLL) -> None:
    if sys.stdout is not None:
        sys.stdout.flush()
    library.fflush(None)
