"""Calibrates an ensemble after averaging: temperature scaling of its probabilities, or one factor on its variance.

Rahaman, Thiery: "Uncertainty quantification and deep ensembles" (arXiv 2007.08792): averaging makes calibrated members
underconfident, so what is calibrated is the average. Guo et al. (ICML 2017) for the temperature.
"""

import math
from dataclasses import dataclass

import numpy as np

from trainwright.ensemble.metrics import SMALLEST, Array, cross_entropy, normal_nll, squared_error
from trainwright.errors import EnsembleError

__all__ = ["Calibration", "calibrate", "score_probabilities"]

_LEAST, _MOST = 0.05, 20.0  # temperatures
_BINS = 15
_FEWEST = 2  # rows: fewer have no standard error
_FOLDS = 5
_CERTAIN = 10.83  # of chi-square with one degree of freedom: exceeded by chance once in 1,000 times
_SMALLEST_FACTOR = 1e-12
_KINDS = ("temperature", "variance")


@dataclass(frozen=True, kw_only=True, slots=True)
class Calibration:
    """A fitted correction, and what it gains on rows that it was not fitted on, with the gain's standard error.

    `applied` is `fitted`, shrunk towards 1 by how sure the fit is, where the rows leave no doubt that there is
    something to correct; else it is 1, which changes nothing. See `calibrate`.
    """

    kind: str  # "temperature": p ** (1 / T), renormalised; or "variance": variance times s
    fitted: float
    applied: float
    gain: float  # nats per row, out of fold
    standard_error: float
    rows: int

    def __post_init__(self) -> None:
        if self.kind not in _KINDS or not (0 < self.applied < math.inf):
            raise EnsembleError(
                f"calibration: got {self.kind!r} by {self.applied!r}; allowed: {', '.join(_KINDS)} by a number above 0"
            )

    def apply(self, prediction: Array) -> Array:
        """Return calibrated probabilities [N, C], or means and variances [N, T, 2]; the likeliest class stays."""
        return prediction if self.applied == 1.0 else _correct_prediction(prediction, self.applied)


def calibrate(prediction: Array, targets: Array) -> Calibration:
    """Fit the one number that lowers the negative log-likelihood of a pooled prediction on calibration rows most.

    Probabilities [N, C] get a temperature in [0.05, 20]; means and variances [N, T, 2] get s, the mean of
    (y - mu)^2 / variance. Use rows that chose nothing: on those that selected the members an ensemble looks better
    than it is, and a temperature that is fitted there makes it too sure.

    A correction must not harm what is right already, so it is applied only if two things hold: the likelihood-ratio
    statistic 2 N (fall of the mean loss) is above 10.8, which without anything to correct happens once in 1,000 times
    (chi-square, one degree of freedom), and in 5-fold cross-fitting the loss falls by more than one standard error.
    It is then shrunk in its logarithm by 1 - 1 / statistic (James, Stein 1961).
    """
    if len(targets) < _FEWEST:
        raise EnsembleError(f"calibrate: got {len(targets)} rows; allowed: at least {_FEWEST}, better hundreds")
    moments = prediction.ndim == 3
    # One number either way: with so few degrees of freedom some hundred rows are enough.
    fit = _variance_factor if moments else _fit_temperature
    losses_of = normal_nll if moments else cross_entropy
    fitted = fit(prediction, targets)
    losses = losses_of(prediction, targets)
    # Wilks' theorem: without anything to correct this is chi-square with one degree of freedom.
    statistic = 2.0 * float((losses - losses_of(_correct_prediction(prediction, fitted), targets)).sum())
    # Cross-fitting: the gain is measured on rows that the number was not fitted on.
    folds = np.arange(len(targets)) % _FOLDS
    gains = np.zeros(len(targets))
    for fold in np.unique(folds):
        held_out, rest = folds == fold, folds != fold
        other = fit(prediction[rest], targets[rest])
        gains[held_out] = losses[held_out] - losses_of(
            _correct_prediction(prediction[held_out], other), targets[held_out]
        )
    gain, error = float(gains.mean()), float(gains.std(ddof=1) / math.sqrt(len(gains)))
    # Both must hold: a large statistic alone can come from a few outliers.
    sure = statistic > _CERTAIN and gain > error
    return Calibration(
        kind="variance" if moments else "temperature",
        fitted=fitted,
        # A power shrinks the logarithm towards 0, which is that of 1: no correction.
        applied=fitted ** (1.0 - 1.0 / statistic) if sure else 1.0,
        gain=gain,
        standard_error=error,
        rows=len(targets),
    )


def _correct_prediction(prediction: Array, by: float) -> Array:
    if prediction.ndim == 3:
        return np.stack([prediction[..., 0], prediction[..., 1] * by], axis=-1)
    return _apply_temperature(prediction, by)


def _variance_factor(prediction: Array, targets: Array) -> float:
    # The maximum-likelihood factor of a normal distribution has this closed form.
    return max(float(((targets - prediction[..., 0]) ** 2 / prediction[..., 1]).mean()), _SMALLEST_FACTOR)


def score_probabilities(prediction: Array, targets: Array) -> dict[str, float]:
    """Return figures of probabilities [N, C] by name, and the number of rows.

    Those are accuracy, nll (nats), brier (sum over classes) and ece, the calibration error of the likeliest class in 15
    bins of equal mass, which is biased upwards on few rows.
    """
    confidence, right = prediction.max(axis=1), (prediction.argmax(axis=1) == targets).astype(np.float64)
    difference = (right - confidence)[confidence.argsort(kind="stable")]
    return {
        "rows": len(targets),
        "accuracy": float(right.mean()),
        "nll": float(cross_entropy(prediction, targets).mean()),
        "brier": float(squared_error(prediction, targets).mean()),
        # Rows of a bin times its mean difference is the sum of its differences.
        "ece": sum(abs(float(part.sum())) for part in np.array_split(difference, _BINS)) / len(difference),
    }


def _apply_temperature(prediction: Array, temperature: float) -> Array:
    logs = np.log(np.maximum(prediction, SMALLEST)) / temperature
    odds = np.exp(logs - logs.max(axis=1, keepdims=True))
    return np.asarray(odds / odds.sum(axis=1, keepdims=True))


def _fit_temperature(prediction: Array, targets: Array) -> float:
    from scipy.optimize import minimize_scalar

    # The loss is convex in 1 / T, so one bounded search over log T finds the minimum.
    found = minimize_scalar(
        lambda log: float(cross_entropy(_apply_temperature(prediction, math.exp(log)), targets).mean()),
        bounds=(math.log(_LEAST), math.log(_MOST)),
        method="bounded",
        options={"xatol": 1e-6},
    )
    return math.exp(float(found.x))
