"""Decomposes an ensemble's uncertainty into aleatoric and epistemic parts; scores inputs out of distribution.

Aleatoric (every member sees it) plus epistemic (members disagree) is the total.

Classes: total = H(p) for p = sum w p_k, aleatoric = sum w H(p_k), epistemic = the mutual information (Depeweg et al.,
ICML 2018). Values: the law of total variance (AutoDEUQ, arXiv 2110.13511). The weights are in every term.
"""

from base64 import b64decode, b64encode
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Self

import numpy as np

from trainwright.ensemble.combine.rules import mixture_parts
from trainwright.ensemble.metrics import Array
from trainwright.errors import EnsembleError

__all__ = ["OOD_SCORES", "InputDistance", "Uncertainty", "decompose_uncertainty"]

OOD_SCORES = ("distance", "total", "epistemic")
_MOST_INPUTS = 1024  # numbers of a row, of which a covariance is kept
_ROUNDING = 1e-6  # how far below 0 rounding may carry an epistemic part


@dataclass(frozen=True, kw_only=True, slots=True)
class Uncertainty:
    """Per row [N], for values per output too [N, T]: total = aleatoric + epistemic.

    It is that of the members' weighted mixture, before any calibration and whatever rule combines the predictions.
    """

    measure: str  # "entropy" in nats, or "variance"
    total: Array
    aleatoric: Array | None  # None where members give no variance of their own: unknown, which is not 0
    epistemic: Array

    def per_row(self) -> "Uncertainty":
        """Return the same with outputs averaged, [N]."""
        if self.total.ndim == 1:
            return self
        return Uncertainty(
            measure=self.measure,
            total=self.total.mean(axis=1),
            aleatoric=None if self.aleatoric is None else self.aleatoric.mean(axis=1),
            epistemic=self.epistemic.mean(axis=1),
        )


def decompose_uncertainty(predictions: Iterable[Array], weights: Sequence[float], output: str) -> Uncertainty:
    """Return the uncertainty of members' predictions, taken one at a time, in member order.

    For classes [N, C] it is the entropy, for values [N, T] and moments [N, T, 2] the variance.
    """
    if output == "classes":
        return _of_classes(predictions, weights)
    return _of_values(predictions, weights, output)


def _of_classes(predictions: Iterable[Array], weights: Sequence[float]) -> Uncertainty:
    # One pass over the members: only the mean prediction and the mean of their own uncertainties are kept.
    share = np.asarray(weights, dtype=np.float64) / sum(weights)
    mean, inner = np.zeros(()), np.zeros(())
    for weight, prediction in zip(share, predictions, strict=True):
        wide = prediction.astype(np.float64)
        mean, inner = mean + weight * wide, inner + weight * _row_entropy(wide)
    total = _row_entropy(mean)
    between = total - inner
    wrong = ~(between >= -_ROUNDING)  # entropy is concave, so only rows that are no probabilities get here
    if wrong.any():
        row = int(wrong.argmax())
        raise EnsembleError(
            f"uncertainty: row {row} has a mutual information of {between[row]:.3g}; allowed: none below 0; give class "
            "probabilities"
        )
    # Rounding may leave a difference slightly below 0 where all members agree.
    epistemic = np.maximum(between, 0.0)
    # Summed anew, so that the total is exactly the sum of its parts.
    return Uncertainty(measure="entropy", total=inner + epistemic, aleatoric=inner, epistemic=epistemic)


def _of_values(predictions: Iterable[Array], weights: Sequence[float], output: str) -> Uncertainty:
    pairs = np.stack(list(predictions), dtype=np.float64)
    if output == "values":
        # Values without variances are a mixture of points: all its variance is disagreement.
        pairs = np.stack([pairs, np.zeros_like(pairs)], axis=-1)
    _, noise, epistemic = mixture_parts(pairs, np.asarray(weights, dtype=np.float64))
    if output == "values":
        return Uncertainty(measure="variance", total=epistemic, aleatoric=None, epistemic=epistemic)
    return Uncertainty(measure="variance", total=noise + epistemic, aleatoric=noise, epistemic=epistemic)


def _row_entropy(chance: Array) -> Array:
    # 0 log 0 counts as 0: the logarithm of 1 stands in for that of 0.
    return np.asarray(-(chance * np.log(np.where(chance > 0, chance, 1.0))).sum(axis=1))


@dataclass(frozen=True, kw_only=True, slots=True)
class InputDistance:
    """How far inputs are from those of training: the squared Mahalanobis distance from the nearest class.

    Lee et al. (NeurIPS 2018) with one covariance for all classes, of the inputs themselves, so that it says of what
    no member has learned that it is new; shrunk as Ledoit, Wolf (2004) show for few rows.
    """

    means: Array  # [K, D], of each class
    root: Array  # [D, D]: distances are lengths behind it

    @classmethod
    def fit(cls, x: Array, labels: Array | None = None) -> Self:
        """Return it for training rows x [N, ...] and their classes [N]; without, all rows are of one."""
        rows = np.asarray(x, dtype=np.float64).reshape(len(x), -1)
        place = np.zeros(len(rows), int) if labels is None else np.unique(labels, return_inverse=True)[1]
        if len(rows) < 2 or len(place) != len(rows) or rows.shape[1] > _MOST_INPUTS or not np.isfinite(rows).all():
            raise EnsembleError(
                f"with_inputs: got {len(rows)} rows of {rows.shape[1]} numbers and {len(place)} labels; allowed: at "
                f"least 2 rows of at most {_MOST_INPUTS} finite numbers, with a label for each or none"
            )
        # In units of each column's deviation, so that the shrinkage treats all alike.
        scale = np.where(rows.std(axis=0) > 0, rows.std(axis=0), 1.0)
        means = np.stack([rows[place == one].mean(axis=0) for one in range(int(place.max()) + 1)])
        left = (rows - means[place]) / scale
        count, width = left.shape
        covariance = left.T @ left / count
        level = covariance.trace() / width
        # The part of the covariance's distance from a sphere that is due to chance (Ledoit, Wolf, equations 13 and 14).
        chance = ((left**2).sum(axis=1) ** 2).mean() - (covariance**2).sum()
        spread = (covariance**2).sum() - width * level**2
        share = 1.0 if spread <= 0 else min(1.0, chance / count / spread)
        shrunk = (1 - share) * covariance + (share * level + 1e-9) * np.eye(width)
        return cls(means=means, root=np.linalg.cholesky(np.linalg.inv(shrunk)) / scale[:, None])

    def measure(self, x: Array) -> Array:
        """Return the distance [N] of rows x [N, ...]."""
        rows = np.asarray(x, dtype=np.float64).reshape(len(x), -1)
        found = [(((rows - mean) @ self.root) ** 2).sum(axis=1) for mean in self.means]
        return np.asarray(np.min(found, axis=0))

    def to_json(self) -> dict[str, object]:
        """Return the numbers as a JSON object, in float32."""
        pairs = (("means", self.means), ("root", self.root))
        return {name: [list(one.shape), b64encode(one.astype("<f4").tobytes()).decode()] for name, one in pairs}

    @classmethod
    def from_json(cls, table: Mapping[str, tuple[list[int], str]]) -> Self:
        """Return what `to_json` wrote."""
        return cls(
            **{name: np.frombuffer(b64decode(one), "<f4").reshape(shape) for name, (shape, one) in table.items()}
        )
