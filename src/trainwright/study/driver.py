"""The loop of one `study.run`: it joins searcher, scheduler and engine over the book."""

import time
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from trainwright.engine import Died, Engine, Outcome, Quiet, Raised, Returned, TrainFunction
from trainwright.errors import SpaceExhausted, TrainwrightError
from trainwright.ledger import Record, Status, TrialState, facts, refusal
from trainwright.randomness import rng
from trainwright.schedule import CONTINUE, Block, Continue, Pause, Scheduler, Stop, Verdict, Work
from trainwright.schedule import View as RuleView
from trainwright.search import Searcher
from trainwright.search import View as SearchView
from trainwright.study.book import Book
from trainwright.study.followers import RuleFollower
from trainwright.study.progress import Progress
from trainwright.train import Assignment

__all__ = ["Budget", "Driver", "StudyFailed"]

_POLL_SECONDS = 0.5
_REFRESH_SECONDS = 1.0
_BEAT_SECONDS = 15.0
_HOPELESS = 10
"""So many failures without one success end a run."""


class StudyFailed(TrainwrightError):
    """Trials fail again and again, so that going on makes no sense; what was done is kept."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Budget:
    """When a run ends; None is no limit.

    `trials` with a result and `device_seconds` count over the whole life of the study, `wall_seconds` over this run.
    """

    trials: int | None = None
    wall_seconds: float | None = None
    device_seconds: float | None = None
    max_failures: int = 100


@dataclass(slots=True)
class _Running:
    lease: int
    block: Block
    since: float
    verdict: Verdict = CONTINUE
    refusal: str | None = None  # why its last report fails it


class Driver:
    """Runs a study on an engine until its budget is used. Also the engine's handler and the policy's desk."""

    def __init__(
        self,
        book: Book,
        view: SearchView,
        rule: RuleFollower,
        *,
        searcher: Searcher,
        scheduler: Scheduler,
        engine: Engine,
        budget: Budget,
        progress: Progress,
    ) -> None:
        self.book = book
        self.view = view
        self.rule = rule
        self.searcher = searcher
        self.scheduler = scheduler
        self.engine = engine
        self.budget = budget
        self.progress = progress
        self.exhausted = False
        self._space = view.space
        self._running: dict[int, _Running] = {}
        self._waiting: deque[int] = deque()  # trials to go on with: interrupted, lost, proposed by a dead writer
        self._foreign: set[int] = set()  # trials that others hold
        self._free: list[int] = []
        self._granted = 0  # trials handed to the policy in its present plan
        self._started = self._refreshed = self._beaten = time.monotonic()

    def run(self, train: TrainFunction) -> None:
        """Run trials until the budget is used or nothing is left to do; leave nothing running, whatever happens."""
        self.scheduler.rule.check(len(self.book.objectives))
        self.scheduler.policy.check(self.engine.slots)
        self.engine.open(train, self.book.directory)
        self._free = list(range(self.engine.slots))
        self.book.ledger.beat()
        try:
            self._adopt(self.book.state.trials)
            while not self._out_of_time():
                self._granted = 0
                for grant in self.scheduler.policy.plan(self):
                    self._start(grant.work.trial, grant.block)
                if self._running:
                    self.engine.poll(self, _POLL_SECONDS)
                elif not self._granted:  # else another driver was faster: look again
                    if self._enough() or not self.book.undecided(self._allowed()):
                        break
                    self._await_news()
                self._upkeep()
                self.progress.tick(self.book.state, len(self._running))
        finally:
            self.engine.close()
            for number in list(self._running):
                self._preempt(number)

    # The policy's desk.

    @property
    def free(self) -> Sequence[int]:
        """The free slots."""
        return self._free

    @property
    def slots(self) -> int:
        """All slots."""
        return self.engine.slots

    def next_work(self) -> Work | None:
        """Return an interrupted trial, or a new one while budget and space last."""
        while self._waiting and not self._enough():
            number = self._waiting.popleft()
            if not self._settle(self.book.state.trials[number]):
                self._granted += 1
                return Work(number)
        if self._enough() or self.exhausted or not self.rule.starts_new(self._rule_view()):
            return None
        number_or_none = self.book.claim_number(self._allowed())
        if number_or_none is None:
            return None
        try:
            (configuration,) = self.searcher.ask(self.view, [number_or_none])
        except SpaceExhausted as end:
            self.book.release([number_or_none])
            self.exhausted = True
            self.progress.say(f"every configuration of the space has been tried: {end}")
            return None
        self.book.propose(number_or_none, configuration)
        self._granted += 1
        return Work(number_or_none)

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
            self._foreign.discard(number)
            if number in self._running or number in self._waiting:
                continue
            if trial.status in {Status.RUNNING, Status.PROPOSED} and not self.book.orphaned(trial):
                self._foreign.add(number)
            elif not trial.key and not trial.status.ended:  # its proposal is damaged: nobody knows what to run
                self.book.append(
                    facts.finished(number, max(1, trial.lease), reason="cancelled", values={}, wall_seconds=0.0)
                )
            else:
                if trial.status is Status.RUNNING:
                    self.book.append(facts.lost(number, trial.lease, why="its driver is gone", blame=False))
                if trial.status in {Status.PROPOSED, Status.LOST} or trial.preempted:
                    self._waiting.append(number)

    def _settle(self, trial: TrialState) -> bool:
        """End a trial that was judged before its driver died, but whose end was not written."""
        if not trial.reports or not isinstance(self.rule.verdict(trial, self._rule_view()), Stop):
            return False
        metrics = trial.reports[trial.epoch].metrics
        self.book.append(facts.finished(trial.number, trial.lease, reason="stopped", values=metrics, wall_seconds=0.0))
        self.progress.ended(self.book.state, trial)
        return True

    def _start(self, number: int, block: Block) -> None:
        trial = self.book.state.trials[number]
        lease = self.book.claim_lease(number)
        if lease is None:
            self._foreign.add(number)
            return
        known = max((c.epoch for c in trial.checkpoints.values()), default=0)
        devices = self.engine.devices(block)
        self.book.append(
            facts.started(number, lease, slot="+".join(map(str, block)), devices=devices, resumed_epoch=known)
        )
        self._running[number] = _Running(lease=lease, block=block, since=time.monotonic())
        self._free = [slot for slot in self._free if slot not in block]
        directory = self.book.directory
        assignment = Assignment(
            trial=number,
            lease=lease,
            params=trial.params,
            seed=int(rng(self.book.state.seed, "trial", number).integers(2**63)),
            max_epochs=self.scheduler.rule.max_epochs,
            metrics=tuple(objective.metric for objective in self.book.objectives),
            directory=None if directory is None else str(directory.resolve()),
            reported_epoch=trial.epoch,
        )
        self.engine.launch(assignment, block)

    def _release(self, number: int) -> _Running:
        running = self._running.pop(number)
        self._free = sorted([*self._free, *running.block])
        return running

    def _preempt(self, number: int) -> None:
        """Record that a running trial was interrupted; the next run goes on from its checkpoint."""
        running = self._release(number)
        trial = self.book.state.trials[number]
        epoch = max((c.epoch for c in trial.checkpoints.values()), default=0)
        seconds = time.monotonic() - running.since
        self.book.append(
            facts.paused(number, running.lease, reason="preempted", epoch=epoch, values={}, wall_seconds=seconds)
        )

    # The engine's handler.

    def facts(self, trial: int, records: list[Record]) -> bool:
        """Write a trial's records and let the rule judge its report."""
        running = self._running[trial]
        if isinstance(running.verdict, Stop | Pause) or running.refusal is not None:
            return False  # it was told to end already
        self.book.append(*records)
        for record in records:
            if record.kind == "reported":
                self._judge(trial, running, record.body["epoch"], record.body["metrics"])
        return isinstance(running.verdict, Continue) and running.refusal is None

    def _judge(self, number: int, running: _Running, epoch: int, metrics: Mapping[str, float]) -> None:
        running.refusal = refusal(self.book.objectives, metrics, f"at epoch {epoch}")
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
        self.book.append(*outcome.records, self._end(trial, running, outcome))
        state = self.book.state.trials[trial]
        if state.status is Status.LOST:
            self._waiting.append(trial)
        self.progress.ended(self.book.state, state)
        self._give_up_if_hopeless(state)

    def _end(self, number: int, running: _Running, outcome: Outcome) -> Record:
        lease, seconds = running.lease, outcome.seconds
        if running.refusal is not None:
            return facts.failed(number, lease, failure="bad_objective", message=running.refusal, wall_seconds=seconds)
        if isinstance(outcome, Died):
            return facts.lost(number, lease, why=outcome.why, blame=True)
        if isinstance(running.verdict, Pause):
            return facts.paused(
                number, lease, reason="rung", epoch=outcome.epoch, values=outcome.metrics, wall_seconds=seconds
            )
        if isinstance(running.verdict, Stop):
            values = self.book.state.trials[number].reports[self.book.state.trials[number].epoch].metrics
            return facts.finished(number, lease, reason="stopped", values=values, wall_seconds=seconds)
        if isinstance(outcome, Raised):
            return facts.failed(
                number,
                lease,
                failure=outcome.failure,
                message=outcome.message,
                traceback=outcome.traceback,
                wall_seconds=seconds,
            )
        values, message = self._values(outcome)
        if message is None:
            message = refusal(self.book.objectives, values, "in the result")
        if message is not None:
            return facts.failed(number, lease, failure="bad_objective", message=message, wall_seconds=seconds)
        return facts.finished(number, lease, reason="completed", values=values, wall_seconds=seconds)

    def _values(self, outcome: Returned | Quiet) -> tuple[Mapping[str, float], str | None]:
        """Return the final metrics: the last reported, overridden by what the function returned.

        A trial that nobody stopped ends quietly when it reports beyond its full length: it is complete.
        """
        value = outcome.value if isinstance(outcome, Returned) else None
        if value is None:
            return outcome.metrics, None
        if not isinstance(value, Mapping):
            if len(self.book.objectives) != 1:
                return {}, f"train returned {value!r}; return a dict of metrics, or report them"
            value = {self.book.objectives[0].metric: value}
        return {**outcome.metrics, **value}, None

    def _give_up_if_hopeless(self, trial: TrialState) -> None:
        counts = self.book.state.counts
        failed = counts[Status.FAILED]
        if trial.status is not Status.FAILED:
            return
        if failed >= self.budget.max_failures or (failed >= _HOPELESS and not self.book.state.results):
            why = trial.failure.message if trial.failure is not None else ""
            raise StudyFailed(f"{failed} trials have failed, {self.book.state.results} have a result; the last: {why}")

    # Upkeep.

    def _upkeep(self) -> None:
        now = time.monotonic()
        if now - self._beaten >= _BEAT_SECONDS:
            self._beaten = now
            self.book.ledger.beat()
        if now - self._refreshed >= _REFRESH_SECONDS:
            self._refreshed = now
            self.book.refresh()
            self._adopt(list(self._foreign))

    def _await_news(self) -> None:
        """Wait until it is known whether another host's driver still lives, and take over what it left if not."""
        time.sleep(_POLL_SECONDS)
        self.book.refresh()
        self._adopt(self.book.state.trials)

    def _out_of_time(self) -> bool:
        wall, devices = self.budget.wall_seconds, self.budget.device_seconds
        now = time.monotonic()
        if wall is not None and now - self._started >= wall:
            self.progress.say(f"the budget of {wall:g} wall seconds is used; running trials keep their checkpoints")
            return True
        if devices is not None:
            held = sum(self._unrecorded(number, now) for number in self._running)
            if self.book.state.device_seconds + held >= devices:
                self.progress.say(f"the budget of {devices:g} device seconds is used")
                return True
        return False

    def _unrecorded(self, number: int, now: float) -> float:
        """Return the device seconds of a running trial beyond those that its reports have recorded."""
        lease = self.book.state.trials[number].leases[self._running[number].lease]
        return max(0.0, now - self._running[number].since - lease.seconds) * max(1, len(lease.devices))
