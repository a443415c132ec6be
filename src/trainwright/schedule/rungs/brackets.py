"""Brackets of synchronous successive halving: a rung closes when all members have reported, and promotes the best."""

import heapq
from copy import deepcopy
from dataclasses import dataclass, field
from fractions import Fraction

from trainwright.schedule.rules.promotion_rule import (
    CONTINUE,
    Continue,
    Ended,
    Event,
    Pause,
    Promote,
    Promoted,
    Reason,
    Reported,
    RuleView,
    Started,
    TrialView,
)

__all__ = ["Brackets"]

_Promotion = tuple[int, int, float, int, int]
"""-rung, order of the bracket, loss, trial, until which epoch."""


@dataclass(slots=True)
class _Stage:
    """One rung of one bracket."""

    rung: int
    members: set[int] = field(default_factory=set)
    losses: dict[int, float] = field(default_factory=dict)  # of those that came
    out: set[int] = field(default_factory=set)  # ended before they came
    full: bool = False  # no more members will be added
    due: bool = False  # somebody has closed it, so it closes here as soon as what that rested on was told
    closed: bool = False

    @property
    def settled(self) -> bool:
        return len(self.losses) + len(self.out) >= len(self.members)


@dataclass(slots=True)
class _Bracket:
    order: int  # of creation
    size: int  # members of its first rung
    stages: list[_Stage]
    values: dict[int, list[float]] = field(default_factory=dict)  # of a trial, at each rung that it reached
    until: dict[int, int] = field(default_factory=dict)  # how far a trial may go
    ended: set[int] = field(default_factory=set)


@dataclass(slots=True)
class Brackets:
    """Each `size` trial numbers in turn are a bracket."""

    name: str  # of the rule, for reasons
    rungs: tuple[int, ...]
    size: int
    eta: Fraction
    last: int  # the full length
    homes: dict[int, _Bracket] = field(default_factory=dict)
    filling: dict[int, _Bracket] = field(default_factory=dict)  # the latest bracket of each block of numbers
    live: list[_Bracket] = field(default_factory=list)  # with a rung that is not closed
    queue: list[_Promotion] = field(default_factory=list)  # a heap
    created: int = 0

    def fold(self, event: Event) -> None:
        """Take an event."""
        if isinstance(event, Started | Reported | Promoted | Ended):
            home = self._find_bracket(event.trial)
            if isinstance(event, Reported):
                self._take_report(home, event)
            elif isinstance(event, Promoted):
                self._take_promotion(home, event)
            elif isinstance(event, Ended):
                self._take_end(home, event)
        while self.queue and self._is_stale(self.queue[0][3], self.queue[0][4]):
            heapq.heappop(self.queue)
        self.live = [home for home in self.live if not home.stages[-1].closed]

    def _is_stale(self, trial: int, until: int) -> bool:
        home = self.homes[trial]
        return home.until[trial] >= until or trial in home.ended

    def _find_bracket(self, trial: int) -> _Bracket:
        """Return the bracket of a trial; a newcomer joins that of its block, or a new one if it has closed."""
        if trial in self.homes:
            return self.homes[trial]
        # A bracket that closed early is continued by a new one for the rest of its block.
        block = trial // self.size
        home = self.filling.get(block)
        if home is None or (home.stages and home.stages[0].full):
            size = self.size - (0 if home is None else len(home.stages[0].members))
            home = _Bracket(self.created, max(1, size), [_Stage(rung) for rung in self.rungs])
            self.created += 1
            self.filling[block] = home
            if home.stages:
                self.live.append(home)
        self.homes[trial] = home
        home.until[trial] = self.rungs[0] if home.stages else self.last
        if home.stages:
            first = home.stages[0]
            first.members.add(trial)
            first.full = len(first.members) == home.size
        return home

    def _take_report(self, home: _Bracket, event: Reported) -> None:
        values = home.values.setdefault(event.trial, [])
        known = len(values)
        reached = sum(stage.rung <= event.epoch for stage in home.stages)
        # A report that jumps over rungs counts at each of them.
        values += [event.losses[0]] * (reached - known)
        if event.epoch >= self.last:
            # It is complete.
            home.until[event.trial] = self.last
        for place in range(known, reached):
            stage = home.stages[place]
            waited_for = event.trial in stage.members and event.trial not in stage.out and not stage.closed
            if waited_for and event.trial not in stage.losses:
                stage.losses[event.trial] = event.losses[0]
                self._close_if_settled(home, place)

    def _take_promotion(self, home: _Bracket, event: Promoted) -> None:
        home.until[event.trial] = max(home.until[event.trial], event.until_epoch)
        for place, stage in enumerate(home.stages):
            if not stage.closed and event.until_epoch > stage.rung:
                # Whoever promoted knew that the rung was closed: here it closes once its reports have been read.
                stage.due = place == 0
                self._close_if_settled(home, place)
                break

    def _take_end(self, home: _Bracket, event: Ended) -> None:
        home.ended.add(event.trial)
        for place, stage in enumerate(home.stages):
            if event.trial in stage.members and event.trial not in stage.losses and not stage.closed:
                stage.out.add(event.trial)
                self._close_if_settled(home, place)

    def _close_if_settled(self, home: _Bracket, place: int) -> None:
        stage = home.stages[place]
        if (stage.full or stage.due) and stage.settled and not stage.closed:
            for promotion in self._close_rung(home, place):
                heapq.heappush(self.queue, promotion)

    def _find_winners(self, home: _Bracket, stage: _Stage) -> list[tuple[float, int]]:
        """Return those that go on, best first: floor(members/eta), at least one."""
        # A trial that ended after its report cannot continue, so it takes nobody's place.
        came = sorted((loss, trial) for trial, loss in stage.losses.items() if trial not in home.ended)
        return came[: max(1, len(stage.members) * self.eta.denominator // self.eta.numerator)]

    def _close_rung(self, home: _Bracket, place: int) -> list[_Promotion]:
        """Close a rung: its best become the members of the next, and are promoted unless they are there already."""
        stage = home.stages[place]
        stage.full = stage.closed = True
        # The winners become the members of the next rung; those that are past it already need no promotion.
        winners = self._find_winners(home, stage)
        follows = home.stages[place + 1] if place + 1 < len(home.stages) else None
        until = self.last if follows is None else follows.rung
        promotions = []
        for loss, trial in winners:
            if follows is not None and len(home.values[trial]) > place + 1:
                follows.losses[trial] = home.values[trial][place + 1]
            # From the highest rung down, then by age of the bracket, then by loss.
            elif home.until[trial] < until:
                promotions.append((-stage.rung, home.order, loss, trial, until))
        if follows is not None:
            follows.members, follows.full = {trial for _, trial in winners}, True
            if follows.settled:
                promotions += self._close_rung(home, place + 1)
        return promotions

    def verdict(self, trial: TrialView) -> Continue | Pause:
        """Pause at the epoch up to which the trial may go."""
        home = self.homes.get(trial.number)
        values = [] if home is None else home.values.get(trial.number)
        if (
            home is None
            or not values
            or trial.epoch < home.until[trial.number]
            or home.until[trial.number] >= self.last
        ):
            return CONTINUE
        return Pause(Reason(rule=self.name, epoch=home.stages[len(values) - 1].rung, value=values[-1]))

    def answer(self, view: RuleView) -> Promote | None:
        """Return who goes on, from the highest rung down."""
        if self.queue:
            return Promote(self.queue[0][3], self.queue[0][4])
        # Where no trial is to come, a first rung that is not full closes with those that it has.
        for home in self.live if view.remaining == 0 else ():
            first = home.stages[0]
            if first.losses and first.settled and not first.closed:
                # In a copy: here it closes once the promotion is accepted.
                promotions = self._close_rung(deepcopy(home), 0)
                if promotions:
                    *_, trial, until = min(promotions)
                    return Promote(trial, until)
        return None

    def ladder_of(self, trial: int) -> tuple[int, ...]:  # noqa: ARG002 -- every bracket has the same rungs
        """Return the rungs of a trial."""
        return self.rungs
