"""Kernel of `partition`: D(s, t, m, k) for one t, from the table C."""

import numpy as np

from trainwright.kernels import Singles, compiled
from trainwright.plan.memory.sizes import Sizes

__all__ = ["fill_across"]


@compiled
def fill_across(sizes: Sizes, table: Singles, t: int, grid: tuple[int, int, int]) -> Singles:
    """Return D [t + 1, slots + 1, slots + 1] for stages s..t counted from 0, m, and k; infinite where nothing fits."""
    unit, up, slots = grid
    n = sizes.no_grad_forward.size
    found = np.full((t + 1, slots + 1, slots + 1), np.float32(np.inf), np.float32)
    for s in range(t, -1, -1):
        # The sweep: forwards of s..t that keep nothing, each beside its own input; its largest peak is the least m.
        total = 0.0
        need, sweep = np.int64(0), np.int64(0)
        for j in range(s, t + 1):
            total += sizes.no_grad_forward[j]
            step = sizes.output[j + 1] + sizes.no_grad_temporary[j] + (sizes.output[j] if j > s else 0)
            sweep = max(sweep, step)
        # Row of the triangle in which the table C of (s, s) stands.
        own = s * n - (s * (s - 1)) // 2
        low = (sweep + up) // unit
        # Drop everything between forward and backward, and run s..t again by the table C.
        for m in range(low, slots + 1):
            value = np.float32(total) + table[own + t - s, m]
            for k in range(slots + 1):
                found[s, m, k] = min(found[s, m, k], value)
        # Or save stage s with option o, which takes slots both of the peak (m) and of what is held (k).
        for o in range(sizes.first[s], sizes.first[s + 1]):
            least = max(
                sizes.output_gradient[t + 1] + sizes.saved[o] + sizes.temporary[o],
                sizes.output_gradient[s + 1] + sizes.saved[o] + sizes.output_gradient[s] + sizes.backward_temporary[o],
            )
            width = (sizes.saved[o] + up) // unit
            cost = np.float32(sizes.forward[o] + sizes.backward[o])
            for m in range(max(width, (least + up) // unit), slots + 1):
                for k in range(width, slots + 1):
                    # What is saved counts in the peak and among what is held, so both get smaller for the rest.
                    rest = np.float32(0.0) if s == t else found[s + 1, m - width, k - width]
                    found[s, m, k] = min(found[s, m, k], cost + rest)
        # Or keep the output of split-1 alone of s..split-1, which runs again by the table C.
        ran = 0.0
        for split in range(s + 1, t + 1):
            j = split - 1
            ran += sizes.no_grad_forward[j]
            need = max(
                need,
                sizes.output_gradient[t + 1]
                + sizes.output[j + 1]
                + sizes.no_grad_temporary[j]
                + (sizes.output[j] if j > s else 0),
            )
            width = (sizes.output[split] + up) // unit
            for m in range(max(width, (need + up) // unit), slots + 1):
                left = np.float32(ran) + table[own + j - s, m]
                # Where s..split-1 cannot run again in m slots, no k helps.
                if left == np.float32(np.inf):
                    continue
                for k in range(width, slots + 1):
                    found[s, m, k] = min(found[s, m, k], left + found[split, m - width, k - width])
    return found
