"""Stacking: a logistic head on the members' log-probabilities, with one weight a member and one offset a class.

p is proportional to exp(b + sum a_k log p_k), so it is a learned logarithmic opinion pool (Wolpert 1992 for the idea).
With K + C numbers it can overfit far less than a head on all K C inputs. Not a default: rows that members were trained
on make it worthless, and on few rows the plain mean is better.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from trainwright.ensemble.combine.means import Weighted
from trainwright.ensemble.combine.median import Kept
from trainwright.ensemble.combine.rule import Rule
from trainwright.ensemble.metrics import SMALLEST, Array
from trainwright.errors import EnsembleError
from trainwright.randomness import rng

__all__ = ["Stacking"]

_STRENGTHS = (
    1e-4,
    1e-3,
    1e-2,
    1e-1,
    1.0,
)  # of the pull to the equal-weight pool, of which the best out of fold is kept
_FOLDS = 5


@dataclass(frozen=True)
class Stacking:
    """A fitted head: `powers` a [K] of the members in their order, `offsets` b [C] of the classes; see `fit`."""

    powers: tuple[float, ...] = ()
    offsets: tuple[float, ...] = ()

    name: ClassVar[str] = "stacking"
    outputs: ClassVar[tuple[str, ...]] = ("classes",)
    linear: ClassVar[bool] = False
    needs_all: ClassVar[bool] = True

    @classmethod
    def fit(cls, predictions: Sequence[Array], targets: Array, seed: int = 0) -> "Stacking":
        """Return the head of least cross-entropy for members' probabilities, K times [N, C], and classes [N].

        The strength of the pull to equal weights is the one of least loss out of fold (5 folds), so that a head that
        does not help stays near the equal-weight pool. Convex; by L-BFGS.
        """
        logs = np.log(np.maximum(np.stack(predictions).astype(np.float64), SMALLEST))
        rows = logs.shape[1]
        if rows < 2 * _FOLDS:
            raise EnsembleError(f"Stacking.fit: got {rows} rows; allowed: at least {2 * _FOLDS}, for {_FOLDS} folds")
        fold = rng(seed, "stacking", 0).permutation(rows) % _FOLDS
        outside = [
            sum(
                _loss(_fitted(logs[:, fold != f], targets[fold != f], strength), logs[:, fold == f], targets[fold == f])
                * float((fold == f).mean())
                for f in range(_FOLDS)
            )
            for strength in _STRENGTHS
        ]
        best = _fitted(logs, targets, _STRENGTHS[int(np.argmin(outside))])
        return cls(powers=tuple(best[: len(logs)].tolist()), offsets=tuple(best[len(logs) :].tolist()))

    def init(self, rows: int, outputs: int) -> Kept:  # noqa: ARG002 - the fold's form
        """Return the state before any member."""
        if not self.powers:
            raise EnsembleError(
                "rule: got a stacking head that is not fitted; allowed: Stacking.fit(predictions, targets)"
            )
        if outputs != len(self.offsets):
            raise EnsembleError(f"rule: got {outputs} classes; allowed: the {len(self.offsets)} of the fit")
        return Kept()

    def add(self, state: Kept, member: int, prediction: Array, weight: float) -> Kept:
        """Return the state with one member's prediction [N, C] kept."""
        return state.with_member(member, prediction, weight)

    def merge(self, one: Kept, other: Kept) -> Kept:
        """Return the state of the members of both."""
        return one.merged(other)

    def finish(self, state: Kept) -> Array:
        """Return the combined probabilities [N, C]; needs every member that it was fitted to."""
        if sorted(state.members) != list(range(len(self.powers))):
            raise EnsembleError(
                f"rule: got members {sorted(state.members)}; allowed: all {len(self.powers)} of the fit"
            )
        values, _ = state.stacked()
        return _softmax(_scores(np.array([*self.powers, *self.offsets]), np.log(np.maximum(values, SMALLEST))))

    def without(self, missing: frozenset[int]) -> Rule:  # noqa: ARG002 - the fold's form
        """Return the weighted mean: the head has no meaning for fewer members."""
        return Weighted()

    def to_json(self) -> dict[str, Any]:
        """Return name, powers and offsets."""
        return {"name": self.name, "powers": list(self.powers), "offsets": list(self.offsets)}


def _scores(head: Array, logs: Array) -> Array:
    return np.asarray(np.tensordot(head[: len(logs)], logs, axes=1) + head[len(logs) :])


def _softmax(scores: Array) -> Array:
    odds = np.exp(scores - scores.max(axis=1, keepdims=True))
    return np.asarray(odds / odds.sum(axis=1, keepdims=True))


def _loss(head: Array, logs: Array, targets: Array) -> float:
    chosen = _softmax(_scores(head, logs))[np.arange(len(targets)), targets]
    return float(-np.log(np.maximum(chosen, SMALLEST)).mean())


def _fitted(logs: Array, targets: Array, strength: float) -> Array:
    from scipy.optimize import minimize

    count, rows, classes = logs.shape
    start = np.concatenate([np.full(count, 1.0 / count), np.zeros(classes)])
    every = np.arange(rows)

    def objective(head: Array) -> tuple[float, Array]:
        chance = _softmax(_scores(head, logs))
        apart = head - start
        loss = -np.log(np.maximum(chance[every, targets], 1e-300)).mean() + strength * (apart**2).sum()
        error = chance
        error[every, targets] -= 1.0
        slope = np.concatenate([np.tensordot(logs, error, axes=([1, 2], [0, 1])), error.sum(axis=0)]) / rows
        return float(loss), slope + 2.0 * strength * apart

    return np.asarray(minimize(objective, start, jac=True, method="L-BFGS-B").x)
