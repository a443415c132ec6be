"""Types of arrays that many modules name: coordinates and losses, places in other arrays, and masks."""

import numpy as np
from numpy.typing import NDArray

__all__ = ["Array", "Mask", "Places"]

Array = NDArray[np.float64]
Places = NDArray[np.intp]
Mask = NDArray[np.bool_]
