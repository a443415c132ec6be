"""Stacking: fits a linear meta-model on the members' predictions, on the rows that selected them (Wolpert 1992).

Pulled to equal weights as strongly as gives the least loss out of fold, so that a head that does not help stays near
the plain pool; `choose_rule` takes one only where rows that it was not fitted to say that it helps.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, Self

import numpy as np

from trainwright.ensemble.combine.rules import CombinationRule, WeightedMean, combine, default_rule
from trainwright.ensemble.metrics import METRICS, SMALLEST, Array, Metric, default_metric
from trainwright.errors import EnsembleError
from trainwright.randomness import rng
from trainwright.validators import check, each, number

__all__ = ["LinearStacking", "Stacking", "choose_rule"]

_STRENGTHS = (1e-3, 1e-2, 1e-1, 1.0)  # of the pull to equal weights
_SHARE = 0.5  # of a head that is chosen, in the prediction
_FOLDS = 5
_FEWEST_ROWS = 100  # that can say that a head helps
_ADDITIONS = 50  # of greedy selection


@dataclass(frozen=True)
class Stacking(CombinationRule):
    """Classes: p is proportional to exp(b + sum a_k log p_k), one factor a member and one offset a class."""

    factors: tuple[float, ...] = ()
    offsets: tuple[float, ...] = ()
    share: float = 1.0  # of the head in the prediction; the rest is the weighted mean's

    name: ClassVar[str] = "stacking"
    outputs: ClassVar[tuple[str, ...]] = ("classes",)

    def __post_init__(self) -> None:
        """Refuse numbers that a damaged export may hold."""
        for name in ("factors", "offsets"):
            check(getattr(self, name), each(number()), f"rule {self.name!r}: {name}", EnsembleError)
        check(self.share, number(above=0, maximum=1), f"rule {self.name!r}: share", EnsembleError)

    def fit(self, predictions: Sequence[Array], targets: Array) -> Self:
        """Return the head of least loss for members' predictions, K times [N, C], and classes [N] or values [N, C]."""
        stacked = np.stack(predictions).astype(np.float64)
        if stacked.shape[1] < 2 * _FOLDS:
            raise EnsembleError(f"Stacking.fit: got {stacked.shape[1]} rows; allowed: at least {2 * _FOLDS}")
        metric = METRICS[default_metric(self.outputs[0])]
        fold = _draw_folds(stacked.shape[1])

        def loss_out_of_fold(strength: float) -> float:
            losses = []
            for one in range(_FOLDS):
                head = self._fit_head(stacked[:, fold != one], targets[fold != one], strength)
                left = replace(head, share=1.0).combine_all(stacked[:, fold == one], np.ones(len(stacked)))
                losses.append(metric.row_losses(left, targets[fold == one]))
            return float(np.concatenate(losses).mean())

        return self._fit_head(stacked, targets, min(_STRENGTHS, key=loss_out_of_fold))

    def combine_all(self, predictions: Array, weights: Array) -> Array:
        """Return the combination [N, C] of the members that the head was fitted to."""
        if predictions.shape[0] != len(self.factors) or predictions.shape[2] != len(self.offsets):
            raise EnsembleError(
                f"rule: got {predictions.shape[0]} members of {predictions.shape[2]} columns; allowed: the "
                f"{len(self.factors)} members and {len(self.offsets)} columns that it was fitted to; fit it by "
                "ensemble.with_rule(name)"
            )
        head = self._apply_head(np.array([*self.factors, *self.offsets]), predictions)
        if self.share == 1.0:
            return head
        return self.share * head + (1.0 - self.share) * WeightedMean().combine_all(predictions, weights)

    def without(self, missing: frozenset[int]) -> CombinationRule:  # noqa: ARG002
        """Return the weighted mean: the head has no meaning for fewer members."""
        return WeightedMean()

    def _apply_head(self, head: Array, predictions: Array) -> Array:
        scores = _add_up(head, np.log(np.maximum(predictions, SMALLEST)))
        odds = np.exp(scores - scores.max(axis=1, keepdims=True))
        return np.asarray(odds / odds.sum(axis=1, keepdims=True))

    def _fit_head(self, predictions: Array, targets: Array, strength: float) -> Self:
        from scipy.optimize import minimize

        count, rows, classes = predictions.shape
        logs = np.log(np.maximum(predictions, SMALLEST))
        start = _equal_weights(count, classes)

        def objective(head: Array) -> tuple[float, Array]:
            """Return the penalised cross-entropy and its gradient."""
            found = self._apply_head(head, predictions)
            pull = head - start
            loss = -np.log(np.maximum(found[np.arange(rows), targets], 1e-300)).mean() + strength * (pull**2).sum()
            # The gradient by the scores is p - 1 for the true class, p for the others.
            found[np.arange(rows), targets] -= 1.0
            slope = np.concatenate([np.tensordot(logs, found, axes=([1, 2], [0, 1])), found.sum(axis=0)]) / rows
            return float(loss), slope + 2.0 * strength * pull

        return self._of(minimize(objective, start, jac=True, method="L-BFGS-B").x, count)

    def _of(self, head: Array, count: int) -> Self:
        return replace(self, factors=tuple(head[:count].tolist()), offsets=tuple(head[count:].tolist()))


@dataclass(frozen=True)
class LinearStacking(Stacking):
    """Values: b + sum a_k y_k, one factor a member and one offset an output, by ridge regression."""

    name: ClassVar[str] = "linear"
    outputs: ClassVar[tuple[str, ...]] = ("values",)

    def _apply_head(self, head: Array, predictions: Array) -> Array:
        return _add_up(head, predictions)

    def _fit_head(self, predictions: Array, targets: Array, strength: float) -> Self:
        count, rows, outputs = predictions.shape
        # Standardised by the targets, so that the pull means the same in every unit.
        centre, scale = targets.mean(axis=0), targets.std(axis=0) + SMALLEST
        members = ((predictions - centre) / scale).reshape(count, -1).T
        offsets = np.tile(np.eye(outputs), (rows, 1))
        terms = np.concatenate([members, offsets], axis=1)
        start = _equal_weights(count, outputs)
        left = terms.T @ terms / rows + strength * np.eye(len(start))
        right = terms.T @ ((targets - centre) / scale).reshape(-1) / rows + strength * start
        head = np.linalg.solve(left, right)
        factors = head[:count]
        return self._of(np.concatenate([factors, centre * (1 - factors.sum()) + scale * head[count:]]), count)


def choose_rule(predictions: Sequence[Array], targets: Array, output: str) -> CombinationRule:
    """Return the default rule, or its mean with a head, if that loses less by over one standard error out of fold.

    A head alone may have learned the noise of few rows; its mean with the plain pool loses little of what it gains.
    The plain pool is weighted anew without those rows too. The weights that selection gave it have seen them: compared
    with these no head would ever seem to help.
    """
    plain = default_rule(output)
    learner = {"classes": Stacking(), "values": LinearStacking()}.get(output)
    if learner is None or len(predictions) == 1 or len(targets) < _FEWEST_ROWS:
        return plain
    stacked, fold = np.stack(predictions).astype(np.float64), _draw_folds(len(targets))
    metric = METRICS[default_metric(output)]
    learner, gains = replace(learner, share=_SHARE), np.zeros(len(targets))
    for one in range(_FOLDS):
        held, rest = fold == one, fold != one
        weights = _weigh_members(stacked[:, rest], targets[rest], metric)
        head = learner.fit(list(stacked[:, rest]), targets[rest])
        gains[held] = metric.row_losses(combine(plain, stacked[:, held], weights), targets[held])
        gains[held] -= metric.row_losses(combine(head, stacked[:, held], weights), targets[held])
    error = gains.std(ddof=1) / np.sqrt(len(gains))
    return learner.fit(predictions, targets) if gains.mean() > error else plain


def _weigh_members(predictions: Array, targets: Array, metric: Metric) -> list[float]:
    """Return the weights of greedy selection with replacement among members [K, N, C], as selection gives them."""
    counts, best = np.zeros(len(predictions)), (np.inf, np.zeros(len(predictions)))
    total = np.zeros_like(predictions[0])
    for step in range(1, _ADDITIONS + 1):
        losses = [metric.row_losses((total + one) / step, targets).mean() for one in predictions]
        least = int(np.argmin(losses))
        total, counts[least] = total + predictions[least], counts[least] + 1
        if losses[least] < best[0]:
            best = losses[least], counts / step
    return [float(weight) for weight in best[1]]


def _draw_folds(rows: int) -> Array:
    return np.asarray(rng(0, "stacking", 0).permutation(rows) % _FOLDS)


def _equal_weights(count: int, columns: int) -> Array:
    return np.concatenate([np.full(count, 1.0 / count), np.zeros(columns)])


def _add_up(head: Array, terms: Array) -> Array:
    return np.asarray(np.tensordot(head[: len(terms)], terms, axes=1) + head[len(terms) :])
