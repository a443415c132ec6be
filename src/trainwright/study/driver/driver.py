"""The loop that joins searcher, scheduler and engine over the log: of one `study.run`, or of one worker of a team."""

import math
import time
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial

from trainwright.engine import Died, Engine, Outcome, Raised, TrainFunction
from trainwright.engine.admission import REJECTED
from trainwright.errors import EngineError, LedgerError, SchedulerStalled, TrainwrightError
from trainwright.ledger import Record, Status, TrialState, facts, refusal
from trainwright.randomness import rng
from trainwright.schedule import CONTINUE, Block, Continue, Desk, Pause, Scheduler, Stop, Verdict
from trainwright.study.driver.allocator import Allocator
from trainwright.study.driver.budget import Budget
from trainwright.study.driver.failures import MISUSE, StudyFailed, alike, failed_numbers, gave_up, sentence_of
from trainwright.study.driver.gc_freeze import gc_frozen
from trainwright.study.driver.heartbeat import Heartbeat
from trainwright.study.driver.leaving import Leaving
from trainwright.study.driver.progress import Progress
from trainwright.study.driver.proposals import Proposals
from trainwright.study.driver.repeats import Repeats
from trainwright.study.driver.team import TeamSettings
from trainwright.study.driver.trial_outcomes import NO_ROOM, end_record, preemption_record
from trainwright.study.driver.trial_queue import TrialQueue
from trainwright.study.projections import RuleProjection
from trainwright.study.retry import RetryOnFullDisk
from trainwright.study.study_log import StudyLog
from trainwright.train import Assignment

__all__ = ["Driver"]

_POLL_SECONDS = 0.5
_WATCH_SECONDS = 1.0
_HOPELESS, _ALIKE = 10, 2
"""So many failures without one success end a run, or as many as trials run if that is more; or so many alike."""
_MOST_FAILURES = 100
"""So many failures end a run that was told no other limit, or as many as trials run if that is more."""


@dataclass(slots=True)
class _Running:
    lease: int
    block: Block
    since: float
    verdict: Verdict = CONTINUE
    refusal: str | None = None  # why its last report fails it
    before: int | None = None  # how many devices it had, until its first report on these
    leaves: bool = False  # it was told to go on with other devices
    preempted: bool = False  # it is to end with its epoch, for others to go on with it
    superseded: bool = False  # another holder has a higher lease, or has ended it


class Driver:
    """Runs a study on an engine until its budget is used. Also the engine's handler."""

    def __init__(
        self,
        log: StudyLog,
        rule: RuleProjection,
        proposals: Proposals,
        heartbeat: Heartbeat,
        *,
        scheduler: Scheduler,
        engine: Engine,
        budget: Budget,
        progress: Progress,
        team: TeamSettings | None = None,
    ) -> None:
        self.log = log
        self.rule = rule
        self.proposals = proposals
        self.heartbeat = heartbeat
        self.scheduler = scheduler
        self.engine = engine
        self.budget = budget
        self.progress = progress
        self.team = team
        self._running: dict[int, _Running] = {}
        self._watched = time.monotonic()
        self.leaving = Leaving(log, budget, self._running, progress.say)
        self.trial_queue = TrialQueue(
            log, rule, proposals, budget=budget, running=self._running, progress=progress, fits=self.leaving.time.fits
        )
        self._directory = None if log.directory is None else str(log.directory.resolve())
        self._left_out: set[int] = set()  # the first slots of nodes that the engine has lost
        self._failed_before = failed_numbers(log.state)  # in earlier runs: they say nothing of this one
        self._rejected = 0  # trials that a verdict never let start
        self._repeats = Repeats(log.directory, progress.say)
        self._room = RetryOnFullDisk(0.0 if team is None else team.give_up_seconds, progress.say)  # for checkpoints
        self._room.told = log.retry.told = lambda: self.leaving.told

    def run(self, train: TrainFunction) -> None:
        """Run trials until the budget is used or nothing is left to do; leave nothing running, whatever happens.

        A launcher's signal, or the end of the wall time, pauses what runs after its epoch; a second signal at once.
        After a signal it raises KeyboardInterrupt when all is written.
        """
        rule = self.scheduler.rule
        rule.check(len(self.log.objectives), self.budget.trials)
        policy, slots, per_node = self.scheduler.policy, self.engine.slots, self.engine.slots_per_node
        if notice := policy.check(slots, per_node, rule):
            self.progress.say(notice)
        if getattr(rule, "rungs", None) == ():
            name, length = type(rule).__name__, rule.max_epochs
            self.progress.say(f"{name}: there are no rungs below max_epochs={length}: every trial trains to its end")
        self.engine.open(train, self.log.directory)
        room = policy.room(slots, per_node)
        last = () if rule.max_epochs is None else (rule.max_epochs,)
        rungs = (*getattr(rule, "rungs", ()), *last)
        survival, left = self.trial_queue.survival, partial(self.leaving.time_left, slots)
        self.desk = Desk(policy, self.trial_queue, room, slots=slots, rungs=rungs, survival=survival, left=left)
        self.allocator = Allocator(self.desk, self.trial_queue.kept, holds=self.engine.holds)
        self.log.projections.append(self.trial_queue)
        with gc_frozen(), self.leaving.signals:
            try:
                self._work()
            except KeyboardInterrupt:
                if not self.leaving.cut_short():
                    raise
            except EngineError:
                if not self.leaving.told:  # else its cluster was sent the signal, too
                    raise
            finally:
                try:
                    self.engine.close()
                finally:
                    self._preempt_all(self.trial_queue.release())
        if self.leaving.told:
            raise KeyboardInterrupt

    def _work(self) -> None:
        """Work until the budget is used, nothing is left to do, or it is time to leave."""
        self.leaving.limit()
        try:
            self.trial_queue.take_over(self.log.state.open)
            while not (why := self.leaving.due()):
                if self._step():
                    self.progress.say_if(self.trial_queue.shortfall())
                    return
                self.heartbeat.check()
        except KeyboardInterrupt:  # a further signal, or a handler of the program's own
            if not self.leaving.cut_short():
                self._leave("interrupted")
            raise
        self._leave(why)

    def _step(self) -> bool:
        """Start what can be started, wait for news, and deal with them; return whether all is done."""
        self._launch()  # what was planned while trials reported
        self.trial_queue.granted, self.trial_queue.asked = 0, False
        self.log.keep_up()
        self._leave_out_gone()
        allowed = self.trial_queue.allowed()
        self.allocator.plan()
        self._launch()
        self.trial_queue.write_fresh()
        if self._running:
            self.proposals.prepare()
            self.engine.poll(self, _POLL_SECONDS)
        elif not self.trial_queue.granted:  # else another driver was faster: look again
            if self._done(allowed):
                return True
            self._await_news()
        self._watch()
        self.progress.tick(self.log.state, len(self._running))
        return False

    def _done(self, allowed: int | None) -> bool:
        """Whether to end now that nothing runs and no work was found; `allowed` was known when it was looked for."""
        trial_queue = self.trial_queue
        if trial_queue.ask_at is not None or self.allocator.moving or self.desk.wake_at is not None:
            return False
        if self.desk.resting:  # with all devices free
            trial, seat = min(self.desk.resting.items())
            raise SchedulerStalled.of(trial, wanted=seat.wanted, devices=self.engine.slots)
        if not trial_queue.asked:  # with all devices free
            policy = type(self.scheduler.policy).__name__
            self.progress.say(f"{policy} starts no more trials: what its settings allow is used")
            return True
        if trial_queue.outdated:
            return False
        if trial_queue.enough() and not trial_queue.contested:
            return True
        return not (trial_queue.news or trial_queue.allowed() != allowed or self._expects_news())

    def _leave_out_gone(self) -> None:
        """Give nothing out any more on nodes that the engine has lost, once what ran there has ended."""
        per_node = self.engine.slots_per_node
        for first in {slot // per_node * per_node for slot in self.engine.gone} - self._left_out:
            node = range(first, first + per_node)
            held = (slot for seat in self.desk.seats.values() for slot in (*seat.block, *(seat.target or ())))
            if not any(slot in node for slot in held):
                self.desk.room.withdraw(node)
                self._left_out.add(first)
        if self._left_out and not self._running and self.desk.free < self.scheduler.policy.start:
            raise EngineError(
                f"engine: {len(self.engine.gone)} of its {self.engine.slots} slots are gone, too few are left for a "
                f"trial of {self.scheduler.policy.start}; run the study again when nodes are back: it goes on"
            )

    def _leave(self, why: str) -> None:
        """Give running trials time to end their epoch, after which others go on with them."""
        self.leaving.begin(why)
        if not self._running:
            return
        for number in self.allocator.held:
            self._running[number].preempted = True
            self.engine.answer(number, False)
        trials = "1 trial has" if len(self._running) == 1 else f"{len(self._running)} trials have"
        self.progress.say(f"leaving ({why}): {trials} {self.leaving.seconds:.3g} s for the epoch in work")
        while self._running and (left := self.leaving.seconds) > 0:
            self.engine.poll(self, min(_POLL_SECONDS, left))

    # Starting and ending.

    def _launch(self) -> None:
        for number, block, before in self.allocator.take():
            self._start(number, block, before)
        for number, goes_on in self.allocator.answers():
            running = self._running[number]
            running.leaves = not goes_on
            self.engine.answer(number, goes_on and not running.superseded)

    def _start(self, number: int, block: Block, before: int | None) -> None:
        lease = self._begun(number, block)
        self.trial_queue.kept.discard(number)
        if lease is None:
            self.trial_queue.contest(number)
            self.allocator.gone(number)
            return
        trial = self.log.state.trials[number]
        self._repeats.starts(trial)
        self._running[number] = _Running(lease=lease, block=block, since=time.monotonic(), before=before)
        assignment = Assignment(
            trial=number,
            lease=lease,
            params=trial.params,
            seed=int(rng(self.log.state.seed, "trial", number).integers(2**63)),
            max_epochs=self.scheduler.rule.max_epochs,
            metrics=tuple(objective.metric for objective in self.log.objectives),
            directory=self._directory,
            reported_epoch=trial.epoch,
            saved_step=max((lease.step for lease in trial.leases.values()), default=0),
            start_devices=self.scheduler.policy.start,
        )
        try:
            self.engine.launch(assignment, block)
        except EngineError as error:
            if before is None:
                raise
            self.exited(number, Died(why=str(error), blame=False))

    def _begun(self, number: int, block: Block) -> int | None:
        """Write that a trial starts and return its lease, None if that is another's.

        What was proposed just now is written in one record with its start: others read half as many.
        """
        proposal, lease = self.trial_queue.claimed(number)
        if lease is None:
            return None
        trial = self.log.state.trials.get(number)
        known = max(trial.checkpoints, default=0) if trial is not None else 0
        devices = self.engine.devices(block)
        start = facts.started(number, lease, slot=self._slot(block), devices=devices, resumed_epoch=known)
        self.log.append(start if proposal is None else facts.begun(proposal, start))
        self.trial_queue.started(number)
        return lease

    def _slot(self, block: Block) -> str:
        slots = "+".join(map(str, block))
        return slots if self.team is None else f"{self.team.slot}:{slots}"

    def _preempt_all(self, unstarted: list[tuple[int, int]]) -> None:
        """Record which trials were interrupted, running or promoted; the next run goes on from their checkpoints."""
        now = time.monotonic()
        held = [(n, running.lease, now - running.since) for n, running in self._running.items()]
        self._running.clear()
        trouble: LedgerError | None = None
        for number, lease, seconds in [*held, *((number, lease, 0.0) for number, lease in unstarted)]:
            try:
                self.log.append(preemption_record(self.log.state.trials[number], lease, seconds, why=self.leaving.why))
            except LedgerError as error:  # the next may be written all the same
                trouble = error
        if trouble is not None:
            raise trouble

    # The engine's handler.

    def facts(self, trial: int, records: list[Record]) -> bool | None:
        """Write a trial's records and let the rule judge its report; None: the policy holds it there."""
        running = self._running[trial]
        ends = isinstance(running.verdict, Stop | Pause) or running.refusal is not None
        if ends or running.leaves or running.preempted:
            return False  # it was told to end already
        self.log.append(*records)
        self.log.keep_up()  # the rule compares with what others have reported
        self._notice(trial, running)
        if running.superseded:
            return False
        if self.leaving.why:  # whoever goes on with it judges it
            running.preempted = not self._is_last(self.log.state.trials[trial].epoch)
            return not running.preempted
        stays: bool | None = True
        for record in records:
            if record.kind == "checkpointed":
                self._room.found_room()
            if record.kind == "reported":
                self._judge(trial, running, record.body["epoch"], record.body["metrics"])
                stays = self._seat(trial, running, record)
        return stays

    def _seat(self, number: int, running: _Running, report: Record) -> bool | None:
        """Let the policy know of a report; return whether the trial trains on where it is, None if it waits there."""
        running.before = None
        if running.refusal is not None:
            return False
        epoch, first = report.body["epoch"], self.log.objectives[0]
        loss = first.loss(float(report.body["metrics"][first.metric]))
        self.allocator.reported(number, epoch, loss, report.body["wall_seconds"])
        if not isinstance(running.verdict, Continue):
            self.allocator.ends()
            return False
        if self._is_last(epoch):
            self.allocator.ends()
            return True
        if not self.leaving.time.fits(number):  # the next epoch
            running.preempted = True
            self.allocator.ends()
            return False
        stays = self.allocator.stays(number)
        running.leaves = stays is False
        return stays

    def _is_last(self, epoch: int) -> bool:
        return epoch >= (self.scheduler.rule.max_epochs or math.inf)

    def _notice(self, number: int, running: _Running) -> None:
        trial = self.log.state.trials[number]
        running.superseded = trial.lease > running.lease or trial.status.ended

    def _judge(self, number: int, running: _Running, epoch: int, metrics: Mapping[str, float]) -> None:
        running.refusal = refusal(self.log.state.outcomes, metrics, f"at epoch {epoch}")
        if running.refusal is not None:
            return
        running.verdict = self.rule.verdict(self.log.state.trials[number], self.trial_queue.view(), epoch)
        reason = running.verdict.reason
        if reason is not None:
            self.log.append(
                facts.decided(
                    number,
                    epoch=reason.epoch,
                    rule=reason.rule,
                    verdict=type(running.verdict).__name__.lower(),
                    value=reason.value,
                    threshold=reason.threshold,
                )
            )

    def exited(self, trial: int, outcome: Outcome) -> None:
        """Write how a trial ended."""
        running = self._running.pop(trial)
        self.rule.forget(trial)
        self._notice(trial, running)
        state, outcomes = self.log.state.trials[trial], self.log.state.outcomes
        leaving = self.leaving.why or ("too little time for an epoch" if running.preempted else "")
        self.log.append(*outcome.records, end_record(state, running, outcome, outcomes, leaving=leaving))
        before = running.before if isinstance(outcome, Died) else None
        if state.resizing:
            self.allocator.left(trial)
        elif before is not None and not leaving and self.allocator.falls_back(trial, before):
            self.log.append(facts.note("rolled back", {"from": len(running.block), "to": before}, trial))
            self.progress.say(f"trial {trial} did not start on {len(running.block)} devices: back to {before}")
        else:
            self.allocator.gone(trial)
        if not leaving:
            self.trial_queue.add(trial)
        self.progress.ended(self.log.state, state)
        self._repeats.paused(state)
        if isinstance(outcome, Raised) and outcome.failure == NO_ROOM:
            self._room.wait(TrainwrightError(outcome.message))
        self._give_up_if_hopeless(state)

    def _give_up_if_hopeless(self, trial: TrialState) -> None:
        if not gave_up(trial):
            return
        state, counts = self.log.state, self.log.state.counts
        self._rejected += trial.failure is not None and trial.failure.kind == REJECTED
        failed = counts[Status.FAILED] + counts[Status.ABANDONED]
        broken = failed - len(self._failed_before) - self._rejected  # that a trial does not fit says nothing of others
        same: list[int] = []
        if not state.results:
            same = alike(state, trial, self._failed_before)
            if broken >= _HOPELESS or len(same) >= _ALIKE:
                self.log.refresh()  # others may have had success since we read
        most = self.budget.max_failures
        why = sentence_of(trial, self.log.directory)
        if trial.failure is not None and trial.failure.kind == MISUSE:
            raise StudyFailed(why)
        if len(same) >= _ALIKE and most is None and not state.results:
            raise StudyFailed(f"{len(same)} trials have failed alike, none has a result: {why}")
        hopeless = max(_HOPELESS, counts[Status.RUNNING])  # in a team as many as that fail before any can succeed
        if most is None:
            most = max(_MOST_FAILURES, counts[Status.RUNNING])
        if failed >= most or (broken >= hopeless and not state.results):
            raise StudyFailed(f"{failed} trials have failed, {state.results} have a result; the last: {why}")

    # Upkeep.

    def _watch(self) -> None:
        """Take over from writers that have died since the last look."""
        if (now := time.monotonic()) - self._watched < _WATCH_SECONDS:
            return
        self._watched = now
        if dead := self.log.claims.newly_dead():
            trials = self.log.state.trials
            self.trial_queue.take_over([number for number in self.log.state.open if trials[number].holder in dead])
        self.trial_queue.retry()
        for number, running in self._running.items():
            self._notice(number, running)

    def _expects_news(self) -> bool:
        """Whether to stay though there is nothing to do: others may die, or are not known to live."""
        limit = self.trial_queue.allowed()
        if self.team is not None and self.team.wait:
            counts = self.log.state.counts
            if counts[Status.PROPOSED] + counts[Status.RUNNING] + counts[Status.LOST]:
                return True
            if any(self.log.state.trials[number].resizing for number in self.log.state.open):
                return True
            if self.trial_queue.contested or (not self.proposals.exhausted and self.log.claims.waited_for(limit)):
                return True
        return self.log.claims.undecided(limit)

    def _await_news(self) -> None:
        """Wait for what others do, and take over what they left if they are gone."""
        at = self.trial_queue.ask_at
        time.sleep(_POLL_SECONDS if at is None else min(_POLL_SECONDS, max(0.0, at - self.rule.seconds)))
        self.log.refresh()
        self.trial_queue.take_over(self.log.state.open)
