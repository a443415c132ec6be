"""The save policy: when the next save is due, from its measured cost, the end of the allocation and signals."""

import math
import os
import statistics
import threading
import time
import warnings
from collections import deque
from collections.abc import Callable

from trainwright.checkpoint.config import CheckpointConfig
from trainwright.checkpoint.policy.hooks import end_of_allocation
from trainwright.checkpoint.policy.interval import Costs, SavePlan, plan_saves
from trainwright.checkpoint.policy.signals import SignalFlag
from trainwright.checkpoint.save.saver import SaveHandle

__all__ = ["SavePolicy"]

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
