"""The largest throughput of an ensemble whose instances share their devices' time, by linear programming.

Unit u gets the share x[u, d] of device d's time and r[u, d] rows a second of it: maximise t with
t <= sum_d r[u, d] x[u, d] for every unit, sum_u x[u, d] <= capacity[d], x >= 0. A dense simplex method on the tableau
without slack columns (Chvatal, Linear Programming, 1983, chapters 2 and 3), largest coefficient first and Bland's rule
once it stalls; compiled by numba.
"""

import numpy as np

from trainwright.ensemble.metrics import Array
from trainwright.kernels import compiled

__all__ = ["balance"]

_TINY = 1e-11


@compiled
def balance(rates: Array, capacity: Array) -> Array:
    """Return t [K] for rates [K, D, U] (0: no instance) and capacity [K, D] of each device; 0 if a unit has no rate."""
    count, devices, units = rates.shape
    found = np.zeros(count)
    for k in range(count):
        # Rates are scaled to at most 1, so that one tolerance fits all problems.
        scale = rates[k].max()
        alone = False
        for u in range(units):
            alone |= rates[k, :, u].max() <= 0.0
        if scale <= 0.0 or alone:
            continue
        # Only entries with an instance get a column.
        entries = 0
        for d in range(devices):
            for u in range(units):
                entries += rates[k, d, u] > 0.0
        # Rows: units, devices, then the objective. Columns: t, the entries, then the right-hand side.
        rows, columns = units + devices, entries + 1
        # The tableau of the slack basis: each row is a constraint, the last one the objective to maximise.
        table = np.zeros((rows + 1, columns + 1))
        # What stands in a column, then in a row.
        names = np.empty(rows + columns, dtype=np.int64)
        for place in range(rows + columns):
            names[place] = place
        table[:units, 0] = 1.0
        table[rows, 0] = 1.0
        # Each entry works for its unit's row and takes time of its device's row.
        column = 1
        for d in range(devices):
            table[units + d, columns] = capacity[k, d]
            for u in range(units):
                if rates[k, d, u] > 0.0:
                    table[u, column] = -rates[k, d, u] / scale
                    table[units + d, column] = 1.0
                    column += 1
        stalled = 0
        while True:
            # The entering column has the largest gain; once steps stall, Bland's rule prevents cycles.
            entering = -1
            best = _TINY
            for j in range(columns):
                gain = table[rows, j]
                if gain <= _TINY:
                    continue
                if stalled > rows:
                    if entering < 0 or names[j] < names[entering]:
                        entering = j
                elif gain > best:
                    best, entering = gain, j
            if entering < 0:
                break
            # The leaving row bounds the step first; ties go to the smallest name, again for Bland's rule.
            leaving = -1
            least = np.inf
            for i in range(rows):
                slope = table[i, entering]
                if slope <= _TINY:
                    continue
                ratio = table[i, columns] / slope
                if (
                    leaving < 0
                    or ratio < least - _TINY
                    or (ratio <= least + _TINY and names[columns + i] < names[columns + leaving])
                ):
                    least, leaving = min(least, ratio), i
            if leaving < 0:
                # Cannot be: every share is bounded.
                break
            stalled = stalled + 1 if least <= _TINY else 0
            # Exchange the two: divide the leaving row, and eliminate the entering column elsewhere.
            pivot = table[leaving, entering]
            for j in range(columns + 1):
                if j != entering:
                    table[leaving, j] /= pivot
            for i in range(rows + 1):
                if i == leaving:
                    continue
                factor = table[i, entering]
                if factor != 0.0:
                    for j in range(columns + 1):
                        if j != entering:
                            table[i, j] -= factor * table[leaving, j]
                    table[i, entering] = -factor / pivot
            table[leaving, entering] = 1.0 / pivot
            names[entering], names[columns + leaving] = names[columns + leaving], names[entering]
        found[k] = -table[rows, columns] * scale
    return found
