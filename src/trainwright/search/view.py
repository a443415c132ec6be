"""The searcher's view of a study: observed rows as columns, pending and tried rows, and recorded times."""

import copy
import math
from bisect import bisect_right
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from trainwright.space import Space
from trainwright.space.configuration import Configuration

__all__ = ["SearchView"]

_RUNGS = 3  # where the study names no rungs: at horizon/27, /9, /3


class SearchView:
    """The append-only state of a study that searchers read; O(1) amortised per event.

    The study feeds it: in order of arrival while it runs, in order of trial numbers when it is opened again.
    Losses are minimised and may be inf or nan (both bad). A trial gives one row when it completes or fails, and one for
    each rung that its reports reach, whether it was stopped there or went on: a rung that held losers only would teach
    that all is well above it. `rungs` are the epochs at which the study's rule compares trials; without any they are
    horizon / 27, / 9 and / 3. `epochs` is the number of epochs of a full trial; without it the horizon is the greatest
    epoch seen, and rungs are told when a trial ends.
    `slot` is the place of one worker among many that search without a leader, each with a kappa of its own. `bounds`
    are the greatest losses wanted, inf where there is none: one per objective, then one per constraint; the losses
    that the study tells come in the same order.
    """

    def __init__(
        self,
        space: Space,
        seed: int,
        objectives: int = 1,
        *,
        epochs: int | None = None,
        rungs: Sequence[int] = (),
        slot: int | None = None,
        bounds: Sequence[float] | None = None,
    ) -> None:
        self.space = space
        self.seed = seed
        self.objectives = objectives
        self.epochs = epochs
        self.slot = slot
        self.bounds = np.full(objectives, np.inf) if bounds is None else np.array(bounds, dtype=np.float64)
        self.memo: dict[
            object, object
        ] = {}  # scratch of searchers; may be emptied at any time without changing a proposal
        self.count_results = 0  # trials with at least one finite row
        self.revision = 0  # goes up when an old row changes, which only a late result of a failed trial does
        self._horizon = epochs or 1
        self._ladder = tuple(sorted(rungs))  # empty: thirds of the horizon
        self._tried: set[bytes] = set()
        self._pending: dict[int, None] = {}
        self._proposed: dict[int, NDArray[np.float64]] = {}
        self._fresh: dict[int, Mapping[str, Any]] = {}  # proposals that are not yet rows: many at once cost much less
        self._unfilled: list[int] = []  # told rows of which only the trial's number is known yet
        self._reports: dict[int, list[tuple[int, tuple[float, ...]]]] = {}  # not yet told: the horizon was unknown
        self._last_rung: dict[int, int] = {}  # by trial: rungs told so far
        self._failed_at: dict[int, int] = {}  # by trial: its failed row
        self._costs: dict[int, float] = {}  # by trial
        self._with_result: set[int] = set()
        self._count = 0
        self._partial = 0  # rows that are no final result
        self._rows = np.empty((64, space.dimension))
        self._losses = np.empty((64, len(self.bounds)))
        self._numbers = np.empty(64, dtype=np.int64)
        self._epoch = np.empty(64)  # inf where the row is a final result, below 0 where an earlier study's
        self._rung = np.empty(64, dtype=np.int64)
        self._failed = np.empty(64, dtype=np.bool_)

    # Events, in the study's hands.

    def propose(self, number: int, configuration: Configuration) -> None:
        """Make trial `number` pending with this configuration."""
        self._fresh[number] = configuration.params
        self._pending[number] = None

    def settle(self) -> None:
        """Make rows of what was proposed and told since the last look; needed by nobody, but time may be at hand."""
        if self._fresh:
            # Encoded together: a batch of proposals costs little more than one.
            rows = self.space.encode_all(list(self._fresh.values()))
            self._proposed.update(zip(self._fresh, rows, strict=True))
            self._tried.update(self.space.row_keys(rows))
            self._fresh = {}
        if self._unfilled:
            self._rows[self._unfilled] = [self._proposed[number] for number in self._numbers[self._unfilled].tolist()]
            self._unfilled = []

    def report(self, number: int, epoch: int, losses: Sequence[float]) -> None:
        """Take one intermediate value of a proposed trial: a row if it is the first at or past its highest rung."""
        if self.epochs is None:
            self._reports.setdefault(number, []).append((epoch, tuple(losses)))
        else:
            self._tell_rung(number, epoch, losses)

    def result(self, number: int, losses: Sequence[float] | None, *, epoch: int | None, complete: bool) -> None:
        """End a proposed trial: `losses` None means that it failed, `complete` False that it was stopped at `epoch`.

        May be called again for a trial that went on after a pause, or that was thought to have failed.
        """
        self._pending.pop(number, None)
        reports = self._reports.pop(number, [])
        if epoch is None and not complete and reports:
            epoch = reports[-1][0]
        if self.epochs is None and losses is not None and epoch is not None:
            # A stopped trial's last epoch is never the horizon: its score is not a final one.
            # Rungs are shares of the horizon, which only ended trials tell.
            self._horizon = max(self._horizon, epoch if complete else epoch + 1)
        for at, values in reports:
            self._tell_rung(number, at, values)
        if losses is None:
            self._append(number, [np.inf] * len(self.bounds), np.inf, self.top)
        elif complete:
            self._append(number, losses, np.inf, self.top)
        elif epoch is not None and number not in self._last_rung:
            # Stopped below the first rung: told as if there, or a fidelity of losers alone would come to be.
            self._last_rung[number] = rung = max(1, bisect_right(self.ladder, epoch))
            self._append(number, losses, max(epoch, self.ladder[0]), rung - 1)

    def spend(self, number: int, seconds: float) -> None:
        """Note the seconds per epoch that a trial has taken (without epochs: in all); 0 says that nobody measured."""
        if seconds > 0.0:
            self._costs[number] = seconds

    def withdraw(self, number: int) -> None:
        """Drop a pending trial that is lost or cancelled; it gives no row and its configuration stays tried."""
        self._pending.pop(number, None)
        self._reports.pop(number, None)

    def recalling(self, rows: NDArray[np.float64], owners: NDArray[np.int64]) -> "SearchView":
        """Return another view in which rows of earlier studies come first, told as failed.

        Those of study `owners` = k are at progress -1 - k.
        """
        self.settle()
        other = copy.copy(self)
        count = len(rows)
        vars(other).update(
            _count=self._count + count,
            _partial=self._partial + count,
            _rows=np.concatenate([rows, self.rows]),
            # Their losses are of another study: they count as failed here, and the forest gives them their ranks.
            _losses=np.concatenate([np.full((count, len(self.bounds)), np.inf), self.outcomes]),
            _numbers=np.concatenate([np.arange(-count, 0), self.numbers]),
            _epoch=np.concatenate([-1.0 - owners, self._epoch[: self._count]]),
            _rung=np.concatenate([np.full(count, -1), self.rungs]),
            _failed=np.concatenate([np.ones(count, dtype=np.bool_), self.failed]),
        )
        return other

    # Columns, for searchers; all views of the same told rows, in the order of their arrival.

    @property
    def tried(self) -> set[bytes]:
        """The keys of every row ever proposed."""
        self.settle()
        return self._tried

    @property
    def count(self) -> int:
        """The number of observed rows, failed ones included."""
        return self._count

    @property
    def rows(self) -> NDArray[np.float64]:
        """Settled rows [count, dimension] of the space, NaN where inactive."""
        self.settle()
        return self._rows[: self._count]

    @property
    def losses(self) -> NDArray[np.float64]:
        """Losses [count, objectives], inf throughout a failed row."""
        return self._losses[: self._count, : self.objectives]

    @property
    def outcomes(self) -> NDArray[np.float64]:
        """Losses [count, bounds] of objectives and constraints, inf throughout a failed row."""
        return self._losses[: self._count]

    @property
    def numbers(self) -> NDArray[np.int64]:
        """Trial numbers [count]."""
        return self._numbers[: self._count]

    @property
    def costs(self) -> NDArray[np.float64]:
        """Seconds per epoch [count] of each row's trial, nan where none are known; made anew at each look."""
        return np.array([self._costs.get(number, np.nan) for number in self.numbers.tolist()], dtype=np.float64)

    @property
    def failed(self) -> NDArray[np.bool_]:
        """True [count] where the trial failed or an objective was not finite."""
        return self._failed[: self._count]

    @property
    def complete(self) -> NDArray[np.bool_]:
        """True [count] where the row is a trial's end, not an intermediate value."""
        return np.isinf(self._epoch[: self._count])

    @property
    def partial(self) -> bool:
        """Whether any row is an intermediate value."""
        return self._partial > 0

    @property
    def progress(self) -> NDArray[np.float64]:
        """Fidelity z [count] = ln(epoch) / ln(horizon) in [0, 1]; 1 for final rows, -1 - k for those of study k."""
        progress = np.ones(self._count)
        if self._partial:
            epoch = self._epoch[: self._count]
            part, recalled = np.isfinite(epoch) & (epoch > 0.0), epoch < 0.0
            progress[part] = np.minimum(1.0, np.log(epoch[part]) / np.log(self._horizon))
            progress[recalled] = epoch[recalled]
        return progress

    @property
    def rungs(self) -> NDArray[np.int64]:
        """The rung [count] of each row: 0 is the lowest, `top` that of final rows, -1 that of recalled ones."""
        return self._rung[: self._count]

    @property
    def ladder(self) -> tuple[int, ...]:
        """The epochs of the rungs; without a known horizon those of the greatest epoch seen."""
        return self._ladder or tuple(-(-self._horizon // 3**k) for k in range(_RUNGS, 0, -1))

    @property
    def top(self) -> int:
        """The number of rungs below the full length."""
        return len(self._ladder) or _RUNGS

    @property
    def horizon(self) -> int:
        """The epochs of a full trial; without a known length the greatest epoch seen."""
        return self._horizon

    @property
    def open(self) -> Collection[int]:
        """The numbers of the trials that are under way."""
        return self._pending.keys()

    @property
    def pending(self) -> NDArray[np.float64]:
        """The pending points: rows [pending, dimension] of the trials that are under way."""
        self.settle()
        rows = [self._proposed[number] for number in self._pending]
        return np.array(rows).reshape(len(rows), self.space.dimension)

    def _tell_rung(self, number: int, epoch: int, losses: Sequence[float]) -> None:
        # Only the first report at or past a rung makes a row, and only below the full length.
        passed = bisect_right(self.ladder, epoch)
        if epoch < self._horizon and passed > self._last_rung.get(number, 0):
            self._last_rung[number] = passed
            self._append(number, losses, epoch, passed - 1)

    def _append(self, number: int, losses: Sequence[float], epoch: float, rung: int) -> None:
        # A row that is not finite in one objective counts as failed in all.
        failed = not all(map(math.isfinite, losses))
        if not failed and number not in self._with_result:
            self._with_result.add(number)
            self.count_results += 1
        # A trial that failed and later succeeded overwrites its failed row, so that it counts once.
        at = self._failed_at.pop(number, None)
        if at is None:
            at = self._count
            if at == len(self._numbers):
                self._grow()
            self._count += 1
        else:
            self.revision += 1
            self._partial -= int(np.isfinite(self._epoch[at]))
        if failed and math.isinf(epoch):
            self._failed_at[number] = at
        self._partial += int(math.isfinite(epoch))
        self._unfilled.append(at)
        self._losses[at] = np.inf if failed else losses
        self._numbers[at] = number
        self._epoch[at] = epoch
        self._rung[at] = rung
        self._failed[at] = failed

    def _grow(self) -> None:
        for name in ("_rows", "_losses", "_numbers", "_epoch", "_rung", "_failed"):
            old = getattr(self, name)
            setattr(self, name, np.concatenate([old, np.empty_like(old)]))
