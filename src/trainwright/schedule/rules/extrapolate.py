"""Extrapolate: stop a trial that will hardly become the best, by its loss, its configuration, and what became of others.

The end of a trial is foreseen as its loss now, plus what its rung and its configuration say of the change until the
end: a Gaussian process over configurations, learnt from the trials of the same study.
"""

import math
from dataclasses import dataclass, field
from itertools import product
from typing import Annotated, Self

import numpy as np
from numpy.typing import NDArray

from trainwright.schedule.rules.promotion_rule import Event, Reported, Started
from trainwright.schedule.rules.rung_rule import RungRule
from trainwright.schedule.rungs.rungs import Rungs, RungTable
from trainwright.validators import number

__all__ = ["Extrapolate"]

Array = NDArray[np.float64]
Point = tuple[float, ...]

_GROWTH = 1.2  # of the number of complete trials from one fit to the next
_MOST = 200  # trials of a rung, the newest, that a fit uses
_LENGTHS = (0.3, 0.6, 1.2)  # tried of the process, for columns of mean weight
_SIGNALS = (0.03, 0.1, 0.3, 1.0, 3.0)  # tried, relative to the noise
_LEAST_WEIGHT = 0.02  # of a column that shows nothing


@dataclass(frozen=True, slots=True)
class _Scores:
    """A scale for the losses of all rungs: the normal scores of their ranks, continued in straight lines."""

    losses: Array
    scores: Array

    @classmethod
    def of(cls, losses: Array) -> Self:
        from scipy.special import ndtri

        finite = losses[np.isfinite(losses)]
        values, first, count = np.unique(finite, return_index=True, return_counts=True)
        if len(values) < 2:
            values, scores = np.array([0.0, 1.0]) + (values[0] if len(values) else 0.0), np.array([0.0, 1.0])
        else:
            below = np.cumsum(count) - count
            scores = ndtri((below + 0.5 * count) / len(finite))
        # A tenth of the losses gives the slope of either end; nothing is much worse than the worst.
        tenth = max(1, len(values) // 10)
        low, high = (10.0 * (each[tenth] - each[0]) for each in (values, scores))
        ends = values[-1] - values[-1 - tenth]
        return cls(
            np.concatenate([[values[0] - low], values, [values[-1] + ends]]),
            np.concatenate([[scores[0] - high], scores, [scores[-1] + 0.5]]),
        )

    def __call__(self, losses: Array) -> Array:
        return np.asarray(np.interp(losses, self.losses, self.scores))

    def loss(self, score: float) -> float:
        """Return the loss with a score."""
        return float(np.interp(score, self.scores, self.losses))


@dataclass(frozen=True, slots=True)
class _Process:
    """A Gaussian process with a constant mean; signal, length and noise by likelihood, columns weighted by relevance.

    Weights are the share of variance that a parabola of the column alone explains. Without signal it is the mean.
    """

    points: Array  # weighted
    weights: Array
    mean: float
    coefficients: Array
    errors: Array  # of each target when foreseen from the others

    @classmethod
    def of(cls, points: Array, targets: Array) -> Self:
        from scipy.linalg import cho_solve, cholesky

        count, mean = len(targets), float(targets.mean())
        rest = targets - mean
        weights = _relevance(points, rest)
        scaled = points * weights
        squares = _squares(scaled, scaled)
        # Without signal: the mean, and its errors.
        best, found = -0.5 * count * math.log(max(rest @ rest / count, 1e-12)), None
        for length, signal in product(_LENGTHS, _SIGNALS):
            factor = cholesky(signal * _matern(squares / length**2) + np.eye(count), lower=True, check_finite=False)
            solved = cho_solve((factor, True), rest, check_finite=False)
            likelihood = -0.5 * count * math.log(max(rest @ solved / count, 1e-12)) - np.log(factor.diagonal()).sum()
            if likelihood > best + 1e-9:
                best, found = likelihood, (length, signal, factor, solved)
        spread = count / max(count - 1, 1)
        if found is None:
            return cls(points[:0], weights, mean, rest[:0], spread * rest)
        length, signal, factor, solved = found
        inverse = cho_solve((factor, True), np.eye(count), check_finite=False)
        errors = spread * solved / inverse.diagonal()
        return cls(scaled / length, weights / length, mean, signal * solved, errors)

    def __call__(self, points: Array) -> Array:
        return self.mean + _matern(_squares(points * self.weights, self.points)) @ self.coefficients


def _relevance(points: Array, targets: Array) -> Array:
    """Return the roots of the columns' weights, over the root of their number."""
    count, columns = points.shape
    whole = max(float(targets @ targets), 1e-12)
    shares = np.empty(columns)
    for column, units in enumerate(points.T):
        parabola = np.stack([np.ones(count), units, units**2], axis=1)
        left = targets - parabola @ np.linalg.lstsq(parabola, targets, rcond=1e-8)[0]
        # Two parameters explain 2/n of noise.
        shares[column] = max(1.0 - float(left @ left) / whole - 2.0 / count, _LEAST_WEIGHT)
    return np.sqrt(shares / max(shares.sum(), 1e-12))


def _squares(a: Array, b: Array) -> Array:
    return np.maximum((a * a).sum(axis=1)[:, None] + (b * b).sum(axis=1) - 2.0 * a @ b.T, 0.0)


def _matern(squares: Array) -> Array:
    r = np.sqrt(5.0 * squares)
    return np.asarray((1.0 + r + r * r / 3.0) * np.exp(-r))


@dataclass(slots=True)
class _Rung(RungTable):
    """The losses of all trials at one epoch, and what is foreseen from there on."""

    points: dict[int, Point]  # configurations of all trials
    losses: dict[int, float] = field(default_factory=dict)
    scores: _Scores | None = None
    change: _Process | None = None
    limit: float = math.inf  # the end, in scores, above which a trial is stopped

    def enter(self, event: Reported) -> tuple[bool, float | None]:
        self.losses[event.trial] = event.losses[0]
        if self.scores is None or self.change is None:
            return True, None
        change = float(self.change(self.places([event.trial], self.change.weights.shape[0]))[0])
        threshold = self.scores.loss(self.limit - change)
        return event.losses[0] <= threshold, threshold

    def places(self, trials: list[int], columns: int) -> Array:
        """Return the points of trials, the middle for one that is not known."""
        return np.array([self.points.get(trial) or (0.5,) * columns for trial in trials]).reshape(-1, columns)


@dataclass(slots=True)
class _Index(Rungs):
    rungs: dict[int, _Rung] = field(default_factory=dict)
    points: dict[int, Point] = field(default_factory=dict)
    complete: dict[int, float] = field(default_factory=dict)  # last losses
    due: int = 2  # complete trials at which the next fit is due


@dataclass(frozen=True, kw_only=True, slots=True)
class Extrapolate(RungRule):
    """At a rung stop iff the trial will end above the best complete one with a confidence of 1 - `risk`.

    Rungs are as for ASHA. The end is foreseen from the loss and the configuration, and held against the errors that
    this made of complete trials, each foreseen from the others: at most a share `risk` of (1 + those who would make up
    for the distance) among 1 + n stops it. So all go on before 1/risk - 1 trials are complete. Who was stopped counts
    in the fit with the end foreseen. O(n^3) for at most 200 trials a rung when the number of complete trials has grown
    by a fifth, else O(n) a report.
    """

    risk: Annotated[float, number(above=0, below=1)] = 0.1

    def empty(self) -> _Index:
        """Return an index without trials."""
        points: dict[int, Point] = {}
        rungs = {rung: _Rung(points) for rung in self.rungs}
        return _Index("Extrapolate", dict(rungs), self.max_epochs, pausing=False, rungs=rungs, points=points)

    def fold(self, index: _Index, event: Event) -> _Index:  # type: ignore[override]  # its own index
        """Record a report at every rung newly reached; complete trials move the thresholds."""
        if isinstance(event, Started) and event.point:
            index.points.setdefault(event.trial, event.point)
        index.fold(event)
        # The ends of complete trials alone are known.
        if isinstance(event, Reported) and event.epoch >= self.max_epochs and event.trial not in index.complete:
            index.complete[event.trial] = event.losses[0]
            if len(index.complete) >= max(index.due, 1.0 / self.risk - 1.0):
                index.due = max(len(index.complete) + 1, math.floor(_GROWTH * len(index.complete)))
                self._foresee(index)
        return index

    def _foresee(self, index: _Index) -> None:
        """Fit what becomes of trials, from the highest rung down."""
        rungs = index.rungs.values()
        scores = _Scores.of(np.array([loss for each in (index, *rungs) for loss in _losses(each)]))
        ends = dict(zip(index.complete, scores(np.array([*index.complete.values()])).tolist(), strict=True))
        best, columns = min(ends.values()), max(map(len, index.points.values()), default=0)
        for rung in reversed(rungs):
            known = [trial for trial in rung.losses if trial in ends][-_MOST:]
            now = dict(zip(rung.losses, scores(np.array([*rung.losses.values()])).tolist(), strict=True))
            changes = np.array([ends[trial] - now[trial] for trial in known])
            change = _Process.of(rung.places(known, columns), changes)
            errors = sorted(error for error, at in zip(change.errors, known, strict=True) if at in index.complete)
            place = math.floor(self.risk * (len(errors) + 1))
            if place:
                rung.scores, rung.change, rung.limit = scores, change, best - errors[place - 1]
            # Whoever was stopped here is, in the fits below, where it would have ended.
            left = [trial for trial in rung.losses if trial not in ends]
            foreseen = change(rung.places(left, columns)).tolist()
            ends |= {trial: now[trial] + more for trial, more in zip(left, foreseen, strict=True)}

    def chance_to_pass(self, count: int) -> float:
        """Return (1 - risk)^count: what a trial like the best has."""
        return (1.0 - self.risk) ** count


def _losses(trials: _Index | _Rung) -> list[float]:
    return list((trials.complete if isinstance(trials, _Index) else trials.losses).values())
