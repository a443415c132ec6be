"""Extrapolate: stop a trial that will hardly become the best, by the posterior of its learning curve's end.

After Domhan, Springenberg, Hutter (IJCAI 2015), with families mixed by their evidence and a prior learnt in the study.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from functools import lru_cache
from typing import Literal

import numpy as np

from trainwright.errors import ScheduleError, closest
from trainwright.randomness import rng
from trainwright.schedule._draws import Curve
from trainwright.schedule._families import FAMILIES, Family, Grid
from trainwright.schedule._posterior import Posterior, fits, posterior
from trainwright.schedule._rule import (
    CONTINUE,
    Continue,
    Ended,
    Event,
    Opened,
    Reason,
    Reported,
    Rule,
    Stop,
    TrialView,
    Verdict,
    View,
)
from trainwright.schedule._shapes import Array, Prior
from trainwright.schedule.ladder import as_fraction, check_ladder, ladder

__all__ = ["Extrapolate"]

_LEAST_POINTS = 4
_LEAST_FINISHED = 8  # curves of whole trials, before they make a prior
_MOST_FINISHED = 32  # the latest of them do
_MOST_VALUES = 4096  # of which the scale is made
_FARTHEST = 30.0  # interquartile ranges; losses beyond count as so far

Points = tuple[tuple[int, float], ...]


@dataclass(frozen=True, slots=True)
class _Question:
    """What a verdict rests on, as it was when the rung was reached: asked again, it is answered the same."""

    epoch: int
    centre: float
    scale: float
    best: float  # finished loss
    finished: int  # so many trials
    outlier: float  # a loss above this stops a curve of few points


@dataclass(slots=True)
class _Trial:
    epoch: int = 0
    rung: int = 0
    points: list[tuple[int, float]] = field(default_factory=list)
    question: _Question | None = None


@dataclass(slots=True)
class _Index:
    rungs: dict[int, list[float]]  # losses recorded at each
    seed: int = 0
    trials: dict[int, _Trial] = field(default_factory=dict)
    finished: list[Points] = field(default_factory=list)
    best: float = math.inf
    values: list[float] = field(default_factory=list)  # every `stride`-th finite loss
    stride: int = 1
    seen: int = 0

    def note(self, loss: float) -> None:
        """Keep a loss for the scale; of many every second, fourth, ... is kept."""
        if math.isfinite(loss):
            if self.seen % self.stride == 0:
                self.values.append(loss)
            self.seen += 1
            if len(self.values) > _MOST_VALUES:
                self.values, self.stride = self.values[::2], self.stride * 2


@dataclass(frozen=True, kw_only=True, slots=True)
class Extrapolate(Rule):
    """At a rung stop iff P(f(R) >= best finished loss) > `p`, recalibrated, with f the trial's extrapolated curve.

    Rungs are as for ASHA. With fewer than 4 points a trial stops iff its loss is an outlier (above Q3 + 1.5 IQR) among
    more than 10 others at the rung. No finished trial, or no sound posterior: it goes on. `families`: "all" or names
    among pow3, pow4, exp4, mmf4, hill4, ilog2, janoschek4, lin-log. `prior="study"`: normal over fits of at least 8
    finished trials (the latest 32), broad before; "self": around the trial's own fit, which uses the data twice. A
    report at a rung costs O(trials in the rung + points * draws), others O(1).
    """

    max_epochs: int
    min_epochs: int = 1
    eta: float | Fraction = 3
    p: float = 0.9
    families: Literal["all"] | Sequence[str] = "all"
    prior: Literal["study", "self", "broad"] = "study"

    def __post_init__(self) -> None:
        check_ladder("Extrapolate", self.min_epochs, self.max_epochs, self.eta)
        if isinstance(self.p, bool) or not isinstance(self.p, int | float) or not 0 < self.p < 1:
            raise ScheduleError(f"Extrapolate.p: got {self.p!r}; allowed: a probability above 0 and below 1")
        names = [] if self.families == "all" else list(self.families)
        if isinstance(self.families, str) and self.families != "all":
            names = [self.families]
        unknown = next((name for name in names if name not in FAMILIES), None)
        if unknown is not None or not (names or self.families == "all"):
            raise ScheduleError(
                f"Extrapolate.families: got {self.families!r}; allowed: 'all', or a list of {', '.join(FAMILIES)}"
                + closest(str(unknown), tuple(FAMILIES))
            )
        if self.families != "all":
            object.__setattr__(self, "families", tuple(names))
        if self.prior not in {"study", "self", "broad"}:
            raise ScheduleError(f"Extrapolate.prior: got {self.prior!r}; allowed: 'study', 'self', 'broad'")

    @property
    def rungs(self) -> tuple[int, ...]:
        """The epochs at which trials are judged."""
        return ladder(self.min_epochs, self.max_epochs, as_fraction(self.eta, "Extrapolate"))

    def empty(self) -> _Index:
        """Return an index without curves."""
        return _Index({rung: [] for rung in self.rungs})

    def fold(self, index: _Index, event: Event) -> _Index:
        """Keep the point; at a rung, keep what the verdict will rest on."""
        if isinstance(event, Opened):
            index.seed = event.seed
        if isinstance(event, Ended) and event.trial in index.trials:
            trial = index.trials[event.trial]
            trial.points, trial.question = [], None
        if not isinstance(event, Reported):
            return index
        trial, loss = index.trials.setdefault(event.trial, _Trial()), event.losses[0]
        if event.epoch <= trial.epoch:
            return index
        trial.epoch = event.epoch
        trial.points.append((event.epoch, loss))
        index.note(loss)
        for rung, losses in index.rungs.items():
            if trial.rung < rung <= event.epoch:
                trial.rung, trial.question = rung, self._question(index, event.epoch, losses)
                losses.append(loss)
        if event.epoch >= self.max_epochs:
            index.finished.append(tuple(trial.points))
            index.best = min(index.best, loss)
        return index

    def _question(self, index: _Index, epoch: int, others: list[float]) -> _Question:
        low, middle, high = np.quantile(index.values, [0.25, 0.5, 0.75]) if index.values else (0.0, 0.0, 0.0)
        finite, outlier = [loss for loss in others if math.isfinite(loss)], math.inf
        if len(others) > 10 and finite:
            first, third = np.quantile(finite, [0.25, 0.75])
            outlier = float(third + 1.5 * (third - first))
        scale = float(high - low) or float(np.ptp(index.values or [0.0])) or 1.0
        return _Question(epoch, float(middle), scale, index.best, len(index.finished), outlier)

    def on_report(self, index: _Index, view: View, trial: TrialView) -> Verdict:  # noqa: ARG002 -- the protocol's
        """Judge a trial at the rung that its report reached."""
        known = index.trials.get(trial.number)
        question = known.question if known is not None else None
        if known is None or question is None or question.epoch != trial.epoch or trial.epoch >= self.max_epochs:
            return CONTINUE
        points = _asked(known, question)
        if len(points) < _LEAST_POINTS:
            reason = Reason(rule="Extrapolate", epoch=trial.epoch, value=trial.loss, threshold=question.outlier)
            return Stop(reason) if trial.loss > question.outlier else CONTINUE
        found = self.forecast(index, trial.number) if math.isfinite(question.best) else None
        if found is None:
            return CONTINUE
        worse = recalibrated(found.above(question.best))
        reason = Reason(rule="Extrapolate", epoch=trial.epoch, value=worse, threshold=self.p)
        return Stop(reason) if worse > self.p else Continue(reason)

    def forecast(self, index: _Index, number: int) -> Posterior | None:
        """Return what is believed of a trial's end, as of the last rung that it reached.

        None before a rung, with fewer than 4 points, after the trial's end, and if no posterior is sound.
        """
        known = index.trials.get(number)
        question = known.question if known is not None else None
        if known is None or question is None or len(points := _asked(known, question)) < _LEAST_POINTS:
            return None
        if not math.isfinite(points[-1][1]):
            return Posterior(np.array([math.inf]), np.zeros(1), np.ones(1))  # it has diverged
        scale = max(question.scale, 0.5 * _spread(points))  # a study's may be that of trials that learn nothing
        curve = scaled(points, question.centre, scale, self.max_epochs)
        chosen = tuple(FAMILIES.values()) if self.families == "all" else tuple(FAMILIES[n] for n in self.families)
        latest = index.finished[: question.finished][-_MOST_FINISHED:]
        prior = self._prior(chosen, curve, latest, question.centre, scale)
        seed = rng(index.seed, "extrapolate", number, question.epoch)
        found = posterior(chosen, curve, prior, Grid.of(np.ones(1), self.max_epochs), seed)
        return None if found is None else found.scaled(question.centre, scale)

    def _prior(
        self, chosen: tuple[Family, ...], curve: Curve, finished: list[Points], centre: float, scale: float
    ) -> Prior:
        if self.prior == "self":
            return Prior.of(fits(chosen, curve, rng(0, "extrapolate", 0)), np.tile(np.eye(4), (len(chosen), 1, 1)))
        if self.prior == "broad" or len(finished) < _LEAST_FINISHED:
            return Prior.broad(len(chosen))
        rows = np.stack([_fitted(points, self.max_epochs, chosen) for points in finished])
        rows[:, :, 0] = (rows[:, :, 0] - centre) / scale
        positive = np.array([family.positive for family in chosen])
        rows[:, :, 1] = np.where(positive, rows[:, :, 1] - np.log(scale), rows[:, :, 1] / scale)
        rows = np.clip(rows, -_FARTHEST, _FARTHEST)
        mean = rows.mean(axis=0)
        gap = rows - mean
        return Prior.of(mean, np.einsum("tfp,tfq->fpq", gap, gap) / (len(rows) - 1) + 0.25 * np.eye(4))

    def next_epoch(self, index: _Index, trial: TrialView) -> int:
        """Return the next rung."""
        return next((rung for rung in index.rungs if rung > trial.epoch), self.max_epochs)


def recalibrated(worse: float) -> float:
    """Return how often a posterior that says `worse` is right: the odds are e^2 P / (1 - P)^(1/3).

    Beta calibration (Kull, Silva Filho, Flach, AISTATS 2017), rounded from 2.05, 0.96 and 0.34 on tables of TaskSet and
    AlgoPerf. A few points leave much open, but most trials end worse than the best one.
    """
    worse = min(max(float(worse), 1e-3), 1.0 - 1e-3)
    odds = math.exp(2.0) * worse / math.cbrt(1.0 - worse)
    return odds / (1.0 + odds)


def _asked(trial: _Trial, question: _Question) -> Points:
    return tuple(point for point in trial.points if point[0] <= question.epoch)


def _spread(points: Points) -> float:
    """Return what lies between the first and the last tenth of the finite losses."""
    low, high = np.quantile([loss for _, loss in points if math.isfinite(loss)] or [0.0], [0.1, 0.9])
    return float(high - low)


def scaled(points: Points, centre: float, scale: float, length: int) -> Curve:
    """Return a curve in units of the study; what is not finite counts as very bad."""
    epochs, losses = np.array(points).T
    values = np.clip(np.nan_to_num((losses - centre) / scale, nan=_FARTHEST), -_FARTHEST, _FARTHEST)
    return Curve(Grid.of(epochs / length, length), values)


@lru_cache(maxsize=256)
def _fitted(points: Points, length: int, chosen: tuple[Family, ...]) -> Array:
    """Return the parameters [F, 4] of a whole curve, in its own units of loss."""
    finite = np.array([loss for _, loss in points if math.isfinite(loss)] or [0.0])
    low, centre, high = np.quantile(finite, [0.25, 0.5, 0.75])
    scale = float(high - low) or float(np.ptp(finite)) or 1.0
    found = fits(chosen, scaled(points, float(centre), scale, length), rng(0, "extrapolate", 0))
    found[:, 0] = found[:, 0] * scale + centre
    positive = np.array([family.positive for family in chosen])
    found[:, 1] = np.where(positive, found[:, 1] + np.log(scale), found[:, 1] * scale)
    return found
