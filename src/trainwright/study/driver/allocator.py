"""The allocator of a driver: starts trials on the engine's devices, resizes them, and carries out preemptions."""

import time
from typing import NamedTuple

from trainwright.engine import Engine
from trainwright.engine.protocol import node_shapes
from trainwright.ledger import Record
from trainwright.schedule import DeviceAllocator
from trainwright.schedule.allocator.mixed_nodes import node_slots
from trainwright.schedule.policies.allocation_policy import Block
from trainwright.study.driver.trial_run import TrialRun

__all__ = ["Allocator", "Launch"]


class Launch(NamedTuple):
    """A trial that is to start on a block; `before` is how many devices it had until now, if it comes from others."""

    trial: int
    block: Block
    before: int | None = None


class Allocator:
    """Owns the runs on the engine and the trials in transit; reports to the allocator, and carries out what it plans.

    A trial changes its devices in two steps, each a record: its run ends at a report, after its checkpoint; it starts
    on the block that was reserved for it. In between it is in transit: nobody is to continue it elsewhere. Launches
    are only collected here, until the engine is not busy with reports.
    """

    device_allocator: DeviceAllocator

    def __init__(self) -> None:
        self.runs: dict[int, TrialRun] = {}
        """The runs on the engine by trial number."""
        self.in_transit: set[int] = set()
        self.launches: list[Launch] = []
        """What is to start on other devices at once."""
        self._left_at: dict[int, float] = {}  # trials on their way to their devices
        self._arrived: dict[int, tuple[float, float, bool]] = {}  # those that reported there: see note_report
        self._used: set[int] = set()  # slots on which a trial has trained: there is a process
        self._withdrawn: set[int] = set()  # slots of lost nodes

    # What the policy decides.

    def plan(self) -> None:
        """Ask the policy what to do; trials that change their devices do so at their next report."""
        for action in self.device_allocator.plan(time.monotonic()):
            if action.kind == "start":
                self.launches.append(Launch(action.trial, action.block))
                self._left_at[action.trial] = time.monotonic()

    def withdraw(self, engine: Engine) -> bool:
        """Use the nodes of slots that an engine has lost no more; return whether any node is lost.

        A node is withdrawn once no trial holds slots on it.
        """
        # By its first slot: the node as a whole is lost or not.
        gone = engine.gone - self._withdrawn
        for node in node_slots(node_shapes(engine)) if gone else ():
            if node.start not in gone:
                continue
            held = (
                slot
                for running in self.device_allocator.running.values()
                for slot in (*running.block, *(running.target or ()))
            )
            if not any(slot in node for slot in held):
                self.device_allocator.free_slots.withdraw(node)
                self._withdrawn.update(node)
        return bool(self._withdrawn)

    # What happens to trials.

    def note_goodput(self, trial: int, record: Record) -> None:
        """Take over what a record says of a trial's step times and gradient noise, if it does."""
        if record.kind == "note" and record.body["name"] == "goodput":
            self.device_allocator.note_goodput(trial, record.body["value"])

    def note_report(self, trial: int, epoch: int, loss: float, ran: float, setup: float = 0.0) -> None:
        """Note a report, `ran` seconds after the training function was entered and began to `setup` its first epoch."""
        if not self.device_allocator.measures:
            return
        running, estimates = self.device_allocator.running[trial], self.device_allocator.estimates
        now = time.monotonic()
        start, first = None, False
        if (since := self._left_at.pop(trial, None)) is not None:
            # The first report after a start: what passed before the first epoch is its cost, as far as that is known.
            entered = max(since, now - ran + setup)
            start, first = entered - since, not self._used.issuperset(running.block)
            self._used.update(running.block)
            running.measured_from = min(running.epoch, epoch - 1), entered
            estimates.saw_restart(len(running.block), start, first=first)
        if epoch <= running.epoch:
            # Trained before, for want of a checkpoint: this report tells of time only.
            running.measured_from = epoch, now
            return
        self.device_allocator.note_report(trial, epoch, loss, now)
        seconds = running.epoch_seconds or 0.0
        if start is not None:
            self._arrived[trial] = start, seconds, first
        elif trial in self._arrived:
            # What the first epoch took longer than the second belongs to the start as well.
            start, before, first = self._arrived.pop(trial)
            estimates.saw_restart(len(running.block), start + max(0.0, before - seconds), first=first)

    def decide(self, trial: int) -> bool:
        """Return whether a trial that has just reported, and continues, does so where it is."""
        if not self.device_allocator.measures:
            return True
        running = self.device_allocator.running[trial]
        if running.is_settled:
            self.plan()
        return running.is_settled

    def depart(self, trial: int) -> None:
        """Note that a trial has ended its run to continue elsewhere: at once, or when devices are free."""
        running = self.device_allocator.running[trial]
        self.in_transit.add(trial)
        self._arrived.pop(trial, None)
        if running.target is None:
            self.device_allocator.note_preempted(trial)
            return
        before, now = len(running.block), time.monotonic()
        self._left_at[trial] = now
        self.device_allocator.note_resized(trial, now)
        self.launches.append(Launch(trial, running.block, before))

    def fall_back(self, trial: int, before: int) -> bool:
        """Let a trial that did not begin on more devices start on as many as `before`; False if it had no fewer."""
        running = self.device_allocator.running[trial]
        if (
            before >= len(running.block)
            or running.target is not None
            or not self.device_allocator.resize(running, before)
        ):
            return False
        self.in_transit.add(trial)
        self._left_at.pop(trial, None)
        self.device_allocator.note_resized(trial, time.monotonic())
        self.launches.append(Launch(trial, running.block))
        return True

    def release(self, trial: int) -> None:
        """Note that a trial has given its devices back."""
        self._left_at.pop(trial, None)
        self._arrived.pop(trial, None)
        self.device_allocator.note_ended(trial)
