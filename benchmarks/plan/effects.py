"""Effects: what measurements of one kind have in common that a model has not, such as the kernels that a shape gets.

log(measured / predicted) = effect of the kind + rest, with variances v and w. Of n measurements of a kind with mean m
the best linear prediction of its effect is m n v / (n v + w), and 0 of a kind that was not measured (Henderson 1975);
v and w follow from the mean squares between and within kinds (analysis of variance, Searle 1971).
"""

import math
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from trainwright.errors import InputError

__all__ = ["Effects", "effects_of"]

Floats = NDArray[np.float64]


@dataclass(frozen=True, kw_only=True, slots=True)
class Effects:
    """The effect of each kind that was measured, as a logarithm."""

    effects: Mapping[Hashable, float]
    within: float
    """Standard deviation inside a kind, of logarithms."""
    between: float
    """Standard deviation of the effects."""
    residuals: tuple[float, ...]
    """log(predicted / measured) of each measurement if the others of its kind correct it: for intervals of kinds that
    were measured, as residuals of the `Fit`."""

    def factors(self, kinds: Sequence[Hashable]) -> Floats:
        """Return what to multiply predictions of these kinds by; 1 for a kind that was not measured."""
        factors: Floats = np.exp([self.effects.get(kind, 0.0) for kind in kinds])
        return factors


def effects_of(residuals: ArrayLike, kinds: Sequence[Hashable]) -> Effects:
    """Return the effects of kinds from log(predicted / measured) of a fit and the kind of each measurement.

    Raises `InputError` unless there are as many kinds as residuals and fewer different ones, two at least.
    """
    known: Floats = np.asarray(residuals, dtype=np.float64)
    names = {kind: number for number, kind in enumerate(dict.fromkeys(kinds))}
    if len(kinds) != known.size or not 1 < len(names) < known.size:
        raise InputError(
            f"kinds: got {len(kinds)}, {len(names)} of them different, for {known.size} residuals; "
            "allowed: one for each, some measured more than once, two different at least"
        )
    which = np.array([names[kind] for kind in kinds])
    count = np.bincount(which).astype(np.float64)
    mean = np.bincount(which, -known) / count
    free = len(names) - 1
    within = float(((-known - mean[which]) ** 2).sum() / (known.size - len(names)))
    spread = float((count * (mean - np.average(mean, weights=count)) ** 2).sum() / free)
    usual = (count.sum() - (count**2).sum() / count.sum()) / free
    between = max(0.0, (spread - within) / usual)

    def shrunk(mean: Floats, count: Floats) -> Floats:
        total = count * between + within
        effects: Floats = np.divide(mean * count * between, total, out=np.zeros_like(mean), where=total > 0)
        return effects

    others = count[which] - 1
    sums = (mean * count)[which] + known  # without the measurement itself, whose part is -known
    without = shrunk(np.divide(sums, others, out=np.zeros_like(sums), where=others > 0), others)
    return Effects(
        effects=dict(zip(names, shrunk(mean, count).tolist(), strict=True)),
        within=math.sqrt(within),
        between=math.sqrt(between),
        residuals=tuple((known + without).tolist()),
    )
