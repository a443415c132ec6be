"""How this package's kernels are compiled: at first use, cached on disk, with floating point as it is written."""

from collections.abc import Callable
from typing import Any, TypeVar, cast

import numpy as np
from llvmlite import ir
from numba import njit, types
from numba.extending import intrinsic
from numpy.typing import NDArray

__all__ = ["Floats", "Ints", "Table", "compiled", "least"]

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Table = NDArray[np.float32]
_Kernel = TypeVar("_Kernel", bound=Callable[..., Any])


def compiled(kernel: _Kernel) -> _Kernel:
    """Compile at first use for the types of that use; where no folder can hold the cache, in every process anew."""
    try:
        return cast(_Kernel, njit(cache=True, error_model="numpy", nogil=True)(kernel))
    except RuntimeError:  # no folder for the cache
        return cast(_Kernel, njit(error_model="numpy", nogil=True)(kernel))


def _least(_context: Any, left: Any, right: Any) -> Any:
    """Give the code of `least`: the lesser of two float32 that are not NaN, by one instruction.

    A loop over `x[i] = min(x[i], y)` is compiled to masked stores, which AMD's processors run five times slower.
    """

    def code(_: Any, builder: Any, __: Any, values: Any) -> Any:
        kind = values[0].type
        function = builder.module.declare_intrinsic("llvm.minnum", [kind], ir.FunctionType(kind, [kind, kind]))
        return builder.call(function, values, fastmath=("nnan", "nsz"))

    return types.float32(left, right), code


least: Any = intrinsic(_least)
