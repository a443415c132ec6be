"""Metrics of a combined prediction: functions that give a number per row, or one of all rows; and a table by name."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, cast

import numpy as np
import numpy.typing as npt

from trainwright.errors import EnsembleError, closest

__all__ = [
    "ALIASES",
    "METRICS",
    "SMALLEST",
    "Array",
    "Metric",
    "MetricLike",
    "accuracy",
    "balanced_accuracy",
    "cross_entropy",
    "default_metric",
    "f1_score",
    "find_metric",
    "normal_crps",
    "normal_nll",
    "pinball",
    "roc_auc",
    "root_mean_squared_error",
    "squared_error",
]

Array = npt.NDArray[Any]
RowFunction = Callable[[Array, Array], Array]

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


def normal_crps(predictions: Array, targets: Array) -> Array:
    """Return the continuous ranked probability score of normal distributions [N, T, 2] per row, mean over T.

    Closed form of Gneiting, Raftery (JASA 2007), in the targets' unit. Of values [N, T] it is the absolute error.
    """
    if predictions.ndim == 2:
        return np.asarray(np.abs(predictions - targets).mean(axis=1))
    from scipy.special import ndtr

    deviation = np.sqrt(predictions[..., 1])
    z = (targets - predictions[..., 0]) / deviation
    density = np.exp(-(z**2) / 2) / np.sqrt(2 * np.pi)
    return np.asarray((deviation * (z * (2 * ndtr(z) - 1) + 2 * density - 1 / np.sqrt(np.pi))).mean(axis=1))


_QUANTILES = np.arange(1, 10) / 10


def pinball(predictions: Array, targets: Array) -> Array:
    """Return the pinball loss per row, mean over T and the quantiles 0.1 to 0.9 of what is predicted.

    They are those of normal distributions [N, T, 2]; of values [N, T] every quantile is the value itself.
    """
    if predictions.ndim == 2:
        below = (targets - predictions)[..., None]
    else:
        from scipy.special import ndtri

        quantiles = predictions[..., :1] + np.sqrt(predictions[..., 1:]) * ndtri(_QUANTILES)
        below = targets[..., None] - quantiles
    return np.asarray(np.maximum(_QUANTILES * below, (_QUANTILES - 1) * below).mean(axis=(1, 2)))


def root_mean_squared_error(predictions: Array, targets: Array) -> float:
    """Return the root of the mean squared error over all rows and outputs."""
    return float(np.sqrt(squared_error(predictions, targets).mean()))


def balanced_accuracy(predictions: Array, targets: Array) -> float:
    """Return the share of right rows of each class, mean over the classes that there are."""
    counts, right, _ = _count_labels(predictions, targets)
    return float((right[counts > 0] / counts[counts > 0]).mean())


def f1_score(predictions: Array, targets: Array) -> float:
    """Return F1, the harmonic mean of precision and recall: of class 1 if there are two, else mean over the classes."""
    counts, right, claimed = _count_labels(predictions, targets)
    scores = 2 * right / np.maximum(counts + claimed, 1)
    present = counts + claimed > 0
    return float(scores[1] if len(scores) == 2 else scores[present].mean())


def roc_auc(predictions: Array, targets: Array) -> float:
    """Return the area under the ROC curve: of class 1 if there are two, else of each against the rest, mean over them.

    It is the chance that a row of the class gets a higher probability than another row; a class that all rows have, or
    none has, is left out, and 0.5 is what remains if no class is left.
    """
    from scipy.stats import rankdata

    areas = []
    for label in [1] if predictions.shape[1] == 2 else range(predictions.shape[1]):
        inside = targets == label
        count, others = int(inside.sum()), int((~inside).sum())
        if count and others:
            ranks = rankdata(predictions[:, label])  # ties get their mean rank
            areas.append((ranks[inside].sum() - count * (count + 1) / 2) / (count * others))
    return float(np.mean(areas)) if areas else 0.5


def _count_labels(predictions: Array, targets: Array) -> tuple[Array, Array, Array]:
    """Return per class the rows that have it, that have it and get it, and that get it as the likeliest."""
    found, classes = predictions.argmax(axis=1), predictions.shape[1]
    right = np.bincount(targets[found == targets], minlength=classes)
    return np.bincount(targets, minlength=classes), right, np.bincount(found, minlength=classes)


def _negative_log(true: Array) -> Array:
    return np.asarray(-np.log(np.maximum(true, SMALLEST)))


@dataclass(frozen=True, kw_only=True, slots=True)
class Metric:
    """A metric by name, and the loss (lower is better) that selection works on.

    It is the mean over rows of `per_row`, or `of_all`, a number of all rows that is no such mean.
    """

    name: str
    per_row: RowFunction | None = None
    of_all: Callable[[Array, Array], float] | None = None
    direction: Literal["min", "max"] = "min"  # a metric to be maximised lies in [0, 1]
    outputs: tuple[str, ...] = ("classes", "values", "moments")  # kinds of prediction that it can score
    signed: bool = False  # may be negative, so that nothing can be measured in multiples of it
    of_true: Callable[[Array], Array] | None = None  # per row from the true class's probability [N] alone, where enough

    def score(self, predictions: Array, targets: Array) -> float:
        """Return the metric of predictions [N, C] for targets [N] or [N, C], in its own direction."""
        if self.of_all is not None:
            return float(self.of_all(predictions, targets))
        return float(cast(RowFunction, self.per_row)(predictions, targets).mean())

    def loss(self, score: Array) -> Array:
        """Return the losses of scores: themselves, or 1 - score for a metric that is maximised."""
        return score if self.direction == "min" else 1.0 - score

    def row_losses(self, predictions: Array, targets: Array) -> Array:
        """Return the loss of each row [N]; of a metric of all rows the same for each."""
        if self.per_row is None:
            return np.full(len(targets), self.loss(np.asarray(self.score(predictions, targets))))
        return np.asarray(self.loss(self.per_row(predictions, targets)))


MetricLike = str | Metric | Callable[[Array, Array], float]

_CLASSES, _VALUES = ("classes",), ("values", "moments")

METRICS = {
    metric.name: metric
    for metric in (
        Metric(name="cross_entropy", per_row=cross_entropy, outputs=_CLASSES, of_true=_negative_log),
        Metric(name="accuracy", per_row=accuracy, direction="max", outputs=_CLASSES),
        Metric(name="balanced_accuracy", of_all=balanced_accuracy, direction="max", outputs=_CLASSES),
        Metric(name="f1", of_all=f1_score, direction="max", outputs=_CLASSES),
        Metric(name="auc", of_all=roc_auc, direction="max", outputs=_CLASSES),
        Metric(name="squared_error", per_row=squared_error),
        Metric(name="rmse", of_all=root_mean_squared_error, outputs=_VALUES),
        Metric(name="pinball", per_row=pinball, outputs=_VALUES),
        Metric(name="crps", per_row=normal_crps, outputs=_VALUES),
        Metric(name="normal_nll", per_row=normal_nll, outputs=("moments",), signed=True),
    )
}
ALIASES = {"log_loss": "cross_entropy"}


def find_metric(metric: MetricLike, output: str) -> Metric:
    """Return a metric, refusing one that members of this output kind cannot be scored by.

    A function of predictions and targets is a loss of all rows: lower is better.
    """
    if not isinstance(metric, str | Metric):
        if not callable(metric):
            raise EnsembleError(
                f"metric: got {type(metric).__name__}; allowed: a name ({', '.join(METRICS)}), or a function "
                "(predictions, targets) -> a loss"
            )
        return Metric(name=getattr(metric, "__name__", "metric"), of_all=metric, signed=True)
    if isinstance(metric, str):
        name = ALIASES.get(metric, metric)
        if name not in METRICS:
            raise EnsembleError(f"metric: got {name!r}; allowed: {', '.join(METRICS)}{closest(name, METRICS)}")
        metric = METRICS[name]
    if output not in metric.outputs:
        allowed = ", ".join(other.name for other in METRICS.values() if output in other.outputs)
        raise EnsembleError(f"metric: got {metric.name!r} for predictions that are {output}; allowed: {allowed}")
    return metric


def default_metric(output: str) -> str:
    """Return the name of the metric to select by: a likelihood wherever the predictions have one.

    For classes cross-entropy even if accuracy is what counts: selection by accuracy overfits few rows.
    """
    return {"classes": "cross_entropy", "moments": "normal_nll"}.get(output, "squared_error")
