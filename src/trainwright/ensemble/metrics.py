"""Metrics of a combined prediction: small functions that give one number per row, and a table of them by name."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from trainwright.errors import EnsembleError, closest

__all__ = [
    "METRICS",
    "SMALLEST",
    "Array",
    "Metric",
    "accuracy",
    "cross_entropy",
    "metric_of",
    "normal_nll",
    "squared_error",
]

Array = npt.NDArray[Any]

SMALLEST = 1e-7  # probabilities are clipped here before a logarithm: float16 cannot tell less from 0


def cross_entropy(predictions: Array, targets: Array) -> Array:
    """Return -log of the probability [N, C] of the true class [N], per row in nats."""
    return _negative_log(predictions[np.arange(len(targets)), targets])


def accuracy(predictions: Array, targets: Array) -> Array:
    """Return 1.0 for each row whose likeliest class (the lowest of equals) is the true one, else 0.0."""
    return np.asarray(predictions.argmax(axis=1) == targets, dtype=np.float64)


def squared_error(predictions: Array, targets: Array) -> Array:
    """Return the squared error per row: the Brier score, summed over classes, or the mean over real-valued outputs.

    Of means and variances [N, T, 2] the means are scored.
    """
    if predictions.ndim == 3:
        predictions = predictions[..., 0]
    if np.issubdtype(targets.dtype, np.integer):
        true = predictions[np.arange(len(targets)), targets]
        return np.asarray((predictions**2).sum(axis=1) - 2.0 * true + 1.0)
    return np.asarray(((predictions - targets) ** 2).mean(axis=1))


def normal_nll(predictions: Array, targets: Array) -> Array:
    """Return -log of the normal density with mean and variance [N, T, 2] at targets [N, T]: per row, mean over T."""
    mean, variance = predictions[..., 0], predictions[..., 1]
    return np.asarray((0.5 * (np.log(2 * np.pi * variance) + (targets - mean) ** 2 / variance)).mean(axis=1))


def _negative_log(true: Array) -> Array:
    return np.asarray(-np.log(np.maximum(true, SMALLEST)))


@dataclass(frozen=True, kw_only=True, slots=True)
class Metric:
    """A metric by name: the mean over rows of `per_row`, and the loss (lower is better) that selection works on."""

    name: str
    per_row: Callable[[Array, Array], Array]
    direction: Literal["min", "max"] = "min"  # a metric to be maximised lies in [0, 1]
    classes_only: bool = False
    of_true: Callable[[Array], Array] | None = None  # per row from the true class's probability [N] alone, where enough

    def score(self, predictions: Array, targets: Array) -> float:
        """Return the metric of predictions [N, C] for targets [N] or [N, C], in its own direction."""
        return float(self.per_row(predictions, targets).mean())

    def loss(self, score: Array) -> Array:
        """Return the losses of scores: themselves, or 1 - score for a metric that is maximised."""
        return score if self.direction == "min" else 1.0 - score


METRICS = {
    metric.name: metric
    for metric in (
        Metric(name="cross_entropy", per_row=cross_entropy, classes_only=True, of_true=_negative_log),
        Metric(name="accuracy", per_row=accuracy, direction="max", classes_only=True),
        Metric(name="squared_error", per_row=squared_error),
    )
}


def metric_of(name: str, output: str) -> Metric:
    """Return the metric called `name`, refusing one that members of this output kind cannot be scored by."""
    if name not in METRICS:
        raise EnsembleError(f"metric: got {name!r}; allowed: {', '.join(METRICS)}{closest(name, METRICS)}")
    metric = METRICS[name]
    if metric.classes_only and output != "classes":
        allowed = ", ".join(other.name for other in METRICS.values() if not other.classes_only)
        raise EnsembleError(
            f"metric: got {name!r} for real-valued predictions, which have no classes; allowed: {allowed}"
        )
    return metric
