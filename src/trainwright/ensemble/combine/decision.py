"""From which probability of class 1 on a row of two classes is called 1, chosen on calibration rows.

Where the classes differ in size or worth, one half is not the best threshold for balanced accuracy or F1 even of
perfectly calibrated probabilities. All thresholds between two rows are tried, and the best is kept only if it gains
more than one standard error (bootstrap) over one half.
"""

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from trainwright.ensemble.metrics import Array
from trainwright.errors import EnsembleError, closest
from trainwright.randomness import rng

__all__ = ["MEASURES", "DecisionThreshold", "decide"]

_DRAWS = 200  # bootstrap samples
_HALF = 0.5


@dataclass(frozen=True, kw_only=True, slots=True)
class DecisionThreshold:
    """A threshold, and what it gained on the rows that it was chosen on, with the gain's standard error.

    `applied` is `fitted` if the measure rose by more than one standard error, and else one half: the likelier class.
    """

    measure: str
    fitted: float
    applied: float
    gain: float
    standard_error: float
    rows: int

    def labels(self, prediction: Array) -> Array:
        """Return the classes [N] of probabilities [N, 2]: 1 above the threshold, else 0."""
        return _label_rows(prediction, self.applied)

    def score(self, prediction: Array, targets: Array) -> tuple[float, float]:
        """Return the measure of probabilities [N, 2] for classes [N] at one half, and at the threshold."""
        measure = _find_measure(self.measure)
        before, after = (
            float(measure(*_count_cells(targets, _label_rows(prediction, at))[:, None])[0])
            for at in (_HALF, self.applied)
        )
        return before, after

    def to_json(self) -> dict[str, Any]:
        """Return the fields."""
        return asdict(self)

    @classmethod
    def from_json(cls, content: Mapping[str, Any]) -> "DecisionThreshold":
        """Return the decision whose `to_json` this was."""
        return cls(**content)


def decide(prediction: Array, targets: Array, measure: str = "balanced_accuracy", seed: int = 0) -> DecisionThreshold:
    """Return the threshold of greatest "accuracy", "balanced_accuracy" or "f1" for probabilities [N, 2]. O(N log N).

    Of equals the one nearest to one half. Use rows that chose nothing, the same that calibrated the prediction.
    """
    of = _find_measure(measure)
    if prediction.ndim != 2 or prediction.shape[1] != 2:
        raise EnsembleError(f"decide: got predictions of shape {prediction.shape}; allowed: two classes, (N, 2)")
    if len(np.unique(targets)) < 2:
        raise EnsembleError(f"decide: got {len(targets)} rows of one class; allowed: rows of both classes")
    order = prediction[:, 1].argsort(kind="stable")
    chance, truth = prediction[order, 1].astype(np.float64), targets[order] == 1
    # Only between two different probabilities does a threshold change any label.
    cuts = np.flatnonzero(np.diff(chance)) + 1  # rows from there on are called 1
    cuts = np.concatenate([[0], cuts, [len(chance)]])
    edges = np.concatenate([[0.0], chance, [1.0]])
    thresholds = (edges[cuts] + edges[cuts + 1]) / 2
    # Counts of all thresholds at once, by cumulated sums over the sorted rows.
    below = np.concatenate([[0], truth.cumsum()])[cuts]  # rows of class 1 that are called 0
    scores = of(truth.sum() - below, (len(chance) - cuts) - (truth.sum() - below), below, cuts - below)
    # Of thresholds that are equally good the one nearest to one half.
    best = np.lexsort((np.abs(thresholds - _HALF), -scores.round(12)))[0]
    fitted = float(thresholds[best])
    gain, error = _estimate_gain(prediction, targets, fitted, of, seed)
    return DecisionThreshold(
        measure=measure,
        fitted=fitted,
        applied=fitted if gain > error else _HALF,
        gain=gain,
        standard_error=error,
        rows=len(targets),
    )


def _estimate_gain(
    prediction: Array, targets: Array, threshold: float, of: Callable[..., Array], seed: int
) -> tuple[float, float]:
    """Return how much the measure rises from one half to a threshold, and the bootstrap's standard error of that."""
    # Rows differ only in truth and the two labels: eight kinds.
    kinds = 4 * (targets == 1) + 2 * _label_rows(prediction, _HALF) + _label_rows(prediction, threshold)
    counts = np.bincount(kinds, minlength=8)
    # Drawing rows anew is drawing how many there are of each of the eight kinds.
    draws = rng(seed, "decision threshold", 0).multinomial(len(targets), counts / len(targets), _DRAWS)
    cells = np.concatenate([counts[None], draws]).reshape(-1, 2, 2, 2)  # truth, label before, label after
    before, after = (
        of(*(item[:, truth, label] for truth, label in _CELLS)) for item in (cells.sum(axis=3), cells.sum(axis=2))
    )
    return float(after[0] - before[0]), float((after - before)[1:].std(ddof=1))


_CELLS = ((1, 1), (0, 1), (1, 0), (0, 0))  # (truth, label) of true positives, false positives, false and true negatives


def _count_cells(targets: Array, labels: Array) -> Array:
    return np.array([((targets == truth) & (labels == label)).sum() for truth, label in _CELLS])


def _label_rows(prediction: Array, threshold: float) -> Array:
    return np.asarray(prediction[:, 1] > threshold, dtype=np.int64)


def _divide_counts(part: Array, whole: Array) -> Array:
    return np.asarray(part / np.maximum(whole, 1))


def _accuracy(tp: Array, fp: Array, fn: Array, tn: Array) -> Array:
    return _divide_counts(tp + tn, tp + fp + fn + tn)


def _balanced_accuracy(tp: Array, fp: Array, fn: Array, tn: Array) -> Array:
    return (_divide_counts(tp, tp + fn) + _divide_counts(tn, tn + fp)) / 2


def _f1(tp: Array, fp: Array, fn: Array, tn: Array) -> Array:  # noqa: ARG001 - the form of all measures
    return _divide_counts(2 * tp, 2 * tp + fp + fn)


MEASURES: Mapping[str, Callable[[Array, Array, Array, Array], Array]] = {
    "accuracy": _accuracy,
    "balanced_accuracy": _balanced_accuracy,
    "f1": _f1,
}


def _find_measure(measure: str) -> Callable[[Array, Array, Array, Array], Array]:
    if measure not in MEASURES:
        raise EnsembleError(
            f"decide, measure: got {measure!r}; allowed: {', '.join(MEASURES)}{closest(measure, MEASURES)}"
        )
    return MEASURES[measure]
