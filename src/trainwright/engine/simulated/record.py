"""What a simulated study came to: times, device time, waits, and who held what when."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

from trainwright.engine.simulated.config import Simulated
from trainwright.schedule import Block, Desk

__all__ = ["Held", "Recorder", "Run"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Held:
    """A trial held `block` from `start` to `end`, and let go of it for `why`."""

    trial: int
    block: Block
    start: float
    end: float
    why: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Run:
    """One simulated study. Times in seconds from its start.

    `utilisation` is the share of all device time in which a trial trained, up to the makespan; `device_seconds` are
    those held, restarts and waits included. `first_full_seconds` is when the first trial had its whole length (inf if
    none had); `close_seconds` when a trial was first within 1 % of the best last loss. `stalled` names a trial that
    waits for devices that will never be free. `digest` is SHA-256 over all events in their order.
    """

    makespan_seconds: float
    device_seconds: float
    utilisation: float
    first_full_seconds: float
    full: int
    trials: int
    best_loss: float
    close_seconds: float
    resizes: int
    failed: int
    wait_seconds_mean: float
    wait_seconds_max: float
    stalled: tuple[int, ...]
    digest: str
    gantt: tuple[Held, ...] = ()


@dataclass
class Recorder:
    """Gathers while the simulation runs."""

    setting: Simulated
    gantt: bool = False
    results: int = 0
    full: int = 0
    failed: int = 0
    resizes: int = 0
    first_full: float = math.inf
    _device_seconds: float = 0.0
    _trained: float = 0.0
    _holds: dict[int, tuple[Block, float]] = field(default_factory=dict)
    _resting: dict[int, float] = field(default_factory=dict)
    _waits: list[float] = field(default_factory=list)
    _bests: list[tuple[float, float]] = field(default_factory=list)  # time and loss, each better than before
    _bars: list[Held] = field(default_factory=list)

    def held(self, trial: int, block: Block, at: float) -> None:
        """Note that a trial holds a block from now on."""
        self._holds[trial] = block, at
        if trial in self._resting:
            self._waits.append(at - self._resting.pop(trial))

    def released(self, trial: int, at: float, why: str) -> None:
        """Note that it lets go of it."""
        block, since = self._holds.pop(trial)
        self._device_seconds += len(block) * (at - since)
        if why == "resize":
            self.resizes += 1
        elif why == "rest":
            self.resizes += 1
            self._resting[trial] = at
        elif why == "failed":
            self.failed += 1
        if self.gantt:
            self._bars.append(Held(trial=trial, block=block, start=since, end=at, why=why))

    def trained(self, pace: float, seconds: float, devices: int) -> None:
        """Note epochs that take so many seconds at pace 1."""
        self._trained += seconds / pace * devices

    def reported(self, trial: int, epoch: int, losses: Sequence[float], at: float) -> None:  # noqa: ARG002 -- an event
        """Note a report, if it is the best so far."""
        if not self._bests or losses[0] < self._bests[-1][1]:
            self._bests.append((at, losses[0]))

    def ended(self, trial: int, loss: float, at: float, *, full: bool) -> None:  # noqa: ARG002 -- an event
        """Note a trial's end."""
        self.results += 1
        if full:
            self.full += 1
            self.first_full = min(self.first_full, at)
        self.released(trial, at, "full" if full else "stopped")

    def result(self, at: float, trials: int, desk: Desk, digest: str) -> Run:
        """Return the whole."""
        best = self._bests[-1][1] if self._bests else math.inf
        close = next((time for time, loss in self._bests if loss <= best + 0.01 * abs(best)), math.inf)
        total = at * self.setting.cluster.devices
        return Run(
            makespan_seconds=at,
            device_seconds=self._device_seconds,
            utilisation=self._trained / total if total else 0.0,
            first_full_seconds=self.first_full,
            full=self.full,
            trials=trials,
            best_loss=best,
            close_seconds=close,
            resizes=self.resizes,
            failed=self.failed,
            wait_seconds_mean=sum(self._waits) / len(self._waits) if self._waits else 0.0,
            wait_seconds_max=max(self._waits, default=0.0),
            stalled=tuple(sorted(desk.resting)),
            digest=digest,
            gantt=tuple(self._bars),
        )
