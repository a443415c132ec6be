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
    "default_metric",
    "find_metric",
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
    # Means and variances: the mean is the prediction.
    if predictions.ndim == 3:
        predictions = predictions[..., 0]
    if np.issubdtype(targets.dtype, np.integer):
        true = predictions[np.arange(len(targets)), targets]
        # The sum of (p - y)^2 with y = 1 for the true class, else 0: that of p^2, less 2 p of the true class, plus 1.
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
    outputs: tuple[str, ...] = ("classes", "values", "moments")  # kinds of prediction that it can score
    signed: bool = False  # may be negative, so that nothing can be measured in multiples of it
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
        Metric(name="cross_entropy", per_row=cross_entropy, outputs=("classes",), of_true=_negative_log),
        Metric(name="accuracy", per_row=accuracy, direction="max", outputs=("classes",)),
        Metric(name="squared_error", per_row=squared_error),
        Metric(name="normal_nll", per_row=normal_nll, outputs=("moments",), signed=True),
    )
}


def find_metric(name: str, output: str) -> Metric:
    """Return the metric called `name`, refusing one that members of this output kind cannot be scored by."""
    if name not in METRICS:
        raise EnsembleError(f"metric: got {name!r}; allowed: {', '.join(METRICS)}{closest(name, METRICS)}")
    metric = METRICS[name]
    if output not in metric.outputs:
        allowed = ", ".join(other.name for other in METRICS.values() if output in other.outputs)
        raise EnsembleError(f"metric: got {name!r} for predictions that are {output}; allowed: {allowed}")
    return metric


def default_metric(output: str) -> str:
    """Return the name of the metric to select by: a likelihood wherever the predictions have one.

    For classes cross-entropy even if accuracy is what counts: selection by accuracy overfits few rows.
    """
    return {"classes": "cross_entropy", "moments": "normal_nll"}.get(output, "squared_error")
