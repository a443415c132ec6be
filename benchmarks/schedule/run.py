"""Makespan, device hours and first full model of allocation policies, on simulated clusters of 64 to 4,096 devices.

Trials start on 4 devices, all at once or in a queue four times the cluster; eta = 2, rungs 1, 2, 4, ... below R;
speed on m times the devices is m^alpha, a restart takes c epochs. The rule is the same for all (ASHA, stopping), as
are seeds: ratios are paired. What must hold is `--grid band`: R in 4, 8, 16, alpha in .8, .9, c in .1, .25; the
claim on RASDA against ASHA is for 1,024 devices, R = 8, alpha in .8, .9, 1, c in 0, .1, .25 (`claim`); `whole` is the
rest of the grid. Finished cells are kept in `--cells` and reused while the policies behave the same. Two more parts:
`speed` simulates 100,000 trials on 10,000 workers, `ray` is `benchmarks/ray/run.py`.

    python benchmarks/schedule/run.py --json [--parts grid,speed,ray] [--devices 64,256] [--results FILE]
"""

import argparse
import hashlib
import itertools
import json
import math
import sys
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import numpy as np
from benchmarks._report import RESULTS, add_arguments, environment, finish, progress, table
from benchmarks.ray import run as ray

from trainwright.cluster import Cluster
from trainwright.engine.simulated import Parametric, Run, Scaling, Simulated, simulate
from trainwright.schedule import (
    ASHA,
    AllocationPolicy,
    Doubling,
    DoublingAsPublished,
    Fixed,
    FixedEpochs,
    IEpoch,
    MarginalGain,
    PromotionRule,
    Scheduler,
    SuccessiveHalving,
)

START = 4
EPOCH_SECONDS = 1000.0
DEVICES = (64, 128, 256, 512, 1024, 4096)
NAMES = ("asha", "rasda", "marginal-gain")
SHOWN = (8, 0.9, 0.1)  # epochs, alpha and restart of the table
STATIC = ("static-8", "static-16")  # beside asha, which is static-4


Interval = tuple[float, float, float]
"""Mean, low end and high end."""
Task = tuple[str, "Cell", list[int]]
"""A policy, a cell, the seeds that are missing."""


class Cell(NamedTuple):
    """A setting of the grid."""

    devices: int
    trials: int
    epochs: int
    alpha: float
    restart: float  # in epochs on the devices of a new trial

    @property
    def queue(self) -> bool:
        """Whether there are more trials than fit."""
        return self.trials * START > self.devices


def scheduler(name: str, cell: Cell) -> Scheduler:
    """Return the scheduler that a column of the results is about."""
    rule: PromotionRule = ASHA(max_epochs=cell.epochs, eta=2)
    if name.startswith("static-"):
        return Scheduler(rule, Fixed(int(name.removeprefix("static-"))))
    policies: dict[str, AllocationPolicy] = {
        "asha": Fixed(START),
        "rasda": DoublingAsPublished(start=START),
        "rasda-lost-resize": DoublingAsPublished(start=START, lost_resize=True),
        "doubling": Doubling(start=START),
        "marginal-gain": MarginalGain(start=START),
    }
    rules: dict[str, PromotionRule] = {
        "random": FixedEpochs(cell.epochs),
        "halving": SuccessiveHalving(n=cell.trials, max_epochs=cell.epochs, eta=2),
        "i-epoch": IEpoch(epochs=1, top_k=max(1, cell.trials // cell.epochs), max_epochs=cell.epochs),
    }
    return Scheduler(rules.get(name, rule), policies.get(name, Fixed(START)))


def one(name: str, cell: Cell, seed: int) -> Run:
    """Simulate one study."""
    setting = Simulated(
        cluster=Cluster(cell.devices // START, START),
        task=Parametric(epoch_seconds=EPOCH_SECONDS),
        scaling=Scaling(alpha=cell.alpha),
        restart_seconds=cell.restart * EPOCH_SECONDS,
        task_devices=START,
    )
    return simulate(scheduler(name, cell), setting, trials=cell.trials, seed=seed)


def measured(run: Run) -> list[float]:
    """Return what is kept of a study: makespan, first full, device seconds, best loss, full, utilisation, stalls."""
    kept = (run.makespan_seconds, run.first_full_seconds, run.device_seconds, run.best_loss)
    values = [*kept, float(run.full), run.utilisation, float(len(run.stalled))]
    return [float(f"{value:.6g}") for value in values]


def canary(name: str) -> str:
    """Return what tells whether the policy still decides as it did: a digest of small studies."""
    cells = [Cell(64, 16, 8, 0.9, 0.1), Cell(64, 64, 16, 0.8, 0.25)]
    kept = [measured(one(name, cell, seed)) for cell in cells for seed in range(2)]
    text = ",".join(f"{value:.6g}" for row in kept for value in row)
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def work(task: tuple[str, Cell, Sequence[int]]) -> tuple[str, Cell, dict[int, list[float]]]:
    """Simulate the seeds of one cell."""
    name, cell, seeds = task
    return name, cell, {seed: measured(one(name, cell, seed)) for seed in seeds}


class Kept:
    """Finished cells, a line each in a file for each policy."""

    def __init__(self, folder: Path, names: Sequence[str]) -> None:
        self._folder = folder
        self._canaries = {name: canary(name) for name in names}
        self.values: dict[tuple[str, Cell], dict[int, list[float]]] = {}
        for name in names:
            path = self._path(name)
            for line in path.read_text().splitlines() if path.exists() else ():
                kept = json.loads(line)
                if kept["canary"] == self._canaries[name]:
                    rows = {
                        int(seed): [math.inf if v is None else v for v in row] for seed, row in kept["rows"].items()
                    }
                    self.values.setdefault((name, Cell(*kept["cell"])), {}).update(rows)

    def add(self, name: str, cell: Cell, rows: dict[int, list[float]]) -> None:
        """Keep seeds of a cell."""
        self.values.setdefault((name, cell), {}).update(rows)
        self._folder.mkdir(parents=True, exist_ok=True)
        plain = {seed: [v if math.isfinite(v) else None for v in row] for seed, row in rows.items()}
        line = json.dumps({"canary": self._canaries[name], "cell": list(cell), "rows": plain})
        with self._path(name).open("a") as file:
            file.write(line + "\n")

    def rows(self, name: str, cell: Cell, seeds: int) -> np.ndarray | None:
        """Return (seeds, measures), None if a seed is missing."""
        kept = self.values.get((name, cell), {})
        return np.array([kept[seed] for seed in range(seeds)]) if all(s in kept for s in range(seeds)) else None

    def _path(self, name: str) -> Path:
        return self._folder / f"{name}.jsonl"


def grid(kind: str, devices: Sequence[int]) -> Iterator[Cell]:
    """Yield the cells of a part of the grid, small clusters first."""
    lengths, alphas, restarts = {
        "band": ((4, 8, 16), (0.8, 0.9), (0.1, 0.25)),
        "claim": ((8,), (0.8, 0.9, 1.0), (0.0, 0.1, 0.25)),
        "whole": ((4, 8, 16, 32), (0.7, 0.8, 0.9, 1.0), (0.0, 0.1, 0.25, 0.5)),
    }[kind]
    for size, epochs, alpha, restart in itertools.product(devices, lengths, alphas, restarts):
        if kind == "claim":
            if size == 1024 or (alpha, restart) == (0.9, 0.1):
                yield Cell(size, size // START, epochs, alpha, restart)
            continue
        for trials in (size // START, size):
            yield Cell(size, trials, epochs, alpha, restart)


def interval(ratios: np.ndarray) -> Interval:
    """Return mean and 95 % bootstrap interval."""
    generator = np.random.default_rng(0)
    means = ratios[generator.integers(0, len(ratios), (4000, len(ratios)))].mean(axis=1)
    return float(ratios.mean()), float(np.percentile(means, 2.5)), float(np.percentile(means, 97.5))


def simulated_seconds() -> float:
    """Return the seconds that 100,000 trials on 10,000 workers take to simulate."""
    rule = ASHA(max_epochs=243, eta=3)  # 5 rungs
    setting = Simulated(cluster=Cluster(2500, 4), task=Parametric())
    began = time.perf_counter()
    simulate(Scheduler(rule, Fixed(1)), setting, trials=100_000, seed=0)
    return time.perf_counter() - began


def ratio(kept: Kept, cell: Cell, seeds: int, pair: tuple[str, str], measure: int) -> Interval | None:
    """Return the paired ratio of a measure with its interval, None if a study stalled or is missing."""
    mine, other = (kept.rows(name, cell, seeds) for name in pair)
    if mine is None or other is None or mine[:, 6].any() or other[:, 6].any():
        return None
    return interval(mine[:, measure] / other[:, measure])


def summary(kept: Kept, devices: Sequence[int], seeds: int) -> tuple[dict[str, float], list[list[str]]]:
    """Return the claims' numbers and the table."""
    band = list(grid("band", devices))
    found: dict[str, float] = {}
    claim = [r for c in grid("claim", [1024]) if (r := ratio(kept, c, seeds, ("asha", "rasda"), 0)) is not None]
    if claim:
        found["asha_over_rasda_makespan_1024"] = min(mean for mean, _, _ in claim)
        found["asha_over_rasda_makespan_1024_low"] = min(low for _, low, _ in claim)
    makespans = [r for c in band if (r := ratio(kept, c, seeds, ("marginal-gain", "rasda"), 0)) is not None]
    firsts = [r for c in band if (r := ratio(kept, c, seeds, ("marginal-gain", "asha"), 1)) is not None]
    hours = [r for c in band if c.queue and (r := ratio(kept, c, seeds, ("marginal-gain", "asha"), 2)) is not None]
    losses = []
    for cell in band:
        mine, other = kept.rows("marginal-gain", cell, seeds), kept.rows("asha", cell, seeds)
        if mine is not None and other is not None:
            losses.append(float((mine[:, 3] - other[:, 3]).mean()))
    for name, values in (("makespan", makespans), ("first_full", firsts), ("device_hours_queue", hours)):
        baseline = "rasda" if name == "makespan" else "asha"
        if values:
            found[f"ours_over_{baseline}_{name}_worst"] = max(mean for mean, _, _ in values)
            found[f"ours_over_{baseline}_{name}_worst_high"] = max(high for _, _, high in values)
    if losses:
        found["ours_minus_asha_best_loss_mean"] = float(np.mean(losses))
    found["cells"] = len(makespans)
    rows = [row for size in devices for queue in (False, True) if any((row := line(kept, size, queue, seeds))[2:])]
    return found, rows


def line(kept: Kept, size: int, queue: bool, seeds: int) -> list[str]:
    """Return a row of the table."""
    cell = Cell(size, size if queue else size // START, *SHOWN)
    pairs = [("asha", "rasda", 0), ("marginal-gain", "rasda", 0), ("marginal-gain", "asha", 0)]
    static = [
        (rows[:, 0].mean(), name) for name in ("asha", *STATIC) if (rows := kept.rows(name, cell, seeds)) is not None
    ]
    pairs += [("marginal-gain", min(static)[1], 0)] if static else []
    pairs += [("marginal-gain", "asha", 1), ("rasda", "asha", 1), ("rasda", "asha", 2), ("marginal-gain", "asha", 2)]
    values = [ratio(kept, cell, seeds, (ours, theirs), measure) for ours, theirs, measure in pairs]
    texts = ["" if value is None else f"{value[0]:.2f} ({value[1]:.2f} to {value[2]:.2f})" for value in values]
    return [f"{size:,}", "queue" if queue else "at once", *texts]


HEADER = (
    "devices",
    "trials",
    "makespan ASHA / RASDA",
    "ours / RASDA",
    "ours / ASHA",
    "ours / best static",
    "first full ours / ASHA",
    "RASDA / ASHA",
    "device hours RASDA / ASHA",
    "ours / ASHA",
)


def main(argv: list[str] | None = None) -> dict[str, Any]:
    """Simulate what is missing, print the table, keep the result."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--parts", default="grid,speed,ray", help="grid, speed, ray, or several with commas")
    parser.add_argument("--grid", default="band,claim", help="band, claim, whole, or several with commas")
    parser.add_argument("--devices", default=",".join(map(str, DEVICES)), help="sizes of clusters")
    parser.add_argument("--policies", default=",".join((*NAMES, *STATIC)), help="what is simulated")
    parser.add_argument("--seeds", type=int, default=30)
    parser.add_argument("--processes", type=int, default=1)
    parser.add_argument("--cells", type=Path, default=RESULTS / "schedule", help="where finished cells are kept")
    add_arguments(parser)
    arguments = parser.parse_args(argv)
    devices = [int(size) for size in arguments.devices.split(",")]
    parts, names = arguments.parts.split(","), arguments.policies.split(",")
    numbers: dict[str, Any] = {}
    lines: list[list[str]] = []
    if "grid" in parts:
        kept = Kept(arguments.cells, names)
        cells = list(dict.fromkeys(cell for kind in arguments.grid.split(",") for cell in grid(kind, devices)))
        with ProcessPoolExecutor(arguments.processes) as pool:
            tasks = list(missing(kept, cells, names, arguments.seeds))
            for done, (name, cell, rows) in enumerate(pool.map(work, tasks), start=1):
                kept.add(name, cell, rows)
                progress(f"{done} of {len(tasks)}: {name} {tuple(cell)}")
        numbers, lines = summary(kept, devices, arguments.seeds)
        print(table(HEADER, lines))
    if "speed" in parts:
        numbers["simulated_seconds_10000_workers"] = simulated_seconds()
    if "ray" in parts:
        numbers |= {name: value for name, value in ray.main([])["summary"].items() if name.startswith("ray_")}
    result = {
        "benchmark": "schedule",
        "environment": environment(),
        "seeds": arguments.seeds,
        "summary": numbers,
        "table": {"header": HEADER, "rows": lines},
    }
    finish(result, arguments)
    return result


def missing(
    kept: Kept, cells: Sequence[Cell], names: Sequence[str], seeds: int
) -> Iterator[tuple[str, Cell, list[int]]]:
    """Yield what is still to be simulated; static sizes for the table only."""
    for cell, name in itertools.product(cells, names):
        have = kept.values.get((name, cell), {})
        wanted = [seed for seed in range(seeds) if seed not in have]
        if wanted and (name not in STATIC or cell[2:] == SHOWN):
            yield name, cell, wanted


if __name__ == "__main__":
    main()
