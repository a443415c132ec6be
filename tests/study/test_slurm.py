"""A chain of ten jobs under Slurm on two nodes, each told otherwise to end: nothing is lost, blamed or given up."""

import os
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import chained_study
import pytest
import small_study
from clusters import missing_for_slurm, slurm_of
from scripts import log_of

import trainwright as tw

HERE = Path(__file__).parent
TRIALS, EPOCHS, PACE_SECONDS = 2, 600, 1.0
KINDS = ("TERM", "USR1", "cancelled", "time limit", "wall seconds") * 2
PATIENCE_SECONDS = 300.0

FILE = """
[study]
train = "chained_study:train"
objectives = "min loss"
directory = "{directory}"
seed = 5
trials = {trials}

[space.lr]
kind = "float"
low = 0.001
high = 0.1
log = true

[searcher]
name = "RandomSearcher"

[rule]
name = "FixedEpochs"
max_epochs = {epochs}

[policy]
name = "Fixed"
devices = {ranks}
"""

# All that Slurm signals are processes that a shell in between has started.
JOB = """#!/bin/bash
#SBATCH --nodes=2 --ntasks-per-node=1 --time={minutes} --no-requeue --open-mode=append --output={log}
{activate}
srun --kill-on-bad-exit=0 bash -c '{python} -m trainwright worker {file} --workers {ranks} {options}; exit $?'
"""


class Chain:
    """Jobs of one study, one after another."""

    def __init__(self, folder, environment, ranks):
        self.folder, self.ranks = folder, ranks
        self.directory = folder / "study"
        paths = os.pathsep.join([str(HERE.parents[1] / "src"), str(HERE)])
        self.environment = {**os.environ, **environment, "PYTHONPATH": paths, "OMP_NUM_THREADS": "1"}
        self.file = folder / "study.toml"
        self.file.write_text(FILE.format(directory=self.directory, trials=TRIALS, epochs=EPOCHS, ranks=ranks))

    def slurm(self, *command, **settings):
        done = subprocess.run(command, env=self.environment, capture_output=True, text=True, check=True, **settings)
        return done.stdout

    def submit(self, kind):
        """Submit a job and return its number."""
        activate = Path(sys.prefix, "bin/activate")
        job = JOB.format(
            minutes=1 if kind == "time limit" else 30,
            log=self.folder / "jobs.log",
            activate=f". {activate}" if activate.exists() else "",
            python=sys.executable,
            file=self.file,
            ranks=self.ranks,
            options="--grace 20" + (" --wall-seconds 20" if kind == "wall seconds" else ""),
        )
        return self.slurm("sbatch", "--parsable", "--chdir", str(self.folder), input=job).strip()

    def runs(self, job):
        return bool(self.slurm("squeue", "--noheader", "--jobs", job).strip())

    def wait(self, condition):
        deadline = time.monotonic() + PATIENCE_SECONDS
        while not condition():
            assert time.monotonic() < deadline, (self.folder / "jobs.log").read_text()
            time.sleep(0.2)

    def at_work(self, job, epochs):
        """Wait until both trials have begun so many more epochs."""
        before = Counter(line.trial for line in log_of(self.directory))

        def further():
            assert self.runs(job), (self.folder / "jobs.log").read_text()
            now = Counter(line.trial for line in log_of(self.directory))
            return all(now[trial] >= before[trial] + epochs for trial in range(TRIALS))

        self.wait(further)

    def run(self, kind):
        """Run a job until it ends, by what its kind says."""
        job = self.submit(kind)
        self.wait(lambda: self.runs(job))
        if kind in {"TERM", "USR1"}:
            self.at_work(job, 3)
            self.slurm("scancel", f"--signal={kind}", job)
        elif kind == "cancelled":
            self.at_work(job, 3)
            self.slurm("scancel", job)
        self.wait(lambda: not self.runs(job))


@pytest.fixture
def environment(tmp_path):
    """Return the environment of a Slurm of two nodes."""
    if why := missing_for_slurm():
        pytest.skip(why)
    folder = tmp_path / "slurm"
    folder.mkdir()
    with slurm_of(folder, nodes=2) as environment:
        yield environment


def finished(directory, ranks=1):
    """Run a study to its end here, and return the weights of its trials."""
    with tw.Study(small_study.SPACE, "min loss", directory=directory, seed=5) as study:
        study.run(
            chained_study.train,
            trials=TRIALS,
            searcher=tw.RandomSearcher(),
            scheduler=tw.Scheduler(tw.FixedEpochs(EPOCHS), tw.Fixed(ranks)),
            engine=tw.Local(workers=ranks, gpus=()),
            progress=False,
        )
        assert study.state.counts["complete"] == TRIALS
    return [Path(f"{directory}.weights-{trial}").read_text() for trial in range(TRIALS)]


@pytest.mark.slow
@pytest.mark.timeout(3000)
@pytest.mark.parametrize("ranks", [1, 2])
def test_a_chain_of_jobs(tmp_path, environment, torch, ranks, record_property):
    chain = Chain(tmp_path, environment, ranks)
    pace = Path(f"{chain.directory}.pace")
    pace.write_text(str(PACE_SECONDS))
    for done, kind in enumerate(KINDS, start=1):
        chain.run(kind)
        with tw.Study.open(chain.directory) as study:
            said = (kind, (tmp_path / "jobs.log").read_text()[-2000:])
            assert study.state.counts["paused"] == TRIALS, said
            assert all(trial.lease == done for trial in study.trials), said
            assert not any(lease.lost for trial in study.trials for lease in trial.leases.values()), said
    begun = Counter((line.trial, line.epoch) for line in log_of(chain.directory))
    repeated = sum(times - 1 for times in begun.values())
    figures = {
        "ends": [study.trials[0].leases[lease].why for lease in sorted(study.trials[0].leases)],
        "abandoned": study.state.counts["abandoned"],
        "blamed": sum(trial.blamed_losses for trial in study.trials),
        "epochs": [trial.epoch for trial in study.trials],
        "repeated": repeated,
    }
    record_property("chain", figures)
    sys.stdout.write(f"{ranks} ranks: {figures}\n")
    assert (figures["abandoned"], figures["blamed"]) == (0, 0)
    assert repeated <= TRIALS * len(KINDS)
    assert max(begun.values()) <= 2
    assert all(trial.epoch < EPOCHS for trial in study.trials), "it was to last for all jobs"
    pace.unlink()
    assert finished(chain.directory, ranks) == finished(tmp_path / "undisturbed", ranks)
