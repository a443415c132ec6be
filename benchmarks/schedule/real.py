"""Does MarginalGain end before ASHA on real processes as the simulator says: four local devices, epochs that sleep.

Processes, groups, checkpoints and moves are real; an epoch on m devices sleeps 1 / m^0.9 of one on a single device, so
that any machine will do, and the loss is a formula of the trial and the epoch, so that the simulator knows the curves
of trials that were stopped. It is told how long a start and a move took on average in the real study. Epochs are long
because the policy counts with restarts of 30 seconds until it has measured some.

    python benchmarks/schedule/real.py --json [--seeds 3] [--epoch-seconds 32] [--trials 4,16]
"""

import argparse
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from benchmarks._report import add_arguments, environment, finish, progress, table

import trainwright as tw
from trainwright.engine.simulated.settings import Scaling
from trainwright.engine.simulated.simulation import simulate
from trainwright.engine.simulated.table import Table

DEVICES = 4
ALPHA = 0.9
EPOCHS = 8
POLICIES: dict[str, Any] = {"asha": tw.Fixed(1), "marginal-gain": tw.MarginalGain()}
HEADER = ("trials", "seed", "policy", "measured, s", "simulated, s", "full", "moves", "a move, s")


def loss(quality: float, epoch: int) -> float:
    """Return the loss of a trial at an epoch: curves that do not cross."""
    return quality + 1.0 / epoch


def train(trial: tw.Trial) -> None:
    """Sleep, and save what there is of a model."""
    import torch

    model = torch.nn.Linear(1, 1)
    trial.prepare(model, torch.optim.SGD(model.parameters(), lr=0.1))
    for epoch in trial.epochs():
        time.sleep(trial.params["seconds"] / trial.devices**ALPHA)
        trial.report(loss=loss(trial.params["quality"], epoch))


def scheduler(policy: str) -> tw.Scheduler:
    """Return ASHA with the policy of this name."""
    return tw.Scheduler(tw.ASHA(max_epochs=EPOCHS, min_epochs=1, eta=2), POLICIES[policy])


def measure(policy: str, trials: int, seed: int, seconds: float, engine: tw.Local) -> dict[str, float]:
    """Run a study, and simulate it with its own curves and its own mean time of a move."""
    space = tw.Space(quality=tw.Float(0.0, 1.0), seconds=tw.Constant(seconds))
    with tempfile.TemporaryDirectory() as folder:
        study = tw.Study(space, "min loss", directory=Path(folder) / "study", seed=seed, searcher=tw.RandomSearcher())
        study.run(train, trials=trials, scheduler=scheduler(policy), engine=engine, progress=False)
        found = study.trials
    begins = min(lease.started_at or 0.0 for trial in found for lease in trial.leases.values())
    ends = max(lease.ended_at or 0.0 for trial in found for lease in trial.leases.values())
    moves = [
        trial.reports[lease.resumed_epoch + 1].at - (before.ended_at or 0.0) - seconds / len(lease.devices) ** ALPHA
        for trial in found
        for number, lease in trial.leases.items()
        if (before := trial.leases.get(number - 1)) is not None
    ]
    first = [trial.reports[1].at - (trial.leases[1].started_at or 0.0) - seconds for trial in found]
    setting = tw.Simulated(
        cluster=tw.Cluster(1, DEVICES),
        task=Table(
            losses=tuple(np.array([[loss(t.params["quality"], e)] for e in range(1, EPOCHS + 1)]) for t in found),
            epoch_seconds=seconds,
            speed_jitter=0.0,
            in_order=True,
        ),
        scaling=Scaling(alpha=ALPHA),
        start_seconds=max(0.0, float(np.mean(first))),
        restart_seconds=max(0.0, float(np.mean(moves))) if moves else 0.0,
    )
    run = simulate(scheduler(policy), setting, trials=trials, seed=seed)
    return {
        "measured": ends - begins,
        "simulated": run.makespan_seconds,
        "full": sum(trial.epoch == EPOCHS for trial in found),
        "moves": len(moves),
        "move_seconds": float(np.mean(moves)) if moves else 0.0,
    }


def main(argv: list[str] | None = None) -> dict[str, Any]:
    """Run both policies with each seed, print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--epoch-seconds", type=float, default=32.0, help="of an epoch on one device")
    parser.add_argument("--trials", default=str(DEVICES), help="of a study, or several with commas")
    add_arguments(parser)
    arguments = parser.parse_args(argv)
    engine = tw.Local(workers=DEVICES)
    lines: list[list[str]] = []
    ratios: dict[str, list[float]] = {"measured": [], "simulated": []}
    gaps: list[float] = []
    for trials in map(int, arguments.trials.split(",")):
        for seed in range(arguments.seeds):
            found = {name: measure(name, trials, seed, arguments.epoch_seconds, engine) for name in POLICIES}
            for name, row in found.items():
                gaps.append(abs(row["simulated"] / row["measured"] - 1.0))
                numbers = [f"{row[key]:.1f}" for key in ("measured", "simulated")]
                counts = [f"{row['full']:.0f}", f"{row['moves']:.0f}", f"{row['move_seconds']:.2f}"]
                lines.append([str(trials), str(seed), name, *numbers, *counts])
                progress(" ".join(lines[-1]))
            for kind, values in ratios.items():
                values.append(found["marginal-gain"][kind] / found["asha"][kind])
    print(table(HEADER, lines))
    result = {
        "benchmark": "schedule_real",
        "environment": environment(),
        "summary": {
            **{f"ours_over_asha_makespan_{kind}": float(np.mean(values)) for kind, values in ratios.items()},
            "ours_over_asha_makespan_measured_worst": max(ratios["measured"]),
            "makespan_error_mean": float(np.mean(gaps)),
            "makespan_error_worst": max(gaps),
        },
        "table": {"header": HEADER, "rows": lines},
    }
    finish(result, arguments)
    return result


if __name__ == "__main__":
    main()
