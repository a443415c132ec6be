"""PASHA: raise the longest training only while the ranking of the best still changes (Bohdal et al., ICLR 2023)."""

from dataclasses import dataclass, field
from typing import Annotated

import numpy as np

from trainwright.schedule.rules.promotion_rule import Event, Reported
from trainwright.schedule.rules.rung_rule import FIRST, RungRule
from trainwright.schedule.rungs.rungs import RankRung, Rungs

__all__ = ["PASHA"]

_CROSSED = 10
"""So many pairs of curves must have crossed twice before their distances say how large the noise is."""


@dataclass(slots=True)
class _Noise:
    """How far apart curves are that cross again and again, among the trials of one rung."""

    pairs: int = 0
    distances: list[float] = field(default_factory=list)

    def add(self, curve: dict[int, float], others: list[dict[int, float]], rung: int) -> None:
        """Compare a curve with those that came before; O(others * epochs)."""
        for other in others:
            common = sorted(epoch for epoch in curve.keys() & other.keys() if epoch <= rung)
            both = np.array([[curve[epoch], other[epoch]] for epoch in common]).reshape(-1, 2)
            both = both[np.isfinite(both).all(axis=1)]
            gaps = both[:, 0] - both[:, 1]
            # Two crossings of two curves are taken for noise, one for a change of the ranking.
            signs = np.sign(gaps[gaps != 0])
            if (signs[1:] != signs[:-1]).sum() >= 2:
                self.pairs += 1
                self.distances += np.abs(gaps).tolist()

    @property
    def epsilon(self) -> float:
        return float(np.quantile(self.distances, 0.9)) if self.pairs >= _CROSSED else 0.0


@dataclass(slots=True)
class _Index(Rungs):
    """Rungs whose top is raised; the losses recorded at each rung; and, for epsilon, the curves."""

    ladder: tuple[int, ...] = ()  # rungs, then the full length
    open: int = 0  # place of the top rung in the ladder
    losses: dict[int, dict[int, float]] = field(default_factory=dict)
    curves: dict[int, dict[int, float]] = field(default_factory=dict)
    noise: dict[int, _Noise] = field(default_factory=dict)

    def fold(self, event: Event) -> tuple[int, ...]:
        """Take an event; a record in one of the two top rungs may open another."""
        if isinstance(event, Reported):
            curve = self.curves.setdefault(event.trial, {})
            if event.epoch > next(reversed(curve), 0):
                curve[event.epoch] = event.losses[0]
        entered = Rungs.fold(self, event)
        if not isinstance(event, Reported) or not entered:
            return entered
        for rung in entered:
            if self.ladder.index(rung) >= self.open - 1:
                others = [self.curves[trial] for trial in self.losses[rung]]
                self.noise.setdefault(rung, _Noise()).add(self.curves[event.trial], others, rung)
            self.losses[rung][event.trial] = event.losses[0]
        # Another rung opens while the two top rungs rank their common trials differently.
        while self.ladder[self.open] != self.last and self._concerns_top(entered) and not self._rankings_agree():
            self.open += 1
            self.top = self.ladder[self.open]
        return entered

    def _concerns_top(self, entered: tuple[int, ...]) -> bool:
        return any(rung in entered for rung in self.ladder[self.open - 1 : self.open + 1])

    def _rankings_agree(self) -> bool:
        """Whether the two top rungs rank their common trials alike, up to epsilon in the lower one's losses."""
        lower, upper = (self.losses[rung] for rung in self.ladder[self.open - 1 : self.open + 1])
        # The trial at each place of the upper ranking is compared with the one at that place of the lower.
        ranked = sorted((loss, trial) for trial, loss in upper.items())
        theirs = np.array([lower[trial] for _, trial in ranked])
        places = np.sort(theirs)
        near = np.zeros(len(places))
        # Infinities are equal.
        np.subtract(theirs, places, out=near, where=theirs != places)
        return bool((np.abs(near) <= self._tolerance()).all())

    def _tolerance(self) -> float:
        noise = self.noise.get(self.ladder[self.open - 1])
        return noise.epsilon if noise is not None else 0.0


@dataclass(frozen=True, kw_only=True, slots=True)
class PASHA(RungRule):
    """ASHA of promotions, whose top is at first the second rung; nobody goes on from the top.

    Another rung opens when the trials that have reached the top rank otherwise than at the rung below. The trial at
    place j of the top must have there a loss within epsilon of the one at place j. Epsilon is the 0.9 quantile of the
    distances, at common epochs, between those pairs of trials in the lower rung whose curves crossed at least twice; 0
    with fewer than 10 such pairs. O(log n) per report; at the two top rungs O(trials * epochs).
    """

    min_epochs: Annotated[int | None, FIRST] = 1  # it opens rungs one by one

    @property
    def promotes(self) -> bool:
        """Trials pause at each rung."""
        return True

    @property
    def reads_curves(self) -> bool:
        """Epsilon is taken from them."""
        return True

    def empty(self) -> _Index:
        """Return empty rungs, of which two are open."""
        levels = (*self.rungs, self.max_epochs)
        place = min(1, len(levels) - 1)
        return _Index(
            "PASHA",
            {rung: RankRung(self._factor, least=0) for rung in self.rungs},
            self.max_epochs,
            pausing=True,
            top=levels[place],
            ladder=levels,
            open=place,
            losses={rung: {} for rung in self.rungs},
        )
