"""A study in a chain of Slurm jobs of two nodes, each ended in another way: what ends cost, and what comes out.

Slurm is a controller and two daemons on this machine. Jobs are told to leave by SIGTERM, SIGUSR1 or a file, cancelled,
preempted by a job of another partition and put back into the queue, or run into a limit; nodes lose all their processes
and their daemon, and the job is put back into the queue or goes on with the other node; arrays work on the study, too.
At most so many steps as lie between two saves may be repeated by each of two trials. The weights are compared with
those of the same study in one process that nobody disturbed, to the bit. All shapes run at once, each on a Slurm of
its own.

    python benchmarks/schedule/chain.py --json [--shapes "1 rank" ...] [--kinds TERM ...] [--results FILE]
"""

import argparse
import importlib
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from benchmarks._report import add_arguments, finish_table, progress

import trainwright as tw

__all__ = ["KINDS", "REPEATED", "SHAPES", "main", "run_chain"]

ROOT = Path(__file__).resolve().parents[2]
TESTS = ROOT / "tests" / "study"
TRIALS, STEPS, PACE_SECONDS = 2, 1500, 0.1
KINDS = (
    "time limit",
    *("TERM", "USR1", "cancelled", "preempted", "node killed", "array", "leave", "node lost", "wall seconds") * 3,
    "time limit",
    "time limit",
)
SHAPES = {"1 rank": (1, 1), "2 ranks": (2, 1), "2 nodes": (2, 2)}
"""The ranks of a trial, and on how many nodes they are."""
REPEATED = 20
"""Steps that may be repeated where a job is killed: ten lie between two saves of each trial."""
PATIENCE_SECONDS = 300.0
HEADER = (
    "a trial's ranks",
    "jobs",
    "runs",
    "steps",
    "repeated",
    "most at once",
    "job to first step, s",
    "resume, s",
    "blamed, abandoned",
    "equal weights",
)
STUDY = """\
[study]
train = "within_training:train"
objectives = "min loss"
directory = "{directory}"
seed = 5
trials = {trials}
[space.lr]
kind = "float"
low = 0.01
high = 0.1
[searcher]
name = "RandomSearcher"
[rule]
name = "FixedEpochs"
max_epochs = 3
[policy]
name = "Fixed"
devices = {ranks}
"""
# All that Slurm signals are processes that a shell in between has started.
JOB = """\
#!/bin/bash
#SBATCH {shape} --time={minutes} --requeue --open-mode=append --output={log}
date +%s.%N >> {folder}/starts
worker="{python} -m trainwright worker {file} --workers {workers} {options}"
srun --no-kill --kill-on-bad-exit=0 bash -c "$worker; exit \\$?"
"""


class Chain:
    """Jobs of one study, one after another."""

    def __init__(self, folder: Path, slurm: Any, ranks: int, nodes: int) -> None:
        self.folder, self.slurm, self.ranks, self.nodes = folder, slurm, ranks, nodes
        self.directory = folder / "study"
        paths = os.pathsep.join([str(ROOT / "src"), str(TESTS)])
        threads = {"OMP_NUM_THREADS": "1", "WITHIN_STEPS": str(STEPS)}
        self.environment = {**os.environ, **(slurm.environment if slurm else {}), **threads, "PYTHONPATH": paths}
        self.file = folder / "study.toml"
        self.file.write_text(STUDY.format(directory=self.directory, trials=TRIALS, ranks=ranks))

    def call(self, *command: str, text: str | None = None, check: bool = True) -> str:
        """Return what a command of Slurm prints."""
        return subprocess.run(
            command, env=self.environment, input=text, capture_output=True, text=True, check=check
        ).stdout.strip()

    def submit(self, kind: str) -> str:
        """Submit a job, and return its number."""
        shape = f"--nodes={2 if kind != 'array' or self.nodes > 1 else 1} --ntasks-per-node=1"
        # Tasks of an array have a node each where a trial has one, else they share both.
        shape += {"array": " --array=0-1" + " --exclusive" * (self.nodes == 1), "node lost": " --no-kill"}.get(kind, "")
        options = f"--quiet --grace 20 --gang {self.nodes}" + " --wall-seconds 15" * (kind == "wall seconds")
        job = JOB.format(
            shape=shape,
            minutes=1 if kind == "time limit" else 30,
            log=self.folder / "jobs.log",
            folder=self.folder,
            python=sys.executable,
            file=self.file,
            workers=self.ranks // self.nodes,
            options=options,
        )
        return self.call("sbatch", "--parsable", "--chdir", str(self.folder), text=job)

    def states(self, job: str) -> set[str]:
        """Return the states of a job, or of those of an array; none of them once it has ended."""
        return set(self.call("squeue", "--noheader", "--format=%T", "--jobs", job, check=False).split())

    def wait(self, condition: Callable[[], bool]) -> None:
        """Wait for something that a job does. Raises `TimeoutError` with the end of its log."""
        deadline = time.monotonic() + PATIENCE_SECONDS
        while not condition():
            if time.monotonic() > deadline:
                raise TimeoutError((self.folder / "jobs.log").read_text()[-3000:])
            time.sleep(0.3)

    def steps(self) -> list[tuple[int, int, int, float]]:
        """Return (trial, epoch, step, time) of every step that was computed, in order."""
        path = Path(f"{self.directory}.log")
        lines = [line.split() for line in path.read_text().splitlines()] if path.exists() else []
        return [(int(trial), int(epoch), int(step), float(at)) for trial, epoch, step, _, at in lines]

    def starts(self) -> list[float]:
        """Return when jobs started, those anew that were put back into the queue."""
        path = self.folder / "starts"
        return sorted(map(float, path.read_text().split())) if path.exists() else []

    def work(self, job: str, steps: int, *, of_all: bool) -> None:
        """Wait until trials have computed so many more steps: all of them or any, or until the job has ended."""
        before = Counter(trial for trial, *_ in self.steps())

        def is_further() -> bool:
            now = Counter(trial for trial, *_ in self.steps())
            enough = [now[trial] >= before[trial] + steps for trial in range(TRIALS)]
            return (all(enough) if of_all else any(enough)) or not self.states(job)

        self.wait(is_further)

    def run(self, kind: str) -> None:
        """Run a job until it ends, in the way that its kind says."""
        job = self.submit(kind)
        self.wait(lambda: bool(self.states(job)))
        if kind not in {"time limit", "wall seconds"}:
            # A gang trains one trial after the other.
            self.work(job, 5, of_all=self.nodes == 1)
            self.end(job, kind)
        self.wait(lambda: not self.states(job))
        self.slurm.wait_for_nodes()

    def end(self, job: str, kind: str) -> None:
        """End a job, or what is left of it."""
        lives = len(self.starts())
        if kind in {"TERM", "USR1"}:
            self.call("scancel", f"--signal={kind}", job)
            return
        if kind == "leave":
            (self.directory / "leave").touch()
            return
        if kind == "preempted":
            text = "#!/bin/bash\nsleep 1\n"
            self.call("sbatch", "--partition=urgent", "--nodes=2", "--exclusive", "--output=/dev/null", text=text)
        if kind in {"node killed", "node lost"}:
            self.slurm.kill_node("node1")
        if kind in {"preempted", "node killed"}:
            self.wait(lambda: "RUNNING" not in self.states(job))
        if kind == "node killed":
            self.slurm.start_node("node1")
        if kind in {"preempted", "node killed"}:
            self.wait(lambda: len(self.starts()) > lives)
        if kind in {"preempted", "node killed", "node lost"}:
            # A gang that has lost a node leaves, for it has too few devices for its trial.
            self.work(job, 5, of_all=False)
        self.call("scancel", job, check=False)
        if kind == "node lost":
            self.slurm.start_node("node1")

    def finish(self) -> list[str]:
        """Run the study to its end without a batch system, and return the weights of its trials."""
        Path(f"{self.directory}.pace").unlink(missing_ok=True)
        command = [sys.executable, "-m", "trainwright", "worker", str(self.file), "--workers", str(self.ranks)]
        subprocess.run([*command, "--quiet"], env=self.environment, check=True)
        return [Path(f"{self.directory}.weights-{trial}").read_text() for trial in range(TRIALS)]


def read_costs(chain: Chain) -> dict[str, Any]:
    """Return what the ends of a chain have cost."""
    steps = chain.steps()
    seen: set[tuple[int, int, int]] = set()
    again = []
    for trial, epoch, step, at in steps:
        if (trial, epoch, step) in seen:
            again.append(at)
        seen.add((trial, epoch, step))
    starts = [*chain.starts(), time.time()]
    lives = list(pairwise(starts))
    first = [next((at for *_, at in steps if begin < at < end), None) for begin, end in lives]
    with tw.Study.open(chain.directory) as study:
        trials = study.trials
        leases = {trial.number: sorted(e.started_at or 0.0 for e in trial.leases.values()) for trial in trials}
        abandoned = study.state.counts["abandoned"]
    resumes = [
        min(after) - begin
        for number, begun in leases.items()
        for begin, end in list(pairwise([*begun, time.time()]))[1:]
        if (after := [at for trial, *_, at in steps if trial == number and begin < at < end])
    ]
    return {
        "runs": sum(map(len, leases.values())),
        "steps": len(seen),
        "repeated": len(again),
        "repeated_most": max(sum(begin < at < end for at in again) for begin, end in lives),
        "first_step_seconds": [at - begin for at, (begin, _) in zip(first, lives, strict=True) if at is not None],
        "resume_seconds": resumes,
        "blamed": sum(trial.blamed_losses for trial in trials),
        "abandoned": abandoned,
    }


def run_chain(folder: Path, slurm: Any, shape: str, kinds: Sequence[str] = KINDS) -> dict[str, Any]:
    """Run a chain of jobs and return what it has cost, and whether its weights are those of an undisturbed study."""
    chain = Chain(folder, slurm, *SHAPES[shape])
    Path(f"{chain.directory}.pace").write_text(str(PACE_SECONDS))
    for number, kind in enumerate(kinds, 1):
        chain.run(kind)
        costs = read_costs(chain)
        progress(f"{shape}: {number} {kind}: {costs['repeated']} of {costs['steps']} steps repeated")
        if costs["blamed"]:
            raise RuntimeError((folder / "jobs.log").read_text()[-3000:])
    whole = folder / "undisturbed"
    whole.mkdir()
    equal = chain.finish() == Chain(whole, None, *SHAPES[shape]).finish()
    return {"jobs": len(kinds), **costs, "equal": equal}


def main(argv: list[str] | None = None) -> dict[str, Any]:
    """Run a chain of each shape, print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--shapes", nargs="+", choices=list(SHAPES), default=list(SHAPES))
    parser.add_argument(
        "--kinds", nargs="+", choices=sorted({*KINDS}), default=list(KINDS), help="of the jobs, in order"
    )
    add_arguments(parser)
    arguments = parser.parse_args(argv)
    sys.path.append(str(TESTS))
    clusters = importlib.import_module("clusters")
    if why := clusters.missing_for_slurm():
        parser.error(why)

    def measure(shape: str) -> dict[str, Any]:
        with tempfile.TemporaryDirectory(prefix="chain-") as name:
            folder = Path(name)
            (folder / "slurm").mkdir()
            with clusters.slurm_of(folder / "slurm", nodes=2) as slurm:
                return run_chain(folder, slurm, shape, arguments.kinds)

    rows: list[list[str]] = []
    numbers: dict[str, float] = {}
    # Most of the time is waiting.
    with ThreadPoolExecutor() as pool:
        costs = dict(zip(arguments.shapes, pool.map(measure, arguments.shapes), strict=True))
    for shape, found in costs.items():
        times = [found.pop("first_step_seconds"), found.pop("resume_seconds")]
        spans = [f"{statistics.median(each):.1f}, at most {max(each):.1f}" for each in times]
        counts = [str(found[key]) for key in ("jobs", "runs", "steps", "repeated", "repeated_most")]
        blame = f"{found['blamed']}, {found['abandoned']}"
        rows.append([shape, *counts, *spans, blame, "yes" if found["equal"] else "no"])
        key = shape.replace(" ", "_")
        numbers |= {f"{name}_{key}": float(value) for name, value in found.items()}
        numbers |= {f"first_step_seconds_{key}": max(times[0]), f"resume_seconds_{key}": max(times[1])}
    return finish_table("schedule_chain", arguments, HEADER, rows, numbers, kinds=Counter(arguments.kinds))


if __name__ == "__main__":
    main()
