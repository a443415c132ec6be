"""Decides when to save next: the optimal checkpoint interval (Young, Daly), the allocation's end, and signals.

The optimal interval: with C the cost of a save, M the mean time between failures, R the recovery and T the useful
seconds between saves, and failures at a constant rate, one useful second takes ((M + R) / T) (e^((T + C) / M) - 1) wall
seconds. The minimum is at T = M (1 + W0(-e^(-1 - C / M))), W0 being Lambert's function. It is within 0.1 % of the best
simulated interval, where Young's formula is 17 % off at C / M = 0.1.
"""

import math
import os
import statistics
import threading
import time
import warnings
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Annotated

from trainwright.checkpoint.config import CheckpointConfig
from trainwright.checkpoint.policy.signals import SignalFlag, end_of_allocation
from trainwright.checkpoint.save.saver import SaveHandle
from trainwright.errors import CheckpointConfigError
from trainwright.settings import Settings
from trainwright.validators import check, number

__all__ = ["Costs", "SavePlan", "SavePolicy", "exact_interval", "plan_saves", "wait_for_commit"]

_SIGNALS = ("SIGTERM", "SIGUSR1")
_KNOWN = 20
"""Saves over which costs are taken."""

_FIRST_SECONDS = 60.0
"""When the first save is due that tells what saves cost."""


class SavePolicy:
    """Tells a manager when the next save is due, and that the end has come.

    `alone`: nobody else ends this process, so that signals are watched from the first step on unless the settings name
    others. `clock` gives wall seconds, `steady` seconds that never jump.
    """

    def __init__(
        self,
        config: CheckpointConfig,
        *,
        alone: bool,
        clock: Callable[[], float] = time.time,
        steady: Callable[[], float] = time.monotonic,
    ) -> None:
        self._config, self._clock, self._steady = config, clock, steady
        main = threading.current_thread() is threading.main_thread()
        self._signals = config.signals if config.signals is not None else _SIGNALS if alone and main else ()
        self._flag: SignalFlag | None = None
        self._costs: deque[tuple[float, float]] = deque(maxlen=_KNOWN)
        self._end = end_of_allocation(os.environ)
        self._plan: SavePlan | None = None
        # The end of the allocation for which the last save was made.
        self._last_before: float | None = None
        self.note_save(0)

    @property
    def signal(self) -> str | None:
        """The name of the signal that said that the end comes; handlers are there from the first question on."""
        if self._flag is None:
            self._flag = SignalFlag(self._signals, grace_seconds=self._config.grace_seconds)
        return self._flag.received

    def is_due(self, steps: int) -> bool:
        """Whether the next save should begin."""
        interval = self._config.interval
        if isinstance(interval, int):
            return steps - self._saved_step >= interval
        return self._steady() - self._saved_at >= (self._next if interval == "auto" else interval)

    def note_save(self, steps: int) -> None:
        """Take note of a save that begins, or of a training that goes on."""
        # The plan had one save left, and this is it: nothing more is due before the end.
        if self._plan is not None and self._plan.saves == 1 and self.is_due(steps):
            self._last_before = self._end
        self._saved_step, self._saved_at, self._saved_time = steps, self._steady(), self._clock()
        self._next = self._next_interval()

    def note_end(self, handle: SaveHandle) -> None:
        """Learn from a save what the next one will cost."""
        # Failed saves say nothing about the cost of a good one.
        if handle.verdict == "good":
            cost = handle.blocking_seconds + max(0.0, handle.slowdown_seconds)
            self._costs.append((cost, handle.persist_seconds))
            self._next = self._next_interval()

    def raise_pending(self) -> None:
        """Raise what an earlier handler raised when the signal came, if it did."""
        if self._flag is not None:
            self._flag.raise_pending()

    def close(self) -> None:
        """Put the earlier handlers of signals back."""
        if self._flag is not None:
            self._flag.close()

    def _next_interval(self) -> float:
        """Return how long after the last save the next one is due, for interval="auto"."""
        if self._config.interval != "auto":
            return math.inf
        left = None if self._end is None else max(0.0, self._end - self._saved_time)
        # Nothing is known yet: save once soon, to measure what a save costs.
        if not self._costs:
            return _FIRST_SECONDS if left is None else min(_FIRST_SECONDS, left / 2)
        if self._end is not None and self._end == self._last_before:
            return math.inf
        # Medians over the last saves: one slow write must not change the interval.
        cost, persist = (statistics.median(column) for column in zip(*self._costs, strict=True))
        costs = Costs(mtbf_seconds=self._config.mtbf_seconds, cost_seconds=cost, persist_seconds=persist)
        # A save is planned to end when training goes on; it is on disk only when it is persisted.
        margin = self._config.margin_seconds + max(0.0, persist - cost)
        self._plan = plan_saves(costs, remaining_seconds=left, drain_seconds=margin, before=self._plan)
        if self._plan.warning:
            warnings.warn(self._plan.warning, stacklevel=4)
        return self._plan.interval_seconds


_DEAD_BAND = 0.05
_SERIES = (1.0, -1 / 3, 11 / 72, -43 / 540, 769 / 17280, -221 / 8505)
"""1 + W0 near its branch point, in powers of p = sqrt(2 (1 - e^-x)): Corless et al. (1996), equation 4.22."""


_SECONDS, _POSITIVE = number(minimum=0, of="seconds"), number(above=0, of="seconds")


@dataclass(frozen=True, kw_only=True, slots=True)
class Costs(Settings, error=CheckpointConfigError):
    """What checkpointing and failures cost a run; all in seconds."""

    mtbf_seconds: Annotated[float, _POSITIVE, "mean time between failures of the whole allocation"]
    cost_seconds: Annotated[float, _SECONDS, "how much longer training takes for one save: blocking and slow-down"]
    recovery_seconds: Annotated[float, _SECONDS, "from a failure until training resumes: requeue, start, restore"] = 0.0
    persist_seconds: Annotated[
        float, _SECONDS, "from the start of a save until its commit; a failure before that loses this save"
    ] = 0.0

    @property
    def seconds_per_failure(self) -> float:
        """Wall seconds from one failure to the next, recovery included."""
        return self.mtbf_seconds + self.recovery_seconds

    def wall_per_useful(self, interval_seconds: float) -> float:
        """Return the expected wall seconds for one useful second when saving every `interval_seconds` useful ones."""
        mtbf = self.mtbf_seconds
        # A save protects only from its commit on.
        lag = math.exp(self.persist_seconds / mtbf)
        if interval_seconds <= 0:
            # The limit of the formula for ever shorter intervals: infinite, unless a save costs nothing.
            return math.inf if self.cost_seconds > 0 else lag * self.seconds_per_failure / mtbf
        try:
            return lag * self.seconds_per_failure / interval_seconds * math.expm1(
                (interval_seconds + self.cost_seconds) / mtbf
            )  # fmt: skip
        except OverflowError:
            # Hundreds of failures are expected before the first commit.
            return math.inf


def exact_interval(costs: Costs) -> float:
    """Return the interval of least expected wall time for failures at a constant rate; recovery does not change it."""
    x = costs.cost_seconds / costs.mtbf_seconds
    # The argument of W0 would round away what lies between it and the branch point.
    if x < 1e-4:
        p = math.sqrt(-2 * math.expm1(-x))
        # Powers begin at 1, because 1 + W0 is 0 at the branch point itself.
        return costs.mtbf_seconds * sum(factor * p**power for power, factor in enumerate(_SERIES, start=1))
    from scipy.special import lambertw

    return costs.mtbf_seconds * (1 + float(lambertw(-math.exp(-1 - x)).real))


@dataclass(frozen=True, kw_only=True, slots=True)
class SavePlan:
    """When to save next, and how often until the end."""

    interval_seconds: float
    """Useful seconds until the next save begins."""
    optimum_seconds: float
    """What the interval would be if the allocation had no end."""
    saves: int | None = None
    """How many are left until the end of the allocation; None if that is not known."""
    warning: str = ""
    """What the user should hear, or nothing."""


def plan_saves(
    costs: Costs, *, remaining_seconds: float | None = None, drain_seconds: float = 0.0, before: SavePlan | None = None
) -> SavePlan:
    """Plan the next save; the last of those left is committed `drain_seconds` before the end of the allocation.

    Made anew after each save, from costs measured anew; an optimum within 5 % of the one `before` is not followed.
    The saves left are whichever of the two whole numbers next to (time left) / (optimum + cost) costs less wall time.
    """
    optimum = wait_for_commit(exact_interval(costs), costs)
    # Costs are measured with noise; following each small change would make saves irregular.
    if before is not None and abs(optimum - before.optimum_seconds) <= _DEAD_BAND * before.optimum_seconds:
        optimum = before.optimum_seconds
    free = SavePlan(interval_seconds=optimum, optimum_seconds=optimum)
    if remaining_seconds is None:
        return free
    check(drain_seconds, _SECONDS, "drain_seconds", CheckpointConfigError)
    if remaining_seconds == math.inf:
        return free
    check(remaining_seconds, _SECONDS, "remaining_seconds", CheckpointConfigError)
    # The last save must be on disk before the allocation ends.
    horizon = remaining_seconds - drain_seconds
    least = max(costs.cost_seconds, costs.persist_seconds)
    if horizon <= least:
        warning = (
            f"{max(horizon, 0):.1f} s are left before the end of the allocation and a save takes {least:.1f} s: "
            "one is begun at once, and may not be committed in time"
        )
        return replace(free, interval_seconds=0.0, saves=1, warning=warning)
    # Spread the saves that are left evenly: of the two whole numbers next to the optimum, the cheaper one.
    spacing = optimum + costs.cost_seconds
    # Where a save costs nothing, the optimum is to save always: there is no number of saves to choose.
    if spacing <= 0:
        return free
    neighbours = max(1, math.floor(horizon / spacing)), max(1, math.ceil(horizon / spacing))
    saves = min(
        (n for n in neighbours if n == 1 or horizon / n > least),
        # Each of n equal parts of the horizon ends with a save, which is no useful time.
        key=lambda n: costs.wall_per_useful(horizon / n - costs.cost_seconds),
        # The spacing is just what a save takes, and divides the horizon: one save fewer leaves time for each.
        default=neighbours[0] - 1,
    )
    return replace(free, interval_seconds=horizon / saves - costs.cost_seconds, saves=saves)


def wait_for_commit(interval: float, costs: Costs) -> float:
    """Return the interval, made long enough that a save is committed before the next one begins."""
    # A commit comes `persist` seconds after a save begins, and `cost` of these are not useful.
    return max(interval, costs.persist_seconds - costs.cost_seconds)
