"""Makespan and device hours of allocation policies, at measured speeds, on simulated clusters.

All schedulers are the public ones, by `study.simulate`: ASHA by quantiles on 4 devices a trial, `tw.RASDA`, the same as
published, ASHA with `tw.MarginalGain`, and ASHA on the best fixed size (of 4, 8 and 16). Speeds are those of
`speeds.py`, first with the batch held (the default of elastic training), then with the batch grown, which changes what
is learnt: that is not simulated. Trials have 8 epochs and rungs at 1, 2 and 4; a restart takes a tenth of an epoch.

Parts: `speeds`, all on 256 devices, and one model on 64 and 1,024; `speed`, the seconds to simulate 100,000 trials on
10,000 workers; `ray` is `benchmarks/ray/run.py`. Parts that are not asked for stay as the results file has them.

    python benchmarks/schedule/run.py --json [--parts speeds,speed,ray] [--seeds 20] [--results FILE]
"""

import argparse
import json
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import numpy as np
from benchmarks._report import add_arguments, environment, finish, progress, table
from benchmarks.ray import run as ray
from benchmarks.schedule.paired import average, shown
from benchmarks.schedule.speeds import SPEEDS

import trainwright as tw
from trainwright.engine.simulated.simulation import simulate
from trainwright.engine.simulated.task import Parametric
from trainwright.study import Forecast

START = 4
EPOCHS = 8
EPOCH_SECONDS = 1000.0
RESTART = 0.1  # of an epoch
RULE = tw.ASHA(max_epochs=EPOCHS, min_epochs=1, eta=2, cutoff="quantile")
SCHEDULERS: dict[str, tw.Scheduler] = {
    "ASHA": tw.Scheduler(RULE, tw.Fixed(START)),
    "RASDA as published": tw.RASDA(max_epochs=EPOCHS, start=START, as_published=True),
    "RASDA": tw.RASDA(max_epochs=EPOCHS, start=START),
    "MarginalGain": tw.Scheduler(RULE, tw.MarginalGain(start=START)),
    "best fixed size": tw.Scheduler(RULE, tw.BestStatic(sizes=(4, 8, 16))),
}
OURS = ("RASDA", "MarginalGain")
HEADER = (
    "batch, model, machine (speed x2, x4)",
    "devices",
    "trials",
    *(f"ASHA / {name}" for name in list(SCHEDULERS)[1:]),
    "device hours RASDA / ASHA",
    "MarginalGain / ASHA",
    "first full MarginalGain / ASHA",
)


class Setting(NamedTuple):
    """A cluster, and how fast a model is on it."""

    batch: str
    model: str
    machine: str
    devices: int = 256

    @property
    def speeds(self) -> tuple[float, float]:
        """The speed-ups on twice and four times the devices of a new trial."""
        return SPEEDS[self.model, self.machine][self.batch]

    @property
    def name(self) -> str:
        """How a table calls it."""
        return f"{self.batch}, {self.model}, {self.machine}"

    def engine(self) -> tw.Simulated:
        """Return the cluster, in nodes of 4."""
        twice, four = self.speeds
        return tw.Simulated(
            cluster=tw.Cluster(self.devices // 4, 4),
            task=Parametric(epoch_seconds=EPOCH_SECONDS),
            task_devices=START,
            scaling=tw.Scaling(curve={2: twice, 4: four}),
            restart_seconds=RESTART * EPOCH_SECONDS,
        )


def settings() -> Iterator[Setting]:
    """Yield the rows' settings: all with the batch held, then all with the batch grown."""
    for batch in ("held", "grown"):
        for model, machine in SPEEDS:
            sizes = (64, 256, 1024) if (model, machine) == ("ImageNet", "DGX") else (256,)
            for devices in sizes:
                yield Setting(batch, model, machine, devices)


def forecasts(setting: Setting, seeds: int, trials: int) -> dict[str, Forecast]:
    """Simulate all schedulers, under the same draws."""
    study = tw.Study(tw.Space(x=tw.Float(0, 1)), "min loss", seed=0)
    engine = setting.engine()
    return study.simulate(SCHEDULERS, engine=engine, trials=trials, seeds=seeds)


def values(found: Forecast, measure: str) -> np.ndarray:
    """Return a measure of all studies."""
    return np.array([getattr(run, measure) for run in found.runs])


def ratio(over: Forecast, under: Forecast, measure: str = "makespan_seconds") -> tuple[float, float, float]:
    """Return the mean of paired ratios with its interval."""
    return average(values(over, measure) / values(under, measure))


def measure_speeds(seeds: int) -> tuple[dict[str, float], list[list[str]]]:
    """Return the numbers and rows of the table of makespans."""
    numbers: dict[str, float] = {}
    rows = []
    for setting in settings():
        for queue in (False, True):
            trials = setting.devices if queue else setting.devices // START
            found = forecasts(setting, seeds, trials)
            asha = found["ASHA"]
            ratios = {name: ratio(asha, each) for name, each in found.items() if name != "ASHA"}
            hours = [ratio(found[name], asha, "device_seconds") for name in OURS]
            first = ratio(found["MarginalGain"], asha, "first_full_seconds")
            place = [f"{setting.name} ({setting.speeds[0]:.2f}, {setting.speeds[1]:.2f})", f"{setting.devices:,}"]
            texts = [shown(value) for value in (*ratios.values(), *hours, first)]
            rows.append([*place, "queue" if queue else "at once", *texts])
            progress(" | ".join(rows[-1]))
            for name, value in ratios.items():
                kind = f"{name.lower().replace(' ', '_')}_{setting.batch}_{'queue' if queue else 'once'}"
                low, high = f"asha_over_{kind}_least", f"asha_over_{kind}_most"
                numbers[low] = min(value[0], numbers.get(low, value[0]))
                numbers[high] = max(value[0], numbers.get(high, value[0]))
    return numbers, rows


def simulated_seconds() -> float:
    """Return the seconds that 100,000 trials on 10,000 workers take to simulate."""
    rule = tw.ASHA(max_epochs=243, min_epochs=1, eta=3)  # 5 rungs
    engine = tw.Simulated(cluster=tw.Cluster(2500, 4), task=Parametric())
    began = time.perf_counter()
    simulate(tw.Scheduler(rule, tw.Fixed(1)), engine, trials=100_000, seed=0)
    return time.perf_counter() - began


def main(argv: list[str] | None = None) -> dict[str, Any]:
    """Simulate, print the table, keep the result."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--parts", default="speeds,speed,ray", help="speeds, speed and ray with commas")
    parser.add_argument("--seeds", type=int, default=20, help="studies of a setting")
    add_arguments(parser)
    arguments = parser.parse_args(argv)
    parts = [part for part in arguments.parts.split(",") if part]
    old: dict[str, Any] = {}
    if arguments.results is not None and arguments.results.exists():
        old = json.loads(arguments.results.read_text())
    numbers: dict[str, Any] = dict(old.get("summary", {}))
    rows: list[list[str]] = old.get("table", {}).get("rows", [])
    if "speeds" in parts:
        found, rows = measure_speeds(arguments.seeds)
        numbers |= found
    if "speed" in parts:
        numbers["simulated_seconds_10000_workers"] = simulated_seconds()
    if "ray" in parts:
        numbers |= {name: value for name, value in ray.main([])["summary"].items() if name.startswith("ray_")}
    print(table(HEADER, rows))
    result = {
        "benchmark": "schedule",
        "environment": environment(),
        "seeds": arguments.seeds,
        "summary": numbers,
        "table": {"header": HEADER, "rows": rows},
    }
    finish(result, arguments)
    return result


if __name__ == "__main__":
    main()
