"""The trial queue: requeues lost and preempted trials, then gives promoted ones, then asks the searcher for new."""

import time
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from typing import ClassVar

from trainwright.errors import SpaceExhausted
from trainwright.ledger import Record, Status, TrialState, facts
from trainwright.ledger.trials import Exploit
from trainwright.schedule import Pause, Promote, RuleView, Stop
from trainwright.schedule.policies.allocation_policy import PendingTrial
from trainwright.schedule.rules.promotion_rule import Clone, New, Wait
from trainwright.search import Searcher, SearchView
from trainwright.search.searcher import Learner
from trainwright.space.configuration import Configuration
from trainwright.study.driver.allocator import Allocator
from trainwright.study.driver.budget import Budget
from trainwright.study.driver.clone_checkpoints import link_parent_checkpoint
from trainwright.study.driver.failures import secure_failures
from trainwright.study.driver.progress import Progress
from trainwright.study.projections import RuleProjection
from trainwright.study.study_log import StudyLog

__all__ = ["TrialQueue"]


@dataclass(kw_only=True, eq=False)
class TrialQueue:
    """Owns the trials that wait: those to resume, those that this process has promoted, and new ones not yet written.

    A promotion is a lease: whoever claims a paused trial's next one records that it is promoted, and starts it. What
    dies in between leaves a claim, or a lease, that is taken over as those of running trials are. A proposal is made
    when it is needed and not while another trial runs: by then about as many results as there are workers would have
    come, and it would be made again. `team` says whether this process is one of several workers.
    """

    log: StudyLog
    rule: RuleProjection
    searcher_view: SearchView
    searcher: Searcher
    allocator: Allocator
    budget: Budget
    progress: Progress
    team: bool
    fits: Callable[[int | None], bool]
    """Whether there is time for an epoch of a trial, or of a new one."""
    granted: int = 0
    """How many trials were handed out in the present plan."""
    was_asked: bool = False
    """Whether the policy wanted any in it."""
    exhausted: bool = False
    """Whether nothing new will be proposed any more."""
    waiting: deque[int] = field(default_factory=deque)
    """The trials to resume: interrupted, lost, proposed by a dead writer."""
    contested: set[int] = field(default_factory=set)
    """Those that another was quicker to claim, but has not started yet."""
    promoted: dict[int, int] = field(default_factory=dict)
    """Those that we promoted and did not start yet, and under which lease."""
    _fresh: dict[int, Configuration] = field(default_factory=dict)  # numbers that are ours: not yet written
    _safe: set[int] = field(default_factory=set)  # trials whose failure lasts: their place is given out again
    _events_at_ask: int = 0  # how many events the rule had folded when it was asked last

    kinds: ClassVar[frozenset[str]] = frozenset({"lost", "paused", "proposed"})
    """The records that it is told of."""

    # The allocator's source.

    def waits(self) -> bool:
        """Whether there would be a new trial to start."""
        return not (self.is_budget_used() or self.exhausted) and isinstance(self.rule.on_free(self.view()), New | Clone)

    def next_trial(self, *, new: bool = True) -> PendingTrial | None:
        """Return an interrupted trial, a promoted one, or a new one while budget and space last."""
        self.was_asked = True
        # Interrupted trials first: their training is paid for already.
        number = self._next_interrupted()
        if number is None:
            # The searcher is to see earlier proposals as pending.
            self.write_fresh()
            number = self._promoted_or_new(new=new)
        if number is None:
            return None
        self.granted += 1
        trial = self.log.state.trials.get(number)
        return PendingTrial(number, trial.epoch if trial is not None else 0)

    def _next_interrupted(self) -> int | None:
        trials = self.log.state.trials
        while self.waiting:
            number = self.waiting[0]
            done = not self._is_open(number) or self._settle_verdict(trials[number])
            if not done and self.is_budget_used():
                return None
            self.waiting.popleft()
            if not done and self.fits(number):
                # Without time for an epoch, the trial is left to others or to the next run.
                return number
        return None

    def _promoted_or_new(self, *, new: bool) -> int | None:
        refused: Promote | New | Clone | None = None
        while True:
            self._events_at_ask = self.rule.events
            answer = self.rule.on_free(self.view())
            if isinstance(answer, Wait):
                return None
            if not self.fits(answer.trial if isinstance(answer, Promote) else None):
                return None
            if answer == refused:
                # The same answer again: the other holder has not written more yet.
                return None
            if isinstance(answer, Promote):
                if self._claim_promotion(answer):
                    return answer.trial
            elif not new or self.is_budget_used() or self.exhausted:
                return None
            elif isinstance(answer, Clone):
                if (number := self._propose_clone(answer)) is not None:
                    return number
            elif (proposal := self._propose_new()) is not None:
                self._fresh[proposal[0]] = proposal[1]
                return proposal[0]
            refused = answer

    def _claim_promotion(self, answer: Promote) -> bool:
        """Make a promotion ours and record it; False if it is another's, or if the trial does not wait any more."""
        number, trial = answer.trial, self.log.state.trials[answer.trial]
        if not trial.at_rung:
            # It was judged, and its run is about to end.
            return False
        paused = trial.lease
        lease = self.log.claims.lease(number)
        if lease is None:
            self.contested.add(number)
            self.log.refresh()
            return False
        # Claiming reads records: somebody may have run the trial meanwhile.
        if trial.lease == paused and trial.at_rung:
            self.log.append(facts.promoted(number, lease, until_epoch=answer.until_epoch))
            self.promoted[number] = lease
            return True
        if trial.at_rung:
            # Somebody who has died since had run it on to the next rung: the lease is given back.
            pause = facts.paused(number, lease, reason="rung", epoch=trial.epoch, values=trial.values, wall_seconds=0.0)
            self.log.append(pause)
        return False

    def write_fresh(self) -> None:
        """Write proposals that were not started at once."""
        for number, configuration in list(self._fresh.items()):
            self.log.append(self.log.proposal(number, configuration))
            del self._fresh[number]

    # New trials.

    def learn(self) -> None:
        """Let the searcher learn what has come, as long as there is time for it."""
        if isinstance(self.searcher, Learner):
            began = time.monotonic()
            self.searcher.learn(self.searcher_view)
            self.log.spend(time.monotonic() - began)

    def _propose_new(self) -> tuple[int, Configuration] | None:
        """Return a new trial's number, now ours, and its configuration; None if budget or space allow none."""
        if self.exhausted:
            return None
        claims = self.log.claims
        # The number is claimed before the searcher is asked, since its draws depend on it.
        secure_failures(self.log, self._safe)
        number = claims.number(self.allowed(), team=self.team)
        if number is None:
            return None
        try:
            self.learn()
            (configuration,) = self.searcher.ask(self.searcher_view, [number])
        except SpaceExhausted as end:
            claims.release([number])
            self.exhausted = True
            self.progress.say(f"every configuration of the space has been tried: {end}")
            return None
        except BaseException:  # Ctrl-C, too: a number that nobody proposes is missing in the end
            claims.release([number])
            raise
        return number, configuration

    def _propose_clone(self, answer: Clone) -> int | None:
        """Write the proposal of a clone, whose parent's state is put by for it; None if another is quicker."""
        log = self.log
        # Of a team one makes it. Whoever had the claim before may have done so and died.
        if not log.claims.take(f"clone/{answer.replaces}") or self.rule.on_free(self.view()) != answer:
            return None
        secure_failures(log, self._safe)
        number = log.claims.number(self.allowed(), team=self.team)
        if number is None:
            return None
        try:
            parent, rule, space = log.state.trials[answer.parent], self.rule.rule, self.searcher_view.space
            epoch = link_parent_checkpoint(log.directory, parent, answer.replaces, number)
            given = Configuration(params=parent.params, key=parent.key)
            found = rule.clone_of(space, given, seed=log.state.seed, number=number)
            proposal = replace(found, number=number, origin={"searcher": type(rule).__name__})
            log.append(log.proposal(number, proposal, Exploit(answer.parent, epoch, answer.replaces)))
        except BaseException:
            log.claims.release([number])
            raise
        return number

    # The budget.

    def is_budget_used(self) -> bool:
        """Whether all results that the budget allows are there, or would be if every running trial gives one."""
        # Each trial that runs or was handed out is expected to give a result, so that none starts in vain.
        expected = self.log.state.results + len(self.allocator.runs) + self.granted
        return self.budget.trials is not None and expected >= self.budget.trials

    def shortfall(self) -> str | None:
        """Return why a run that is done ends with fewer results than its budget, or None if it has them."""
        trials, state = self.budget.trials, self.log.state
        if trials is None or state.results >= trials:
            return None
        held = sum(not state.trials[number].at_rung for number in state.open)
        unread = sum(number not in state.trials for number in range(self.allowed() or 0))
        damaged = sum(not each.torn for each in self.log.ledger.dropped())
        reasons = {
            "nothing new is proposed any more": self.exhausted,
            f"{held} trials wait, or are held by others": held,
            f"{unread} numbers of trials are claimed of which nothing was read": unread and not self.exhausted,
            f"{damaged} places of the ledger are damaged": damaged,
        }
        why = "; ".join(reason for reason, holds in reasons.items() if holds) or "the rule starts no more"
        return f"the run ends with {state.results} of {trials} results: {why}"

    def allowed(self) -> int | None:
        """Return how many numbers the budget allows, None if any."""
        trials = self.budget.trials
        return None if trials is None else self.log.state.allowed(trials)

    def view(self) -> RuleView:
        """Return the study as its rule sees it."""
        allowed = self.allowed()
        remaining = 2**62 if allowed is None else max(0, allowed - len(self.log.state.trials))
        if self.exhausted:
            remaining = 0
        final = self.allocator.device_allocator.final
        return RuleView(remaining=remaining, seed=self.log.state.seed, at_seconds=self.rule.seconds, final=final)

    # What comes to wait.

    def fold(self, record: Record, trial: TrialState | None) -> None:
        """Take note of trials that other writers lost, let go of or enqueued."""
        # What this process wrote it has queued itself.
        if trial is None or record.writer in self.log.mine:
            return
        if not trial.resizing and (record.kind != "proposed" or self.log.offered(trial)):
            self.add(trial.number)

    def add(self, number: int) -> None:
        """Let a trial wait if it is to be gone on with."""
        if self._is_open(number) and not self._is_busy(number):
            self.waiting.append(number)

    def take_over(self, numbers: Iterable[int]) -> None:
        """Take over the trials that a dead driver left, and interrupted ones; those of the living are left to them."""
        for number in sorted(numbers):
            trial = self.log.state.trials[number]
            if trial.status.ended or self._is_busy(number):
                continue
            # A live driver's trial is left to it; only a dead one's is taken over.
            held = trial.status in {Status.RUNNING, Status.PROPOSED} or trial.resizing
            if held and not self.log.orphaned(trial):
                continue
            if not trial.key:
                # Its proposal is damaged: nobody knows what to run.
                self.log.append(
                    facts.finished(number, max(1, trial.lease), reason="cancelled", values={}, wall_seconds=0.0)
                )
                continue
            if trial.status is Status.RUNNING:
                self.log.append(facts.lost(number, trial.lease, why="its driver is gone", blame=False))
            self.add(number)

    def retry(self) -> None:
        """Let those wait again that others have claimed and not started."""
        contested, self.contested = self.contested, set()
        for number in sorted(contested):
            self.add(number)

    @property
    def outdated(self) -> bool:
        """Whether the rule has heard of more since it was asked, so that it might answer otherwise."""
        return self.rule.events != self._events_at_ask

    def _is_open(self, number: int) -> bool:
        """Whether a trial that waited is still to be gone on with: others may have done so meanwhile.

        One whose proposal is damaged for us is left to those who have read it.
        """
        trial = self.log.state.trials[number]
        return bool(trial.key) and (trial.status in {Status.PROPOSED, Status.LOST} or trial.preempted)

    def _is_busy(self, number: int) -> bool:
        """Whether we are at it already."""
        allocator = self.allocator
        return any(number in held for held in (allocator.runs, allocator.in_transit, self.waiting, self.promoted))

    def _settle_verdict(self, trial: TrialState) -> bool:
        """End or pause a trial that was judged before its driver died, but of which that was not written."""
        verdict = self.rule.verdict(trial, self.view()) if trial.reports else None
        if not isinstance(verdict, Stop | Pause):
            return False
        number, lease, epoch = trial.number, trial.lease, trial.epoch
        values = trial.reports[epoch].metrics
        if isinstance(verdict, Stop):
            end = facts.finished(number, lease, reason="stopped", values=values, wall_seconds=0.0)
        else:
            end = facts.paused(number, lease, reason="rung", epoch=epoch, values=values, wall_seconds=0.0)
        self.log.append(end)
        self.progress.ended(self.log.state, trial)
        return True

    # What is started.

    def claimed(self, number: int) -> tuple[Record | None, int | None]:
        """Return the proposal of a trial if it is to be written with its start, and its lease: None if another's."""
        fresh, promised = self._fresh.get(number), self.promoted.get(number)
        proposal = None if fresh is None else self.log.proposal(number, fresh)
        lease = self.log.claims.lease(number) if promised is None else promised
        if proposal is None and lease is not None:
            trial = self.log.state.trials[number]
            still = self._is_open(number) if promised is None else (trial.lease == promised and not trial.status.ended)
            # Claiming reads records: the trial may have ended meanwhile.
            lease = lease if still else None
        if lease is None:
            self.promoted.pop(number, None)
        return proposal, lease

    def started(self, number: int) -> None:
        """Note that the start of a trial has been written."""
        self._fresh.pop(number, None)
        self.promoted.pop(number, None)

    def release(self) -> None:
        """Release numbers that were not proposed."""
        self.log.claims.release(list(self._fresh))
