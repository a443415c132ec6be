"""Rules by numbers of epochs: FixedEpochs, where every trial runs its whole length, and IEpoch, early discarding.

IEpoch trains all a little, then the best to the end (Egele et al., arXiv 2307.15422): the baseline of all rules.
"""

import heapq
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Annotated

from trainwright.errors import ScheduleError
from trainwright.schedule.rules.promotion_rule import (
    CONTINUE,
    WAIT,
    Ended,
    Event,
    Index,
    New,
    Pause,
    Promote,
    Promoted,
    PromotionRule,
    Reason,
    Reported,
    RuleView,
    Started,
    TrialView,
    Verdict,
    Wait,
)
from trainwright.schedule.rungs.rungs import LossEntry
from trainwright.settings import Settings
from trainwright.validators import Validator, integer, number, optional

__all__ = ["FixedEpochs", "IEpoch"]

_COUNT_OR_SHARE = Validator(
    lambda value: number(above=0).accepts(value) and (value < 1 or value == int(value)),
    "a whole number >= 1, or a fraction between 0 and 1",
)


@dataclass(frozen=True, slots=True)
class FixedEpochs(PromotionRule, Settings, error=ScheduleError):
    """Run every trial for `max_epochs` epochs, or as long as the training function likes if None. O(1) per report."""

    max_epochs: Annotated[int | None, optional(integer(minimum=1, of="epochs"))] = None

    def check(self, objectives: int, trials: int | None = None) -> None:
        """Any number will do: nothing is compared."""

    def next_epoch(self, index: Index, trial: TrialView) -> int:  # noqa: ARG002 -- likewise
        """Return the last epoch: no verdict changes before."""
        return self.max_epochs or trial.epoch + 1


@dataclass(slots=True)
class _Index:
    started: set[int] = field(default_factory=set)
    settled: set[int] = field(default_factory=set)  # came to the barrier, or ended before
    failed: set[int] = field(default_factory=set)
    chosen: set[int] = field(default_factory=set)
    ended: set[int] = field(default_factory=set)
    waiting: list[LossEntry] = field(default_factory=list)  # a heap

    def prune(self) -> None:
        """Forget the best that wait no more."""
        while self.waiting and (self.waiting[0].trial in self.chosen or self.waiting[0].trial in self.ended):
            heapq.heappop(self.waiting)


@dataclass(frozen=True, kw_only=True, slots=True)
class IEpoch(PromotionRule, Settings, error=ScheduleError):
    """Run every trial to `epochs` and pause it; once all are there, continue the `top_k` best. O(log n).

    `top_k` is a number of trials, or a fraction below 1 of all. The best goes first, up to `max_epochs`; a chosen one
    that fails is replaced by the next best. All are the trials that were started and those that the budget still
    allows, so a budget in trials is needed. With `quorum` < 1 the choice begins when that share has come or ended.
    """

    top_k: Annotated[float, _COUNT_OR_SHARE]
    max_epochs: Annotated[int, integer(minimum=1, of="epochs")]
    epochs: Annotated[int, integer(minimum=1, of="epochs")] = 1
    quorum: Annotated[float, number(above=0, maximum=1)] = 1.0

    def check_together(self) -> None:
        """Refuse a barrier behind the end."""
        if self.epochs > self.max_epochs:
            raise ScheduleError(
                f"IEpoch.epochs: got {self.epochs}, above max_epochs {self.max_epochs}; allowed: 1 to max_epochs"
            )

    @property
    def promotes(self) -> bool:
        """All trials pause once."""
        return True

    def check(self, objectives: int, trials: int | None = None) -> None:
        """Refuse several objectives, and a choice of more than there are."""
        PromotionRule.check(self, objectives, trials)
        if trials is not None and self.top_k > trials:
            raise ScheduleError(
                f"IEpoch.top_k: got {self.top_k}, the budget has {trials} trials, so nothing would be selected; "
                f"allowed: 1 to {trials}, or a fraction; or use FixedEpochs"
            )

    def empty(self) -> _Index:
        """Return an index without trials."""
        return _Index()

    def fold(self, index: _Index, event: Event) -> _Index:
        """Record trials that reached the barrier, ended or were chosen."""
        if isinstance(event, Started):
            index.started.add(event.trial)
        elif isinstance(event, Reported):
            index.started.add(event.trial)
            if event.epoch >= self.epochs and event.trial not in index.settled:
                index.settled.add(event.trial)
                # The loss at the barrier decides, whatever is reported behind it.
                heapq.heappush(index.waiting, LossEntry(event.losses[0], event.trial))
                index.prune()
        elif isinstance(event, Promoted):
            index.chosen.add(event.trial)
            index.prune()
        elif isinstance(event, Ended):
            index.started.add(event.trial)
            index.settled.add(event.trial)
            index.ended.add(event.trial)
            if event.failed:
                index.failed.add(event.trial)
            index.prune()
        return index

    def on_report(self, index: _Index, view: RuleView, trial: TrialView) -> Verdict:  # noqa: ARG002 -- the protocol's
        """Pause at the barrier; chosen trials continue."""
        if trial.epoch < self.epochs or trial.number in index.chosen or trial.epoch >= self.max_epochs:
            return CONTINUE
        return Pause(Reason(rule="IEpoch", epoch=self.epochs, value=trial.loss))

    def on_free(self, index: _Index, view: RuleView) -> Promote | New | Wait:
        """Promote the best that waits once the barrier is open, else start a new trial."""
        # The barrier opens when the quorum of all trials, started or still allowed, has come.
        everyone = len(index.started) + view.remaining
        is_open = bool(index.chosen) or len(index.settled) >= self.quorum * everyone
        has_place = is_open and len(index.chosen - index.failed) < self._count_places(everyone)
        if index.waiting and (view.final or has_place):
            return Promote(index.waiting[0].trial, self.max_epochs)
        return New() if view.remaining > 0 else WAIT

    def _count_places(self, everyone: int) -> int:
        if self.top_k >= 1:
            return int(self.top_k)
        # As a fraction, since 0.1 * 30 is more than 3 in floating point.
        share = Fraction(self.top_k).limit_denominator(1000)
        return max(1, everyone * share.numerator // share.denominator)

    @property
    def rungs(self) -> tuple[int, ...]:
        """The barrier."""
        return (self.epochs,)

    def next_epoch(self, index: _Index, trial: TrialView) -> int:  # noqa: ARG002 -- the protocol's
        """Return the barrier, then the end."""
        return self.epochs if trial.epoch < self.epochs else self.max_epochs

    def survival(self, index: _Index, view: RuleView, trial: TrialView) -> tuple[float, ...]:
        """Return the share of all trials that continues."""
        if trial.epoch >= self.epochs:
            return ()
        everyone = max(1, len(index.started) + view.remaining)
        return (min(1.0, self._count_places(everyone) / everyone),)
