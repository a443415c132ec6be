"""Uncertainty of an ensemble, and its parts.

Aleatoric (every member sees it) plus epistemic (members disagree) is the total.

Classes: total = H(p) for p = sum w p_k, aleatoric = sum w H(p_k), epistemic = the mutual information (Depeweg et al.,
ICML 2018). Values: the law of total variance (AutoDEUQ, arXiv 2110.13511). The weights are in every term.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from trainwright.ensemble.combine.rules import mixture_parts
from trainwright.ensemble.metrics import Array
from trainwright.errors import EnsembleError, closest

__all__ = ["OOD_SCORES", "Uncertainty", "decompose_uncertainty"]

OOD_SCORES = ("epistemic", "total")
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

    def ood_score(self, score: str = "epistemic") -> Array:
        """Return per row [N] how far it is from what the members were trained on: higher is further.

        "epistemic" is the mutual information of classes, or the variance of the members' means; "total" the predictive
        entropy, or the whole variance.
        """
        if score not in OOD_SCORES:
            raise EnsembleError(
                f"ood_score: got {score!r}; allowed: {', '.join(OOD_SCORES)}{closest(score, OOD_SCORES)}"
            )
        found = self.per_row()
        return found.epistemic if score == "epistemic" else found.total

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
