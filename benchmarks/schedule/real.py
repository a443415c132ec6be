"""The simulator beside real runs on Local, Ray and Slurm: four devices, epochs that sleep, makespans of both.

Processes, groups, checkpoints and moves are real; an epoch sleeps as long as Sia's traces say of ImageNet on 1, 2 and 4
times the devices with the batch held (SOSP 2023), so that any machine will do. Successive halving decides, for which it
does not matter who reports first: under ASHA the same study took 58 s one time and 82 s the other, as other trials went
on. The loss is a formula of the trial and the epoch. What the simulator is told of an engine (how long a process, a
start, a restart and a resize take, and an epoch beside its sleep) is what `study.measured` says of another, short study
on that engine; nothing is fitted to the runs that are compared. Slurm is a controller and two daemons on this machine,
whose tasks form a gang of two nodes. `in_order`: of the `pairs` of policies that are more than a twentieth apart in the
simulation, how many were in the same order for real.

    python benchmarks/schedule/real.py --json [--engines local ray slurm] [--epoch-seconds 8] [--trials 8]
"""

import argparse
import importlib
import os
import subprocess
import sys
import tempfile
from dataclasses import replace
from itertools import permutations
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from benchmarks._report import add_arguments, finish_table, progress
from benchmarks.schedule.sleeping import SPEED, loss

import trainwright as tw
from trainwright.engine.simulated.settings import Scaling
from trainwright.engine.simulated.simulation import simulate
from trainwright.engine.simulated.table import Table

__all__ = ["main"]

ROOT = Path(__file__).resolve().parents[2]
DEVICES, EPOCHS = 4, 8
APART = 1.05
POLICIES = ("Fixed", "Doubling", "MarginalGain")
HEADER = ("engine", "policy", "trials", "measured, s", "simulated, s", "error", "full", "moves")
STUDY = """\
[study]
train = "benchmarks.schedule.sleeping:train"
objectives = "min loss"
directory = "{folder}"
seed = {seed}
trials = {trials}
[space.quality]
kind = "float"
low = 0.0
high = 1.0
[space.seconds]
kind = "float"
low = {least}
high = {most}
[searcher]
name = "RandomSearcher"
[rule]
name = "SuccessiveHalving"
max_epochs = {epochs}
min_epochs = 1
eta = 2
n = 8
[policy]
name = "{policy}"
[engine]
{engine}
"""
ENGINES = {
    "local": 'name = "Local"\nworkers = 4',
    "ray": 'name = "Ray"\nworkers = 4',
    "slurm": 'name = "Local"\nworkers = 2',
}


def scheduler(policy: str) -> tw.Scheduler:
    """Return successive halving with the policy of this name."""
    return tw.Scheduler(tw.SuccessiveHalving(n=8, max_epochs=EPOCHS, min_epochs=1, eta=2), getattr(tw, policy)())


def run_study(engine: str, launcher: tuple[dict[str, str], tuple[str, ...]], **settings: Any) -> tw.Study:
    """Run a study on an engine, by a study file as a user would, and return it."""
    folder = Path(tempfile.mkdtemp(prefix="real-"))
    path = folder / "study.toml"
    path.write_text(STUDY.format(folder=folder / "study", engine=ENGINES[engine], **settings))
    environment, before = launcher
    command = [*before, sys.executable, "-m", "trainwright", "worker", str(path), "--quiet"]
    if engine == "slurm":
        command += ["--gang", "2", "--workers", "2"]
    paths = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
    variables = {**os.environ, **environment, "PYTHONPATH": paths, "OMP_NUM_THREADS": "1"}
    subprocess.run(command, env=variables, check=True, cwd=folder, stdout=sys.stderr)
    return tw.Study.open(folder / "study")


def compare(study: tw.Study, policy: str, known: tw.Simulated) -> tuple[float, float, int, int]:
    """Return the makespans of a study, real and simulated, and how many trials were complete and moved."""
    trials = study.trials
    leases = [lease for trial in trials for lease in trial.leases.values()]
    began, ended = min(each.started_at or 0.0 for each in leases), max(each.ended_at or 0.0 for each in leases)
    # What an epoch takes beside its sleep: the median of the other study's.
    assert isinstance(known.task, Table)
    other = zip(known.task.seconds or (), known.task.params or (), strict=True)
    beside = float(np.median(np.concatenate([np.diff(row) - params["seconds"] for row, params in other])))
    task = Table(
        losses=tuple(np.array([[loss(t.params["quality"], e)] for e in range(1, EPOCHS + 1)]) for t in trials),
        seconds=tuple(np.arange(1, EPOCHS + 1) * (t.params["seconds"] + max(0.0, beside)) for t in trials),
        in_order=True,
    )
    setting = replace(known, task=task, scaling=Scaling(curve=SPEED))
    run = simulate(scheduler(policy), setting, trials=len(trials), seed=study.seed)
    full = sum(trial.epoch == EPOCHS for trial in trials)
    return ended - began, run.makespan_seconds, full, len(leases) - len(trials)


def measure(
    engine: str, launcher: tuple[dict[str, str], tuple[str, ...]], trials: int, seconds: float
) -> list[list[str]]:
    """Return the rows of an engine."""
    first = run_study(
        engine, launcher, seed=1, trials=8, least=1.4, most=2.8, epochs=8, policy="MarginalGain"
    )  # pauses, restarts and growth, too
    shape = (2, DEVICES // 2) if engine == "slurm" else (1, DEVICES)
    known = first.measured(tw.Cluster(*shape))
    costs = {name: getattr(known, f"{name}_seconds") for name in ("process", "start", "restart", "resize")}
    progress(f"{engine}: " + ", ".join(f"{name} {seconds:.2f}" for name, seconds in costs.items()))
    rows = []
    for policy in POLICIES:
        study = run_study(
            engine,
            launcher,
            seed=0,
            trials=trials,
            least=0.7 * seconds,
            most=1.4 * seconds,
            epochs=EPOCHS,
            policy=policy,
        )
        measured, simulated, full, moves = compare(study, policy, known)
        error = f"{100 * (simulated / measured - 1):+.1f} %"
        rows.append([engine, policy, str(trials), f"{measured:.1f}", f"{simulated:.1f}", error, str(full), str(moves)])
        progress(" ".join(rows[-1]))
    return rows


def main(argv: list[str] | None = None) -> dict[str, Any]:
    """Run both policies on each engine, print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--engines", nargs="+", choices=list(ENGINES), default=list(ENGINES))
    parser.add_argument("--epoch-seconds", type=float, default=8.0, help="of an epoch on one device")
    parser.add_argument("--trials", type=int, default=8)
    add_arguments(parser)
    arguments = parser.parse_args(argv)
    rows: list[list[str]] = []
    for engine in arguments.engines:
        if engine != "slurm":
            rows += measure(engine, ({}, ()), arguments.trials, arguments.epoch_seconds)
            continue
        sys.path.append(str(ROOT / "tests" / "study"))
        slurm = importlib.import_module("clusters")
        with tempfile.TemporaryDirectory() as folder, slurm.slurm_of(Path(folder), nodes=2) as two_nodes:
            launcher = (two_nodes.environment, ("srun", "-N", "2", "--ntasks-per-node=1", "--overcommit"))
            rows += measure(engine, launcher, arguments.trials, arguments.epoch_seconds)
    numbers: dict[str, float] = {}
    for engine, policy, _, measured, simulated, *_ in rows:
        key = f"{engine}_{policy}".lower()
        numbers |= {f"{key}_measured_seconds": float(measured), f"{key}_simulated_seconds": float(simulated)}
        numbers[f"{key}_error"] = float(simulated) / float(measured) - 1
    for engine in arguments.engines:
        # Of each pair of policies: simulated seconds, then measured ones.
        times = [(float(row[4]), float(row[3])) for row in rows if row[0] == engine]
        pairs = [(a, b) for a, b in permutations(times, 2) if a[0] > APART * b[0]]
        numbers |= {f"{engine}_pairs": len(pairs), f"{engine}_in_order": sum(a[1] > b[1] for a, b in pairs)}
    numbers["makespan_error_worst"] = max(abs(value) for key, value in numbers.items() if key.endswith("_error"))
    return finish_table("schedule_real", arguments, HEADER, rows, numbers, epoch_seconds=arguments.epoch_seconds)


if __name__ == "__main__":
    main()
