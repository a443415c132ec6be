"""A combination rule of your own: stacking, a logistic head on the members' log-probabilities."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from trainwright.ensemble import CombinationRule
from trainwright.ensemble.combine.rules import WeightedMean, combine
from trainwright.ensemble.metrics import SMALLEST, Array
from trainwright.errors import EnsembleError
from trainwright.randomness import rng

__all__ = ["Stacking"]

STRENGTHS = (1e-4, 1e-3, 1e-2, 1e-1, 1.0)  # of the pull to the equal-weight pool
FOLDS = 5


@dataclass(frozen=True)
class Stacking(CombinationRule):
    """p is proportional to exp(b + sum a_k log p_k): one power a member, one offset a class (Wolpert 1992)."""

    powers: tuple[float, ...] = ()
    offsets: tuple[float, ...] = ()

    name: ClassVar[str] = "stacking"
    outputs: ClassVar[tuple[str, ...]] = ("classes",)

    def fit(self, predictions: Sequence[Array], targets: Array) -> "Stacking":
        """Return the head of least cross-entropy for members' probabilities, K times [N, C], and classes [N].

        The pull to equal weights is as strong as gives the least loss out of fold, so that a head that does not help
        stays near the equal-weight pool.
        """
        logs = np.log(np.maximum(np.stack(predictions).astype(np.float64), SMALLEST))
        if logs.shape[1] < 2 * FOLDS:
            raise EnsembleError(f"Stacking.fit: got {logs.shape[1]} rows; allowed: at least {2 * FOLDS}")
        fold = rng(0, "stacking", 0).permutation(logs.shape[1]) % FOLDS
        losses = [
            sum(
                _loss(
                    _fit_head(logs[:, fold != f], targets[fold != f], strength), logs[:, fold == f], targets[fold == f]
                )
                * float((fold == f).mean())
                for f in range(FOLDS)
            )
            for strength in STRENGTHS
        ]
        best = _fit_head(logs, targets, STRENGTHS[int(np.argmin(losses))])
        return Stacking(powers=tuple(best[: len(logs)].tolist()), offsets=tuple(best[len(logs) :].tolist()))

    def combine_all(self, predictions: Array, weights: Array) -> Array:  # noqa: ARG002
        """Return the combined probabilities [N, C] of the members that the head was fitted to."""
        if predictions.shape[0] != len(self.powers) or predictions.shape[2] != len(self.offsets):
            raise EnsembleError(
                f"rule: got {predictions.shape[0]} members of {predictions.shape[2]} classes; allowed: the "
                f"{len(self.powers)} members and {len(self.offsets)} classes of Stacking.fit"
            )
        return _softmax(_scores(np.array([*self.powers, *self.offsets]), np.log(np.maximum(predictions, SMALLEST))))

    def without(self, missing: frozenset[int]) -> CombinationRule:  # noqa: ARG002
        """Return the weighted mean: the head has no meaning for fewer members."""
        return WeightedMean()


def _scores(head: Array, logs: Array) -> Array:
    return np.asarray(np.tensordot(head[: len(logs)], logs, axes=1) + head[len(logs) :])


def _softmax(scores: Array) -> Array:
    odds = np.exp(scores - scores.max(axis=1, keepdims=True))
    return np.asarray(odds / odds.sum(axis=1, keepdims=True))


def _loss(head: Array, logs: Array, targets: Array) -> float:
    true = _softmax(_scores(head, logs))[np.arange(len(targets)), targets]
    return float(-np.log(np.maximum(true, SMALLEST)).mean())


def _fit_head(logs: Array, targets: Array, strength: float) -> Array:
    from scipy.optimize import minimize

    count, rows, classes = logs.shape
    start = np.concatenate([np.full(count, 1.0 / count), np.zeros(classes)])

    def objective(head: Array) -> tuple[float, Array]:
        """Return the penalised cross-entropy and its gradient."""
        probabilities = _softmax(_scores(head, logs))
        pull = head - start
        true = probabilities[np.arange(rows), targets]
        loss = -np.log(np.maximum(true, 1e-300)).mean() + strength * (pull**2).sum()
        error = probabilities
        error[np.arange(rows), targets] -= 1.0
        slope = np.concatenate([np.tensordot(logs, error, axes=([1, 2], [0, 1])), error.sum(axis=0)]) / rows
        return float(loss), slope + 2.0 * strength * pull

    return np.asarray(minimize(objective, start, jac=True, method="L-BFGS-B").x)


if __name__ == "__main__":
    draws = np.random.default_rng(1)
    labels = draws.integers(0, 3, 600)
    members = []
    for skill in (2.0, 2.0, 0.0):  # two good members, and one that is noise
        scores = draws.normal(size=(600, 3))
        scores[np.arange(600), labels] += skill
        members.append(_softmax(scores))
    head = Stacking().fit([member[:300] for member in members], labels[:300])
    for rule in (WeightedMean(), head):
        found = combine(rule, [member[300:] for member in members], [1.0, 1.0, 1.0])
        loss = -np.log(found[np.arange(300), labels[300:]]).mean()
        print(f"{rule.name}: cross-entropy {loss:.3f} on the rows left out")
