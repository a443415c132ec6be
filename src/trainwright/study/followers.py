"""Followers of the book: what the searcher sees, and what the promotion rule remembers."""

import math
from collections.abc import Sequence

from trainwright.ledger import Objective, Outcome, Record, State, Status, TrialState, losses_of
from trainwright.schedule import Continue, Ended, FixedEpochs, New, Opened, PromotionRule, Reported, TrialView, Verdict
from trainwright.schedule import View as RuleView
from trainwright.search import View as SearchView
from trainwright.space import Configuration

__all__ = ["RuleFollower", "SearchFollower", "SpentFollower"]

_RULE_KINDS = frozenset({"reported", "finished", "failed"})


class SearchFollower:
    """Feeds a searcher's view: live in order of arrival, at opening in order of trial numbers."""

    kinds = frozenset({"proposed", "reported", "finished", "failed", "lost"})
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
                continue  # its proposal is damaged
            for epoch in sorted(trial.reports):
                self._report(trial, epoch)
            self._status(trial)

    def follow(self, record: Record, trial: TrialState | None) -> None:
        """Pass on a report or a change of status."""
        if trial is None or not trial.key:
            return
        if record.kind == "reported":
            self._report(trial, record.body["epoch"])
        self._status(trial)

    def _propose(self, trial: TrialState) -> None:
        if trial.number not in self._told:
            self._told[trial.number] = Status.PROPOSED
            self.view.propose(trial.number, Configuration(params=trial.params, key=trial.key, number=trial.number))

    def _report(self, trial: TrialState, epoch: int) -> None:
        if epoch <= self._epoch.get(trial.number, 0):
            return  # a repetition after a restart: the searcher knows this epoch
        self._propose(trial)
        self._epoch[trial.number] = epoch
        losses = losses_of(self._outcomes, trial.reports[epoch].metrics)
        if losses is not None:
            self.view.report(trial.number, epoch, losses)

    def _status(self, trial: TrialState) -> None:
        if not trial.key:
            return
        number, status = trial.number, trial.status
        self._propose(trial)
        if self._told[number] is status:
            return
        self._told[number] = status
        if status is Status.FAILED:
            self.view.result(number, None, epoch=trial.epoch or None, complete=False)
        elif status is Status.ABANDONED:
            self.view.withdraw(number)  # lost is not bad: nothing was learnt about the configuration
        elif status is Status.COMPLETE or status is Status.STOPPED:
            losses = losses_of(self._outcomes, trial.values)
            self.view.result(number, losses, epoch=trial.epoch or None, complete=status is Status.COMPLETE)


class RuleFollower:
    """Keeps a promotion rule's index, and asks the rule; `kinds` are those of the records that it learns from."""

    def __init__(self, rule: PromotionRule, objectives: tuple[Objective, ...], seed: int) -> None:
        self.rule = rule
        self.kinds = frozenset() if isinstance(rule, FixedEpochs) else _RULE_KINDS
        self._objectives = objectives
        self._index = rule.fold(rule.empty(), Opened(seed=seed))

    def follow(self, record: Record, trial: TrialState | None) -> None:
        """Fold a report or an end into the rule's index."""
        if trial is None:
            return
        if record.kind == "reported":
            losses = losses_of(self._objectives, record.body["metrics"])
            if losses is not None:
                event = Reported(trial=trial.number, epoch=record.body["epoch"], losses=losses, at_seconds=record.at)
                self._index = self.rule.fold(self._index, event)
        elif record.kind in {"finished", "failed"}:
            ended = Ended(trial=trial.number, failed=record.kind == "failed", at_seconds=record.at)
            self._index = self.rule.fold(self._index, ended)

    def verdict(self, trial: TrialState, view: RuleView) -> Verdict:
        """Return the rule's verdict on the trial's latest report."""
        losses = losses_of(self._objectives, trial.reports[trial.epoch].metrics)
        if losses is None or trial.epoch >= (self.rule.max_epochs or math.inf):
            return Continue()  # the full length ends a trial by itself: it is complete, not stopped
        first = self._objectives[0]
        best = min(first.loss(report.metrics.get(first.metric, math.nan)) for report in trial.reports.values())
        seen = TrialView(number=trial.number, epoch=trial.epoch, losses=losses, best_loss=best)
        return self.rule.on_report(self._index, view, seen)

    def starts_new(self, view: RuleView) -> bool:
        """Return whether free devices go to a new trial."""
        return isinstance(self.rule.on_free(self._index, view), New)


class SpentFollower:
    """Keeps the device seconds of all trials together: a sum over all of them at each look would take too long."""

    kinds = frozenset({"proposed", "started", "reported", "paused", "finished", "failed"})
    """The kinds of records by which time passes, or from which its devices are known."""

    def __init__(self, state: State) -> None:
        self._spent = {number: trial.device_seconds for number, trial in state.trials.items()}
        self.device_seconds = math.fsum(self._spent.values())

    def follow(self, record: Record, trial: TrialState | None) -> None:  # noqa: ARG002 -- a follower's arguments
        """Take one trial's time anew."""
        if trial is not None:
            now = trial.device_seconds
            self.device_seconds += now - self._spent.get(trial.number, 0.0)
            self._spent[trial.number] = now
