"""The lesser of two floats by one instruction, for kernels."""

from typing import Any

from llvmlite import ir
from numba import types
from numba.extending import intrinsic

__all__ = ["least"]


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
