"""Extrapolate: stop a trial that is worse now than complete trials were at its epoch, but for the worst of them.

Each curve is compared with those of other trials, which is where it will go, rather than fitted alone: extrapolation
from a curve's own points ends many of the trials that would have become the best.
"""

import math
from bisect import insort
from dataclasses import dataclass, field
from typing import Annotated

import numpy as np

from trainwright.schedule.rules.promotion_rule import Event, Reported
from trainwright.schedule.rules.rung_rule import RungRule
from trainwright.schedule.rungs.rungs import Rungs, RungTable
from trainwright.validators import integer, number

__all__ = ["Extrapolate"]

_AGREES = 0.5
"""Rank correlation above which a rung foretells the end."""


@dataclass(slots=True)
class _Rung(RungTable):
    """The losses of all trials at one epoch, and the one above which a trial is stopped there."""

    losses: dict[int, float] = field(default_factory=dict)
    threshold: float | None = None

    def enter(self, event: Reported) -> tuple[bool, float | None]:
        self.losses[event.trial] = event.losses[0]
        return self.threshold is None or event.losses[0] <= self.threshold, self.threshold


@dataclass(slots=True)
class _Index(Rungs):
    rungs: dict[int, _Rung] = field(default_factory=dict)
    complete: list[tuple[float, int]] = field(default_factory=list)  # last losses, ascending
    known: set[int] = field(default_factory=set)  # complete trials


@dataclass(frozen=True, kw_only=True, slots=True)
class Extrapolate(RungRule):
    """At a rung stop iff the loss is above all that the best `share` of complete trials had there.

    Rungs are as for ASHA. So far nobody that ended well was so bad at this epoch. Everybody goes on before `min_trials`
    are complete, and at rungs where the order of complete trials does not foretell that of their ends (Spearman's
    rank correlation at most 0.5). O(n log n) for each of the n complete trials, else O(1) a report.
    """

    share: Annotated[float, number(above=0, maximum=1)] = 0.75
    min_trials: Annotated[int, integer(minimum=1)] = 8

    def empty(self) -> _Index:
        """Return an index without trials."""
        rungs = {rung: _Rung() for rung in self.rungs}
        return _Index("Extrapolate", dict(rungs), self.max_epochs, pausing=False, rungs=rungs)

    def fold(self, index: _Index, event: Event) -> _Index:  # type: ignore[override]  # its own index
        """Record a report at every rung newly reached; a complete trial moves the thresholds."""
        index.fold(event)
        # Thresholds rest on complete trials alone: only their ends are known.
        if isinstance(event, Reported) and event.epoch >= self.max_epochs and event.trial not in index.known:
            index.known.add(event.trial)
            insort(index.complete, (event.losses[0], event.trial))
            if len(index.complete) >= self.min_trials:
                # The threshold of a rung: the worst loss there among the best complete trials.
                best = index.complete[: math.ceil(self.share * len(index.complete))]
                for rung in index.rungs.values():
                    agrees = _rank_agreement([rung.losses[trial] for _, trial in index.complete]) > _AGREES
                    rung.threshold = max(rung.losses[trial] for _, trial in best) if agrees else None
        return index

    def chance_to_pass(self, count: int) -> float:
        """Return share^count."""
        return float(self.share) ** count


def _rank_agreement(losses: list[float]) -> float:
    """Return the rank correlation of losses with the order in which they are given; of equal ones the first is less."""
    count = len(losses)
    if count < 2:
        return 0.0
    # Spearman's formula for ranks without ties, which the order of the list breaks.
    ranks = np.empty(count)
    ranks[np.argsort(losses, kind="stable")] = np.arange(count)
    return 1.0 - 6.0 * float(((ranks - np.arange(count)) ** 2).sum()) / (count * (count**2 - 1))
