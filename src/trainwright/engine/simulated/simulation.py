"""Simulates one study: discrete events on a virtual clock, decided by the very rule, policy and searcher objects."""

import math
from bisect import bisect_right
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import Any

from trainwright.engine.simulated.settings import GoodputScaling, Simulated, SimulationLimits
from trainwright.engine.simulated.state import NANO, Event, EventKind, EventQueue, SimulatedStudy, SimulatedTrial, Stall
from trainwright.engine.simulated.task import Draws
from trainwright.errors import ScheduleError, SpaceExhausted
from trainwright.schedule import DeviceAllocator, Pause, Promote, Promoted, Reported, RuleView, Scheduler, Stop
from trainwright.schedule import Event as RuleEvent
from trainwright.schedule.allocator.device_allocator import RunningTrial
from trainwright.schedule.allocator.estimates import Estimates, seconds_left
from trainwright.schedule.allocator.mixed_nodes import node_slots, slot_speeds
from trainwright.schedule.policies.allocation_policy import Action, PendingTrial
from trainwright.schedule.policies.final_phase import FinalPhase
from trainwright.schedule.rules.promotion_rule import Clone, Ended, Judged, New, Opened, Started, TrialView

__all__ = ["simulate"]

Configure = Callable[[int, Clone | None], Mapping[str, Any] | None]
"""Returns the parameters of a new trial; None for none."""
OnResult = Callable[[int, int, tuple[float, ...], bool], None]
"""Hears trial, epoch, losses (none if it failed), and whether the trial rests now, ended or paused.

A trial that was promoted result_epochs its last report again, and that it does not rest any more.
"""
_IDLE = 1000  # events a node without any training, after which nothing more is expected


def simulate(
    scheduler: Scheduler,
    setting: Simulated,
    *,
    trials: int | None = None,
    wall_seconds: float | None = None,
    device_seconds: float | None = None,
    deadline_seconds: float | None = None,
    seed: int,
    objectives: int = 1,
    configure: Configure = lambda *_: None,
    on_result: OnResult | None = None,
    result_epochs: Iterable[int] = (),
) -> SimulatedStudy:
    """Simulate a study until its budget is used and return what came of it.

    The budget is a number of `trials`, of which a failed one is not replaced, or of seconds of the clock or of
    devices; at the end of the time all that runs is cut off. At `deadline_seconds` likewise, before which the best
    trials train to their end (see `FinalPhase`). `configure` gives the parameters of a new trial,
    `on_result` hears what came of them, as a searcher would: at every epoch that the rule judges, and at
    `result_epochs`. Raises `InputError` for what cannot run,
    `SchedulerStalled` if the policy goes round in circles; a trial that waits for devices for ever ends the run, which
    names it.
    """
    limits = SimulationLimits(
        trials=trials, wall_seconds=wall_seconds, device_seconds=device_seconds, deadline_seconds=deadline_seconds
    )
    scheduler.rule.check(objectives, trials)
    if scheduler.rule.max_epochs is None:
        raise ScheduleError("simulate: the rule sets no length of a trial; give it, such as FixedEpochs(27)")
    scheduler.policy.check(setting.cluster.devices, setting.cluster.devices_per_node, scheduler.rule)
    return _Simulation(
        scheduler,
        setting,
        limits,
        seed,
        configure=configure,
        on_result=on_result,
        result_epochs=tuple(sorted(result_epochs)) if on_result is not None else (),
    ).run()


class _Simulation:
    """The state between events. It is the allocator's source."""

    def __init__(
        self,
        scheduler: Scheduler,
        setting: Simulated,
        limits: SimulationLimits,
        seed: int,
        *,
        configure: Configure,
        on_result: OnResult | None,
        result_epochs: tuple[int, ...],
    ) -> None:
        self.rule = scheduler.rule
        self.setting = setting
        self.limits = limits
        self.seed = seed
        self.configure = configure
        self.on_result = on_result
        self.result_epochs = result_epochs
        self.study = SimulatedStudy(devices=setting.cluster.devices)
        self.task_devices = setting.task_devices or scheduler.policy.start
        self.length: int = scheduler.rule.max_epochs or 0
        self.curves = self.rule.reads_curves
        self.clock = 0.0  # when the driver decides on the present event, in seconds
        self.trials: dict[int, SimulatedTrial] = {}
        self.training = 0  # how many trials train
        self.interrupted: deque[int] = deque()
        self.learning_curves = setting.task.learning_curves(seed)
        self.index = self.rule.fold(self.rule.empty(), Opened(seed=seed))
        self.luck = Draws(seed, "simulated straggling")
        self.drops = Draws(seed, "simulated drop", "exponential")
        self.lifetimes = Draws(seed, "simulated node", "exponential")
        cluster = setting.cluster
        self.events = EventQueue(most=100 * (cluster.devices + 1000))
        self.timer: int | None = None  # when the policy or the rule wants to be asked again
        self.down: set[int] = set()  # nodes
        self.used: set[int] = set()  # slots on which there is a process
        self.nothing = False  # there was no work when it was asked for last
        self.idle = 0  # events in a row without any training
        self.node_slots, self.speeds = node_slots(cluster.node_shapes), slot_speeds(cluster.node_shapes)
        self.device_allocator = DeviceAllocator.on(
            cluster.node_shapes,
            scheduler.policy,
            self,
            rungs=(*getattr(self.rule, "rungs", ()), self.length),
            survival=self._survival,
            seconds_left=self._seconds_left,
            # As in a study, where the start of each trial is measured before any can grow.
            estimates=Estimates(restart_seconds=setting.restart_seconds),
            planner=None if limits.deadline_seconds is None else FinalPhase(scheduler.policy.planner()),
        )

    def run(self) -> SimulatedStudy:
        # The first failure of each node; the next one is drawn when it is back.
        if self.setting.node_mtbf_seconds is not None:
            for node in range(self.setting.cluster.nodes):
                self._plan_failure(node, 0)
        self._plan_devices(None)
        while self.events and not self._is_over():
            event = self.events.pop()
            if self._is_void(event):
                continue
            # The budget of device seconds ends sooner the more devices are busy, so it is looked at before each event.
            if event[0] / NANO > (end := self._end_time()):
                return self._result(end, "out of time")
            self.events.note(event)
            self._handle(event)
        return self._result(self.clock, "stalled")

    def _result(self, at: float, why: str) -> SimulatedStudy:
        """Return what came of the study, the trials that still hold or want devices ended for `why`."""
        stalls = tuple(
            Stall(trial=number, wanted=running.wanted_size, devices=self.device_allocator.slots)
            for number, running in sorted({**self.device_allocator.preempted, **self.device_allocator.running}.items())
            if why == "stalled"
        )
        study = self.study
        study.end_all(at, why)
        study.trials, study.substitutions = len(self.trials), self.learning_curves.substitutions
        study.stalled, study.digest = stalls, self.events.digest
        return study

    def _end_time(self) -> float:
        """Return when the budget of time is used if nothing more happens."""
        return math.inf if self.limits.timeless else self.clock + self._seconds_left(self.study.count_busy())

    def _seconds_left(self, devices: int | None = None) -> float:
        """Return the seconds until the budget of time is used, if so many devices (None: all) are held from now on."""
        if self.limits.timeless:
            return math.inf
        wall, shared = self.limits.clock_seconds, self.limits.device_seconds
        busy = self.device_allocator.slots if devices is None else devices
        return seconds_left(wall, shared, at=self.clock, spent=self.study.sum_seconds(self.clock), devices=busy)

    def _is_over(self) -> bool:
        """Whether nothing trains and nothing will: no timer is set, and no node comes back that could be used."""
        if self.training or self.timer is not None:
            return False
        # A node that comes back may be what a waiting trial needs.
        waits = self.device_allocator.preempted or self.interrupted or self.device_allocator.running
        return not self.down or (self.nothing and not waits) or self.idle > _IDLE * (1 + self.setting.cluster.nodes)

    def _is_void(self, event: Event) -> bool:
        """Whether an event has been overtaken by another."""
        nanoseconds, kind, _, number, version = event
        if kind is EventKind.REPORTED or kind is EventKind.CHECKPOINT:
            return self.trials[number].version != version
        if kind is EventKind.FAILED:
            return number not in self.device_allocator.running or self.trials[number].runs != version
        return kind is EventKind.TIMER and nanoseconds != self.timer

    def _handle(self, event: Event) -> None:
        nanoseconds, kind, _, number, version = event
        self.idle = 0 if self.training else self.idle + 1
        self.clock = max(self.clock, nanoseconds / NANO)
        at_checkpoint = None
        if kind is EventKind.REPORTED:
            at_checkpoint = self._take_report(self.trials[number])
        elif kind is EventKind.CHECKPOINT:
            at_checkpoint = self._pass_checkpoint(self.trials[number])
        elif kind is EventKind.FAILED:
            self._fail_trial(self.trials[number])
        elif kind is EventKind.NODE_LOST:
            self._lose_node(number, version)
        elif kind is EventKind.NODE_BACK:
            self.down.remove(number)
            self.device_allocator.free_slots.give(self.node_slots[number])
        else:
            self.timer = None
        self._plan_devices(at_checkpoint)

    # What waits for devices.

    def next_trial(self, *, new: bool = True) -> PendingTrial | None:
        """Return an interrupted trial, a promoted one, or a new one."""
        self.nothing = False
        if self.interrupted:
            number = self.interrupted.popleft()
            return PendingTrial(number, self.trials[number].checkpoint)
        answer = self.rule.on_free(self.index, self._rule_view())
        if isinstance(answer, Promote):
            self._fold_event(Promoted(trial=answer.trial, until_epoch=answer.until_epoch))
            trial = self.trials[answer.trial]
            if self.on_result is not None:
                self.on_result(trial.number, trial.reported, trial.course.losses(trial.reported), False)
            return PendingTrial(trial.number, trial.checkpoint)
        if isinstance(answer, New | Clone):
            if not new:
                return None
            number, clone = len(self.trials), answer if isinstance(answer, Clone) else None
            try:
                params = self.configure(number, clone)
            except SpaceExhausted:
                # As in a real study: those that were tried are all there are, and their promotions go on.
                self.limits = replace(self.limits, trials=number)
                return self.next_trial(new=False)
            self.trials[number] = trial = SimulatedTrial(number, self.learning_curves.of(number, params))
            if clone is not None:
                parent = self.trials[clone.parent]
                at = min(self.length - 1, parent.behind(self.clock) if parent.trains else parent.checkpoint)
                trial.checkpoint = trial.reported = at  # from here on the curve is that of its own parameters
                self._fold_event(Started(trial=number, clone=clone, epoch=at))
            return PendingTrial(number, trial.checkpoint)
        self.nothing = True
        return None

    def waits(self) -> bool:
        """Whether new trials are left."""
        return self.limits.remaining(len(self.trials)) > 0

    # Events.

    def _take_report(self, trial: SimulatedTrial) -> int | None:
        """Let a trial report; return its number if it goes on where it is, or may."""
        epoch, number = trial.until, trial.number
        self._note_training(trial, epoch)
        # Rules that read whole curves get the epochs that were skipped, with the losses that they had.
        for each in range(trial.reported + 1 if self.curves else epoch, epoch + 1):
            losses = tuple(loss if math.isfinite(loss) else math.inf for loss in trial.course.losses(each))
            self._fold_event(Reported(trial=number, epoch=each, losses=losses, at_seconds=self.clock))
        trial.reported, trial.loss = epoch, losses[0]
        self.device_allocator.note_report(number, epoch, losses[0], self.clock)
        self.study.best_loss = min(self.study.best_loss, losses[0])
        if epoch >= self.length:
            self.study.full_loss = min(self.study.full_loss, losses[0])
            self._finish_trial(trial, losses, "full")
            return None
        seen = TrialView(number=number, epoch=epoch, losses=losses)
        verdict = self.rule.on_report(self.index, self._rule_view(), seen)
        if isinstance(verdict, Stop):
            self._finish_trial(trial, losses, "stopped")
            return None
        pauses = isinstance(verdict, Pause)
        if verdict.reason is not None:
            self._fold_event(Judged(trial=number, epoch=verdict.reason.epoch, pauses=pauses))
        if self.on_result is not None:
            self.on_result(number, epoch, losses, pauses)
        if pauses:
            self._release_devices(trial, "pause")
            self.device_allocator.note_ended(number)
            return None
        return number

    def _finish_trial(self, trial: SimulatedTrial, losses: tuple[float, ...], why: str) -> None:
        self._release_devices(trial, why)
        self.device_allocator.note_ended(trial.number)
        self._fold_event(Ended(trial=trial.number, failed=False))
        if self.on_result is not None:
            self.on_result(trial.number, trial.reported, losses, True)

    def _fail_trial(self, trial: SimulatedTrial) -> None:
        self._release_devices(trial, "failed")
        self.device_allocator.note_ended(trial.number)
        self._fold_event(Ended(trial=trial.number, failed=True))
        if self.on_result is not None:
            self.on_result(trial.number, trial.reported, (), True)

    def _pass_checkpoint(self, trial: SimulatedTrial) -> int:
        """Let a trial pass a checkpoint between two reports that count."""
        self._note_training(trial, trial.until)
        self.device_allocator.note_report(trial.number, trial.until, trial.course.losses(trial.until)[0], self.clock)
        return trial.number

    def _lose_node(self, node: int, life: int) -> None:
        """Let what ran on a node, or was about to, go on elsewhere from its last epoch; the node is out for a while."""
        slots = self.node_slots[node]
        for number, running in list(self.device_allocator.running.items()):
            if any(slot in slots for slot in (*running.block, *(running.target or ()))):
                trial = self.trials[number]
                if trial.trains:
                    self._note_training(trial, trial.behind(self.clock))
                self._release_devices(trial, "node lost")
                self.device_allocator.note_ended(number)
                self.interrupted.append(number)
        self.device_allocator.free_slots.withdraw(slots)
        self.down.add(node)
        back = self.clock + self.setting.repair_seconds
        self.events.push(back, EventKind.NODE_BACK, node, 0)
        self._plan_failure(node, life + 1, after=back)

    def _plan_failure(self, node: int, life: int, after: float = 0.0) -> None:
        mean = self.setting.node_mtbf_seconds or math.inf
        self.events.push(after + mean * self.lifetimes.at(node, life), EventKind.NODE_LOST, node, life)

    # What the policy plans.

    def _plan_devices(self, at_checkpoint: int | None) -> None:
        """Let the policy plan, and do what it says; the trial at a checkpoint moves now, or trains on."""
        self._carry_out(self.device_allocator.plan(self.clock), at_checkpoint)
        if at_checkpoint is not None:
            trial, running = self.trials[at_checkpoint], self.device_allocator.running[at_checkpoint]
            if not running.is_settled:
                self._leave_checkpoint(trial)
                # Its devices are free: plan again.
                self._plan_devices(None)
            else:
                self._train_on(trial, self.clock)
        if self.device_allocator.wake_at is not None:
            # One nanosecond later, lest rounding wakes the policy too early.
            at = self.device_allocator.wake_at + 1 / NANO
            if self.timer is None or at * NANO < self.timer:
                self.timer = self.events.push(at, EventKind.TIMER, 0, 0)

    def _carry_out(self, actions: Iterable[Action], at_checkpoint: int | None) -> None:
        for action in actions:
            if action.kind == "start":
                self._fold_event(Started(trial=action.trial))
                self._begin_run(self.trials[action.trial], self.device_allocator.running[action.trial])
            elif action.trial == at_checkpoint:
                # Settled once everything is planned.
                continue
            elif self.trials[action.trial].trains:
                self._stop_over(self.trials[action.trial])

    def _leave_checkpoint(self, trial: SimulatedTrial) -> None:
        """At a checkpoint a trial goes where it is to go."""
        number, running = trial.number, self.device_allocator.running[trial.number]
        if running.target is None:
            self._release_devices(trial, "rest")
            self.device_allocator.note_preempted(number)
        else:
            self._release_devices(trial, "resize")
            self.device_allocator.note_resized(number, self.clock)
            self._begin_run(trial, running)

    def _release_devices(self, trial: SimulatedTrial, why: str) -> None:
        """Note that a trial is no more on its devices; what was to happen to it there does not."""
        self._halt_trial(trial)
        self.study.end_hold(trial.number, self.clock, why)

    def _halt_trial(self, trial: SimulatedTrial) -> None:
        trial.version += 1
        self.training -= trial.trains
        trial.trains = False

    # Training.

    def _begin_run(self, trial: SimulatedTrial, running: RunningTrial) -> None:
        """Begin a run on the running trial's block."""
        size = len(running.block)
        trial.runs += 1
        self.study.begin_hold(trial.number, running.block, self.clock)
        self.events.note_start(trial.number, running.block[0], size)
        if self.setting.stragglers:
            trial.luck = 1 / (1 + abs(self.setting.stragglers * self.luck.at(trial.number, trial.runs)))
        cost = self.setting.start_seconds
        if trial.started:
            cost = self.setting.restart_seconds + self.setting.resize_seconds * (size != trial.size)
            trial.checkpoint *= self.setting.resume
        trial.started, trial.size, trial.first = True, size, not self.used.issuperset(running.block)
        self.used.update(running.block)
        trial.start_cost = cost = cost + self.setting.process_seconds * trial.first
        self._train_on(trial, self.clock + cost)
        running.measured_from = trial.checkpoint, self.clock + cost
        if self.setting.drops_per_second:
            life = self.drops.at(trial.number, trial.runs) / self.setting.drops_per_second
            self.events.push(self.clock + life, EventKind.FAILED, trial.number, trial.runs)

    def _train_on(self, trial: SimulatedTrial, began: float) -> None:
        """Train on from the checkpoint to the next epoch whose report may count."""
        epoch = max(trial.checkpoint, trial.reported)
        seen = TrialView(number=trial.number, epoch=epoch, losses=(trial.loss,))
        trial.began = began
        size, scaling = len(self.device_allocator.running[trial.number].block), self.setting.scaling
        trial.batch = scaling.choose_batch(self.device_allocator.estimates, size, trial.checkpoint)
        trial.pace = scaling.pace(size, trial.batch, trial.checkpoint, self.task_devices) * trial.luck
        if self.speeds:
            trial.pace *= min(self.speeds[slot] for slot in self.device_allocator.running[trial.number].block)
        # Epochs in which nothing can be decided are passed without an event, which makes long trials cheap.
        following = max(epoch + 1, self.rule.next_epoch(self.index, seen))
        # Where a trial measures and chooses anew in each epoch, each is an event.
        if isinstance(scaling, GoodputScaling):
            following = epoch + 1
        place = bisect_right(self.result_epochs, epoch)
        if place < len(self.result_epochs):
            following = min(following, self.result_epochs[place])
        self._go_to(trial, min(self.length, following), EventKind.REPORTED)

    def _stop_over(self, trial: SimulatedTrial) -> None:
        """Let a running trial come by at the end of its present epoch, unless its next event comes first."""
        # The epoch that is under way, or the first after the checkpoint.
        epoch = max(trial.checkpoint + 1, trial.ahead(self.clock))
        if epoch < trial.until:
            self._go_to(trial, epoch, EventKind.CHECKPOINT)

    def _go_to(self, trial: SimulatedTrial, epoch: int, kind: EventKind) -> None:
        self._halt_trial(trial)
        trial.trains, trial.until = True, epoch
        self.training += 1
        self.events.push(trial.began + trial.seconds(epoch), kind, trial.number, trial.version)

    def _note_training(self, trial: SimulatedTrial, epoch: int) -> None:
        size = len(self.device_allocator.running[trial.number].block)
        self.study.trained_seconds += trial.seconds(epoch) * size
        if trial.start_cost:
            # A restart takes no less than it does.
            cost, trial.start_cost = max(self.setting.restart_seconds, trial.start_cost), 0.0
            self.device_allocator.estimates.saw_restart(size, cost, first=trial.first)
        trial.checkpoint = epoch
        self._halt_trial(trial)
        self.setting.scaling.measure(self.device_allocator, trial.number, trial.batch, epoch)

    def _fold_event(self, event: RuleEvent) -> None:
        self.index, self.nothing = self.rule.fold(self.index, event), False

    def _rule_view(self) -> RuleView:
        left, final = self.limits.remaining(len(self.trials)), self.device_allocator.final
        return RuleView(remaining=left, seed=self.seed, at_seconds=self.clock, final=final)

    def _survival(self, running: RunningTrial) -> tuple[float, ...]:
        seen = TrialView(number=running.trial, epoch=running.epoch, losses=(running.loss,))
        return self.rule.survival(self.index, self._rule_view(), seen)
