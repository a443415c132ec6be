"""Conformal prediction: calibrates sets or intervals that hold a share 1 - alpha of new truths, whatever the model.

Split conformal prediction (Lei et al., JASA 2018; for classes Sadinle et al., JASA 2019), on rows that chose nothing.
The promise holds on average over rows that are drawn as the calibration rows were. Mondrian (Vovk et al., 2005): with a
threshold for each class, or for each group of rows, it holds within each of them, however their shares shift.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

import numpy as np

from trainwright.ensemble.metrics import Array
from trainwright.errors import EnsembleError

__all__ = ["METHODS", "Conformal"]

METHODS = {"classes": ("probability",), "values": ("absolute",), "moments": ("scaled", "quantile", "absolute")}
"""How far a truth is from a prediction, by kind of prediction; the first is the default.

"probability" is 1 - p of the true class; "absolute" |y - mean|; "scaled" that in standard deviations; "quantile" how
far y lies outside of the predicted central interval of 1 - alpha (Romano et al., NeurIPS 2019).
"""
_BY = ("class", "group")


@dataclass(frozen=True, kw_only=True, slots=True)
class Conformal:
    """Thresholds of a score, such that a share of 1 - alpha of new truths stays at or below them."""

    alpha: float
    method: str
    by: str | None  # "class" or "group" with a threshold each, None with one for all
    labels: tuple[int, ...]  # of the classes or groups, ascending
    thresholds: tuple[tuple[float, ...], ...]  # [labels, outputs]
    rows: int  # that they rest on

    @classmethod
    def fit(
        cls,
        prediction: Array,
        targets: Array,
        *,
        output: str,
        alpha: float,
        method: str | None = None,
        by: str | None = None,
        groups: object | None = None,
    ) -> Self:
        """Return the thresholds of a pooled prediction [N, ...] on calibration rows."""
        method = METHODS[output][0] if method is None else method
        for what, value, allowed in (("method", method, METHODS[output]), ("by", by, (None, *_BY))):
            if value not in allowed:
                names = ", ".join(map(str, allowed))
                raise EnsembleError(f"conformal, {what}: got {value!r} for {output}; allowed: {names}")
        if not 0 < alpha < 1:
            raise EnsembleError(f"conformal, alpha: got {alpha!r}; allowed: a number above 0 and below 1")
        if (by == "class" and output != "classes") or (by == "group") != (groups is not None):
            raise EnsembleError(
                f"conformal: got by={by!r} with{'out' if groups is None else ''} groups for predictions that are "
                f"{output}; allowed: by='class' for classes, by='group' with groups=, an integer for each row"
            )
        scores = _score_targets(prediction, targets, method, alpha)
        group = targets if by == "class" else _check_groups(groups, len(targets))
        labels = range(prediction.shape[1]) if by == "class" else np.unique(group).tolist()
        thresholds = [_find_threshold(scores[group == label], alpha, by, label) for label in labels]
        return cls(
            alpha=float(alpha),
            method=method,
            by=by,
            labels=tuple(int(label) for label in labels),
            thresholds=tuple(tuple(one.tolist()) for one in thresholds),
            rows=len(targets),
        )

    @classmethod
    def from_json(cls, table: Mapping[str, Any]) -> Self:
        """Return what `dataclasses.asdict` made a table of, or raise ValueError or TypeError."""
        thresholds = tuple(tuple(map(float, one)) for one in table["thresholds"])
        return cls(**{**table, "labels": tuple(table["labels"]), "thresholds": thresholds})

    def apply(self, prediction: Array) -> Array:
        """Return the sets of classes, or the intervals of values: what was fitted."""
        return self.predict_set(prediction) if self.method == "probability" else self.predict_interval(prediction)

    def predict_set(self, prediction: Array, groups: object | None = None) -> Array:
        """Return which classes [N, C] are in each row's set, which may have none."""
        # By class every column has a threshold of its own; else every row.
        limits = self._limits(groups, len(prediction))[:, :1] if self.by != "class" else np.ravel(self.thresholds)
        return np.asarray(1.0 - prediction <= limits)

    def predict_interval(self, prediction: Array, groups: object | None = None) -> Array:
        """Return low and high ends [N, T, 2] of values [N, T], or of means and variances [N, T, 2]."""
        limits = self._limits(groups, len(prediction))
        mean, deviation = _split_moments(prediction)
        if self.method == "scaled":
            half = limits * deviation
        else:
            half = limits + (_central(self.alpha) * deviation if self.method == "quantile" else 0.0)
        half = np.maximum(half, 0.0)
        return np.stack([mean - half, mean + half], axis=-1)

    def _limits(self, groups: object | None, rows: int) -> Array:
        """Return the thresholds [N, T] of each row."""
        if (self.by == "group") != (groups is not None):
            wanted = "groups=, the group of each row" if self.by == "group" else "none, it was not fitted by group"
            raise EnsembleError(f"conformal, groups: got {'none' if groups is None else 'some'}; allowed: {wanted}")
        group = _check_groups(groups, rows)
        if self.by is None:
            return np.asarray(self.thresholds)[group]
        place = np.minimum(np.searchsorted(self.labels, group), len(self.labels) - 1)
        unknown = np.asarray(self.labels)[place] != group
        if unknown.any():
            raise EnsembleError(
                f"conformal, groups: got group {int(group[unknown][0])}, which no calibration row was of; allowed: "
                f"{', '.join(map(str, self.labels[:10]))}"
            )
        return np.asarray(self.thresholds)[place]


def _score_targets(prediction: Array, targets: Array, method: str, alpha: float) -> Array:
    """Return how far each truth is from its prediction [N, T]."""
    if method == "probability":
        return np.asarray(1.0 - prediction[np.arange(len(targets)), targets][:, None])
    mean, deviation = _split_moments(prediction)
    distance = np.abs(targets - mean)
    if method == "scaled":
        return np.asarray(distance / deviation)
    return np.asarray(distance - (_central(alpha) * deviation if method == "quantile" else 0.0))


def _split_moments(prediction: Array) -> tuple[Array, Array]:
    if prediction.ndim == 2:
        return prediction, np.zeros_like(prediction)
    return prediction[..., 0], np.sqrt(prediction[..., 1])


def _central(alpha: float) -> float:
    """Return half the width, in standard deviations, of a normal distribution's central interval of 1 - alpha."""
    from scipy.special import ndtri

    return float(ndtri(1.0 - alpha / 2.0))


def _find_threshold(scores: Array, alpha: float, by: str | None, label: int) -> Array:
    """Return the conformal quantile of each output: its k-th smallest score, k = ceil((n + 1) (1 - alpha))."""
    rank = math.ceil(round((len(scores) + 1) * (1.0 - alpha), 9))
    if rank > len(scores):
        whose = "" if by is None else f" of {by} {label}"
        raise EnsembleError(
            f"conformal, alpha: got {alpha:g} with {len(scores)} calibration rows{whose}; allowed: at least "
            f"{math.ceil(round(1.0 / alpha, 9)) - 1} rows for it, or an alpha of at least {1 / (len(scores) + 1):.3g}"
        )
    return np.asarray(np.sort(scores, axis=0)[rank - 1])


def _check_groups(groups: object | None, rows: int) -> Array:
    if groups is None:
        return np.zeros(rows, dtype=np.int64)
    found = np.asarray(groups)
    if found.shape != (rows,) or found.dtype.kind not in "iu":
        raise EnsembleError(
            f"conformal, groups: got {found.dtype} of shape {found.shape}; allowed: an integer for each of {rows} rows"
        )
    return found
