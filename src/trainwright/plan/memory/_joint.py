"""Kernel of the priced joint programme, its table; see `joint` for the problem and `_placed` for the plan it means.

Row (x, t) holds D(s, t, x, m), m last, for a kind x of stage s - 1: `first_kind[s]` is its bare output,
`first_kind[s] + 1 + o` what its option o saves. Stages are counted from 0.
"""

import numpy as np

from trainwright.kernels import Ints, Singles, compiled
from trainwright.plan.memory.sizes import Sizes

__all__ = ["fill_priced_table"]

_INF = np.float32(np.inf)


@compiled
def _to_slots(count: int, unit: int, up: int) -> int:
    return max(0, count + up) // unit


@compiled
def fill_priced_table(z: Sizes, kinds: tuple[Ints, Ints], grid: tuple[int, int, int], price: float) -> Singles:
    """Return the table; `kinds` are `first_kind` [n + 1] and the bytes of each kind, `grid` as in `_persistent`."""
    first_kind, weight = kinds
    unit, up, slots = grid
    n = z.plain.size
    arrived = z.delta + z.grown
    table = np.full((weight.size, n, slots + 1), _INF, np.float32)
    for s in range(n - 1, -1, -1):
        for t in range(s, n):
            for x in range(first_kind[s], first_kind[s + 1]):
                target, w = table[x, t], weight[x]
                wide, fare = _to_slots(w, unit, up), np.float32(price * w)
                for o in range(z.first[s], z.first[s + 1]):
                    need = w + max(
                        arrived[t + 1] + z.saved[o] + z.temporary[o],
                        z.delta[s + 1] + z.saved[o] + arrived[s] + z.back_temporary[o],
                    )
                    low, cost = _to_slots(need, unit, up), np.float32(z.forward[o] + z.back[o])
                    if s == t:
                        for m in range(low, slots + 1):
                            target[m] = min(target[m], cost)
                        continue
                    inner = table[first_kind[s + 1] + 1 + o - z.first[s], t]
                    for m in range(low, slots + 1):
                        value = inner[m] + fare
                        if m >= wide:
                            value = min(value, inner[m - wide])
                        target[m] = min(target[m], cost + value)
                need, ran = w + arrived[t + 1] + z.out[s + 1] + z.plain_temporary[s], 0.0
                rest = np.int64(0)
                for split in range(s + 1, t + 1):
                    j = split - 1
                    ran += z.plain[j]
                    if j > s:
                        rest = max(rest, arrived[t + 1] + z.out[j + 1] + z.plain_temporary[j] + z.out[j])
                    right, left, cost = table[first_kind[split], t], table[x, j], np.float32(ran)
                    for m in range(_to_slots(max(need, rest), unit, up), slots + 1):
                        value = right[m] + fare
                        if m >= wide and m >= _to_slots(w + rest, unit, up):
                            value = min(value, right[m - wide])
                        target[m] = min(target[m], cost + value + left[m])
    return table
