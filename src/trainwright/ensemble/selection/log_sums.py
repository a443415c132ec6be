"""Sums of logarithms through products: 32 float64 terms a product, and one logarithm for 512 products.

Terms lie in [1e-7, 1e9], so a product of 32 of them stays within [1e-224, 1e288]. Of the products exponents are added
and mantissas, in [1, 2), multiplied. All roundings together are below 1e-13 relative. Without
numba each term has its own logarithm.
"""

import math

import numpy as np

from trainwright.ensemble.metrics import Array
from trainwright.kernels import HAS_NUMBA, compiled

__all__ = ["TERMS", "log_sums"]

TERMS = 32
_MANTISSAS = 512  # whose product stays below 2 ** 512
_LOG_2 = math.log(2.0)


@compiled
def log_sums(total: Array, added: Array, wanted: Array) -> Array:
    """Return sum over j of log(total[j] + added[l, j]) for each l wanted; lengths are multiples of 32. O(L N)."""
    if not HAS_NUMBA:
        plain: Array = np.log(total + added[wanted]).sum(axis=1)
        return plain
    width = len(total) // TERMS
    sums = np.empty(len(wanted))
    product = np.empty(width)
    bits = product.view(np.int64)  # of IEEE 754 doubles above 0: 11 of exponent plus 1023, 52 of mantissa
    for position in range(len(wanted)):
        row = added[wanted[position]]
        # One product of 32 terms per column: 32 multiplications instead of 32 logarithms.
        product[:] = 1.0
        for term in range(TERMS):
            start = term * width
            for column in range(width):  # contiguous, so that it becomes vector instructions
                product[column] *= total[start + column] + row[start + column]
        # Split each product into exponent and mantissa by its bits: the exponents add up exactly in integers.
        exponents = -1023 * width
        for column in range(width):
            exponents += bits[column] >> 52
        for column in range(width):
            # Set the exponent to 0, which leaves the mantissa in [1, 2) in place of the product.
            bits[column] = (bits[column] & 0xFFFFFFFFFFFFF) | 0x3FF0000000000000
        logs = exponents * _LOG_2
        # 512 mantissas multiply to less than 2 ** 512, so one logarithm serves for all of them.
        for start in range(0, width, _MANTISSAS):
            mantissas = 1.0
            for column in range(start, min(start + _MANTISSAS, width)):
                mantissas *= product[column]
            logs += np.log(mantissas)
        sums[position] = logs
    return sums
