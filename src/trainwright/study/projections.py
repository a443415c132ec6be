"""Projections of the study log: the searcher's view, the promotion rule's index and the device seconds used."""

import math
import time
from collections.abc import Sequence

from trainwright.ledger import Objective, Record, State, Status, TrialState
from trainwright.ledger.objectives import Outcome, losses_of, violation_of
from trainwright.schedule import AnyOf, Continue, Event, Promote, Promoted, PromotionRule, Reported, RuleView, TrialView
from trainwright.schedule.allocator.device_allocator import RunningTrial
from trainwright.schedule.rules.promotion_rule import Clone, Ended, Judged, New, Opened, Started, Verdict, Wait
from trainwright.search import SearchView
from trainwright.space.configuration import Configuration

__all__ = ["DeviceSecondsProjection", "RuleProjection", "SearchProjection", "rungs_of"]

_RULE_KINDS = frozenset(
    {"proposed", "started", "reported", "decided", "promoted", "finished", "failed", "lost"},
)


def rungs_of(rule: PromotionRule) -> tuple[int, ...]:
    """Return the epochs at which a rule compares trials; none if it has no fixed ones."""
    if isinstance(rule, AnyOf):
        return tuple(sorted({*rungs_of(rule.first), *rungs_of(rule.second)}))
    return tuple(getattr(rule, "rungs", ()))


class SearchProjection:
    """Feeds a searcher's view: live in order of arrival, at opening in order of trial numbers."""

    kinds = frozenset({"proposed", "reported", "paused", "promoted", "finished", "failed", "lost"})
    """What can change what a searcher sees."""

    def __init__(self, view: SearchView, outcomes: Sequence[Outcome]) -> None:
        self.view = view
        self._outcomes = outcomes
        self._told: dict[int, Status] = {}
        self._epoch: dict[int, int] = {}

    def catch_up(self, trials: dict[int, TrialState]) -> None:
        """Tell everything about trials that the state already holds."""
        for number in sorted(trials):
            trial = trials[number]
            if not trial.key:
                # Its proposal is damaged.
                continue
            for epoch in sorted(trial.reports):
                self._note_report(trial, epoch)
            self._note_status(trial)

    def fold(self, record: Record, trial: TrialState | None) -> None:
        """Pass on a report or a change of status."""
        if trial is None or not trial.key:
            return
        if record.kind == "reported":
            self._note_report(trial, record.body["epoch"])
        self._note_status(trial)

    def _note_pending(self, trial: TrialState) -> None:
        self._told[trial.number] = Status.PROPOSED
        self.view.propose(trial.number, Configuration(params=trial.params, key=trial.key, number=trial.number))

    def _note_report(self, trial: TrialState, epoch: int) -> None:
        if epoch <= self._epoch.get(trial.number, 0):
            # A repetition after a restart: the searcher knows this epoch.
            return
        if trial.number not in self._told:
            self._note_pending(trial)
        self._epoch[trial.number] = epoch
        losses = losses_of(self._outcomes, trial.reports[epoch].metrics)
        if losses is not None:
            self.view.report(trial.number, epoch, losses)

    def _note_status(self, trial: TrialState) -> None:
        """Tell whether a trial is under way, or what it came to; one that is paused at a rung may go on."""
        number, rests = trial.number, trial.status.ended or trial.at_rung
        status = trial.status if rests else Status.PROPOSED
        if rests or trial.epoch:  # before there is nothing to tell
            self.view.spend(number, trial.device_seconds / max(1, trial.epoch))
        if number not in self._told or (not rests and self._told[number] is not status):
            self._note_pending(trial)
        if self._told[number] is status:
            return
        self._told[number] = status
        if status is Status.FAILED:
            self.view.result(number, None, epoch=trial.epoch or None, complete=False)
        elif status is Status.ABANDONED:
            # Lost is not bad: nothing was learnt about the configuration.
            self.view.withdraw(number)
        else:
            losses = losses_of(self._outcomes, trial.values)
            self.view.result(number, losses, epoch=trial.epoch or None, complete=status is Status.COMPLETE)


class RuleProjection:
    """Keeps a promotion rule's index, and asks the rule; `kinds` are those of the records that it learns from.

    Reports are timed by this process's own clock from `open` on, those of before are at 0: hosts' clocks may differ.
    """

    def __init__(self, rule: PromotionRule, outcomes: Sequence[Outcome], seed: int) -> None:
        self.rule = rule
        self._outcomes = outcomes
        self._objectives = tuple(outcome for outcome in outcomes if isinstance(outcome, Objective))
        self.events = 0  # folded so far
        self._opened: float | None = None
        self._index = rule.fold(rule.empty(), Opened(seed=seed))
        self.kinds = frozenset() if self._index is None else _RULE_KINDS

    def open(self) -> None:
        """Let time begin: what is told from now on happens now."""
        self._opened = time.monotonic()

    @property
    def seconds(self) -> float:
        """The seconds since `open`."""
        return 0.0 if self._opened is None else time.monotonic() - self._opened

    def fold(self, record: Record, trial: TrialState | None) -> None:
        """Fold what a record tells into the rule's index."""
        event = self._make_event(record, trial) if trial is not None else None
        if event is not None:
            self._index = self.rule.fold(self._index, event)
            self.events += 1

    def _make_event(self, record: Record, trial: TrialState) -> Event | None:
        number, kind, body = trial.number, record.kind, record.body
        if kind == "reported":
            losses = losses_of(self._outcomes, body["metrics"])
            if losses is None:
                return None
            # Constraints come behind the objectives; rules see them only as a violation.
            violation = violation_of(self._outcomes, losses)
            losses = losses[: len(self._objectives)]
            return Reported(
                trial=number, epoch=body["epoch"], losses=losses, violation=violation, at_seconds=self.seconds
            )
        if kind in {"proposed", "started"}:
            if (found := trial.exploits) is not None:  # a member from its proposal on: nobody else is to be cloned
                clone = Clone(found.parent, found.replaces)
                return Started(trial=number, clone=clone, epoch=found.epoch)
            return Started(trial=number) if record.lease is not None else None
        if kind == "decided":
            pauses, goes_on = (body["verdict"] == verdict for verdict in ("pause", "continue"))
            judged = Judged(trial=number, epoch=body["epoch"], pauses=pauses)
            return judged if pauses or goes_on else None
        if kind == "promoted":
            return Promoted(trial=number, until_epoch=body["until_epoch"])
        # A lost run ends the trial only if its lease is the latest: another may have taken over.
        result = kind == "finished" and body["reason"] != "cancelled"
        if result or (trial.status.ended and record.lease == trial.lease):
            return Ended(trial=number, failed=not trial.has_result)
        # Another run of it goes on.
        return None

    def verdict(self, trial: TrialState, view: RuleView) -> Verdict:
        """Return the rule's verdict on a trial that has reported; it is judged by its highest epoch."""
        losses = losses_of(self._objectives, trial.reports[trial.epoch].metrics)
        if losses is None or trial.epoch >= (self.rule.max_epochs or math.inf):
            # The full length ends a trial by itself: it is complete, not stopped.
            return Continue()
        seen = TrialView(number=trial.number, epoch=trial.epoch, losses=losses)
        return self.rule.on_report(self._index, view, seen)

    def survival(self, running: RunningTrial, view: RuleView) -> tuple[float, ...]:
        """Return the chances of the trial of a running trial to reach the later rungs."""
        losses = (running.loss,) * len(self._objectives)
        seen = TrialView(number=running.trial, epoch=running.epoch, losses=losses)
        return self.rule.survival(self._index, view, seen)

    def on_free(self, view: RuleView) -> Promote | New | Clone | Wait:
        """Return what the rule would do with free devices."""
        return self.rule.on_free(self._index, view)


class DeviceSecondsProjection:
    """Keeps the device seconds of all trials together: a sum over all of them at each look would take too long."""

    kinds = frozenset({"proposed", "started", "reported", "paused", "finished", "failed"})
    """The kinds of records by which time passes, or from which its devices are known."""

    def __init__(self, state: State) -> None:
        self._spent = {number: trial.device_seconds for number, trial in state.trials.items()}
        self.device_seconds = math.fsum(self._spent.values())

    def fold(self, record: Record, trial: TrialState | None) -> None:  # noqa: ARG002 -- a projection's arguments
        """Take one trial's time anew."""
        if trial is not None:
            now = trial.device_seconds
            # The difference alone, so that a look at the sum costs nothing.
            self.device_seconds += now - self._spent.get(trial.number, 0.0)
            self._spent[trial.number] = now
