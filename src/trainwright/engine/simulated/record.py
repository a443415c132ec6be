"""The results of a simulated study: times, device time, waiting times, and the Gantt chart."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

from trainwright.engine.simulated.settings import Simulated
from trainwright.schedule.policies.allocation_policy import Block

__all__ = ["DeviceHold", "SimulatedStudy", "Stall", "StudyRecorder"]


@dataclass(frozen=True, kw_only=True, slots=True)
class DeviceHold:
    """A trial held `block` from `start` to `end` (s), and let go of it for `why`.

    It is "full", "stopped", "pause", "resize", "rest", "failed", "node lost", "out of time" or "stalled".
    """

    trial: int
    block: Block
    start: float
    end: float
    why: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Stall:
    """A trial that waits for `wanted` devices (0: for its policy to let it go on) of `devices`, for ever."""

    trial: int
    wanted: int
    devices: int


@dataclass(frozen=True, kw_only=True, slots=True)
class SimulatedStudy:
    """One simulated study. Times in seconds from its start.

    `utilisation` is the share of all device time up to the makespan in which a trial trained; `device_seconds` are
    those held, restarts and waits included. `first_full_seconds` is when the first trial had its whole length (inf if
    none had), `full_loss` the best last loss of such trials (inf likewise). `resizes` are goings-on with another number
    of devices. `substitutions` counts the trials for which a table had not what was asked. `digest` is SHA-256 over all
    events in their order.
    """

    makespan_seconds: float
    device_seconds: float
    utilisation: float
    first_full_seconds: float
    full: int
    trials: int
    best_loss: float
    full_loss: float
    resizes: int
    failed: int
    substitutions: int
    stalled: tuple[Stall, ...]
    digest: str
    gantt: tuple[DeviceHold, ...] = ()


@dataclass
class StudyRecorder:
    """Gathers while the simulation runs."""

    setting: Simulated
    gantt: bool = False
    results: int = 0
    full: int = 0
    failed: int = 0
    resizes: int = 0
    first_full: float = math.inf
    full_loss: float = math.inf
    _last: float = 0.0  # when devices were given back last
    _device_seconds: float = 0.0
    _trained: float = 0.0
    _holds: dict[int, tuple[Block, float]] = field(default_factory=dict)
    _sizes: dict[int, int] = field(default_factory=dict)  # devices before, of trials that wait for some
    best_loss: float = math.inf
    _bars: list[DeviceHold] = field(default_factory=list)

    def begin_hold(self, trial: int, block: Block, at: float) -> None:
        """Note that a trial holds a block from now on."""
        self._holds[trial] = block, at
        self.resizes += self._sizes.pop(trial, len(block)) != len(block)

    def end_hold(self, trial: int, at: float, why: str) -> None:
        """Note that it lets go of it, and why."""
        block, since = self._holds.pop(trial)
        self._last = at
        self._device_seconds += len(block) * (at - since)
        if why in {"resize", "rest", "node lost"}:
            self._sizes[trial] = len(block)
        elif why in {"full", "stopped"}:
            self.results += 1
        if why == "full":
            self.full += 1
            self.first_full = min(self.first_full, at)
        self.failed += why == "failed"
        if self.gantt:
            self._bars.append(DeviceHold(trial=trial, block=block, start=since, end=at, why=why))

    def count_busy(self) -> int:
        """Return how many devices are held. O(trials that run)."""
        return sum(len(block) for block, _ in self._holds.values())

    def sum_seconds(self, at: float) -> float:
        """Return the device seconds held up to now. O(trials that run)."""
        return self._device_seconds + sum(len(block) * (at - since) for block, since in self._holds.values())

    def note_complete(self, loss: float) -> None:
        """Note the last loss of a trial that had its whole length."""
        self.full_loss = min(self.full_loss, loss)

    def add_training(self, device_seconds: float) -> None:
        """Note device time in which a trial trained."""
        self._trained += device_seconds

    def note_loss(self, loss: float) -> None:
        """Note a report, if it is the best so far."""
        self.best_loss = min(self.best_loss, loss)

    def result(
        self, at: float, trials: int, substitutions: int, stalled: Sequence[Stall], digest: str, *, why: str
    ) -> SimulatedStudy:
        """Return the whole; who still holds devices lets go of them now, for `why`."""
        for trial in list(self._holds):
            self.end_hold(trial, at, why)
        # All devices until the last was given back.
        total = self._last * self.setting.cluster.devices
        return SimulatedStudy(
            makespan_seconds=self._last,
            device_seconds=self._device_seconds,
            utilisation=self._trained / total if total else 0.0,
            first_full_seconds=self.first_full,
            full=self.full,
            trials=trials,
            best_loss=self.best_loss,
            full_loss=self.full_loss,
            resizes=self.resizes,
            failed=self.failed,
            substitutions=substitutions,
            stalled=tuple(stalled),
            digest=digest,
            gantt=tuple(self._bars),
        )
