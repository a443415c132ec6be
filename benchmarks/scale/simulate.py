"""Effective utilisation of many workers in simulated time, charged with what our own decisions were measured to cost.

What is charged to a device between two of its trials: appending the result, reading what others wrote since its
driver's last look (it reads and learns twice a second while a trial runs), a claim, the searcher's proposal at that
many results of which so many are new to it, appending it with the start, and handing the trial to the process
that holds the device. Each cost is the mean of its measurements, so that a seldom long proposal counts with its length;
proposals and records in processor seconds, since what else this machine does is not ours to charge. A driver that could
not read and learn in time what the others write is refused.
"""

import heapq
import statistics
import tempfile
import time
from bisect import bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

import trainwright as tw
from trainwright.search import SearchView

__all__ = ["Costs", "measure", "utilisation"]

APPEND_SECONDS = 0.005  # of an append or a claim, as on a shared file system or a server near by
_READ_SECONDS = 0.5  # between a driver's looks at the ledger while its trial runs
_RECORDS = 2  # of a trial: proposed and started, finished
_REPEATS = 5
_ASKS = 60  # proposals that are measured, one new result each; half as many for each power of ten of new ones
_MOST_OF_A_TRIAL = 0.5  # may go into reading and learning
_FEW = 10  # results there must be before the searcher has a model


@dataclass(frozen=True, kw_only=True)
class Costs:
    """Seconds, measured on this machine: one process, one thread."""

    fold: float  # to read one record, fold it and tell the searcher
    hand_over: float  # of a trial between driver and device, beside all else
    observations: tuple[int, ...]
    fresh: tuple[int, ...]  # results that are new to the searcher
    ask: tuple[tuple[float, ...], ...]  # [observations, fresh]

    def of_ask(self, observations: int, fresh: int) -> float:
        """Return the seconds of a proposal, interpolated between measured ones; beyond them it grows in proportion."""
        row = [_between(self.observations, column, observations) for column in zip(*self.ask, strict=True)]
        return _between(self.fresh, row, fresh)


def _between(at: Sequence[int], values: Sequence[float], x: int) -> float:
    if x >= at[-1]:
        return values[-1] * x / at[-1]
    return float(np.interp(x, at, values))


def measure(observations: Sequence[int], say: Callable[[str], None]) -> Costs:
    """Measure the costs at these numbers of observations."""
    space = tw.Space.of({f"x{i}": tw.Float(-32.768, 32.768) for i in range(5)})
    fresh = tuple(sorted({1, *(n for n in observations if n <= 10_000)}))  # 10,000 rows are all that a forest has
    found = []
    for count in observations:
        view, searcher = SearchView(space, 0, slot=3), tw.ForestSearcher()
        drawn = count + sum(_asks(new) * new for new in fresh)
        rows = iter(space.configurations(space.sample(np.random.default_rng(count), drawn)))
        _tell(view, rows, count)
        searcher.ask(view, [10**7])
        found.append(tuple(_ask_seconds(view, searcher, rows, new) for new in fresh))
        took = ", ".join(f"{1e3 * seconds:.1f} ms, {new:,} new" for new, seconds in zip(fresh, found[-1], strict=True))
        say(f"a proposal at {count:,} results, on average: {took}")
    with tempfile.TemporaryDirectory() as folder:
        fold, hand_over = _fold_seconds(space, Path(folder)), _hand_over_seconds(space, Path(folder))
    say(f"a record: {1e6 * fold:.1f} us on average; handing over a trial: {1e3 * hand_over:.1f} ms")
    return Costs(fold=fold, hand_over=hand_over, observations=tuple(observations), fresh=fresh, ask=tuple(found))


def _tell(view: SearchView, rows: Any, count: int) -> None:
    start = view.count
    for number in range(start, start + count):
        row = next(rows)
        view.propose(number, row)
        view.result(number, [sum(value * value for value in row.params.values())], epoch=None, complete=True)
    view.settle()


def _asks(fresh: int) -> int:
    return _ASKS >> len(str(fresh)) - 1


def _ask_seconds(view: SearchView, searcher: Any, rows: Any, fresh: int) -> float:
    times = []
    for repeat in range(_asks(fresh)):
        _tell(view, rows, fresh)
        start = time.process_time()
        searcher.ask(view, [10**7 + repeat])
        times.append(time.process_time() - start)
    return statistics.mean(times)


def _fold_seconds(space: Any, folder: Path) -> float:
    """Return what one record of another writer costs a study that has a searcher."""
    other = tw.Study(space, "min loss", directory=folder / "read", searcher=tw.RandomSearcher())
    with tw.Study.open(folder / "read") as reader:
        reader.ask()
        times = []
        for _ in range(_REPEATS):
            for configuration in other.ask(500):
                other.tell(configuration, loss=1.0)
            start = time.process_time()
            reader.refresh()
            reader.ask()
            times.append((time.process_time() - start) / 1000)
    other.close()
    return statistics.mean(times)


def _hand_over_seconds(space: Any, folder: Path) -> float:
    """Return the wall seconds of a trial that does nothing, on a device's process, in a memory of its own."""
    times = []
    for count in (20, 220):
        study = tw.Study(space, "min loss", searcher=tw.RandomSearcher(), directory=folder / f"run-{count}")
        start = time.perf_counter()
        study.run(nothing, trials=count, engine=tw.Local(workers=1), progress=False)
        times.append(time.perf_counter() - start)
        study.close()
    return (times[1] - times[0]) / 200


def nothing(trial: tw.Trial) -> float:
    """Train nothing."""
    return float(trial.number)


def utilisation(costs: Costs, workers: int, *, trials_each: int, seed: int) -> float:
    """Return the share of device time up to the last start in which trials ran; durations are normal(60, 15) s."""
    generator = np.random.default_rng([seed, workers])
    count = trials_each * workers  # whoever is free takes the next of them
    durations = np.maximum(1.0, generator.normal(60.0, 15.0, size=count)).tolist()
    late = (generator.random(count) * _READ_SECONDS).tolist()
    visible = generator.uniform(0.05, 1.0, size=count).tolist()
    join = 2 * APPEND_SECONDS + workers * costs.fold
    turns = [(0.0, worker) for worker in range(workers)]
    ends: list[float] = []  # when results were written, in order
    starts, lasts = [], []
    for trial in range(count):
        now, worker = heapq.heappop(turns)
        if trial >= workers:
            ends.append(now)
            now += APPEND_SECONDS
        else:
            now += join
        horizon = now - visible[trial]
        known = bisect_right(ends, horizon)
        unread = known - bisect_right(ends, horizon - late[trial])
        now += _RECORDS * unread * costs.fold
        now += APPEND_SECONDS  # the claim
        now += costs.of_ask(known, max(1, unread)) if known > _FEW else 0.0
        now += APPEND_SECONDS + costs.hand_over
        starts.append(now)
        lasts.append(now + durations[trial])
        heapq.heappush(turns, (lasts[-1], worker))
    last = max(starts)
    learnt = costs.of_ask(len(starts), workers) + _RECORDS * workers * costs.fold
    if learnt > _MOST_OF_A_TRIAL * statistics.mean(durations):
        raise SystemExit(f"{workers} workers: a driver needs {learnt:.1f} s to learn what comes during a trial")
    busy = sum(max(0.0, min(end, last) - start) for start, end in zip(starts, lasts, strict=True))
    return float(busy / (workers * last))
