"""Cascade by agreement: cheap members first, and the others only for the rows on which those do not agree.

After "Agreement-Based Cascading" (arXiv 2407.02348). A row stops at a tier if members with at least `agreement` of the
weight of all members asked so far give it the same label.
"""

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from trainwright.ensemble import Ensemble, combine
from trainwright.ensemble.metrics import Array, cross_entropy
from trainwright.errors import ServeConfigError

__all__ = ["Cascade", "Saved", "agreement_of", "fit_cascade", "saved_by"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Cascade:
    """Members by trial number in tiers of rising cost, and the share of weight that has to agree for a row to stop."""

    tiers: tuple[tuple[int, ...], ...]
    agreement: float

    def __post_init__(self) -> None:
        listed = list(itertools.chain.from_iterable(self.tiers))
        if len(self.tiers) < 2 or not all(self.tiers) or len(set(listed)) < len(listed):
            raise ServeConfigError(
                f"Cascade, tiers: got {self.tiers!r}; allowed: two tiers or more, each member in exactly one"
            )
        if not 0.0 < self.agreement <= 1.0:
            raise ServeConfigError(f"Cascade, agreement: got {self.agreement!r}; allowed: above 0, up to 1")


@dataclass(frozen=True, kw_only=True, slots=True)
class Saved:
    """What a cascade saves on a split's rows, and what it costs in loss."""

    cost_ratio: float  # expected seconds a row, as a share of the whole ensemble's
    stopped: tuple[float, ...]  # share of the rows that stop at each tier
    loss: float  # cross-entropy
    full_loss: float
    standard_error: float  # of the paired difference of the two


def agreement_of(predictions: Sequence[Array], weights: Sequence[float]) -> Array:
    """Return per row [N] the share of the weight of the label that most weight is on, for K predictions [N, C]."""
    votes = np.zeros(predictions[0].shape)
    every = np.arange(len(votes))
    for prediction, weight in zip(predictions, weights, strict=True):
        votes[every, prediction.argmax(axis=1)] += weight
    return np.asarray(votes.max(axis=1) / sum(weights))


def fit_cascade(ensemble: Ensemble, split: str = "calibration") -> Cascade:
    """Return the cheapest cascade of two tiers whose loss on a split's kept rows is that of the whole ensemble.

    That is to say: their paired difference in cross-entropy is at most one standard error. The first tier is two or
    more of the cheapest members; every share of weight that agrees on some row is tried. Raises ServeConfigError if the
    ensemble is too small, has costs that were not measured, or no cascade is good enough.
    """
    costs = _costs(ensemble)
    if len(costs) < 3 or ensemble.output != "classes":
        raise ServeConfigError(
            f"Cascade: got {len(costs)} members that predict {ensemble.output}; allowed: three or more that predict "
            "classes"
        )
    order = sorted(costs, key=lambda trial: (costs[trial], trial))
    known = _Known(ensemble, split)
    found: list[tuple[float, Cascade]] = []
    for first in range(2, len(order)):
        tiers = (tuple(sorted(order[:first])), tuple(sorted(order[first:])))
        for share in np.unique(known.agreement(tiers[0])):
            cascade = Cascade(tiers=tiers, agreement=float(min(1.0, share)))
            saved = known.saved(cascade, costs)
            if saved.loss - saved.full_loss <= saved.standard_error:
                found.append((saved.cost_ratio, cascade))
    if not found:
        raise ServeConfigError(
            f"Cascade: no two tiers keep the loss of the whole ensemble on {split!r}; deploy the ensemble without one"
        )
    return min(found, key=lambda one: (one[0], one[1].tiers, one[1].agreement))[1]


def saved_by(ensemble: Ensemble, cascade: Cascade, split: str = "test") -> Saved:
    """Return what a cascade saves on a split's kept rows; read it for rows on which it was not fitted."""
    return _Known(ensemble, split).saved(cascade, _costs(ensemble))


class _Known:
    """The kept predictions of all members on a split."""

    def __init__(self, ensemble: Ensemble, split: str) -> None:
        self._ensemble = ensemble
        self._weights = {
            member.trial: weight for member, weight in zip(ensemble.members, ensemble.weights, strict=True)
        }
        self._predictions = dict(zip(self._weights, ensemble.member_predictions(split), strict=True))
        self._targets = ensemble.members[0].targets(split)
        self._full = cross_entropy(self._combined(tuple(self._weights)), self._targets)

    def agreement(self, trials: Sequence[int]) -> Array:
        return agreement_of([self._predictions[one] for one in trials], [self._weights[one] for one in trials])

    def saved(self, cascade: Cascade, costs: Mapping[int, float]) -> Saved:
        rows = len(self._targets)
        left, losses = np.ones(rows, dtype=bool), self._full.copy()
        asked: tuple[int, ...] = ()
        cost, stopped = 0.0, []
        for place, tier in enumerate(cascade.tiers):
            asked = tuple(sorted({*asked, *tier}))
            cost += left.mean() * sum(costs[trial] for trial in tier)
            last = place == len(cascade.tiers) - 1
            stops = left if last else left & (self.agreement(asked) >= cascade.agreement)
            losses[stops] = cross_entropy(self._combined(asked), self._targets)[stops]
            stopped.append(float(stops.mean()))
            left = left & ~stops
        apart = losses - self._full
        return Saved(
            cost_ratio=float(cost / sum(costs.values())),
            stopped=tuple(stopped),
            loss=float(losses.mean()),
            full_loss=float(self._full.mean()),
            standard_error=float(apart.std(ddof=1) / np.sqrt(rows)) if rows > 1 else 0.0,
        )

    def _combined(self, trials: tuple[int, ...]) -> Array:
        missing = frozenset(place for place, trial in enumerate(self._weights) if trial not in trials)
        rule = self._ensemble.rule.without(missing) if missing else self._ensemble.rule
        pooled = combine(rule, (self._predictions[one] for one in trials), [self._weights[one] for one in trials])
        calibration = self._ensemble.calibration
        return pooled if calibration is None else calibration.apply(pooled)


def _costs(ensemble: Ensemble) -> dict[int, float]:
    costs = {member.trial: member.seconds_per_row for member in ensemble.members}
    unknown = [trial for trial, seconds in costs.items() if seconds is None]
    if unknown:
        raise ServeConfigError(
            f"Cascade: the seconds of trial {unknown[0]} were not measured; give both tiers and agreement, or "
            "leave members with sample="
        )
    return {trial: float(seconds) for trial, seconds in costs.items() if seconds is not None}
