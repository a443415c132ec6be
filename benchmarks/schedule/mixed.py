"""Nodes of different speed: what a schedule gains by knowing them, simulated, and in a real run with one slow worker.

Simulated: 64 devices in nodes of 4, of which every second is half as fast, or every fourth a quarter as fast; ASHA with
rungs up to 27 epochs, speeds on more devices as measured with the batch held (`speeds.py`, CIFAR-10 on DGX), restarts
of a tenth of an epoch. "unknown" is the same policy on the same nodes, told that all are alike. Time to the reference
(the worse of both schedules' best complete trials), to the end, and device hours: ratios of the means, known over
unknown, with 95 % bootstrap intervals over studies. Real: four trials of nine epochs on four local workers, the last of
which sleeps four times as long, beside the simulator, which is told how long a start took.

    python benchmarks/schedule/mixed.py --json [--seeds 20] [--epoch-seconds 3] [--results FILE]
"""

import argparse
import sys
import tempfile
import time
from pathlib import Path
from typing import Any
from unittest import mock

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import numpy as np
from benchmarks._report import add_arguments, finish_table, progress
from benchmarks.schedule.paired import entered, ratio, shown
from benchmarks.schedule.speeds import SPEEDS

import trainwright as tw
from trainwright.engine.simulated.simulation import simulate
from trainwright.engine.simulated.state import SimulatedStudy
from trainwright.schedule import DeviceAllocator

__all__ = ["main", "train"]

NODES, PER_NODE, EPOCH_SECONDS = 16, 4, 1000.0
CLUSTERS = {"half at 0.5": (1.0, 0.5), "a quarter at 0.25": (1.0, 1.0, 1.0, 0.25)}
POLICIES: dict[str, Any] = {"Fixed": tw.Fixed(1), "RASDA": tw.Doubling(), "MarginalGain": tw.MarginalGain()}
RULE = tw.ASHA(max_epochs=27, cutoff="quantile")
SLOW, SLOTS, EPOCHS = 0.25, 4, 9
HEADER = ("nodes", "trials", "policy", "to the reference", "to the end", "device hours")


def unaware(nodes: Any, policy: Any, source: Any, **settings: Any) -> DeviceAllocator:
    """Return an allocator that takes all nodes for equal."""
    slots = sum(node.devices for node in nodes)
    return DeviceAllocator(policy, source, policy.free_slots(slots, nodes[0].devices), slots=slots, **settings)


def play(cluster: tw.Cluster, policy: Any, trials: int, seed: int) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Return seconds to the reference and to the end, and device seconds, of a study with known and unknown speeds."""
    twice, four = SPEEDS["CIFAR-10", "DGX"]["held"]
    setting = tw.Simulated(
        cluster=cluster,
        task=tw.Parametric(epoch_seconds=EPOCH_SECONDS),
        task_devices=1,
        scaling=tw.Scaling(curve={2: twice, 4: four}),
        restart_seconds=0.1 * EPOCH_SECONDS,
    )
    scheduler = tw.Scheduler(RULE, policy)
    known = simulate(scheduler, setting, trials=trials, seed=seed)
    with mock.patch.object(DeviceAllocator, "on", unaware):
        unknown = simulate(scheduler, setting, trials=trials, seed=seed)
    reference, curves = max(known.full_loss, unknown.full_loss), setting.task.learning_curves(seed)

    def reached(run: SimulatedStudy) -> float:
        ends = (hold for hold in run.gantt if hold.why == "full")
        return min(hold.end for hold in ends if curves.of(hold.trial, None).losses(RULE.max_epochs)[0] <= reference)

    first, second = ((reached(run), run.makespan_seconds, run.device_seconds) for run in (known, unknown))
    return first, second


def train(trial: tw.Trial) -> None:
    """Sleep, longer on the slow worker, and save what there is of a model."""
    import torch

    lease = max(tw.Study.open(trial.params["folder"]).trials[trial.number].leases.items())[1]
    speed = SLOW if lease.devices == (f"cpu:{SLOTS - 1}",) else 1.0
    model = torch.nn.Linear(1, 1)
    trial.prepare(model, torch.optim.SGD(model.parameters(), lr=0.1))
    for epoch in trial.epochs():
        time.sleep(trial.params["seconds"] / speed)
        trial.report(loss=trial.number + 1 / epoch)


def measure(seconds: float, *, known: bool) -> tuple[float, float, int]:
    """Return the makespan of a real study and of the simulated one, and how many trials moved."""
    speeds = {f"cpu:{SLOTS - 1}": SLOW}
    scheduler = tw.Scheduler(tw.FixedEpochs(EPOCHS), tw.MarginalGain(cap=1))
    with tempfile.TemporaryDirectory() as folder:
        where = str(Path(folder) / "study")
        space = tw.Space(x=tw.Float(0.0, 1.0), seconds=tw.Constant(seconds), folder=tw.Constant(where))
        study = tw.Study(space, "min loss", directory=where, seed=0, searcher=tw.RandomSearcher())
        engine = tw.Local(workers=SLOTS, gpus=(), speeds=speeds if known else {})
        study.run(train, trials=SLOTS, scheduler=scheduler, engine=engine, progress=False)
        leases = [lease for trial in study.trials for lease in trial.leases.values()]
        first = [trial.reports[1].at - (trial.leases[1].started_at or 0.0) for trial in study.trials]
    began, ended = min(each.started_at or 0.0 for each in leases), max(each.ended_at or 0.0 for each in leases)
    # A start is what the first report of a fast worker took beyond its epoch.
    start = max(0.0, float(np.median(first)) - seconds)
    setting = tw.Simulated(
        cluster=tw.Cluster(SLOTS, 1, node_speeds=(1.0,) * (SLOTS - 1) + (SLOW,)),
        task=tw.Parametric(epoch_seconds=seconds, speed_jitter=0.0),
        start_seconds=start,
        restart_seconds=start,
    )
    if known:
        run = simulate(scheduler, setting, trials=SLOTS, seed=0)
    else:
        with mock.patch.object(DeviceAllocator, "on", unaware):
            run = simulate(scheduler, setting, trials=SLOTS, seed=0)
    return ended - began, run.makespan_seconds, len(leases) - SLOTS


def main(argv: list[str] | None = None) -> dict[str, Any]:
    """Simulate, run, print the table, keep the result."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=int, default=20, help="studies of a row")
    parser.add_argument("--epoch-seconds", type=float, default=3.0, help="of the real run; 0 leaves it out")
    add_arguments(parser)
    arguments = parser.parse_args(argv)
    numbers: dict[str, float] = {}
    rows: list[list[str]] = []
    for name, pattern in CLUSTERS.items():
        cluster = tw.Cluster(NODES, PER_NODE, node_speeds=pattern * (NODES // len(pattern)))
        for queue in (False, True):
            for kind, policy in POLICIES.items():
                trials = cluster.devices * (4 if queue else 1)
                known, unknown = np.swapaxes(
                    [play(cluster, policy, trials, seed) for seed in range(arguments.seeds)], 0, 1
                )
                ratios = [ratio(over, under) for over, under in zip(known.T, unknown.T, strict=True)]
                place = [name, "queue" if queue else "at once", kind]
                key = "_".join(place).lower().replace(" ", "_").replace(".", "")
                for what, values in zip(("reference", "end", "device_hours"), ratios, strict=True):
                    numbers |= entered(f"{what}_{key}", values)
                rows.append([*place, *map(shown, ratios)])
                progress(" | ".join(rows[-1]))
    if arguments.epoch_seconds:
        for told in (True, False):
            measured, simulated, moves = measure(arguments.epoch_seconds, known=told)
            word = "known" if told else "unknown"
            numbers |= {f"real_{word}_seconds": measured, f"real_{word}_simulated_seconds": simulated}
            rows.append(
                ["four local workers, one at 0.25", str(SLOTS), f"MarginalGain, {word}", "", f"{measured:.1f} s", ""]
            )
            progress(f"{word}: {measured:.1f} s, simulated {simulated:.1f} s, {moves} moves")
    return finish_table("schedule_mixed", arguments, HEADER, rows, numbers, seeds=arguments.seeds)


if __name__ == "__main__":
    main()
