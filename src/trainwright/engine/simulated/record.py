"""The results of a simulated study: times, device time, waiting times, and the Gantt chart."""

import math
from dataclasses import dataclass, field

from trainwright.schedule.policies.allocation_policy import Block

__all__ = ["DeviceHold", "SimulatedStudy", "Stall"]


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


@dataclass(kw_only=True)
class SimulatedStudy:
    """One simulated study. Times in seconds from its start.

    `device_seconds` are those held, restarts and waits included, `trained_seconds` those of them in which a trial
    trained. `first_full_seconds` is when the first trial had its whole length (inf if none had), `full_loss` the best
    last loss of such trials (inf likewise). `resizes` are goings-on with another number of devices. `substitutions`
    counts the trials for which a table had not what was asked. `digest` is SHA-256 over all events in their order,
    `gantt` who held which devices when.
    """

    devices: int
    makespan_seconds: float = 0.0
    device_seconds: float = 0.0
    trained_seconds: float = 0.0
    first_full_seconds: float = math.inf
    full: int = 0
    trials: int = 0
    best_loss: float = math.inf
    full_loss: float = math.inf
    resizes: int = 0
    failed: int = 0
    substitutions: int = 0
    stalled: tuple[Stall, ...] = ()
    digest: str = ""
    gantt: list[DeviceHold] = field(default_factory=list)
    _holds: dict[int, tuple[Block, float]] = field(default_factory=dict, repr=False)
    _sizes: dict[int, int] = field(default_factory=dict, repr=False)  # devices before, of trials that wait for some

    @property
    def utilisation(self) -> float:
        """The share of all device time up to the makespan in which a trial trained."""
        total = self.makespan_seconds * self.devices
        return self.trained_seconds / total if total else 0.0

    def begin_hold(self, trial: int, block: Block, at: float) -> None:
        """Note that a trial holds a block from now on."""
        self._holds[trial] = block, at
        self.resizes += self._sizes.pop(trial, len(block)) != len(block)

    def end_hold(self, trial: int, at: float, why: str) -> None:
        """Note that it lets go of it, and why."""
        block, since = self._holds.pop(trial)
        self.makespan_seconds = at
        self.device_seconds += len(block) * (at - since)
        if why in {"resize", "rest", "node lost"}:
            self._sizes[trial] = len(block)
        if why == "full":
            self.full += 1
            self.first_full_seconds = min(self.first_full_seconds, at)
        self.failed += why == "failed"
        self.gantt.append(DeviceHold(trial=trial, block=block, start=since, end=at, why=why))

    def end_all(self, at: float, why: str) -> None:
        """Let whoever still holds devices let go of them, for `why`."""
        for trial in list(self._holds):
            self.end_hold(trial, at, why)

    def count_busy(self) -> int:
        """Return how many devices are held. O(trials that run)."""
        return sum(len(block) for block, _ in self._holds.values())

    def sum_seconds(self, at: float) -> float:
        """Return the device seconds held up to now. O(trials that run)."""
        return self.device_seconds + sum(len(block) * (at - since) for block, since in self._holds.values())
