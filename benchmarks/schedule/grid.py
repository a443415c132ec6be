"""The settings on which allocation policies are compared, their simulation, and what of it is kept.

Trials start on 4 devices, all at once or in a queue four times the cluster; eta = 2, rungs 1, 2, 4, ... below R;
speed on m times the devices is m^alpha, a restart takes c epochs. The rule is the same for all (ASHA, stopping), as
are seeds: ratios are paired.
"""

import hashlib
import itertools
import json
import math
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import NamedTuple

import numpy as np
from benchmarks._report import progress
from benchmarks.schedule.paired import Interval, average

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

__all__ = [
    "DEVICES",
    "DEVICE_SECONDS",
    "FIRST_FULL",
    "LOSS",
    "MAKESPAN",
    "NAMES",
    "STALLS",
    "START",
    "STATIC",
    "Cell",
    "Kept",
    "Seeds",
    "grid",
]

START = 4
EPOCH_SECONDS = 1000.0
DEVICES = (64, 128, 256, 512, 1024, 4096)
NAMES = ("asha", "rasda", "marginal-gain")
STATIC = ("static-8", "static-16")  # beside asha, which is static-4


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


MAKESPAN, FIRST_FULL, DEVICE_SECONDS, LOSS, FULL, UTILISATION, STALLS = range(7)


def measured(run: Run) -> list[float]:
    """Return what is kept of a study."""
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


@dataclass(frozen=True, kw_only=True)
class Seeds:
    """How many studies of a setting: many where something must hold, few in the rest."""

    most: int = 30
    few: int = 5

    def of(self, cell: Cell) -> int:
        """Return the number for a cell."""
        return self.most if cell in _bands(cell.devices) else self.few


class Kept:
    """Finished cells, a line each in a file for each policy; those of a policy that decides otherwise now are void."""

    def __init__(self, folder: Path, names: Sequence[str], seeds: Seeds) -> None:
        self._folder = folder
        self._seeds = seeds
        self._canaries = {name: canary(name) for name in names}
        self._values: dict[tuple[str, Cell], dict[int, list[float]]] = {}
        for name in names:
            path = self._path(name)
            for line in path.read_text().splitlines() if path.exists() else ():
                kept = json.loads(line)
                if kept["canary"] == self._canaries[name]:
                    rows = {
                        int(seed): [math.inf if v is None else v for v in row] for seed, row in kept["rows"].items()
                    }
                    self._values.setdefault((name, Cell(*kept["cell"])), {}).update(rows)

    def simulate(self, cells: Sequence[Cell], names: Sequence[str], processes: int) -> None:
        """Simulate what is missing and keep it."""
        tasks = [(name, cell, seeds) for cell in cells for name in names if (seeds := self._missing(name, cell))]
        with ProcessPoolExecutor(processes) as pool:
            for done, (name, cell, rows) in enumerate(pool.map(work, tasks), start=1):
                self._add(name, cell, rows)
                progress(f"{done} of {len(tasks)}: {name} {tuple(cell)}")

    def rows(self, name: str, cell: Cell) -> np.ndarray | None:
        """Return (seeds, measures), None if a seed is missing."""
        if self._missing(name, cell):
            return None
        kept = self._values[name, cell]
        return np.array([kept[seed] for seed in range(self._seeds.of(cell))])

    def ratio(self, cell: Cell, pair: tuple[str, str], measure: int) -> Interval | None:
        """Return the paired ratio of a measure with its interval, None if a study stalled or is missing."""
        mine, other = (self.rows(name, cell) for name in pair)
        if mine is None or other is None or mine[:, STALLS].any() or other[:, STALLS].any():
            return None
        return average(mine[:, measure] / other[:, measure])

    def _missing(self, name: str, cell: Cell) -> list[int]:
        have = self._values.get((name, cell), {})
        return [seed for seed in range(self._seeds.of(cell)) if seed not in have]

    def _add(self, name: str, cell: Cell, rows: dict[int, list[float]]) -> None:
        self._values.setdefault((name, cell), {}).update(rows)
        self._folder.mkdir(parents=True, exist_ok=True)
        plain = {seed: [v if math.isfinite(v) else None for v in row] for seed, row in rows.items()}
        line = json.dumps({"canary": self._canaries[name], "cell": list(cell), "rows": plain})
        with self._path(name).open("a") as file:
            file.write(line + "\n")

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


@cache
def _bands(devices: int) -> frozenset[Cell]:
    return frozenset(grid("band", [devices])) | frozenset(grid("claim", [devices]))
