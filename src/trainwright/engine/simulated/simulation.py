"""One simulated study: discrete events on a virtual clock, decided by the very rule, policy and searcher objects."""

import hashlib
import heapq
import math
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from trainwright.engine.simulated._draws import Draws
from trainwright.engine.simulated.config import Simulated
from trainwright.engine.simulated.record import Recorder, Run
from trainwright.engine.simulated.task import Course
from trainwright.errors import ScheduleError
from trainwright.schedule import (
    Continue,
    Desk,
    Ended,
    Estimates,
    Event,
    Go,
    Look,
    Move,
    New,
    Opened,
    Pause,
    Promote,
    Promoted,
    Reported,
    Rest,
    Scheduler,
    Seat,
    Start,
    Started,
    TrialView,
    View,
    Work,
)

__all__ = ["simulate"]

_NANO = 1_000_000_000

# What happens at one time happens in this order.
_NODE_LOST, _FAILED, _REPORTED, _CHECKPOINT, _NODE_BACK, _TIMER = range(6)
_NAMES = ("node_lost", "failed", "reported", "checkpoint", "node_back", "timer")

Configure = Callable[[int], Mapping[str, Any] | None]
"""Returns the parameters of a new trial; None for none."""


@dataclass(slots=True)
class _Trial:
    number: int
    course: Course
    started: bool = False
    runs: int = 0  # how often it was started
    version: int = 0  # events of an earlier one are void
    checkpoint: int = 0  # the epoch from which it goes on
    reported: int = 0  # the last epoch reported
    best: float = math.inf
    began: float = 0.0  # when it trained on from its checkpoint, in seconds
    pace: float = 1.0  # speed on its devices, and its luck with them
    until: int = 0  # the epoch of its next report


def simulate(
    scheduler: Scheduler,
    setting: Simulated,
    *,
    trials: int,
    seed: int,
    objectives: int = 1,
    configure: Configure = lambda _: None,
    told: Callable[[int, int, tuple[float, ...], bool], None] | None = None,
    gantt: bool = False,
) -> Run:
    """Simulate a study of `trials` trials and return what came of it.

    `configure` gives the parameters of a new trial, `told` hears (trial, epoch, losses, whether it has ended), as a
    searcher would. `gantt` keeps who held which devices when.
    """
    scheduler.rule.check(objectives, trials)
    if scheduler.rule.max_epochs is None:
        raise ScheduleError("simulate: the rule sets no length of a trial; give it, such as FixedEpochs(27)")
    scheduler.policy.check(setting.cluster.devices, setting.cluster.devices_per_node, scheduler.rule)
    return _Simulation(
        scheduler, setting, trials, seed, configure=configure, told=told, recorder=Recorder(setting, gantt=gantt)
    ).run()


class _Simulation:
    """The state between events. It is the desk's source."""

    def __init__(
        self,
        scheduler: Scheduler,
        setting: Simulated,
        trials: int,
        seed: int,
        *,
        configure: Configure,
        told: Callable[[int, int, tuple[float, ...], bool], None] | None,
        recorder: Recorder,
    ) -> None:
        self.rule = scheduler.rule
        self.setting = setting
        self.budget = trials
        self.seed = seed
        self.configure = configure
        self.told = told
        self.recorder = recorder
        self.length: int = scheduler.rule.max_epochs or 0
        self.clock = 0.0
        self.free_at = 0.0  # when the driver has decided what came before
        self.trials: dict[int, _Trial] = {}
        self.interrupted: deque[int] = deque()
        self.courses = setting.task.courses(seed)
        self.agenda: list[tuple[int, int, int, int, int]] = []  # nanoseconds, kind, sequence, trial or node, version
        self.sequence = 0
        self.hash = hashlib.sha256()
        self.index = self.rule.fold(self.rule.empty(), Opened(seed=seed))
        self.luck = Draws(seed, "simulated straggling")
        self.drops = Draws(seed, "simulated drop", "exponential")
        self.lifetimes = Draws(seed, "simulated node", "exponential")
        rungs = getattr(self.rule, "rungs", ())
        cluster = setting.cluster
        room = scheduler.policy.room(cluster.devices, cluster.devices_per_node)
        self.desk = Desk(
            scheduler.policy,
            self,
            room,
            slots=cluster.devices,
            rungs=(*rungs, self.length),
            survival=self._survival,
            estimates=Estimates(),
        )
        self._pace: dict[int, float] = {}
        self.held: set[int] = set()

    def run(self) -> Run:
        self._nodes()
        self._act(self.desk.plan(0.0), at_checkpoint=None)
        agenda = self.agenda
        while agenda:
            nanoseconds, kind, _, number, version = heapq.heappop(agenda)
            if self._void(kind, number, version):
                continue
            self.clock = nanoseconds / _NANO
            self._line(nanoseconds, kind, number)
            self._decide()
            at_checkpoint = None
            if kind == _REPORTED:
                at_checkpoint = self._report(self.trials[number])
            elif kind == _CHECKPOINT:
                at_checkpoint = self._pass(self.trials[number])
            elif kind == _FAILED:
                self._fail(self.trials[number])
            elif kind == _NODE_LOST:
                self._lose(number, version)
            elif kind == _NODE_BACK:
                self.desk.room.give(self._slots(number))
            self._act(self.desk.plan(self.clock), at_checkpoint)
        return self.recorder.result(self.clock, len(self.trials), self.desk, self.hash.hexdigest())

    def _void(self, kind: int, number: int, version: int) -> bool:
        """Whether an event has been overtaken by another."""
        if kind in {_REPORTED, _CHECKPOINT}:
            return self.trials[number].version != version
        if kind == _FAILED:
            return number not in self.desk.seats or self.trials[number].runs != version
        return not self._works()

    # What waits for devices.

    def next_work(self) -> Work | None:
        """Return an interrupted trial, a promoted one, or a new one."""
        if self.interrupted:
            number = self.interrupted.popleft()
            return Work(number, self.trials[number].checkpoint)
        answer = self.rule.on_free(self.index, self._view())
        if isinstance(answer, Promote):
            self._fold(Promoted(trial=answer.trial, until_epoch=answer.until_epoch, at_seconds=self.clock))
            return Work(answer.trial, self.trials[answer.trial].checkpoint)
        if isinstance(answer, New):
            number = len(self.trials)
            self.trials[number] = _Trial(number, self.courses.of(number, self.configure(number)))
            return Work(number)
        if answer.until_seconds is not None:
            self.desk.wake(answer.until_seconds)
        return None

    def waits(self) -> bool:
        """Whether new trials are left."""
        return len(self.trials) < self.budget

    def _works(self) -> bool:
        return bool(self.desk.seats or self.desk.resting or self.interrupted or self.waits())

    # Events.

    def _report(self, trial: _Trial) -> int | None:
        """Let a trial report; return its number if it goes on."""
        epoch, number = trial.until, trial.number
        losses = trial.course.losses(epoch)
        if not all(map(math.isfinite, losses)):
            losses = tuple(loss if math.isfinite(loss) else math.inf for loss in losses)
        self._trained(trial, epoch)
        trial.reported = epoch
        trial.best = min(trial.best, losses[0])
        self._fold(Reported(trial=number, epoch=epoch, losses=losses, at_seconds=self.clock))
        self.desk.reported(number, epoch, losses[0], self.clock)
        self.recorder.reported(number, epoch, losses, self.clock)
        if epoch >= self.length:
            self._end(trial, losses, full=True)
            return None
        seen = TrialView(number=number, epoch=epoch, losses=losses, best_loss=trial.best)
        verdict = self.rule.on_report(self.index, self._view(), seen)
        if isinstance(verdict, Continue):
            if self.told is not None:
                self.told(number, epoch, losses, False)
            if self.desk.seats[number].settled:
                return number
            self._leave(trial)
        elif isinstance(verdict, Pause):
            trial.version += 1
            self.recorder.released(number, self.clock, "pause")
            self.desk.gone(number)
            if self.told is not None:
                self.told(number, epoch, losses, False)
        else:
            self._end(trial, losses, full=False)
        return None

    def _end(self, trial: _Trial, losses: tuple[float, ...], *, full: bool) -> None:
        trial.version += 1
        self.recorder.ended(trial.number, losses[0], self.clock, full=full)
        self.desk.gone(trial.number)
        self._fold(Ended(trial=trial.number, failed=False, at_seconds=self.clock))
        if self.told is not None:
            self.told(trial.number, trial.reported, losses, True)

    def _fail(self, trial: _Trial) -> None:
        trial.version += 1
        self.recorder.released(trial.number, self.clock, "failed")
        self.desk.gone(trial.number)
        self._fold(Ended(trial=trial.number, failed=True, at_seconds=self.clock))

    def _pass(self, trial: _Trial) -> int | None:
        """Let a trial pass a checkpoint between two reports that count; return its number if it may go on there."""
        epoch = self._done(trial)
        self._trained(trial, epoch)
        if not self.desk.seats[trial.number].settled:
            self._leave(trial)
            return None
        self.desk.reported(trial.number, epoch, trial.course.losses(epoch)[0], self.clock)
        return trial.number

    def _trained(self, trial: _Trial, epoch: int) -> None:
        course, devices = trial.course, len(self.desk.seats[trial.number].block)
        self.recorder.trained(trial.pace, course.seconds(epoch) - course.seconds(trial.checkpoint), devices)
        trial.checkpoint = epoch

    def _leave(self, trial: _Trial) -> None:
        """At a checkpoint a trial goes where it is to go."""
        number, seat = trial.number, self.desk.seats[trial.number]
        if seat.target is None:
            trial.version += 1
            self.recorder.released(number, self.clock, "rest")
            self.desk.rested(number)
            return
        self.recorder.released(number, self.clock, "resize")
        self.desk.moved(number, self.clock)
        self._train(trial, seat, restart=True)

    def _act(self, actions: Any, at_checkpoint: int | None) -> None:
        """Do what was planned; the trial at a checkpoint moves now or trains on."""
        for action in actions:
            if isinstance(action, Start):
                number = action.work.trial
                trial = self.trials[number]
                self._fold(Started(trial=number, at_seconds=self.clock))
                self._train(trial, self.desk.seats[number], restart=trial.started)
                trial.started = True
            elif isinstance(action, Go):
                self._next(self.trials[action.trial], self.clock)
            elif isinstance(action, Move) and action.trial in self.held:
                self._leave(self.trials[action.trial])
            elif isinstance(action, Move | Rest | Look) and action.trial != at_checkpoint:
                self._checkpoint(self.trials[action.trial])
        self.held = (
            {number for number, seat in self.desk.seats.items() if seat.held}
            if self.held or at_checkpoint is not None
            else self.held
        )
        if at_checkpoint is not None:
            trial, seat = self.trials[at_checkpoint], self.desk.seats[at_checkpoint]
            if seat.held:
                trial.version += 1
            elif seat.settled:
                self._next(trial, self.clock)
            else:
                self._leave(trial)
                self._act(self.desk.plan(self.clock), at_checkpoint=None)  # what it left is free
        if self.desk.wake_at is not None and self._works():
            self._push(self.desk.wake_at + 1 / _NANO, _TIMER, 0, 0)  # not a rounding before it
            self.desk.wake_at = None

    def _train(self, trial: _Trial, seat: Seat, *, restart: bool) -> None:
        """Begin a run on the seat's block."""
        trial.runs += 1
        size = len(seat.block)
        self.recorder.held(trial.number, seat.block, self.clock)
        speed = self._pace.get(size)
        if speed is None:
            speed = self._pace[size] = self.setting.scaling.speedup(size / self.desk.policy.start)
        trial.pace = speed
        if self.setting.stragglers:
            trial.pace /= 1 + abs(self.setting.stragglers * self.luck.at(trial.number, trial.runs))
        cost = self.setting.restart(size) if restart else 0.0
        if restart:
            self.desk.estimates.saw_restart(size, cost)
        self._next(trial, self.clock + cost)
        seat.began = trial.checkpoint, self.clock + cost
        if self.setting.drops_per_second:
            life = self.drops.at(trial.number, trial.runs) / self.setting.drops_per_second
            self._push(self.clock + life, _FAILED, trial.number, trial.runs)

    def _next(self, trial: _Trial, began: float) -> None:
        """Train on from the checkpoint to the next epoch whose report may count."""
        number = trial.number
        seen = TrialView(number=number, epoch=trial.checkpoint, losses=(0.0,), best_loss=trial.best)
        trial.until = min(self.length, max(trial.checkpoint + 1, self.rule.next_epoch(self.index, seen)))
        trial.began = began
        trial.version += 1
        course = trial.course
        seconds = (course.seconds(trial.until) - course.seconds(trial.checkpoint)) / trial.pace
        self._push(began + seconds, _REPORTED, number, trial.version)

    def _done(self, trial: _Trial) -> int:
        """Return the epoch that a running trial has come to, to the next checkpoint if it is in the middle of one."""
        course, spent = trial.course, (self.clock - trial.began) * trial.pace
        low, high, base = trial.checkpoint, trial.until, course.seconds(trial.checkpoint)
        while low < high:  # the first epoch whose end is not before now
            middle = (low + high) // 2
            if course.seconds(middle) - base >= spent - 1e-6:
                high = middle
            else:
                low = middle + 1
        return low

    def _checkpoint(self, trial: _Trial) -> None:
        """Let a running trial stop at the end of its present epoch, unless its next report comes first."""
        epoch = max(trial.checkpoint + 1, self._done(trial))
        if epoch < trial.until:
            course = trial.course
            seconds = (course.seconds(epoch) - course.seconds(trial.checkpoint)) / trial.pace
            trial.version += 1
            self._push(trial.began + seconds, _CHECKPOINT, trial.number, trial.version)

    # Nodes that fail.

    def _nodes(self) -> None:
        if self.setting.node_mtbf_seconds is not None:
            for node in range(self.setting.cluster.nodes):
                self._fate(node, 0)

    def _fate(self, node: int, life: int) -> None:
        mean = self.setting.node_mtbf_seconds or math.inf
        self._push(self.clock + mean * self.lifetimes.at(node, life), _NODE_LOST, node, life)

    def _slots(self, node: int) -> range:
        size = self.setting.cluster.devices_per_node
        return range(node * size, (node + 1) * size)

    def _lose(self, node: int, life: int) -> None:
        """Let what ran on a node go on elsewhere from its last epoch; the node is out for a while."""
        lost = self._slots(node)
        for number, seat in list(self.desk.seats.items()):
            if any(slot in lost for slot in (*seat.block, *(seat.target or ()))):
                trial = self.trials[number]
                done = self._done(trial)
                course = trial.course
                if done > trial.checkpoint and course.seconds(done) - course.seconds(trial.checkpoint) > (
                    (self.clock - trial.began) * trial.pace + 1e-6
                ):
                    done -= 1  # it was in the middle of it
                self._trained(trial, max(done, trial.checkpoint))
                trial.version += 1
                self.recorder.released(number, self.clock, "node lost")
                self.desk.gone(number)
                self.interrupted.append(number)
        self.desk.room.withdraw(lost)
        self._push(self.clock + self.setting.repair_seconds, _NODE_BACK, node, 0)
        self._fate(node, life + 1)

    # Small things.

    def _push(self, at: float, kind: int, number: int, version: int) -> None:
        self.sequence += 1
        heapq.heappush(self.agenda, (round(at * _NANO), kind, self.sequence, number, version))

    def _fold(self, event: Event) -> None:
        self.index = self.rule.fold(self.index, event)

    def _view(self) -> View:
        return View(remaining=self.budget - len(self.trials), seed=self.seed, at_seconds=self.clock)

    def _survival(self, seat: Seat) -> tuple[float, ...]:
        seen = TrialView(number=seat.trial, epoch=seat.epoch, losses=(seat.loss,), best_loss=seat.loss)
        return self.rule.survival(self.index, self._view(), seen)

    def _decide(self) -> None:
        """Let the one driver take its time, after what it had to decide before."""
        seconds = self.setting.decision(self.recorder.results)
        if seconds:
            self.clock = self.free_at = max(self.clock, self.free_at) + seconds

    def _line(self, nanoseconds: int, kind: int, number: int) -> None:
        self.hash.update(f"{nanoseconds} {_NAMES[kind]} {number}\n".encode())
