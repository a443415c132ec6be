"""The best complete model at a deadline, on recorded curves: the deadline as the objective beside what ignores it.

Tables of TaskSet (Metz et al., arXiv 2002.11887) on 16 devices and of AlgoPerf with at least 76 runs on 8, in nodes of
4; a trial starts on one. Speeds on 2 and 4 devices are measured with the batch held (`speeds.py`, CIFAR-10 on DGX); a
restart takes a tenth of an epoch. All start new trials as long as there is time: ASHA on one device ("refills"), on the
best fixed size by what it reached, RASDA, and RASDA as published; "HyperSched" is its rule on ASHA: no trial is started
that could not catch up with the most trained one, and free devices go to the best that run (Liaw et al., SoCC 2019).
Ours is `deadline=` with ASHA whose cut adapts, times
`MarginalGain`; "adaptive cut" is the same without the deadline. Regret is the distance from the best end of the table,
the median end's being 1, of the best complete trial; 1 where none is complete. Intervals are 95 % bootstraps over
studies; the last column is the paired difference to the best of the others.

    python benchmarks/schedule/deadline.py --data FOLDER --json [--seeds 30] [--results FILE]
"""

import argparse
import math
import sys
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import numpy as np
from benchmarks._report import add_arguments, finish_table, progress
from benchmarks.schedule.paired import average, entered, shown
from benchmarks.schedule.replays import Curves, algoperf, lcbench, taskset
from benchmarks.schedule.speeds import SPEEDS

import trainwright as tw
from trainwright.engine.simulated.simulation import simulate
from trainwright.schedule import DeviceAllocator
from trainwright.schedule.policies.allocation_policy import Planner

__all__ = ["main"]

DEADLINES = (0.5, 1.0, 2.0, 4.0)  # times a whole trial on one device
TWICE, FOUR = SPEEDS["CIFAR-10", "DGX"]["held"]
SIZES = (1, 2, 4)
FIRST = 5000  # of the seeds, which nobody looked at while the rule was made
LEAST_ROWS = 76
OURS = "deadline"


@dataclass(frozen=True, kw_only=True, slots=True)
class HyperSched(tw.MarginalGain):
    """HyperSched's rule: start only what can catch up, then give free devices to the best."""

    def planner(self) -> Planner:  # type: ignore[override]  # a planner of its own
        """Return its planner."""
        return _CatchUp()


class _CatchUp:
    def plan(self, allocator: DeviceAllocator) -> None:
        base = allocator.estimates.epoch_seconds()
        leader = max((running.epoch for running in allocator.running.values()), default=0)
        starts = base is None or leader * base <= allocator.seconds_left()
        allocator.start_waiting(new=starts)
        if starts:
            return
        best = sorted(allocator.running.values(), key=lambda each: (-each.rungs, each.loss, each.trial))
        for running in best:
            if not running.is_settled or allocator.free < running.size:
                continue
            if running is allocator.changed:
                allocator.resize(running, 2 * running.size)
            else:
                allocator.replan_at_checkpoint(running)


def contenders(length: int) -> dict[str, list[tw.Scheduler]]:
    """Return schedulers by name; of several the best counts."""
    asha = tw.ASHA(max_epochs=length)
    ours = tw.Scheduler(tw.ASHA(max_epochs=length, cutoff="adaptive"), tw.MarginalGain())
    return {
        "ASHA, refills": [tw.Scheduler(asha, tw.Fixed(1))],
        "best fixed size": [tw.Scheduler(asha, tw.Fixed(size)) for size in SIZES],
        "RASDA": [tw.RASDA(max_epochs=length)],
        "RASDA as published": [tw.RASDA(max_epochs=length, as_published=True)],
        "HyperSched": [tw.Scheduler(asha, HyperSched())],
        "MarginalGain": [tw.Scheduler(asha, tw.MarginalGain())],
        "adaptive cut": [ours],
        OURS: [ours],
    }


def regret(curves: Curves, scheduler: tw.Scheduler, devices: int, seed: int, time: float, *, ours: bool) -> float:
    """Return the regret of the best complete trial of one study."""
    engine = tw.Simulated(
        cluster=tw.Cluster(devices // 4, 4),
        task=replace(curves.task, missing="nearest"),
        task_devices=1,
        scaling=tw.Scaling(curve={2: TWICE, 4: FOUR}),
        restart_seconds=0.1 * curves.seconds / curves.length,
    )
    seconds = time * curves.seconds
    if ours:
        run = simulate(scheduler, engine, deadline_seconds=seconds, seed=seed)
    else:
        run = simulate(scheduler, engine, wall_seconds=seconds, seed=seed)
    return curves.regret(run.full_loss if math.isfinite(run.full_loss) else math.inf)


def play(tables: list[Curves], devices: int, time: float, seeds: int) -> dict[str, np.ndarray]:
    """Return the regrets of all studies by contender; of several sizes those of the one best in the mean."""
    found: dict[str, list[list[float]]] = {}
    for seed in range(FIRST, FIRST + seeds):
        curves = tables[seed % len(tables)]
        for name, schedulers in contenders(curves.length).items():
            row = [regret(curves, each, devices, seed, time, ours=name == OURS) for each in schedulers]
            found.setdefault(name, []).append(row)
    return {name: min(np.array(rows).T, key=np.mean) for name, rows in found.items()}


# By name: devices, and the reader of the tables.
GROUPS = {"TaskSet": (16, taskset), "AlgoPerf": (8, algoperf), "LCBench": (16, lcbench)}


def measure(data: Path, seeds: int, groups: list[str]) -> Iterator[tuple[str, float, dict[str, np.ndarray]]]:
    """Yield name, time and regrets of each row."""
    for name in groups:
        devices, read = GROUPS[name]
        large = [curves for curves in read(data) if curves.rows >= LEAST_ROWS]
        for time in DEADLINES if large else ():
            yield name, time, play(large, devices, time, seeds)


def main(argv: list[str] | None = None) -> dict[str, Any]:
    """Simulate, print the table, keep the result."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path, required=True, help="with folders taskset and algoperf (needs polars)")
    parser.add_argument("--seeds", type=int, default=30, help="studies of a row")
    parser.add_argument("--curves", nargs="+", choices=list(GROUPS), default=list(GROUPS))
    add_arguments(parser)
    arguments = parser.parse_args(argv)
    numbers: dict[str, float] = {}
    rows: list[list[str]] = []
    header: list[str] = []
    for name, time, regrets in measure(arguments.data, arguments.seeds, arguments.curves):
        header = ["curves", "time", *regrets, "deadline - best other"]
        others = {each: values for each, values in regrets.items() if each != OURS}
        best = min(others, key=lambda each: float(others[each].mean()))
        gap = average(regrets[OURS] - others[best])
        key = f"{name.lower()}_{time:g}"
        numbers |= {
            f"{key}_{each.lower().replace(',', '').replace(' ', '_')}": float(values.mean())
            for each, values in regrets.items()
        }
        numbers |= entered(f"{key}_minus_best_other", gap)
        texts = [shown(average(values), ".3f") for values in regrets.values()]
        rows.append([name, f"{time:g}", *texts, f"{shown(gap, '+.3f')}, {best}"])
        progress(" | ".join(rows[-1]))
    return finish_table("schedule_deadline", arguments, header, rows, numbers, seeds=arguments.seeds)


if __name__ == "__main__":
    main()
