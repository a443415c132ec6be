"""The rungs of asynchronous successive halving: which trials continue at each, which pause, and which it promotes.

A rung is a table; what "among the best 1/eta" means is the table's business, everything else is here, once for all
asynchronous rules.
"""

import heapq
from abc import ABC, abstractmethod
from bisect import insort
from collections.abc import Callable
from dataclasses import dataclass, field
from fractions import Fraction
from itertools import pairwise
from typing import NamedTuple

from trainwright.schedule.rules.promotion_rule import (
    CONTINUE,
    Continue,
    Ended,
    Event,
    Judged,
    Pause,
    Promote,
    Promoted,
    Reason,
    Reported,
    RuleView,
    Stop,
    TrialView,
    Verdict,
)

__all__ = [
    "AdaptiveRung",
    "LossEntry",
    "Place",
    "QuantileRung",
    "RankRung",
    "RungTable",
    "Rungs",
    "interpolate_quantile",
]


_FEW = 6
"""So many trials in the next rung say nothing yet."""
_WEIGHT = 3
"""Of the factor that was given, in trials."""


class LossEntry(NamedTuple):
    """A loss and the trial that had it; ties go to the lower number."""

    loss: float
    trial: int


def interpolate_quantile(losses: list[float], position: float) -> float:
    """Return the value at a fractional 0-based place of losses in ascending order, linearly interpolated."""
    below = int(position)
    low, share = losses[below], position - below
    high = losses[below + 1] if share else low
    # Infinities are equal.
    return low if high == low else low + share * (high - low)


class RungTable(ABC):
    """What a rung holds: the records of one epoch. Here nobody waits; rules that pause trials keep those that do."""

    __slots__ = ()

    @abstractmethod
    def enter(self, event: Reported) -> tuple[bool, float | None]:
        """Record a report; return whether its trial goes on, and the worst loss that does (None if none does)."""

    def wait(self, event: Reported) -> None:  # noqa: B027 -- nobody waits in a rung that only stops
        """Note that the trial that was just entered is paused here."""

    def first(self, *, final: bool = False) -> int | None:  # noqa: ARG002 -- likewise
        """Return the best trial that waits if it is among those that go on, or in any case if it is `final`."""
        return None

    def forget(self, gone: Callable[[int], bool]) -> None:  # noqa: B027 -- likewise
        """Forget the best that wait as long as they are gone."""

    def leads(self, trial: int) -> bool:  # noqa: ARG002 -- where nobody waits nobody asks
        """Whether a trial is the best here."""
        return False

    def learn(self, following: "RungTable") -> None:  # noqa: B027 -- most cut as they were told
        """Note what came of those that went on from here to the next rung."""


@dataclass(slots=True)
class RankRung(RungTable):
    """Goes on: the best max(`least`, floor(n/eta)) of the n losses here. O(log n) each step."""

    eta: Fraction
    least: int
    entries: list[LossEntry] = field(default_factory=list)  # in ascending order
    passing: int = 0  # so many of them go on
    waiting: list[LossEntry] = field(default_factory=list)  # a heap; all that wait, so its top goes on if any does

    def enter(self, event: Reported) -> tuple[bool, float | None]:
        """Record and cut again."""
        entry = LossEntry(event.losses[0], event.trial)
        insort(self.entries, entry)
        self.passing = max(self.least, self.count_share())
        if not self.passing:
            return False, None
        worst = self.entries[self.passing - 1]
        return entry <= worst, worst.loss

    def leads(self, trial: int) -> bool:
        """Whether it has the least loss."""
        return self.entries[0].trial == trial

    def count_share(self) -> int:
        """Return how many of those here are among the best 1/eta."""
        # Exact integers: floor(n / eta) of a fraction, never of a float.
        return len(self.entries) * self.eta.denominator // self.eta.numerator

    def wait(self, event: Reported) -> None:
        """Push it to those that wait."""
        heapq.heappush(self.waiting, LossEntry(event.losses[0], event.trial))

    def first(self, *, final: bool = False) -> int | None:
        """Return the least that waits if it is on the better side of the cut."""
        if not self.waiting:
            return None
        passes = self.passing > 0 and self.waiting[0] <= self.entries[self.passing - 1]
        return self.waiting[0].trial if passes or final else None

    def forget(self, gone: Callable[[int], bool]) -> None:
        """Pop from the top."""
        while self.waiting and gone(self.waiting[0].trial):
            heapq.heappop(self.waiting)


@dataclass(slots=True)
class AdaptiveRung(RankRung):
    """As `RankRung`, but where a rung foretells little of the next one, more go on than the best 1/eta.

    The share is half more than the range of ranks here from which the best third of the next rung came: three times
    their mean rank, as the mean of a range is half of it. Where they are spread evenly over all that went on, the cut
    had nothing to do with who would be best, and the share grows up to everybody.
    """

    share: float = 0.0
    learned: int = 0  # from so many in the next rung

    def count_share(self) -> int:
        """Return how many of those here go on."""
        return max(RankRung.count_share(self), int(len(self.entries) * self.share))

    def learn(self, following: RungTable) -> None:
        """Look again where the next rung has a tenth more: O(n), but seldom."""
        assert isinstance(following, RankRung)  # noqa: S101 -- the tables of a ladder are alike
        count = len(following.entries)
        if count < max(_FEW, 1.1 * self.learned):
            return
        self.learned = count
        ranks = {entry.trial: place for place, entry in enumerate(self.entries)}
        best = [(ranks[entry.trial] + 0.5) / len(ranks) for entry in following.entries[: round(count / 3)]]
        # Three times the mean; few trials say little beside the factor.
        self.share = min(1.0, (3 * sum(best) + _WEIGHT / float(self.eta)) / (len(best) + _WEIGHT))
        self.passing = max(self.least, self.count_share())


@dataclass(slots=True)
class QuantileRung(RungTable):
    """Goes on: who is at most the linear 1/eta quantile of the losses entered before; the first always."""

    eta: Fraction
    losses: list[float] = field(default_factory=list)  # in ascending order

    def enter(self, event: Reported) -> tuple[bool, float | None]:
        """Compare, then record."""
        loss, before = event.losses[0], len(self.losses)
        # The own loss is not among those that it is compared with.
        threshold = interpolate_quantile(self.losses, float((before - 1) / self.eta)) if before else loss
        insort(self.losses, loss)
        return loss <= threshold, threshold


@dataclass(slots=True)
class Place:
    """Where a trial stands: the highest rung that it reached, by its report of which epoch, and the verdict there."""

    rung: int = 0
    epoch: int = 0
    report: Reported | None = None  # that one, where trials pause
    verdict: Verdict = CONTINUE
    waits: bool = False
    until: int = 0  # promoted up to here
    ended: bool = False


@dataclass(slots=True)
class Rungs:
    """All rungs of one ladder, by their epochs. With `pausing` a trial outside the best pauses, else it stops.

    At `top` and above nobody goes on; None if there is no such limit.
    """

    name: str  # of the rule, for reasons
    tables: dict[int, RungTable]
    last: int  # the full length
    pausing: bool
    top: int | None = None
    places: dict[int, Place] = field(default_factory=dict)

    def ladders(self) -> tuple[dict[int, RungTable], ...]:
        """Return the tables of every ladder."""
        return (self.tables,)

    def ladder_of(self, trial: int) -> dict[int, RungTable]:  # noqa: ARG002 -- for indices of several ladders
        """Return the tables of the ladder that a trial climbs."""
        return self.tables

    def fold(self, event: Event) -> tuple[int, ...]:
        """Take an event and return the rungs that it entered."""
        if isinstance(event, Reported):
            return self._take_report(event)
        if isinstance(event, Judged):
            self._take_verdict(event)
        elif isinstance(event, Promoted):
            self._take_promotion(event)
        elif isinstance(event, Ended) and self.pausing:
            place = self.places.setdefault(event.trial, Place())
            place.ended = True
            self._end_wait(event.trial, place)
        return ()

    def _take_report(self, event: Reported) -> tuple[int, ...]:
        place, tables = self.places.setdefault(event.trial, Place()), self.ladder_of(event.trial)
        entered = tuple(rung for rung in tables if place.rung < rung <= event.epoch)
        if not entered:
            return ()
        self._end_wait(event.trial, place)
        # A report past several rungs is recorded at each; the highest decides.
        for rung in entered:
            goes_on, threshold = tables[rung].enter(event)
        for before, following in pairwise(tables):
            if following in entered:
                tables[before].learn(tables[following])
        reason = Reason(rule=self.name, epoch=rung, value=event.losses[0], threshold=threshold)
        place.rung, place.epoch, place.report = rung, event.epoch, event if self.pausing else None
        # Promoted trials pass; the others stop, or pause with their place in the queue.
        if (goes_on and (self.top is None or rung < self.top)) or place.until > rung:
            place.verdict = Continue(reason)
        elif not self.pausing:
            place.verdict = Stop(reason)
        elif event.epoch >= self.last:
            # It is complete.
            place.verdict = Continue(reason)
        else:
            place.verdict = Pause(reason)
            if not place.ended:
                place.waits = True
                tables[rung].wait(event)
        return entered

    def _take_verdict(self, event: Judged) -> None:
        place = self.places.get(event.trial)
        if place is None or place.report is None or place.rung != event.epoch:
            return
        # Another driver let it continue: it knew reports that this one reads later.
        if not event.pauses:
            self._end_wait(event.trial, place)
        elif not (place.waits or place.ended) and place.until <= place.rung:
            reason = Reason(rule=self.name, epoch=place.rung, value=place.report.losses[0])
            place.waits, place.verdict = True, Pause(reason)
            self.ladder_of(event.trial)[place.rung].wait(place.report)

    def _take_promotion(self, event: Promoted) -> None:
        place = self.places.setdefault(event.trial, Place())
        # Promotions may be read out of order; the farthest counts.
        place.until = max(place.until, event.until_epoch)
        if place.until > place.rung:
            self._end_wait(event.trial, place)

    def _end_wait(self, trial: int, place: Place) -> None:
        """End a trial's wait; heaps forget such trials once they come to the top."""
        if place.waits:
            place.waits, place.verdict = False, CONTINUE
            rung, places = place.rung, self.places
            self.ladder_of(trial)[rung].forget(lambda other: not (places[other].waits and places[other].rung == rung))

    def answer(self, view: RuleView) -> Promote | None:
        """Return the promotion that leads farthest: of the best trial that goes on in the highest rung with one."""
        found = [self._promotion_in(tables, final=view.final) for tables in self.ladders()]
        return max(filter(None, found), key=lambda answer: answer.until_epoch, default=None)

    def _promotion_in(self, tables: dict[int, RungTable], *, final: bool) -> Promote | None:
        # From the highest rung down, so that the most advanced trial is promoted first.
        above = self.last
        for rung in sorted(tables, reverse=True):
            if final or self.top is None or rung < self.top:
                trial = tables[rung].first(final=final)
                if trial is not None:
                    return Promote(trial, self.last if final else above)
            above = rung
        return None

    def leads(self, trial: int) -> bool:
        """Whether nobody was better in the rung where a trial is."""
        return self.ladder_of(trial)[self.places[trial].rung].leads(trial)

    def verdict(self, trial: TrialView) -> Verdict:
        """Return the verdict of the rung that the latest report reached; between rungs a trial goes on."""
        place = self.places.get(trial.number)
        if place is None:
            return CONTINUE
        # A verdict holds for the report that reached the rung; a pause or a stop holds until it is carried out.
        news = place.epoch == trial.epoch or place.waits or isinstance(place.verdict, Stop)
        return place.verdict if news else CONTINUE
