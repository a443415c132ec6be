"""The loop that joins searcher, scheduler and engine over the book: of one `study.run`, or of one worker of a team."""

import time
from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from trainwright.engine import Engine, Outcome, Raised, TrainFunction
from trainwright.errors import LedgerError, ScheduleError, TrainwrightError
from trainwright.ledger import Record, Status, TrialState, facts, refusal
from trainwright.randomness import rng
from trainwright.schedule import CONTINUE, Block, Continue, Desk, Pause, Scheduler, Start, Stop, Verdict, Work
from trainwright.schedule import View as RuleView
from trainwright.space import Configuration
from trainwright.study.book import Book
from trainwright.study.budget import Budget
from trainwright.study.endings import NO_ROOM, ending, preempted
from trainwright.study.followers import RuleFollower, SpentFollower
from trainwright.study.heap import frozen_heap
from trainwright.study.heart import Heart
from trainwright.study.patience import Patience
from trainwright.study.progress import Progress
from trainwright.study.proposals import Proposals
from trainwright.train import Assignment

__all__ = ["Driver", "Member", "StudyFailed"]

_POLL_SECONDS = 0.5
_WATCH_SECONDS = 1.0
_HOPELESS = 10
"""So many failures without one success end a run, or as many as trials run if that is more."""
_MOST_FAILURES = 100
"""So many failures end a run that was told no other limit, or as many as trials run if that is more."""


class StudyFailed(TrainwrightError):
    """Trials fail again and again, so that going on makes no sense; what was done is kept."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Member:
    """What sets a worker of a team apart from a driver that expects to be alone.

    It has a slot of its own; it waits for what others run, to take it over if they die; when it is told to leave, its
    trials have `grace_seconds` to come to the end of their epoch; and a full ledger ends it after `give_up_seconds`.
    """

    slot: int = 0
    wait: bool = True
    grace_seconds: float = 25.0
    give_up_seconds: float = 600.0


@dataclass(slots=True)
class _Running:
    lease: int
    block: Block
    since: float
    verdict: Verdict = CONTINUE
    refusal: str | None = None  # why its last report fails it
    superseded: bool = False  # another holder has a higher lease, or has ended it


class Driver:
    """Runs a study on an engine until its budget is used. Also the engine's handler and the desk's source."""

    def __init__(
        self,
        book: Book,
        rule: RuleFollower,
        proposals: Proposals,
        heart: Heart,
        *,
        scheduler: Scheduler,
        engine: Engine,
        budget: Budget,
        progress: Progress,
        member: Member | None = None,
    ) -> None:
        self.book = book
        self.rule = rule
        self.proposals = proposals
        self.heart = heart
        self.scheduler = scheduler
        self.engine = engine
        self.budget = budget
        self.progress = progress
        self.member = member
        self._running: dict[int, _Running] = {}
        self._waiting: deque[int] = deque()  # trials to go on with: interrupted, lost, proposed by a dead writer
        self._contested: set[int] = set()  # trials that another was quicker to claim, but has not started yet
        self._directory = None if book.directory is None else str(book.directory.resolve())
        self._fresh: dict[int, Configuration] = {}  # numbers that are ours, with what to propose: not yet written
        self._granted = 0  # trials handed to the desk in its present plan
        self._leaving = False
        self._spent: SpentFollower | None = None  # kept if there is a budget of device seconds
        self._room = Patience(0.0 if member is None else member.give_up_seconds, progress.say)  # for checkpoints
        self._started = self._watched = time.monotonic()

    def run(self, train: TrainFunction) -> None:
        """Run trials until the budget is used or nothing is left to do; leave nothing running, whatever happens."""
        rule = self.scheduler.rule
        rule.check(len(self.book.objectives), self.budget.trials)
        if rule.promotes:
            raise ScheduleError(
                f"scheduler: {type(rule).__name__} pauses trials and goes on with the best of them later, which "
                "studies do not do yet; allowed: rules that stop trials, such as ASHA(max_epochs=27)"
            )
        policy, slots, per_node = self.scheduler.policy, self.engine.slots, self.engine.slots_per_node
        policy.check(slots, per_node, rule)
        self.engine.open(train, self.book.directory)
        room = policy.room(slots, per_node)
        self.desk = Desk(policy, self, room, slots=slots, rungs=(), survival=lambda _: ())
        self.book.followers.append(self)
        if self.budget.device_seconds is not None:
            self._spent = SpentFollower(self.book.state)
            self.book.followers.append(self._spent)
        with frozen_heap():
            try:
                self._adopt(self.book.state.open)
                while not self._out_of_time():
                    if self._step():
                        break
                    self.heart.check()
            except KeyboardInterrupt:
                self._leave()
                raise
            finally:
                self.engine.close()
                self.book.claims.release(list(self._fresh))
                self._preempt_all()

    def _step(self) -> bool:
        """Start what can be started, wait for news, and deal with them; return whether all is done."""
        self._granted = 0
        self.book.keep_up()
        allowed = self._allowed()
        for action in self.desk.plan(time.monotonic()):
            if isinstance(action, Start):
                self._start(action.work.trial, action.block)
        self._write_fresh()
        if self._running:
            self.proposals.prepare()
            self.engine.poll(self, _POLL_SECONDS)
        elif not self._granted:  # else another driver was faster: look again
            news = bool(self._waiting) or self._allowed() != allowed  # read while we looked for work
            if self._enough() or not (news or self._expects_news()):
                return True
            self._await_news()
        self._watch()
        self.progress.tick(self.book.state, len(self._running))
        return False

    def _leave(self) -> None:
        """Give running trials time to end their epoch, after which others go on with them."""
        if self.member is None or not self._running:
            return
        self._leaving = True
        deadline = time.monotonic() + self.member.grace_seconds
        self.progress.say(f"leaving: {len(self._running)} trials have {self.member.grace_seconds:g} s for their epoch")
        while self._running and time.monotonic() < deadline:
            self.engine.poll(self, min(_POLL_SECONDS, self.member.grace_seconds))

    # The desk's source.

    def waits(self) -> bool:
        """Whether there would be a new trial to start."""
        return not (self._enough() or self.proposals.exhausted) and self.rule.starts_new(self._rule_view())

    def next_work(self) -> Work | None:
        """Return an interrupted trial, or a new one while budget and space last."""
        while self._waiting and not self._enough():
            number = self._waiting.popleft()
            if self._open(number) and not self._settle(self.book.state.trials[number]):
                self._granted += 1
                return Work(number, self.book.state.trials[number].epoch)
        self._write_fresh()  # the searcher is to know of them
        if not self.waits():
            return None
        proposal = self.proposals.next(self._allowed())
        if proposal is None:
            return None
        self._fresh[proposal[0]] = proposal[1]
        self._granted += 1
        return Work(proposal[0])

    def _write_fresh(self) -> None:
        """Write proposals that were not started at once."""
        for number, configuration in list(self._fresh.items()):
            self.book.append(self.book.proposal(number, configuration))
            del self._fresh[number]

    def _open(self, number: int) -> bool:
        """Whether a trial that waited is still to be gone on with: others may have done so meanwhile."""
        trial = self.book.state.trials[number]
        return trial.status in {Status.PROPOSED, Status.LOST} or trial.preempted

    def _enough(self) -> bool:
        """Whether all results that the budget allows are there, or would be if every running trial gives one."""
        expected = self.book.state.results + len(self._running) + self._granted
        return self.budget.trials is not None and expected >= self.budget.trials

    def _allowed(self) -> int | None:
        trials = self.budget.trials
        return None if trials is None else self.book.state.allowed(trials)

    def _rule_view(self) -> RuleView:
        allowed = self._allowed()
        remaining = 2**62 if allowed is None else max(0, allowed - len(self.book.state.trials))
        return RuleView(remaining=remaining, seed=self.book.state.seed)

    # Starting and ending.

    def _adopt(self, numbers: Iterable[int]) -> None:
        """Take over what dead writers left, and what was interrupted; leave live drivers' trials to them."""
        for number in sorted(numbers):
            trial = self.book.state.trials[number]
            if trial.status.ended or number in self._running or number in self._waiting:
                continue
            if trial.status in {Status.RUNNING, Status.PROPOSED} and not self.book.orphaned(trial):
                continue
            if not trial.key:  # its proposal is damaged: nobody knows what to run
                self.book.append(
                    facts.finished(number, max(1, trial.lease), reason="cancelled", values={}, wall_seconds=0.0)
                )
                continue
            if trial.status is Status.RUNNING:
                self.book.append(facts.lost(number, trial.lease, why="its driver is gone", blame=False))
            if self._open(number):
                self._waiting.append(number)

    kinds = frozenset({"lost", "paused", "proposed"})
    """The records that a driver is told of."""

    def follow(self, record: Record, trial: TrialState | None) -> None:
        """Take note of trials that other writers lost, let go of or enqueued."""
        if trial is None or self.book.ours(record.writer):
            return
        if record.kind == "proposed" and not self.book.offered(trial):
            return
        if self._open(trial.number) and trial.number not in self._waiting and trial.number not in self._running:
            self._waiting.append(trial.number)

    def _settle(self, trial: TrialState) -> bool:
        """End a trial that was judged before its driver died, but whose end was not written."""
        if not trial.reports or not isinstance(self.rule.verdict(trial, self._rule_view()), Stop):
            return False
        metrics = trial.reports[trial.epoch].metrics
        self.book.append(facts.finished(trial.number, trial.lease, reason="stopped", values=metrics, wall_seconds=0.0))
        self.progress.ended(self.book.state, trial)
        return True

    def _start(self, number: int, block: Block) -> None:
        lease = self._begun(number, block)
        if lease is None:
            self._contested.add(number)
            self.desk.gone(number)
            return
        trial = self.book.state.trials[number]
        self._running[number] = _Running(lease=lease, block=block, since=time.monotonic())
        assignment = Assignment(
            trial=number,
            lease=lease,
            params=trial.params,
            seed=int(rng(self.book.state.seed, "trial", number).integers(2**63)),
            max_epochs=self.scheduler.rule.max_epochs,
            metrics=tuple(objective.metric for objective in self.book.objectives),
            directory=self._directory,
            reported_epoch=trial.epoch,
        )
        self.engine.launch(assignment, block)

    def _begun(self, number: int, block: Block) -> int | None:
        """Write that a trial starts and return its lease, None if that is another's.

        What was proposed just now is written in one record with its start: others read half as many.
        """
        fresh = self._fresh.get(number)
        proposal = None if fresh is None else self.book.proposal(number, fresh)
        lease = self.book.claims.lease(number)
        if lease is None or (proposal is None and not self._open(number)):  # on the way we may have read its end
            return None
        trial = self.book.state.trials.get(number)
        known = max(trial.checkpoints, default=0) if trial is not None else 0
        devices = self.engine.devices(block)
        start = facts.started(number, lease, slot=self._slot(block), devices=devices, resumed_epoch=known)
        self.book.append(start if proposal is None else facts.begun(proposal, start))
        self._fresh.pop(number, None)
        return lease

    def _slot(self, block: Block) -> str:
        slots = "+".join(map(str, block))
        return slots if self.member is None else f"{self.member.slot}:{slots}"

    def _release(self, number: int) -> _Running:
        self.desk.gone(number)
        return self._running.pop(number)

    def _preempt_all(self) -> None:
        """Record which running trials were interrupted; the next run goes on from their checkpoints."""
        trouble: LedgerError | None = None
        for number in list(self._running):
            running = self._release(number)
            trial = self.book.state.trials[number]
            try:
                self.book.append(preempted(trial, running.lease, time.monotonic() - running.since))
            except LedgerError as error:  # the next may be written all the same
                trouble = error
        if trouble is not None:
            raise trouble

    # The engine's handler.

    def facts(self, trial: int, records: list[Record]) -> bool:
        """Write a trial's records and let the rule judge its report."""
        running = self._running[trial]
        if isinstance(running.verdict, Stop | Pause) or running.refusal is not None:
            return False  # it was told to end already
        self.book.append(*records)
        self.book.keep_up()  # the rule compares with what others have reported
        self._notice(trial, running)
        if running.superseded or self._leaving:
            return False
        for record in records:
            if record.kind == "checkpointed":
                self._room.found_room()
            if record.kind == "reported":
                self._judge(trial, running, record.body["epoch"], record.body["metrics"])
        return isinstance(running.verdict, Continue) and running.refusal is None

    def _notice(self, number: int, running: _Running) -> None:
        trial = self.book.state.trials[number]
        running.superseded = trial.lease > running.lease or trial.status.ended

    def _judge(self, number: int, running: _Running, epoch: int, metrics: Mapping[str, float]) -> None:
        running.refusal = refusal(self.book.state.outcomes, metrics, f"at epoch {epoch}")
        if running.refusal is not None:
            return
        running.verdict = self.rule.verdict(self.book.state.trials[number], self._rule_view())
        reason = running.verdict.reason
        if reason is not None:
            self.book.append(
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
        running = self._release(trial)
        self._notice(trial, running)
        state, outcomes = self.book.state.trials[trial], self.book.state.outcomes
        self.book.append(*outcome.records, ending(state, running, outcome, outcomes, leaving=self._leaving))
        if self._open(trial) and not self._leaving:
            self._waiting.append(trial)
        self.progress.ended(self.book.state, state)
        if isinstance(outcome, Raised) and outcome.failure == NO_ROOM:
            self._room.wait(TrainwrightError(outcome.message))
        self._give_up_if_hopeless(state)

    def _give_up_if_hopeless(self, trial: TrialState) -> None:
        counts = self.book.state.counts
        failed = counts[Status.FAILED]
        if trial.status is not Status.FAILED:
            return
        hopeless = max(_HOPELESS, counts[Status.RUNNING])  # in a team as many as that fail before any can succeed
        if failed >= hopeless and not self.book.state.results:
            self.book.refresh()  # others may have had success since we read
        most = self.budget.max_failures
        if most is None:
            most = max(_MOST_FAILURES, counts[Status.RUNNING])
        if failed >= most or (failed >= hopeless and not self.book.state.results):
            why = trial.failure.message if trial.failure is not None else ""
            raise StudyFailed(f"{failed} trials have failed, {self.book.state.results} have a result; the last: {why}")

    # Upkeep.

    def _watch(self) -> None:
        """Take over from writers that have died since the last look."""
        if (now := time.monotonic()) - self._watched < _WATCH_SECONDS:
            return
        self._watched = now
        if dead := self.book.claims.newly_dead():
            trials = self.book.state.trials
            self._adopt([number for number in self.book.state.open if trials[number].holder in dead])
        retry = {number for number in self._contested if self._open(number)}
        self._contested.clear()
        self._waiting.extend(sorted(retry - self._running.keys() - set(self._waiting)))
        for number, running in self._running.items():
            self._notice(number, running)

    def _expects_news(self) -> bool:
        """Whether to stay though there is nothing to do: others may die, or are not known to live."""
        limit = self._allowed()
        if self.member is not None and self.member.wait:
            counts = self.book.state.counts
            if counts[Status.PROPOSED] + counts[Status.RUNNING] + counts[Status.LOST]:
                return True
            if self._contested or (not self.proposals.exhausted and self.book.claims.waited_for(limit)):
                return True
        return self.book.claims.undecided(limit)

    def _await_news(self) -> None:
        """Wait for what others do, and take over what they left if they are gone."""
        time.sleep(_POLL_SECONDS)
        self.book.refresh()
        self._adopt(self.book.state.open)

    def _out_of_time(self) -> bool:
        wall, devices = self.budget.wall_seconds, self.budget.device_seconds
        now = time.monotonic()
        if wall is not None and now - self._started >= wall:
            self.progress.say(f"the budget of {wall:g} wall seconds is used; running trials keep their checkpoints")
            return True
        if devices is not None and self._spent is not None:
            held = sum(self._unrecorded(number, now) for number in self._running)
            if self._spent.device_seconds + held >= devices:
                self.progress.say(f"the budget of {devices:g} device seconds is used")
                return True
        return False

    def _unrecorded(self, number: int, now: float) -> float:
        """Return the device seconds of a running trial beyond those that its reports have recorded."""
        lease = self.book.state.trials[number].leases[self._running[number].lease]
        return max(0.0, now - self._running[number].since - lease.seconds) * max(1, len(lease.devices))
