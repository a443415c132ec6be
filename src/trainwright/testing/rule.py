"""What every promotion rule promises, as tests that any rule inherits; for policies see `policy_conformance`.

    class TestMine(RuleConformance):
        def make_rule(self):
            return Mine(max_epochs=27)

Needs no test library of its own: any runner that collects classes and methods named test will do.
"""
# ruff: noqa: S101, S301 -- a test kit is made of asserts, and pickles what it made itself

import pickle
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from itertools import cycle
from typing import Any, ClassVar

from trainwright.randomness import rng
from trainwright.schedule.rules.promotion_rule import (
    Clone,
    Continue,
    Ended,
    Event,
    Index,
    Judged,
    New,
    Opened,
    Pause,
    Promote,
    Promoted,
    PromotionRule,
    Reported,
    RuleView,
    Started,
    Stop,
    TrialView,
    Verdict,
)

__all__ = ["Played", "RuleConformance", "play"]

Loss = Callable[[int, int], float]  # of a trial's number and an epoch

_LONGEST = 30  # epochs of a trial whose rule sets no length


@dataclass(kw_only=True)
class Played:
    """A study without training: its events in order, each report's verdict, and the rule's index at the end."""

    events: list[Event] = field(default_factory=list)
    verdicts: list[tuple[int, int, Verdict]] = field(default_factory=list)  # trial, epoch, verdict
    index: Index = None
    ended: set[int] = field(default_factory=set)
    failed: set[int] = field(default_factory=set)
    paused: set[int] = field(default_factory=set)
    promotions: list[tuple[int, int]] = field(default_factory=list)  # trial, until which epoch


def play(
    rule: PromotionRule,
    loss: Loss,
    *,
    trials: int,
    workers: int,
    seed: int = 0,
    stride: int = 1,
    objectives: int = 1,
    trouble: float = 0.0,
) -> Played:
    """Let `workers` trials at a time report, in random order, until the rule has no work left.

    A trial reports every 1 to `stride` epochs. At that share of steps called `trouble` one fails, or is lost and goes
    on from an earlier epoch, so that reports come again. Holds the rule to what a study relies on at every event.
    """
    generator = rng(seed, "conformance", 0)
    length = rule.max_epochs or _LONGEST
    played = Played(index=rule.empty())
    played.index = _fold(rule, played, Opened(seed=seed))
    running: dict[int, TrialView] = {}
    views: dict[int, TrialView] = {}
    until: dict[int, int] = {}  # of promoted trials
    replaced: set[int] = set()
    begun: dict[int, int] = {}  # of clones: the epoch that they began from

    def view() -> RuleView:
        return RuleView(remaining=max(0, trials - len(views)), seed=seed)

    while True:
        # Free workers ask until the rule has nothing for them, as a study's do.
        while len(running) < workers:
            answer, clone, at = rule.on_free(played.index, view()), None, 0
            if isinstance(answer, New | Clone):
                assert len(views) < trials, "a new trial was asked for beyond the budget"
                number = len(views)
                if isinstance(answer, Clone):
                    clone, at = answer, views[answer.parent].epoch
                    _check_clone(clone, played, replaced, at, length)
                    begun[number] = at
                views[number] = TrialView(number=number, epoch=at, losses=(0.0,) * objectives)
            elif isinstance(answer, Promote):
                number = answer.trial
                assert number in played.paused, "only a paused trial can be promoted, and only once"
                assert views[number].epoch < answer.until_epoch <= length, "a promotion leads to a later epoch"
                played.paused.remove(number)
                played.promotions.append((number, answer.until_epoch))
                until[number] = end = answer.until_epoch
                played.index = _fold(rule, played, Promoted(trial=number, until_epoch=end))
            else:
                break
            running[number] = views[number]
            played.index = _fold(rule, played, Started(trial=number, clone=clone, epoch=at))
        if not running:
            return played
        number = sorted(running)[generator.integers(len(running))]
        # Any of the running trials reports next: a rule must not depend on their order.
        before = running[number]
        if generator.random() < trouble:
            if generator.random() < 0.5:
                played.index = _fold(rule, played, Ended(trial=number, failed=True))
                played.failed.add(number)
                del running[number]
            else:  # lost, and back at a checkpoint
                running[number] = replace(before, epoch=int(generator.integers(begun.get(number, 0), before.epoch + 1)))
            continue
        # Epochs may be skipped, as training functions that report seldom do.
        epoch = min(length, before.epoch + int(generator.integers(1, stride + 1)))
        losses = tuple(loss(number + 128 * objective, epoch) for objective in range(objectives))
        now = replace(before, epoch=epoch, losses=losses)
        # What the rule promised before the report is what its verdict is held to.
        due = rule.next_epoch(played.index, before) if before.epoch else 1
        # A trial that went back to a checkpoint reports epochs that were judged already.
        again = epoch <= views[number].epoch
        old = _copy(played.index) if again else None
        verdict = _tell(rule, played, now, view(), seen=views[number] if again else now)
        assert again or epoch >= due or verdict == Continue(), f"a verdict at epoch {epoch}, promised for {due}"
        assert epoch >= length or rule.next_epoch(played.index, now) > epoch, "next_epoch is not in the future"
        if again:
            assert played.index == old, f"epoch {epoch} of trial {number} came twice and changed the index"
            assert not isinstance(verdict, Pause), f"a repeated epoch, {epoch}, pauses trial {number} again"
        elif isinstance(verdict, Pause):
            assert epoch >= until.get(number, 0), f"paused at {epoch}, though promoted up to {until[number]}"
        _judge(rule, played, number, verdict)
        running[number] = now
        if not again:
            views[number] = now
        if isinstance(verdict, Pause):
            played.paused.add(number)
            del running[number]
        elif isinstance(verdict, Stop) or epoch >= length:
            played.index = _fold(rule, played, Ended(trial=number, failed=False))
            played.ended.add(number)
            del running[number]


def _check_clone(clone: Clone, played: Played, replaced: set[int], at: int, length: int) -> None:
    """Hold a clone that begins after epoch `at` to what a study needs, and note whom it replaces."""
    assert 0 < at < length, "a parent has a checkpoint, and epochs left"
    assert clone.replaces in (played.ended | played.failed) - replaced, "one clone for each that ended"
    replaced.add(clone.replaces)


def _judge(rule: PromotionRule, played: Played, number: int, verdict: Verdict) -> None:
    """Fold the verdict of a rung, as the driver that made it does."""
    if verdict.reason is not None and not isinstance(verdict, Stop):
        pauses = isinstance(verdict, Pause)
        judged = Judged(trial=number, epoch=verdict.reason.epoch, pauses=pauses)
        played.index = _fold(rule, played, judged)


def _tell(rule: PromotionRule, played: Played, now: TrialView, view: RuleView, seen: TrialView) -> Verdict:
    """Fold the report of `now` and return the verdict on the trial as a study sees it: at its highest epoch."""
    # The fold comes before the verdict, as a study writes before it decides.
    reported = Reported(trial=now.number, epoch=now.epoch, losses=now.losses)
    played.index = _fold(rule, played, reported)
    verdict = rule.on_report(played.index, view, seen)
    played.verdicts.append((now.number, now.epoch, verdict))
    if not isinstance(verdict, Continue):
        assert verdict.reason.rule, "a verdict names its rule"
    if verdict.reason is not None:
        assert verdict.reason.epoch <= seen.epoch, "a verdict rests on what has been reported"
    return verdict


def _fold(rule: PromotionRule, played: Played, event: Event) -> Index:
    played.events.append(event)
    return rule.fold(played.index, event)


def _copy(index: Index) -> Index:
    return pickle.loads(pickle.dumps(index))


class RuleConformance(ABC):
    """Inherit as Test<Rule> and give `make_rule`; set `rank_based` if only the order of losses counts."""

    rank_based: ClassVar[bool] = False
    objectives: ClassVar[int] = 1
    streams: ClassVar[int] = 12  # random studies per test

    @abstractmethod
    def make_rule(self) -> PromotionRule:
        """Return the rule; called often, so that state of its own would show."""

    def studies(self) -> Iterator[tuple[Loss, dict[str, Any]]]:
        """Yield losses with few different values, so that ties are common, and sizes of studies; some with trouble."""
        for seed in range(self.streams):
            sizes = {"trials": 3 + 4 * seed, "workers": 1 + seed % 5, "seed": seed, "stride": 1 + seed % 3}
            yield _losses(seed), {**sizes, "objectives": self.objectives, "trouble": 0.1 * (seed % 2)}

    def test_fold_cut_anywhere(self) -> None:
        """Folding up to any cut, pickling, and folding the rest gives the index of one uninterrupted fold."""
        for loss, sizes in self.studies():
            played = play(self.make_rule(), loss, **sizes)
            rule, folded = self.make_rule(), 0
            index = rule.empty()
            # A study may be reopened after any record; the index must not show where.
            for cut in range(0, len(played.events) + 1, 7 + len(played.events) // 10):
                for event in played.events[folded:cut]:
                    index = rule.fold(index, event)
                folded, other, rest = cut, self.make_rule(), _copy(index)
                for event in played.events[cut:]:
                    rest = other.fold(rest, event)
                assert rest == played.index, f"the index differs after a cut at {cut} of {len(played.events)} events"

    def test_repeated_and_older_reports(self) -> None:
        """An event that was folded already changes nothing, nor does another loss for an epoch already passed."""
        for loss, sizes in self.studies():
            rule = self.make_rule()
            played = play(rule, loss, **sizes)
            for event in played.events[:: 1 + len(played.events) // 12]:
                assert rule.fold(_copy(played.index), event) == played.index, f"changed by a repetition of {event}"
                if isinstance(event, Reported):
                    # Another loss for the same epoch comes from a repeated run, and is not news.
                    other = replace(event, losses=tuple(loss - 1.0 for loss in event.losses))
                    assert rule.fold(_copy(played.index), other) == played.index, f"changed by an old report: {other}"

    def test_every_trial_ends(self) -> None:
        """A study comes to an end: every trial has ended, or is paused and will never be asked for again."""
        for loss, sizes in self.studies():
            played = play(self.make_rule(), loss, **sizes)
            settled = played.ended | played.paused | played.failed
            assert settled == set(range(len(settled) if self.make_rule().clones else sizes["trials"]))
            assert not played.ended & played.paused

    def test_ties_go_to_the_lower_number(self) -> None:
        """Among equal losses, the lowest number so far is the best so far: it is never stopped."""
        rule = self.make_rule()
        played = Played(index=rule.empty())
        # From high to low numbers: each trial is the lowest so far when it reports.
        for number in range(40, -1, -1):
            for epoch in range(1, (rule.max_epochs or _LONGEST) + 1):
                losses = (64.0 - epoch,) * self.objectives
                now = TrialView(number=number, epoch=epoch, losses=losses)
                verdict = _tell(rule, played, now, RuleView(remaining=0), seen=now)
                assert not isinstance(verdict, Stop), f"trial {number} of equals was stopped at epoch {epoch}"

    def test_order_alone_counts(self) -> None:
        """Adding a constant to all losses, or scaling them by k > 0, changes no verdict."""
        if not self.rank_based:
            return
        # Powers of two and small offsets: exact in floats, so that only the order can matter.
        moves = cycle([(1.0, 1024.0), (0.125, 0.0), (64.0, -3.0)])  # exact for these losses
        for (loss, sizes), (factor, offset) in zip(self.studies(), moves, strict=False):
            verdicts = _kinds(play(self.make_rule(), loss, **sizes))
            moved = play(self.make_rule(), _moved(loss, factor, offset), **sizes)
            assert _kinds(moved) == verdicts, f"verdicts changed by {factor} * loss + {offset}"

    def test_survival(self) -> None:
        """The chances of reaching the later rungs are probabilities, and the farther rung is no likelier."""
        rule = self.make_rule()
        for epoch in range(rule.max_epochs or _LONGEST):
            trial = TrialView(number=0, epoch=epoch, losses=(0.5,) * self.objectives)
            # Asked of an empty index: a forecast must be possible before the first report.
            chances = rule.survival(rule.empty(), RuleView(remaining=1), trial)
            assert all(0.0 <= chance <= 1.0 for chance in chances)
            assert list(chances) == sorted(chances, reverse=True)

    def test_is_a_value(self) -> None:
        """A rule is its settings: equal ones are equal, and it survives pickling."""
        rule = self.make_rule()
        assert isinstance(rule, PromotionRule)
        assert pickle.loads(pickle.dumps(rule)) == rule == self.make_rule()

    def test_number_of_objectives(self) -> None:
        """As many objectives as it is for are accepted."""
        self.make_rule().check(self.objectives)


def _losses(seed: int) -> Loss:
    values = rng(seed, "conformance", 1).integers(0, 64, size=(512, 64)) / 8  # multiples of 1/8: sums are exact

    def loss(trial: int, epoch: int) -> float:
        return float(values[trial, epoch])

    return loss


def _moved(loss: Loss, factor: float, offset: float) -> Loss:
    return lambda trial, epoch: factor * loss(trial, epoch) + offset


def _kinds(played: Played) -> list[tuple[int, int, str]]:
    return [(trial, epoch, type(verdict).__name__) for trial, epoch, verdict in played.verdicts]
