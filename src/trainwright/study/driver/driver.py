"""The driver: the main loop of `study.run` or of one worker, which joins searcher, scheduler and engine."""

import math
import time
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial

from trainwright.engine import Died, Engine, Outcome, Raised, TrainFunction
from trainwright.engine.protocol import node_shapes
from trainwright.errors import EngineError, LedgerError, SchedulerStalled, TrainwrightError
from trainwright.ledger import Record, Status, facts
from trainwright.ledger.objectives import refusal
from trainwright.randomness import rng
from trainwright.schedule import Continue, DeviceAllocator, Pause, Scheduler, Stop
from trainwright.schedule.policies.allocation_policy import Block
from trainwright.schedule.policies.final_phase import FinalPhase
from trainwright.search import Searcher, SearchView
from trainwright.study.driver.allocator import Allocator
from trainwright.study.driver.budget import Budget, TeamSettings
from trainwright.study.driver.clone_checkpoints import check_folder, move_to_clone
from trainwright.study.driver.failure_limit import FailureLimit
from trainwright.study.driver.graceful_shutdown import GracefulShutdown
from trainwright.study.driver.heartbeat import Heartbeat
from trainwright.study.driver.progress import Progress
from trainwright.study.driver.trial_queue import TrialQueue
from trainwright.study.driver.trial_run import NO_ROOM, TrialRun, end_record, preemption_record
from trainwright.study.projections import RuleProjection
from trainwright.study.study_log import RetryOnFullDisk, StudyLog, gc_frozen
from trainwright.train.assignment import Assignment

__all__ = ["Driver"]

_POLL_SECONDS = 0.5
_PATIENCE_SECONDS = 5.0
_WATCH_SECONDS = 1.0


@dataclass(kw_only=True, eq=False)
class Driver:
    """Runs a study on an engine until its budget is used. Also the engine's handler.

    The log knows what has happened, the queue which trials wait, the allocator which run and on what.
    """

    log: StudyLog
    rule: RuleProjection
    view: SearchView
    searcher: Searcher
    heartbeat: Heartbeat
    scheduler: Scheduler
    engine: Engine
    budget: Budget
    progress: Progress
    team: TeamSettings | None = None

    def __post_init__(self) -> None:
        log, say = self.log, self.progress.say
        self.allocator = Allocator()
        self.leaving = GracefulShutdown(log, self.budget, self.allocator.runs, say)
        self.queue = TrialQueue(
            log=log,
            rule=self.rule,
            searcher_view=self.view,
            searcher=self.searcher,
            allocator=self.allocator,
            budget=self.budget,
            progress=self.progress,
            fits=self.leaving.time.fits,
            team=self.team is not None,
        )
        self._watched_at = time.monotonic()
        self._directory = None if log.directory is None else str(log.directory.resolve())
        self._failures = FailureLimit(log, self.budget.max_failures)
        self._patience = _POLL_SECONDS  # until the next look while there is nothing to do
        self._checkpoint_retry = RetryOnFullDisk(0.0 if self.team is None else self.team.give_up_seconds, say)
        self._checkpoint_retry.interrupted = log.retry.interrupted = lambda: self.leaving.signalled

    def run(self, train: TrainFunction) -> None:
        """Run trials until the budget is used or nothing is left to do; leave nothing running, whatever happens.

        A launcher's signal, or the end of the wall time, pauses what runs after its epoch; a second signal at once.
        After a signal it raises KeyboardInterrupt when all is written.
        """
        rule = self.scheduler.rule
        rule.check(len(self.log.objectives), self.budget.trials)
        rule.check_space(self.view.space)
        check_folder(rule, self.log.directory)
        policy, slots, per_node = self.scheduler.policy, self.engine.slots, self.engine.slots_per_node
        if notice := policy.check(slots, per_node, rule):
            self.progress.say(notice)
        if getattr(rule, "rungs", None) == ():
            name, length = type(rule).__name__, rule.max_epochs
            self.progress.say(f"{name}: there are no rungs below max_epochs={length}: every trial trains to its end")
        self.engine.open(train, self.log.directory)
        last = () if rule.max_epochs is None else (rule.max_epochs,)
        rungs = (*getattr(rule, "rungs", ()), *last)
        self.allocator.device_allocator = DeviceAllocator.on(
            node_shapes(self.engine),
            policy,
            self.queue,
            rungs=rungs,
            survival=lambda running: self.rule.survival(running, self.queue.view()),
            seconds_left=partial(self.leaving.time_left, slots),
            planner=None if self.budget.deadline is None else FinalPhase(policy.planner(), say=self.progress.say),
        )
        self.log.add_projection(self.queue)
        with gc_frozen(), self.leaving.signals:
            try:
                self._run_loop()
            except KeyboardInterrupt:
                if not self.leaving.cut_short():
                    raise
            except EngineError:
                if not self.leaving.signalled:
                    # After a signal the engine's cluster may have ended by the same signal.
                    raise
            finally:
                try:
                    self.engine.close()
                finally:
                    self.queue.release()
                    self._preempt_all()
        if self.leaving.signalled:
            raise KeyboardInterrupt

    def _run_loop(self) -> None:
        """Work until the budget is used, nothing is left to do, or it is time to leave."""
        self.leaving.limit()
        try:
            self.queue.take_over(self.log.state.open)
            while not (why := self.leaving.due()):
                if self._run_step():
                    self.progress.say(self.queue.shortfall())
                    return
                self.heartbeat.check()
        except KeyboardInterrupt:  # a further signal, or a handler of the program's own
            if not self.leaving.cut_short():
                self._leave_run("interrupted")
            raise
        self._leave_run(why)

    def _run_step(self) -> bool:
        """Start what can be started, wait for news, and deal with them; return whether all is done."""
        # Start what was planned while trials reported.
        self._launch_planned()
        self.queue.granted, self.queue.was_asked = 0, False
        self.log.keep_up()
        self._withdraw_lost_nodes()
        allowed = self.queue.allowed()
        self.allocator.plan()
        self._launch_planned()
        self.queue.write_fresh()
        if self.allocator.runs:
            self.queue.learn()
            self.engine.poll(self, min(_POLL_SECONDS, self.leaving.time.working))
        elif not self.queue.granted:
            # Nothing was handed out. If something was, another driver was faster to start it: look again.
            if self._is_done(allowed):
                return True
            self._await_news()
        self._watch_writers()
        return False

    def _is_done(self, allowed: int | None) -> bool:
        """Whether to end now that nothing runs and no work was found; `allowed` was known when it was looked for."""
        queue, device_allocator = self.queue, self.allocator.device_allocator
        if self.allocator.launches or device_allocator.wake_at is not None:
            return False
        if device_allocator.preempted:
            # With all devices free.
            trial, running = min(device_allocator.preempted.items())
            raise SchedulerStalled.of(trial, wanted=running.wanted_size, devices=self.engine.slots)
        if not queue.was_asked:
            policy = type(self.scheduler.policy).__name__
            self.progress.say(f"{policy} starts no more trials: what its settings allow is used")
            return True
        if queue.outdated:
            return False
        if queue.is_budget_used() and not queue.contested:
            return True
        return not (bool(queue.waiting) or queue.allowed() != allowed or self._expects_news())

    def _withdraw_lost_nodes(self) -> None:
        """Use lost nodes no more; raise `EngineError` when too few slots are left for any trial."""
        # Lost nodes leave the allocator once no trial holds slots on them.
        lost = self.allocator.withdraw(self.engine)
        if lost and not self.allocator.runs and self.allocator.device_allocator.free < self.scheduler.policy.start:
            raise EngineError(
                f"engine: {len(self.engine.gone)} of its {self.engine.slots} slots are gone, too few are left for a "
                f"trial of {self.scheduler.policy.start}; run the study again when nodes are back: it resumes"
            )

    def _leave_run(self, why: str) -> None:
        """Give running trials time to end their epoch, after which others go on with them."""
        self.leaving.begin(why)
        while self.allocator.runs and (left := self.leaving.seconds) > 0:
            self.engine.poll(self, min(_POLL_SECONDS, left))
        self.leaving.warn_of_lost_work()

    # Starting and ending.

    def _launch_planned(self) -> None:
        while self.allocator.launches:
            self._start_trial(*self.allocator.launches.pop(0))

    def _start_trial(self, number: int, block: Block, before: int | None) -> None:
        # The start is durable before the trial runs: a crash in between loses nothing but time.
        lease = self._write_start(number, block)
        self.allocator.in_transit.discard(number)
        if lease is None:
            self.queue.contested.add(number)
            self.allocator.release(number)
            return
        trial = self.log.state.trials[number]
        self.progress.warn_of_repeat(trial, self.log.directory)
        if trial.exploits is not None:
            move_to_clone(self.log.directory, trial)
        self.allocator.runs[number] = TrialRun(lease=lease, block=block, since=time.monotonic(), before=before)
        assignment = Assignment(
            trial=number,
            lease=lease,
            params=trial.params,
            seed=int(rng(self.log.state.seed, "trial", number).integers(2**63)),
            max_epochs=self.scheduler.rule.max_epochs,
            metrics=tuple(objective.metric for objective in self.log.objectives),
            directory=self._directory,
            reported_epoch=max(trial.epoch, trial.saved_epoch if trial.exploits else 0),
            begins_after=trial.exploits.epoch if trial.exploits else 0,
            saved_step=max((lease.step for lease in trial.leases.values()), default=0),
            start_devices=self.scheduler.policy.start,
            may_grow=self.scheduler.policy.resizes,
            step_times=self.allocator.device_allocator.estimates.step_times(),
        )
        try:
            self.engine.launch(assignment, block)
        except EngineError as error:
            if before is None:
                raise
            self.exited(number, Died(why=str(error), blame=False))

    def _write_start(self, number: int, block: Block) -> int | None:
        """Write that a trial starts and return its lease, None if that is another's.

        What was proposed just now is written in one record with its start: others read half as many.
        """
        proposal, lease = self.queue.claimed(number)
        if lease is None:
            return None
        trial = self.log.state.trials.get(number)
        # What is known of checkpoints now tells later whether the run began from one.
        known = trial.saved_epoch if trial is not None else 0
        devices = self.engine.devices(block)
        start = facts.started(number, lease, slot=self._slot_name(block), devices=devices, resumed_epoch=known)
        if proposal is not None:
            self.log.append(facts.begun(proposal, start))
        elif trial is not None and lease > 1 and trial.writer not in self.log.mine:
            # The result of a trial says nothing without its proposal.
            self.log.append(self.log.repeat_proposal(trial), start)
        else:
            self.log.append(start)
        self.queue.started(number)
        return lease

    def _slot_name(self, block: Block) -> str:
        slots = "+".join(map(str, block))
        return slots if self.team is None else f"{self.team.slot}:{slots}"

    def _preempt_all(self) -> None:
        """Record which trials were interrupted, running or promoted; the next run goes on from their checkpoints."""
        now = time.monotonic()
        running = [(number, run.lease, now - run.since) for number, run in self.allocator.runs.items()]
        self.allocator.runs.clear()
        promoted = self.queue.promoted.items()
        # Every trial is tried, so that one refused write costs one preemption and not all.
        trouble: LedgerError | None = None
        for number, lease, seconds in [*running, *((number, lease, 0.0) for number, lease in promoted)]:
            try:
                self.log.append(preemption_record(self.log.state.trials[number], lease, seconds, why=self.leaving.why))
            except LedgerError as error:  # the next may be written all the same
                trouble = error
        if trouble is not None:
            raise trouble

    # The engine's handler.

    def facts(self, trial: int, records: list[Record]) -> bool:
        """Write a trial's records and let the rule judge its report; return whether it trains on where it is."""
        run = self.allocator.runs[trial]
        ends = isinstance(run.verdict, Stop | Pause) or run.refusal is not None
        if ends or run.leaves or run.preempted:
            # An end was decided at an earlier report.
            return False
        self.log.append(*records)
        # The rule compares with what others have reported.
        self.log.keep_up()
        self._note_superseded(trial, run)
        if run.superseded:
            return False
        if self.leaving.why:
            # This report is judged by the process that resumes the trial.
            run.preempted = not self._is_last(self.log.state.trials[trial].epoch)
            return not run.preempted
        stays = True
        for record in records:
            if record.kind == "checkpointed":
                self._checkpoint_retry.found_room()
            self.allocator.note_goodput(trial, record)
            if record.kind == "reported":
                self._judge_report(trial, run, record.body["epoch"], record.body["metrics"])
                stays = self._decide_placement(trial, run, record)
        return stays

    def _decide_placement(self, number: int, run: TrialRun, report: Record) -> bool:
        """Let the policy know of a report; return whether the trial trains on where it is."""
        run.before = None
        if run.refusal is not None:
            return False
        epoch, first, device_allocator = report.body["epoch"], self.log.objectives[0], self.allocator.device_allocator
        loss = first.loss(float(report.body["metrics"][first.metric]))
        setup = report.body.get("setup_seconds", 0.0)
        self.allocator.note_report(number, epoch, loss, report.body["wall_seconds"], setup)
        continues = isinstance(run.verdict, Continue)
        if not continues or self._is_last(epoch):
            device_allocator.changed = None
            return continues
        if not self.leaving.time.fits(number):
            # The next epoch could not end before the run does.
            run.preempted = True
            device_allocator.changed = None
            return False
        stays = self.allocator.decide(number)
        run.leaves = not stays
        return stays

    def _is_last(self, epoch: int) -> bool:
        return epoch >= (self.scheduler.rule.max_epochs or math.inf)

    def _note_superseded(self, number: int, run: TrialRun) -> None:
        trial = self.log.state.trials[number]
        run.superseded = trial.lease > run.lease or trial.status.ended

    def _judge_report(self, number: int, run: TrialRun, epoch: int, metrics: Mapping[str, float]) -> None:
        run.refusal = refusal(self.log.state.outcomes, metrics, f"at epoch {epoch}")
        if run.refusal is not None:
            return
        run.verdict = self.rule.verdict(self.log.state.trials[number], self.queue.view())
        reason = run.verdict.reason
        if reason is not None:
            self.log.append(
                facts.decided(
                    number,
                    epoch=reason.epoch,
                    rule=reason.rule,
                    verdict=type(run.verdict).__name__.lower(),
                    value=reason.value,
                    threshold=reason.threshold,
                )
            )

    def leaves(self) -> bool:
        """Whether running trials are to save at their next step, and to end."""
        return bool(self.leaving.why)

    def exited(self, trial: int, outcome: Outcome) -> None:
        """Write how a trial ended."""
        run = self.allocator.runs.pop(trial)
        self._note_superseded(trial, run)
        state, outcomes = self.log.state.trials[trial], self.log.state.outcomes
        leaving = self.leaving.why or ("too little time for an epoch" if run.preempted else "")
        end = self.log.claims.settle(end_record(state, run, outcome, outcomes, leaving=leaving))
        self.log.append(*outcome.records, end)
        # A death on devices that the trial has just been given is no fault of its own: it goes back to those before.
        before = run.before if isinstance(outcome, Died) else None
        if state.resizing:
            self.allocator.depart(trial)
        elif before is not None and not leaving and self.allocator.fall_back(trial, before):
            self.log.append(facts.note("rolled back", {"from": len(run.block), "to": before}, trial))
            self.progress.say(f"trial {trial} did not start on {len(run.block)} devices: back to {before}")
        else:
            self.allocator.release(trial)
        if not leaving:
            self.queue.add(trial)
        self.progress.ended(self.log.state, state)
        if isinstance(outcome, Raised) and outcome.failure == NO_ROOM:
            self._checkpoint_retry.wait(TrainwrightError(outcome.message))
        self._failures.check(state)

    # Upkeep.

    def _watch_writers(self) -> None:
        """Take over from writers that have died since the last look."""
        if (now := time.monotonic()) - self._watched_at < _WATCH_SECONDS:
            return
        self._watched_at = now
        if dead := self.log.claims.find_newly_dead():
            trials = self.log.state.trials
            self.queue.take_over([number for number in self.log.state.open if trials[number].holder in dead])
        self.queue.retry()
        for number, run in self.allocator.runs.items():
            self._note_superseded(number, run)

    def _expects_news(self) -> bool:
        """Whether to stay though there is nothing to do: others may die, or are not known to live."""
        limit = self.queue.allowed()
        if self.team is not None and self.team.wait:
            counts = self.log.state.counts
            if counts[Status.PROPOSED] + counts[Status.RUNNING] + counts[Status.LOST]:
                return True
            if any(self.log.state.trials[number].resizing for number in self.log.state.open):
                return True
            if self.queue.contested or (not self.queue.exhausted and self.log.claims.waited_for(limit)):
                return True
        return self.log.claims.undecided(limit)

    def _await_news(self) -> None:
        """Wait for what others do, and take over what they left if they are gone."""
        time.sleep(self._patience)
        began = time.monotonic()
        self.log.refresh()
        self.queue.take_over(self.log.state.open)
        # Many that wait on few cores leave these to those that still work.
        self._patience = min(_PATIENCE_SECONDS, max(_POLL_SECONDS, self.log.pause(time.monotonic() - began)))
