"""Workers whose allocation ends within an epoch: their trials save at a step, and the next ones go on behind it."""

import json
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import pytest
from scripts import wait_until
from within_training import EPOCHS, STEPS, train

import trainwright as tw
from trainwright.study.driver.graceful_shutdown import LEAVE_FILE, LeaveFile

HERE = Path(__file__).parent
ENDS = ["TERM", "USR1", "leave", "leave-17", "wall seconds", "end of the job", "KILL"]
ALONE = {"searcher": tw.RandomSearcher(), "engine": tw.Local(workers=0), "progress": False}
FILE = """
[study]
train = "within_training:train"
objectives = "min loss"
directory = "{directory}"
seed = 5
trials = 1

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


class Job:
    """A worker of a study, in a process group of its own."""

    def __init__(self, folder, ranks, *options, **environment):
        self.directory = folder / "study"
        file = folder / "study.toml"
        file.write_text(FILE.format(directory=self.directory, ranks=ranks))
        paths = os.pathsep.join([str(HERE.parents[1] / "src"), str(HERE)])
        command = [sys.executable, "-m", "trainwright", "worker", str(file), "--workers", str(ranks), *options]
        self.process = subprocess.Popen(
            command,
            env={**os.environ, "PYTHONPATH": paths, "OMP_NUM_THREADS": "1", **environment},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )

    def steps(self):
        """Return the (epoch, step) of all steps that were computed."""
        return steps_of(self.directory)

    def wait(self):
        said, _ = self.process.communicate(timeout=120)
        return self.process.returncode, said


def steps_of(directory):
    path = Path(f"{directory}.log")
    lines = path.read_text().splitlines() if path.exists() else []
    return [tuple(map(int, line.split()[1:3])) for line in lines]


def weights(directory):
    return Path(f"{directory}.weights-0").read_text()


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    """Return what a run that nobody disturbs ends with, by the number of ranks."""
    known = {}

    def of(ranks):
        if ranks not in known:
            folder = tmp_path_factory.mktemp("undisturbed")
            directory = folder / "study"
            if ranks == 1:  # in this very process
                with tw.Study(tw.Space(lr=tw.Float(0.01, 0.1)), "min loss", directory=directory, seed=5) as study:
                    study.run(train, trials=1, scheduler=tw.FixedEpochs(EPOCHS), **ALONE)
            else:
                assert Job(folder, ranks).wait()[0] == 0
            assert steps_of(directory) == [(epoch, step) for epoch in range(1, EPOCHS + 1) for step in range(STEPS)]
            with tw.Study.open(directory) as study:
                known[ranks] = weights(directory), study.best.values
        return known[ranks]

    return of


def end(folder, ranks, how):
    """Run a worker until it has computed a few more steps, and end it; return its exit status and what it said."""
    options, environment = (), {}
    if how == "wall seconds":
        options = ("--wall-seconds", "6", "--grace", "2")
    elif how == "end of the job":
        environment = {"SLURM_JOB_END_TIME": str(time.time() + 6)}
    elif how == "leave-17":
        environment = {"SLURM_JOB_ID": "17"}
    job = Job(folder, ranks, *options, **environment)
    before = len(job.steps())
    wait_until(lambda: len(job.steps()) >= before + 5 or job.process.poll() is not None)
    if how in {"TERM", "USR1", "KILL"}:
        os.killpg(job.process.pid, getattr(signal, f"SIG{how}"))
    elif how.startswith(LEAVE_FILE):
        (job.directory / how).touch()
    return job.wait()


@pytest.mark.parametrize(
    ("ranks", "ends"),
    [
        (1, ["TERM"]),
        pytest.param(1, ENDS[1:4], marks=pytest.mark.slow),
        pytest.param(1, ENDS[4:], marks=pytest.mark.slow),
        pytest.param(2, ["TERM", "leave"], marks=pytest.mark.slow),
    ],
)
def test_a_chain_of_jobs_within_one_epoch(tmp_path, undisturbed, ranks, ends):
    """No step is computed twice but after SIGKILL, which costs those since the last save; the end is the same."""
    pace = Path(f"{tmp_path / 'study'}.pace")
    pace.write_text("0.1")
    for number, how in enumerate(ends, start=1):
        status, said = end(tmp_path, ranks, how)
        with tw.Study.open(tmp_path / "study") as study:
            [trial] = study.trials
            assert trial.lease == number, said
            assert trial.epoch < EPOCHS, "it was to last for all jobs"
            if how != "KILL":
                assert (status, trial.status, trial.preempted) == (130, "paused", True), said
            assert trial.blamed_losses == 0
    pace.unlink()
    job = Job(tmp_path, ranks)
    status, said = job.wait()
    assert status == 0, said
    computed = Counter(job.steps())
    assert len(computed) == EPOCHS * STEPS
    repeated = sum(times - 1 for times in computed.values())
    # Between two saves lie ten steps; one may be under way, and ranks agree within sixteen.
    assert repeated <= (20 if "KILL" in ends else 0), json.dumps(sorted(map(list, job.steps())))
    with tw.Study.open(tmp_path / "study") as study:
        assert (weights(tmp_path / "study"), study.best.values) == undisturbed(ranks)


def train_slowly(trial):
    for _ in trial.epochs():
        time.sleep(60)
        trial.report(loss=1.0)


def test_a_first_epoch_longer_than_the_allocation(tmp_path, capfd):
    """A trial that can save nothing within it would begin anew in each job: it says so, and what to do."""
    with tw.Study(tw.Space(x=tw.Float(0, 1)), "min loss", directory=tmp_path / "study") as study:
        study.run(
            train_slowly,
            scheduler=tw.FixedEpochs(3),
            engine=tw.Local(workers=1),
            wall_seconds=3,
            grace_seconds=0.5,
        )
        assert study.state.counts["paused"] == 1
    assert "trial 0 has not ended its first epoch in" in (said := capfd.readouterr().err)
    assert "run.step with trial.prepare(..., loss=f), or give a longer allocation" in said


def test_a_leave_file_of_before_counts_no_more(tmp_path):
    """Only what is written while a driver runs is for it; that of another job is not."""
    (tmp_path / LEAVE_FILE).touch()
    file = LeaveFile(tmp_path, {"SLURM_JOB_ID": "17"})
    assert not file.touched
    (tmp_path / f"{LEAVE_FILE}-18").touch()
    assert not file.touched
    (tmp_path / f"{LEAVE_FILE}-17").touch()
    assert file.touched
    assert not LeaveFile(tmp_path, {"SLURM_JOB_ID": "17"}).touched
    assert not LeaveFile(None, {}).touched
