"""Compiles kernels by numba at first use, cached on disk, without options that make results depend on the machine.

Compiled code is cached beside its source, or, where that folder is read-only, in numba's user-wide cache folder;
NUMBA_CACHE_DIR overrides both, and where none can be written to every process compiles anew. numba looks at the date
of a kernel's own file only, so kernels that call each other stay in one file, but for the search of plans with copies,
which times them by `plan/memory/simulation_kernel`: after a change of that, remove what is cached beside it (an
installation writes all files anew).

numba is an extra (`fast`): without it the same functions run as Python, to the same results, only more slowly.
"""

from collections.abc import Callable
from importlib.util import find_spec
from typing import Any, TypeVar, cast

import numpy as np
from numpy.typing import NDArray

__all__ = ["HAS_NUMBA", "Bits", "Flags", "Floats", "Ints", "Singles", "compiled"]

Floats = NDArray[np.float64]
Singles = NDArray[np.float32]
Ints = NDArray[np.int64] | NDArray[np.int32]
Bits = NDArray[np.uint64]
Flags = NDArray[np.bool_]
HAS_NUMBA = find_spec("numba") is not None
_Kernel = TypeVar("_Kernel", bound=Callable[..., Any])


def compiled(kernel: _Kernel) -> _Kernel:
    """Compile at first use for the types of that use (fastmath off); the annotations are for readers.

    Without numba the kernel is left as it is, and computes in silence as compiled code does: 1 / 0 is infinite, and
    integers of 64 bits wrap around.
    """
    if not HAS_NUMBA:
        return np.errstate(all="ignore")(kernel)
    from numba import njit

    try:
        return cast(_Kernel, njit(cache=True, error_model="numpy", nogil=True)(kernel))
    except RuntimeError:  # no folder for the cache
        return cast(_Kernel, njit(error_model="numpy", nogil=True)(kernel))
