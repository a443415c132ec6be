"""The state of one trial: leases (runs), reports, ends, and the status that follows: running, paused, abandoned..."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any, NamedTuple

__all__ = [
    "ENDED",
    "MAX_LOSSES",
    "MAX_RESTARTS",
    "Checkpoint",
    "End",
    "Exploit",
    "Failure",
    "Lease",
    "Offer",
    "RaisedAt",
    "Report",
    "Status",
    "TrialState",
]

MAX_RESTARTS = 3
"""A trial is given up that may itself have caused the loss of more leases than this since it last made progress."""

MAX_LOSSES = 20
"""A trial is given up too when it lost so many leases, whoever is to blame, since it last made progress."""


class Status(StrEnum):
    """The state of a trial."""

    PROPOSED = "proposed"
    RUNNING = "running"
    PAUSED = "paused"
    LOST = "lost"
    COMPLETE = "complete"
    STOPPED = "stopped"
    FAILED = "failed"
    ABANDONED = "abandoned"

    @property
    def ended(self) -> bool:
        """Whether no more work is due in this status."""
        return self in ENDED


ENDED = frozenset({Status.COMPLETE, Status.STOPPED, Status.FAILED, Status.ABANDONED})
"""The statuses in which no more work is due."""


class Exploit(NamedTuple):
    """What a clone begins from: its parent's checkpoint of `epoch`; it takes the place of `replaces`."""

    parent: int
    epoch: int
    replaces: int


class Report(NamedTuple):
    """The metrics of one epoch (from 1); `wall_seconds` counts from the start of `lease`, `at` is wall time (s).

    `setup_seconds` of them passed before the first epoch of the lease: imports, the model, its state.
    """

    epoch: int
    step: int | None
    metrics: Mapping[str, float]
    wall_seconds: float
    lease: int
    at: float
    setup_seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A checkpoint of `size` bytes at `path`, relative to the study's folder."""

    epoch: int
    path: str
    size: int
    digest: str
    lease: int


@dataclass(frozen=True, slots=True)
class Offer:
    """A library entry at `path`, relative to the study's folder, with the digest of each of its files."""

    epoch: int
    path: str
    digests: Mapping[str, str]
    lease: int


@dataclass(frozen=True, slots=True)
class RaisedAt:
    """The line of a user's code at which an error of type `error` was raised; `source` is its text."""

    error: str
    file: str
    line: int
    source: str = ""

    @property
    def place(self) -> str:
        """The file, below the current directory if it is there, and the line: "mine.py:4"."""
        path = Path(self.file)
        here = Path.cwd()
        return f"{path.relative_to(here) if path.is_relative_to(here) else path}:{self.line}"


@dataclass(frozen=True, slots=True)
class Failure:
    """Why a trial failed: exception, out_of_memory, timeout, killed, bad_objective, misuse or rejected."""

    kind: str
    message: str
    traceback: str
    raised: RaisedAt | None = None
    """None if no line of a user's code is known."""


class End(NamedTuple):
    """How one lease ended. `order` breaks ties between ends of one lease: the least wins."""

    # Finished, failed or paused.
    kind: str
    reason: str
    values: Mapping[str, float]
    failure: Failure | None
    wall_seconds: float
    at: float
    order: tuple[int, str, int]

    @property
    def result(self) -> bool:
        """Whether it carries a result."""
        return self.kind == "finished" and self.reason != "cancelled"


@dataclass(slots=True)
class Lease:
    """One run of a trial by one holder."""

    number: int
    writer: str = ""
    slot: str = ""
    devices: tuple[str, ...] = ()
    resumed_epoch: int = 0
    started_at: float | None = None
    seconds: float = 0.0
    end: End | None = None
    # The highest that it has reported.
    epoch: int = 0
    # Of its last checkpoint, as far as it was told.
    step: int = 0
    lost: bool = False
    # Writer and number of a record that says so.
    lost_by: tuple[str, int] = field(default=("", -1), compare=False)
    # The loss may be the trial's own doing.
    blamed: bool = False
    # It was lost, or paused.
    why: str = ""

    @property
    def ended_at(self) -> float | None:
        """Wall time (s) at which the lease ended, or at which it was last heard of if it was lost; None if it runs."""
        if self.end is not None:
            return self.end.at
        return (self.started_at or 0.0) + self.seconds if self.lost else None


@dataclass(slots=True)
class TrialState:
    """Everything known of one trial.

    `reports`, `checkpoints` and `offered` map epochs to the newest lease's entry; `leases` maps lease numbers (from 1).
    """

    number: int
    params: dict[str, Any] = field(default_factory=dict)
    key: str = ""
    origin: Mapping[str, Any] = field(default_factory=dict)
    writer: str = ""
    exploits: Exploit | None = None
    """None for a trial that began from nothing."""
    reports: dict[int, Report] = field(default_factory=dict)
    checkpoints: dict[int, Checkpoint] = field(default_factory=dict)
    offered: dict[int, Offer] = field(default_factory=dict)
    leases: dict[int, Lease] = field(default_factory=dict)
    status: Status = Status.PROPOSED
    epoch: int = 0
    """The highest epoch reported."""
    saves_within: bool = False
    """Whether its runs can save at any step, so that a run may end within an epoch."""

    @property
    def saved_epoch(self) -> int:
        """The epoch of its newest checkpoint, of a clone at first its parent's; 0 without one."""
        return max(self.checkpoints, default=0 if self.exploits is None else self.exploits.epoch)

    @property
    def lease(self) -> int:
        """The highest lease so far; 0 if the trial never started."""
        leases = self.leases
        # Most trials have one.
        return 1 if len(leases) == 1 and 1 in leases else max(leases, default=0)

    @property
    def holder(self) -> str:
        """The writer that has the highest lease, or that proposed the trial if it never started; "" if unknown."""
        return self.leases[self.lease].writer if self.leases else self.writer

    @property
    def end(self) -> End | None:
        """The end that counts: the result of the highest lease that has one, else the end of the highest lease."""
        # Most trials.
        if len(self.leases) == 1:
            (only,) = self.leases.values()
            return only.end
        with_result = [n for n, lease in self.leases.items() if lease.end is not None and lease.end.result]
        chosen = max(with_result, default=self.lease)
        return self.leases[chosen].end if chosen else None

    @property
    def values(self) -> Mapping[str, float]:
        """The metrics that the trial ended or paused with; empty if it has no result."""
        end = self.end
        return end.values if self.has_result and end is not None else {}

    @property
    def has_result(self) -> bool:
        """Whether the trial counts towards the budget: complete, stopped, or paused at a rung."""
        return self.status is Status.COMPLETE or self.status is Status.STOPPED or self.at_rung

    @property
    def at_rung(self) -> bool:
        """Whether the trial is paused at a rung: its last report is its result, unless a rule promotes it."""
        if self.status is not Status.PAUSED:
            return False
        end = self.end
        return end is not None and end.reason == "rung"

    @property
    def preempted(self) -> bool:
        """Whether the trial is paused only because its run was interrupted, and goes on when there is room."""
        return self.status is Status.PAUSED and not self.at_rung

    @property
    def resizing(self) -> bool:
        """Whether the trial is paused only to go on with other devices, on which its driver starts it."""
        end = self.end
        return self.status is Status.PAUSED and end is not None and end.reason == "resized"

    @property
    def failure(self) -> Failure | None:
        """Why the trial failed, if it did."""
        end = self.end
        return end.failure if self.status is Status.FAILED and end is not None else None

    @property
    def blamed_losses(self) -> int:
        """How many leases were lost without an end, perhaps through the trial's own doing."""
        return sum(lease.blamed and lease.end is None for lease in self.leases.values())

    @property
    def vain_losses(self) -> list[Lease]:
        """The leases that were lost without an end since the trial last made progress.

        Progress is an epoch that no lease before has reported, or a checkpoint of a later step; the lease that made it
        is the first of them if it was lost. So a trial that gets on between the failures of its nodes has at most one.
        """
        epoch = step = 0
        lost: list[Lease] = []
        for _, lease in sorted(self.leases.items()):
            if lease.epoch > epoch or lease.step > step:
                lost.clear()
            epoch, step = max(epoch, lease.epoch), max(step, lease.step)
            if lease.lost and lease.end is None:
                lost.append(lease)
        return lost

    @property
    def hopeless(self) -> bool:
        """Whether it lost too many leases without progress to be retried: it is abandoned."""
        lost = self.vain_losses
        return len(lost) >= MAX_LOSSES or sum(lease.blamed for lease in lost) > MAX_RESTARTS

    @property
    def seconds(self) -> float:
        """Wall seconds of all leases together."""
        return sum(lease.seconds for lease in self.leases.values())

    @property
    def device_seconds(self) -> float:
        """Wall seconds times devices of all leases together."""
        return sum(lease.seconds * max(1, len(lease.devices)) for lease in self.leases.values())

    def settled(self) -> Status:
        """Return the status that the leases and their ends imply."""
        end = self.end
        if end is None and len(self.leases) == 1 and 1 in self.leases and not self.leases[1].lost:
            # Most trials, most of the time.
            return Status.RUNNING
        if end is not None and end.result:
            return Status.COMPLETE if end.reason == "completed" else Status.STOPPED
        if not self.leases:
            return Status.PROPOSED
        if end is not None:
            if end.kind == "failed":
                return Status.FAILED
            return Status.PAUSED if end.kind == "paused" else Status.ABANDONED
        if self.leases[self.lease].lost:
            return Status.ABANDONED if self.hopeless else Status.LOST
        return Status.RUNNING
