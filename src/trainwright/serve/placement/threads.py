"""Thread counts of worker processes, and an environment in which their threads wait without spinning.

Threads that spin while they wait take the cores from threads with work: two processes of spinning threads on one group
of cores do a hundredth of the work of one. So workers wait passively, unless the environment says otherwise.
"""

import os

__all__ = ["asked_threads", "environment"]

_NUMBERS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "NUMBA_NUM_THREADS")
_PASSIVE = {"OMP_WAIT_POLICY": "PASSIVE", "GOMP_SPINCOUNT": "0", "KMP_BLOCKTIME": "0"}


def asked_threads() -> int | None:
    """Return the threads of one process that OMP_NUM_THREADS allows; None if it says nothing."""
    # A list is by depth of nesting.
    first = os.environ.get("OMP_NUM_THREADS", "").partition(",")[0].strip()
    return int(first) if first.isdigit() and int(first) else None


def environment(threads: int) -> dict[str, str]:
    """Return the environment of a process that computes with so many threads; to be set before it loads torch."""
    return {**_PASSIVE, **os.environ, **dict.fromkeys(_NUMBERS, str(threads))}
