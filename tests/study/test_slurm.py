"""A chain of thirty jobs under Slurm on two nodes, each ended otherwise: nothing is lost, blamed or given up."""

import os
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import pytest
from clusters import missing_for_slurm, slurm_of

import trainwright as tw

HERE = Path(__file__).parent
TRIALS, STEPS, PACE_SECONDS = 2, 4000, 0.1
KINDS = ("TERM", "USR1", "cancelled", "requeued", "node killed", "leave", "array", "wall seconds") * 4
KINDS = ("time limit", *KINDS[:28], "time limit")
REPEATED = 20
"""Steps that a job may repeat whose node was killed: ten lie between two saves."""
PATIENCE_SECONDS = 300.0

FILE = """
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
JOB = """#!/bin/bash
#SBATCH {shape} --time={minutes} --requeue --open-mode=append --output={log}
{activate}
srun --kill-on-bad-exit=0 bash -c '{python} -m trainwright worker {file} --workers {ranks} {options}; exit $?'
"""


class Chain:
    """Jobs of one study, one after another."""

    def __init__(self, folder, environment, ranks, gang=1):
        self.folder, self.ranks, self.gang = folder, ranks, gang
        self.directory = folder / "study"
        paths = os.pathsep.join([str(HERE.parents[1] / "src"), str(HERE)])
        threads = {"OMP_NUM_THREADS": "1", "WITHIN_STEPS": str(STEPS)}
        self.environment = {**os.environ, **environment, **threads, "PYTHONPATH": paths}
        self.file = folder / "study.toml"
        self.file.write_text(FILE.format(directory=self.directory, trials=TRIALS, ranks=ranks))

    def slurm(self, *command, check=True, **settings):
        done = subprocess.run(command, env=self.environment, capture_output=True, text=True, check=check, **settings)
        return done.stdout

    def submit(self, kind):
        """Submit a job and return its number."""
        activate = Path(sys.prefix, "bin/activate")
        job = JOB.format(
            shape="--array=0-1 --nodes=1 --exclusive" if kind == "array" else "--nodes=2 --ntasks-per-node=1",
            minutes=1 if kind == "time limit" else 30,
            log=self.folder / "jobs.log",
            activate=f". {activate}" if activate.exists() else "",
            python=sys.executable,
            file=self.file,
            ranks=self.ranks // self.gang,
            options=f"--grace 20 --gang {self.gang}" + (" --wall-seconds 15" if kind == "wall seconds" else ""),
        )
        return self.slurm("sbatch", "--parsable", "--chdir", str(self.folder), input=job).strip()

    def state(self, job):
        """Return the states of a job, or of those of an array; none of them once it has ended."""
        return set(self.slurm("squeue", "--noheader", "--format=%T", "--jobs", job, check=False).split())

    def wait(self, condition):
        deadline = time.monotonic() + PATIENCE_SECONDS
        while not condition():
            assert time.monotonic() < deadline, (self.folder / "jobs.log").read_text()[-3000:]
            time.sleep(0.2)

    def steps(self):
        """Return (trial, epoch, step, time) of every step that was computed."""
        path = Path(f"{self.directory}.log")
        lines = [line.split() for line in path.read_text().splitlines()] if path.exists() else []
        return [(int(trial), int(epoch), int(step), float(at)) for trial, epoch, step, _, at in lines]

    def at_work(self, job, steps):
        """Wait until both trials have computed so many more steps."""
        before = Counter(trial for trial, *_ in self.steps())

        def further():
            assert self.state(job), (self.folder / "jobs.log").read_text()[-3000:]
            now = Counter(trial for trial, *_ in self.steps())
            # A gang trains one trial after the other.
            trained = [now[trial] >= before[trial] + steps for trial in range(TRIALS)]
            return any(trained) if self.gang > 1 else all(trained)

        self.wait(further)

    def kill_node(self, job):
        """Kill all that a job has on the second node, the step's daemon first."""
        mine = []
        for path in Path("/proc").glob("[0-9]*/environ"):
            try:
                variables = path.read_bytes().split(b"\0")
            except OSError:
                continue
            if f"SLURM_JOB_ID={job}".encode() in variables and b"SLURMD_NODENAME=node1" in variables:
                mine.append(int(path.parent.name))
        assert mine
        parents = {int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1]) for pid in mine}
        daemons = [pid for pid in parents if "slurmstepd" in Path(f"/proc/{pid}/comm").read_text()]
        for pid in (*daemons, *mine):
            os.kill(pid, signal.SIGKILL)

    def run(self, kind):
        """Run a job until it ends, by what its kind says."""
        job = self.submit(kind)
        self.wait(lambda: self.state(job))
        if kind in {"time limit", "wall seconds"}:
            self.wait(lambda: not self.state(job))
            return
        self.at_work(job, 5)
        if kind == "requeued":
            self.slurm("scontrol", "requeue", job)
            self.wait(lambda: "PENDING" in self.state(job))
        elif kind == "node killed":
            self.kill_node(job)
        elif kind == "leave":
            (self.directory / "leave").touch()
        elif kind in {"TERM", "USR1"}:
            self.slurm("scancel", f"--signal={kind}", job)
        # What is left of a job whose node has died, or waits in the queue again, ends too.
        if kind in {"cancelled", "array", "requeued", "node killed"}:
            self.slurm("scancel", job)
        self.wait(lambda: not self.state(job))


@pytest.fixture
def environment(tmp_path):
    """Return the environment of a Slurm of two nodes."""
    if why := missing_for_slurm():
        pytest.skip(why)
    folder = tmp_path / "slurm"
    folder.mkdir()
    with slurm_of(folder, nodes=2) as environment:
        yield environment


def finished(folder, ranks):
    """Run the study to its end here, and return the weights of its trials."""
    chain = Chain(folder, {}, ranks)
    command = [sys.executable, "-m", "trainwright", "worker", str(chain.file), "--workers", str(ranks), "--quiet"]
    subprocess.run(command, env=chain.environment, check=True)
    return [Path(f"{chain.directory}.weights-{trial}").read_text() for trial in range(TRIALS)]


def seconds_to_resume(trial, steps):
    """Return for each lease but the first how long it took from its start to its first step."""
    begun = sorted(at for number, _, _, at in steps if number == trial.number)
    starts = sorted(lease.started_at for lease in trial.leases.values())
    return [min((at - start for at in begun if at > start), default=0.0) for start in starts[1:]]


@pytest.mark.slow
@pytest.mark.timeout(6000)
@pytest.mark.parametrize("shape", [(1, 1), (2, 1), (2, 2)], ids=["1 rank", "2 ranks", "2 nodes"])
def test_a_chain_of_jobs(tmp_path, environment, torch, shape, record_property):
    """Trials on one rank, on two of one node, and on one of each node."""
    ranks, gang = shape
    chain = Chain(tmp_path, environment, ranks, gang)
    # Arrays have a node a task.
    kinds = KINDS if gang == 1 else tuple("TERM" if kind == "array" else kind for kind in KINDS)
    pace = Path(f"{chain.directory}.pace")
    pace.write_text(str(PACE_SECONDS))
    for kind in kinds:
        chain.run(kind)
        with tw.Study.open(chain.directory) as study:
            said = (kind, (tmp_path / "jobs.log").read_text()[-2000:])
            assert not study.state.counts["abandoned"], said
            assert not any(trial.blamed_losses for trial in study.trials), said
    steps = chain.steps()
    with tw.Study.open(chain.directory) as study:
        resumes = [seconds for trial in study.trials for seconds in seconds_to_resume(trial, steps)]
        figures = {
            "jobs": len(kinds),
            "runs": [len(trial.leases) for trial in study.trials],
            "epochs": [trial.epoch for trial in study.trials],
            "steps": len({step[:3] for step in steps}),
            "repeated": sum(times - 1 for times in Counter(step[:3] for step in steps).values()),
            "seconds to resume": (sorted(resumes)[len(resumes) // 2], max(resumes)),
        }
    record_property("chain", figures)
    sys.stdout.write(f"{ranks} ranks, gangs of {gang}: {figures}\n")
    killed = TRIALS * kinds.count("node killed")
    assert figures["repeated"] <= REPEATED * killed
    pace.unlink()
    whole = tmp_path / "undisturbed"
    whole.mkdir()
    assert finished(tmp_path, ranks) == finished(whole, ranks)
