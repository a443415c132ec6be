"""What follows the last save: a requeue by a fake and by a real Slurm, a command, and the end that Slurm tells."""

import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest

from trainwright.checkpoint.policy.signals import SlurmRequeue, end_of_allocation
from trainwright.errors import CheckpointConfigError

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "study"))
from clusters import missing_for_slurm, slurm_of

JOB = """#!/bin/sh
#SBATCH --requeue --output {folder}/out.txt --open-mode append --time 5
echo run $SLURM_RESTART_COUNT
exec {python} -c '
import time
from trainwright.checkpoint.policy.signals import SlurmRequeue
print("status", SlurmRequeue()(), flush=True)
time.sleep(60)
'
"""

TRAINING = """
import sys, time
import torch
from trainwright.checkpoint import CheckpointConfig, Manager, SlurmRequeue

model = torch.nn.Linear(4, 4)
optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
config = CheckpointConfig(hook=SlurmRequeue(), grace_seconds=120.0)
manager = Manager(sys.argv[1], config=config, model=model, optimizer=optimizer)
manager.restore()
print("at", manager.steps, flush=True)
while True:
    optimizer.zero_grad()
    model(torch.ones(1, 4)).sum().backward()
    optimizer.step()
    time.sleep(0.01)
    try:
        manager.step()
    except SystemExit as end:
        print("left", manager.steps, end.code, flush=True)
        raise
"""
BATCH = """#!/bin/bash
#SBATCH --requeue --open-mode=append --output {folder}/out.txt --time 5
trap 'kill -USR1 "$(jobs -p)"' USR1
srun {python} {folder}/training.py {folder}/run & wait; wait
"""


@pytest.fixture
def program(tmp_path, monkeypatch):
    """Return a function that puts a shell script on the path under a name."""
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")

    def write(name, *lines):
        path = tmp_path / name
        path.write_text("\n".join(["#!/bin/sh", *lines]))
        path.chmod(0o755)

    return write


@pytest.fixture
def job(monkeypatch):
    """Be job 17, requeued twice."""
    monkeypatch.setenv("SLURM_JOB_ID", "17")
    monkeypatch.setenv("SLURM_RESTART_COUNT", "2")


class TestSlurmRequeue:
    def test_requeues_its_job(self, program, job, tmp_path):
        program("scontrol", f'echo "$@" > {tmp_path}/said')
        assert SlurmRequeue()() == 0
        assert (tmp_path / "said").read_text() == "requeue 17\n"

    @pytest.mark.parametrize(
        ("lines", "why"),
        [
            (
                ["echo 'slurm_requeue error: Job is disabled' >&2", "exit 1"],
                "`scontrol requeue 17` says: slurm_requeue error",
            ),
            (["exec sleep 60"], "says: nothing within 0.2 s"),
        ],
    )
    def test_a_refusal(self, program, job, lines, why):
        """It is told, with what to do, and the status asks to be tried again."""
        program("scontrol", *lines)
        with pytest.warns(UserWarning, match=rf"^the job is not requeued: .*{why}.*; submit it again to continue$"):
            assert SlurmRequeue(timeout_seconds=0.2)() == 75

    def test_no_scontrol(self, job, monkeypatch):
        monkeypatch.setenv("PATH", "")
        with pytest.warns(UserWarning, match="says: no such file or directory"):
            assert SlurmRequeue()() == 75

    def test_not_for_ever(self, program, job):
        """At the limit nothing is called."""
        program("scontrol", "exit 0")
        assert SlurmRequeue(max_restarts=3)() == 0
        with pytest.warns(UserWarning, match="job 17 was requeued 2 times, max_restarts is 2"):
            assert SlurmRequeue(max_restarts=2)() == 75

    def test_outside_of_slurm(self, monkeypatch):
        monkeypatch.delenv("SLURM_JOB_ID", raising=False)
        with pytest.warns(UserWarning, match=r"this is no Slurm job \(SLURM_JOB_ID is not set\)"):
            assert SlurmRequeue()() == 75

    def test_refusals(self):
        with pytest.raises(CheckpointConfigError, match="max_restarts: got -1; allowed: a whole number >= 0"):
            SlurmRequeue(max_restarts=-1)
        with pytest.raises(CheckpointConfigError, match=r"SlurmRequeue.timeout_seconds: got 0; allowed"):
            SlurmRequeue(timeout_seconds=0)

    @pytest.mark.slow
    def test_a_real_slurm(self, slurm, tmp_path):
        """A batch job requeues itself: Slurm counts one restart and holds it for the next run."""
        script = tmp_path / "job.sh"
        script.write_text(JOB.format(folder=tmp_path, python=sys.executable))
        slurm("sbatch", str(script))
        waited_for(lambda: "Restarts=1" in slurm("scontrol", "show", "job", "1"))
        assert (tmp_path / "out.txt").read_text().splitlines()[:2] == ["run", "status 0"]

    @pytest.mark.slow
    def test_a_training_that_is_warned(self, slurm, tmp_path):
        """The guide's batch script passes the signal on: the last step is saved, and the job waits to go on."""
        (tmp_path / "training.py").write_text(TRAINING)
        script = tmp_path / "job.sh"
        script.write_text(BATCH.format(folder=tmp_path, python=sys.executable))
        slurm("sbatch", str(script))
        out = tmp_path / "out.txt"
        waited_for(lambda: out.exists() and "at 0" in out.read_text())
        slurm("scancel", "--batch", "--signal=USR1", "1")
        waited_for(lambda: "Restarts=1" in slurm("scontrol", "show", "job", "1"))
        [left] = [line.split() for line in out.read_text().splitlines() if line.startswith("left")]
        assert left[2] == "0"
        assert (tmp_path / "run" / f"step-{int(left[1]):012d}" / "manifest.json").exists()


@pytest.fixture
def slurm(tmp_path, monkeypatch):
    """Start Slurm on this node; return a function that calls one of its commands."""
    if why := missing_for_slurm():
        pytest.skip(why)

    def call(name, *arguments):
        return subprocess.run(
            [shutil.which(name), *arguments], check=True, capture_output=True, text=True, cwd=tmp_path
        ).stdout  # fmt: skip

    with slurm_of(tmp_path) as slurm:
        for name, value in slurm.environment.items():
            monkeypatch.setenv(name, value)
        yield call


def waited_for(question):
    for _ in range(400):
        if question():
            return
        time.sleep(0.3)
    raise TimeoutError


class TestEndOfAllocation:
    def test_as_slurm_set_it(self):
        assert end_of_allocation({"SLURM_JOB_ID": "17", "SLURM_JOB_END_TIME": "1700000000"}) == 1.7e9

    @pytest.mark.parametrize("environment", [{}, {"SLURM_JOB_END_TIME": "NONE"}])
    def test_unknown(self, environment):
        assert end_of_allocation(environment) is None
