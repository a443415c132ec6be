"""Sums of logarithms through products: 32 float64 terms are multiplied for each logarithm taken (compiled by numba).

Terms lie in [1e-7, 1e9], so a product of 32 of them stays within [1e-224, 1e288]; its 32 roundings are 4e-15 relative.
"""

import numba
import numpy as np

from trainwright.ensemble.metrics import Array

__all__ = ["TERMS", "log_sums"]

TERMS = 32


@numba.njit(cache=True, nogil=True)  # type: ignore[untyped-decorator, unused-ignore] # numba ships no types
def log_sums(total: Array, added: Array, wanted: Array) -> Array:
    """Return sum over j of log(total[j] + added[l, j]) for each l wanted; lengths are multiples of 32. O(L N)."""
    width = len(total) // TERMS
    sums = np.empty(len(wanted))
    product = np.empty(width)
    for position in range(len(wanted)):
        row = added[wanted[position]]
        product[:] = 1.0
        for term in range(TERMS):
            start = term * width
            for column in range(width):  # contiguous, so that it becomes vector instructions
                product[column] *= total[start + column] + row[start + column]
        logs = 0.0
        for column in range(width):
            logs += np.log(product[column])
        sums[position] = logs
    return sums
