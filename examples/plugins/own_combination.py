"""A combination rule of your own: the weighted mean without the lowest and the highest prediction of each number."""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from trainwright.ensemble import CombinationRule
from trainwright.ensemble.metrics import Array

__all__ = ["Trimmed"]


@dataclass(frozen=True)
class Trimmed(CombinationRule):
    """Leave out the extremes where there are three members or more."""

    name: ClassVar[str] = "trimmed"
    outputs: ClassVar[tuple[str, ...]] = ("values",)
    linear: ClassVar[bool] = True

    def combine_all(self, predictions: Array, weights: Array) -> Array:
        """Return the combined values [N, T] of predictions [K, N, T] and weights [K]."""
        order = predictions.argsort(axis=0, kind="stable")
        ends = 1 if len(predictions) > 2 else 0
        inner = slice(ends, len(predictions) - ends)
        shares = weights[order][inner]
        ordered = np.take_along_axis(predictions, order, axis=0)[inner]
        return np.asarray((shares * ordered).sum(axis=0) / shares.sum(axis=0))
