"""Reach: how far a fit errs beyond what it was fitted to, learnt by leaving out the ends of what it was fitted to.

Residuals say nothing of devices, widths or batches beyond those that a fit saw. Fits without the lowest or the highest
value of a covariate have to reach just so; what they err on the values left out, d doublings beyond those they kept,

    score = |log(predicted / measured)| / (1 + d)

is taken as a sample of what the whole fit errs beyond its own ends (conformal prediction with groups left out: Barber
et al. 2021; scores divided by the difficulty: Papadopoulos, Gammerman and Vovk 2008). Two ends are few groups, so that
it is the widest honest range that the measurements give, not one that is bound to hold.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from trainwright.errors import InputError
from trainwright.plan.parallel.assembly import UNCALIBRATED

__all__ = ["Reach", "conformal", "reach_margin", "reach_of"]

Floats = NDArray[np.float64]


@dataclass(frozen=True, kw_only=True, slots=True)
class Reach:
    """What a fit saw of one covariate, and its scores where the ends of that were left out."""

    low: float
    high: float
    scores: tuple[float, ...] = ()
    """None where the covariate has one value, or an end so common that more than half would be left out."""

    def doublings(self, values: ArrayLike) -> Floats:
        """Return how many doublings each value lies beyond the range; 0 inside."""
        each: Floats = np.asarray(values, dtype=np.float64)
        if not np.all(np.isfinite(each) & (each > 0)):
            raise InputError(f"covariates: got {each.tolist()!r}; allowed: numbers above 0")
        beyond: Floats = np.log2(np.maximum(1.0, np.maximum(each / self.high, self.low / each)))
        return beyond


def reach_of(column: Floats, measured: Floats, without: Callable[[NDArray[np.bool_]], Floats]) -> Reach:
    """Return what was seen of a covariate, and the scores of the lowest and of the highest value if left out.

    `without` predicts every measurement by a fit without those of a mask; nan where such a fit can say nothing.
    """
    scores: list[float] = []
    for end in (column.min(), column.max()):
        held = column == end
        if 2 * np.count_nonzero(held) <= held.size:
            kept = Reach(low=float(column[~held].min()), high=float(column[~held].max()))
            found = np.abs(np.log(without(held) / measured))[held] / (1 + kept.doublings(column[held]))
            scores += found[np.isfinite(found)].tolist()
    return Reach(low=float(column.min()), high=float(column.max()), scores=tuple(scores))


def conformal(scores: ArrayLike, level: float) -> float:
    """Return the score of rank ceil((n + 1) level): what one more of the kind does not exceed with this probability."""
    ordered = np.sort(np.asarray(scores, dtype=np.float64))
    return float(ordered[min(len(ordered), math.ceil((len(ordered) + 1) * level)) - 1])


def reach_margin(reach: Mapping[str, Reach], covariates: Mapping[str, ArrayLike], level: float) -> Floats | float:
    """Return how far the logarithm of each prediction may be off for lying beyond the fit; 0 where it does not.

    A covariate of which nothing could be left out is taken to reach as badly as the worst of the others; where there is
    none, an error of 30 % a doubling is assumed.
    """
    if set(covariates) != set(reach):
        raise InputError(f"covariates: got {sorted(covariates)}; allowed: those of the fit, {sorted(reach)}")
    each = {name: conformal(found.scores, level) for name, found in reach.items() if found.scores}
    worst = max(each.values(), default=math.log1p(UNCALIBRATED))
    margin: Floats | float = 0.0
    for name, values in covariates.items():
        beyond = reach[name].doublings(values)
        margin = np.maximum(margin, np.where(beyond > 0, each.get(name, worst) * (1 + beyond), 0.0))
    return margin
