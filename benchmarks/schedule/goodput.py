"""Devices and batch by goodput, on the measured step times and gradient noise of Sia's traces.

Time until a study has a complete trial as good as all of the schedulers find in it ("to the reference"), until it ends,
and device hours, each over those of ASHA with the batch held on 4 devices a trial. An epoch is an eighth of the
progress of the published run of the reference batch (128, 200); its noise is that run's, read at its progress. Step
times are interpolated in the samples of a device, and on more than 16 devices go on with the slope of the last
doubling. RASDA and MarginalGain are shown with the batch held, too. "at once": as many trials as there is room for;
"queue": four times as many. Restarts take a tenth of an epoch. "bound" is what no schedule beats that starts trials in
their order, on 4 devices for an epoch at least: the first that is good enough then gets all devices, and is as fast as
any number of them and any batch would make it. The traces state no licence, and are read from a folder.

    python benchmarks/schedule/goodput.py --data FOLDER --json [--seeds 8] [--devices 64] [--results FILE]
"""

import argparse
import csv
import math
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import numpy as np
from benchmarks._report import add_arguments, finish_table, progress
from benchmarks.schedule.paired import average, entered, shown

import trainwright as tw
from trainwright.engine.simulated.settings import GoodputScaling
from trainwright.engine.simulated.simulation import simulate
from trainwright.engine.simulated.state import SimulatedStudy
from trainwright.engine.simulated.task import Parametric

__all__ = ["main", "traced"]

START, EPOCHS, EPOCH_SECONDS, RESTART = 4, 8, 1000.0, 0.1
MODELS = {"cifar10": 128, "imagenet": 200}
PLACEMENTS = {"dgx": ("4", "8", "88"), "rtx": ("4", "8", "88"), "aws": ("4", "44", "4444")}
RULE = tw.ASHA(max_epochs=EPOCHS, min_epochs=1, eta=2, cutoff="quantile")
# By name: the policy, and whether trials choose their batch.
CONTENDERS: dict[str, tuple[Any, bool]] = {
    "ASHA": (tw.Fixed(START), False),
    "RASDA as published": (tw.DoublingAsPublished(start=START), False),
    "RASDA": (tw.Doubling(start=START), False),
    "MarginalGain": (tw.MarginalGain(start=START), False),
    "ASHA, batch by goodput": (tw.Fixed(START), True),
    "RASDA, batch by goodput": (tw.Doubling(start=START), True),
    "goodput": (tw.MarginalGain(start=START), True),
}


def traced(folder: Path, model: str, machine: str) -> GoodputScaling:
    """Return how a model's trials are as fast as measured on a machine."""
    placements = PLACEMENTS[machine]
    times: dict[str, dict[float, float]] = {}
    with (folder / model / f"placements-{machine}.csv").open() as file:
        for row in csv.DictReader(file):
            times.setdefault(row["placement"], {})[float(row["local_bsz"])] = float(row["step_time"])
    limit = int(max(times[placements[0]]))
    reference = MODELS[model]

    def at(placement: str, samples: float) -> float:
        known = sorted(times[placement])
        return float(np.interp(samples, known, [times[placement][each] for each in known]))

    def step_seconds(devices: int, batch: int) -> float:
        accumulate = math.ceil(batch / devices / limit)
        samples = batch / devices / accumulate
        place = min(int(math.log2(devices / START)), 2)
        seconds = at(placements[place], samples)
        beyond = max(0.0, seconds - at(placements[1], samples)) * max(0.0, math.log2(devices / 16))
        return accumulate * (seconds + beyond)

    with (folder / model / f"validation-{reference}.csv").open() as file:
        rows = [{name: float(value) for name, value in row.items()} for row in csv.DictReader(file)]
    done = [row["progress"] for row in rows]
    # The variance is that of a gradient of the reference batch.
    noises = [row["grad_var"] / row["grad_sqr"] * reference for row in rows]
    batches = [int(path.stem.split("-")[1]) for path in (folder / model).glob("validation-*.csv")]
    return GoodputScaling(
        step_seconds=step_seconds,
        noise=lambda epoch: float(np.interp(epoch / EPOCHS * done[-1], done, noises)),
        reference=reference,
        largest=max(batches),
        micro_batch=limit,
    )


def play(scaling: GoodputScaling, devices: int, trials: int, seed: int) -> dict[str, tuple[float, float, float]]:
    """Return, by contender, the seconds to the reference and to the end, and the device seconds, of one study."""
    task = Parametric(epoch_seconds=EPOCH_SECONDS)
    studies: dict[str, SimulatedStudy] = {}
    for name, (policy, chooses) in CONTENDERS.items():
        engine = tw.Simulated(
            cluster=tw.Cluster(devices // 4, 4),
            task=task,
            task_devices=START,
            scaling=replace(scaling, chooses=chooses),
            restart_seconds=RESTART * EPOCH_SECONDS,
        )
        studies[name] = simulate(tw.Scheduler(RULE, policy), engine, trials=trials, seed=seed)
    # What every one of them finds: the worst of their best complete trials.
    reference = max(study.full_loss for study in studies.values())
    curves = task.learning_curves(seed)
    found = {}
    for name, study in studies.items():
        ends = [hold for hold in study.gantt if hold.why == "full"]
        reached = min(hold.end for hold in ends if curves.of(hold.trial, None).losses(EPOCHS)[0] <= reference)
        found[name] = reached, study.makespan_seconds, study.device_seconds
    good = [trial for trial in range(trials) if curves.of(trial, None).losses(EPOCHS)[0] <= reference]
    found["bound"] = find_bound(scaling, devices, curves, good), math.nan, math.nan
    return found


def find_bound(scaling: GoodputScaling, devices: int, curves: Any, good: list[int]) -> float:
    """Return the seconds in which no schedule that starts trials in their order can have one of the `good` ones."""
    first = min(curves.of(trial, None).seconds(1) for trial in range(max(good) + 1))
    sizes = [START << doublings for doublings in range(int(math.log2(devices / START)) + 1)]
    batches = [batch for doublings in range(12) if (batch := scaling.reference << doublings) <= scaling.largest]
    fastest = [
        max(scaling.pace(size, batch, epoch, START) for size in sizes for batch in batches if batch >= size)
        for epoch in range(EPOCHS)
    ]
    bounds = []
    for trial in good:
        epoch = curves.of(trial, None).seconds(1)
        bounds.append(trial // (devices // START) * first + epoch + sum(epoch / pace for pace in fastest[1:]))
    return float(min(bounds))


def main(argv: list[str] | None = None) -> dict[str, Any]:
    """Simulate, print the table, keep the result."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path, required=True, help="Sia's traces, with folders cifar10 and imagenet")
    parser.add_argument("--seeds", type=int, default=8, help="studies of a row")
    parser.add_argument("--devices", type=int, default=64)
    add_arguments(parser)
    arguments = parser.parse_args(argv)
    numbers: dict[str, float] = {}
    rows: list[list[str]] = []
    for model in MODELS:
        for machine in PLACEMENTS:
            scaling = traced(arguments.data, model, machine)
            for queue in (False, True):
                trials = arguments.devices // START * (4 if queue else 1)
                runs = [play(scaling, arguments.devices, trials, seed) for seed in range(arguments.seeds)]
                place = f"{model}, {machine}, {'queue' if queue else 'at once'}"
                texts = []
                bounds = average(np.array([run["bound"][0] / run["ASHA"][0] for run in runs]))
                for name in list(CONTENDERS)[1:]:
                    ratios = np.array([np.divide(run[name], run["ASHA"]) for run in runs])
                    key = f"{name}_{place}".lower().replace(", ", "_").replace(" ", "_")
                    for kind, values in zip(("reference", "end", "device_hours"), ratios.T, strict=True):
                        numbers |= entered(f"{kind}_{key}", average(values))
                        worst = f"worst_{kind}_{name}_{'queue' if queue else 'once'}".lower().replace(", ", "_")
                        worst = worst.replace(" ", "_")
                        numbers[worst] = max(numbers.get(worst, 0.0), float(values.mean()))
                    reached = shown(average(ratios[:, 0])) if name == "goodput" else f"{ratios[:, 0].mean():.2f}"
                    texts.append(f"{reached}; {ratios[:, 1].mean():.2f}; {ratios[:, 2].mean():.2f}")
                numbers |= entered(f"bound_{place}".replace(", ", "_").replace(" ", "_"), bounds)
                rows.append([place, *texts, shown(bounds)])
                progress(" | ".join(rows[-1]))
    header = ["to the reference; to the end; device hours", *list(CONTENDERS)[1:], "bound"]
    return finish_table(
        "schedule_goodput", arguments, header, rows, numbers, seeds=arguments.seeds, devices=arguments.devices
    )


if __name__ == "__main__":
    main()
