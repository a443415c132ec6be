"""The roofline: seconds of work on a device are the slower of its arithmetic and its memory traffic, and its launches.

seconds = max(flops / rate, bytes / bandwidth) + fixed (Williams, Waterman and Patterson, Communications of the ACM
52(4), 2009), where `rate` is the share of the peak that the work reaches and `fixed` what its launches take.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__ = ["roofline_seconds"]


def roofline_seconds(
    flops: Any, moved_bytes: Any, *, rate: Any, bandwidth: float, fixed_seconds: Any
) -> NDArray[np.float64]:
    """Return the seconds of each piece of work, numbers or arrays; traffic is free where `bandwidth` is 0 (unknown)."""
    arithmetic = flops / rate
    traffic = moved_bytes / bandwidth if bandwidth else np.zeros_like(arithmetic)
    seconds: NDArray[np.float64] = np.maximum(arithmetic, traffic) + fixed_seconds
    return seconds
