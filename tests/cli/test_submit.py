"""`trainwright submit`: the script of a chain of jobs, against commands that answer as a batch system does."""

import json
import os
import subprocess
import sys
from contextlib import redirect_stderr, redirect_stdout
from io import StringIO
from pathlib import Path

import pytest

from trainwright.cli import main

FILE = """
[study]
train = "hpc:train"
objectives = "min loss"
directory = "study"
trials = 1

[space.x]
kind = "float"
low = 0
high = 1

[rule]
name = "FixedEpochs"
max_epochs = 1

[job]
minutes = 90
nodes = 2
"""

SBATCH = """#!/bin/sh
number=$(( $(cat "$QUEUE/last" 2>/dev/null || echo 16) + 1 ))
echo $number > "$QUEUE/last"
echo "$@" > "$QUEUE/$number"
echo $number
"""
SQUEUE = """#!/bin/sh
for job in $QUEUE/[0-9]*; do echo "$(basename $job) $(cat "$QUEUE/state" 2>/dev/null || echo PENDING)"; done
"""
SCANCEL = """#!/bin/sh
for job in "$@"; do rm "$QUEUE/$job"; done
"""
SRUN = """#!/bin/sh
echo "$@" >> "$QUEUE/run"
exit $STATUS
"""


@pytest.fixture
def site(tmp_path, monkeypatch):
    """Return a folder with a study file, on a machine with such commands."""
    commands, queue = tmp_path / "bin", tmp_path / "queue"
    commands.mkdir()
    queue.mkdir()
    for name, text in {"sbatch": SBATCH, "squeue": SQUEUE, "scancel": SCANCEL, "srun": SRUN}.items():
        (commands / name).write_text(text)
        (commands / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{commands}:{os.environ['PATH']}")
    monkeypatch.setenv("QUEUE", str(queue))
    (tmp_path / "study.toml").write_text(FILE)
    (tmp_path / "hpc.py").write_text("def train(trial):\n    trial.report(loss=1.0)\n")
    return tmp_path


def trainwright(site, *words):
    """Call the command in this process; return its exit status, and what it printed and complained of."""
    printed, complained = StringIO(), StringIO()
    with pytest.MonkeyPatch.context() as patch, redirect_stdout(printed), redirect_stderr(complained):
        patch.chdir(site)
        patch.setattr(sys, "path", list(sys.path))
        patch.setattr(sys, "argv", ["trainwright", *words])
        with pytest.raises(SystemExit) as end:
            main()
    sys.modules.pop("hpc", None)
    return end.value.code or 0, printed.getvalue(), complained.getvalue()


def submit(site, *words):
    status, said, complaint = trainwright(site, "submit", "study.toml", *words, "--json")
    assert status == 0, complaint
    return json.loads(said.splitlines()[-1])


def queued(site):
    return sorted(int(path.name) for path in (site / "queue").glob("[0-9]*"))


def run_job(script, job, status, **environment):
    """Run a job's script as the batch system would; its workers exit with `status`."""
    own = {"SLURM_JOB_ID": str(job), "STATUS": str(status), **environment}
    return subprocess.run(["/bin/bash", script], env={**os.environ, **own}, check=False).returncode


def test_a_chain_until_the_study_is_done(site):
    """Each job submits the next before it works; the one that comes to the end cancels its successor."""
    found = submit(site)
    script = found["script"]
    assert (found["job"], queued(site)) == ("17", [17])
    assert run_job(script, 17, 130) == 130
    assert (site / "queue/18").read_text().split() == ["--parsable", "--dependency=afterany:17", script]
    # Killed, as when its node dies.
    assert run_job(script, 18, 137) == 137
    assert queued(site) == [17, 18, 19]
    assert run_job(script, 19, 0) == 0
    assert queued(site) == [17, 18, 19], "its successor, 20, is cancelled"
    words = (site / "queue/run").read_text().split()
    assert words[:5] == ["--no-kill", "--kill-on-bad-exit=0", "trainwright", "worker", str(site / "study.toml")]
    # Its log says why it leaves, and which trials begin anew.
    assert "--quiet" not in words


@pytest.mark.parametrize("status", [1, 2])
def test_a_study_that_fails_ends_the_chain(site, status):
    script = submit(site)["script"]
    assert run_job(script, 17, status) == status
    assert queued(site) == [17]


def test_no_more_jobs_than_the_chain_has(site):
    script = submit(site, "--chain", "3")["script"]
    for job in (17, 18, 19):
        run_job(script, job, 130)
    assert queued(site) == [17, 18, 19]


def test_a_job_that_was_requeued_has_its_successor(site):
    """After a preemption it begins again with its number, and does not submit a second one."""
    script = submit(site)["script"]
    run_job(script, 17, 143)
    run_job(script, 17, 130, SLURM_RESTART_COUNT="1")
    assert queued(site) == [17, 18]
    run_job(script, 17, 0, SLURM_RESTART_COUNT="2")
    assert queued(site) == [17]


def test_status_of_jobs(site):
    """`status` says which jobs wait, run and have ended."""
    trainwright(site, "run", "study.toml", "--quiet")
    script = submit(site)["script"]
    run_job(script, 17, 130)
    (site / "queue/17").unlink()
    _, said, _ = trainwright(site, "status", "study")
    assert "jobs: 1 queued (18), 1 ended" in said
    (site / "queue/state").write_text("RUNNING")
    _, said, _ = trainwright(site, "status", "study", "--json")
    assert json.loads(said.splitlines()[-1])["jobs"] == {"17": "ended", "18": "running"}


@pytest.mark.parametrize(
    ("system", "lines"),
    [
        ("slurm", ["#SBATCH --no-kill", "#SBATCH --qos=long", "#SBATCH --gpus-per-node=4", "#SBATCH --time=90"]),
        ("pbs", ["#PBS -l select=2:ncpus=16:ngpus=4:mpiprocs=2", "#PBS -l walltime=01:30:00", "#PBS --qos=long"]),
        ("lsf", ["#BSUB -n 4", '#BSUB -R "span[ptile=2] affinity[core(8)]"', "#BSUB -W 01:30"]),
        ("flux", ["#flux: --nodes=2", "#flux: --time-limit=90m"]),
    ],
)
def test_scripts(site, system, lines):
    """What is asked for is in the script, which is one that bash can read; nothing is submitted or written."""
    file = site / "study.toml"
    file.write_text(
        f"{FILE}gpus_per_node = 4\ncores_per_task = 8\ntasks_per_node = 2\nrequests = ['--qos=long']\n"
        "environment = ['module load cuda']\ncontainer = 'image.sif'\n"
    )
    script = submit(site, "--show", "--system", system)["script"]
    assert set(lines) <= set(script.splitlines())
    assert "\nmodule load cuda\n" in script
    assert f"apptainer exec --nv image.sif trainwright worker {file}" in script
    assert ("--wall-seconds $((5400 - SECONDS))" in script) == (system != "slurm")
    assert subprocess.run(["/bin/bash", "-n"], input=script, text=True, check=False).returncode == 0
    assert not (site / "study").exists()


def test_a_script_for_another_system_is_written(site):
    """Its command is told, and not called."""
    found = submit(site, "--system", "lsf")
    assert found["command"] == f"bsub < {found['script']}"
    assert Path(found["script"]).stat().st_mode & 0o111


@pytest.mark.parametrize(
    ("change", "words", "sentence"),
    [
        ("minutes = 90", "", "study.toml, [job]: 'minutes' is missing (time limit of one job)"),
        ("nodes = 2", "nodes = 0", "nodes: got 0; allowed: a whole number >= 1"),
        ("nodes = 2", "nodse = 2", "'nodes'"),
        ("nodes = 2", "nodes = 2\ngang = 4", "gang: got 4, larger than a job, which has 2 tasks; give nodes = 4"),
        ("nodes = 2", "nodes = 4\ngang = 3", "gang: got 3, which does not divide the 4 tasks of a job"),
        ("nodes = 2", 'nodes = 2\nrequests = ["--no-requeue"]', "requests: got --no-requeue, but a job that is"),
        ("nodes = 2", 'environment = ["a\\nb"]', "got a text of several lines"),
        ("nodes = 2", "system = 'condor'", "allowed: 'slurm'"),
    ],
)
def test_bad_tables(site, change, words, sentence):
    (site / "study.toml").write_text(FILE.replace(change, words))
    status, _, said = trainwright(site, "submit", "study.toml")
    assert (status, said.count("\n")) == (2, 1)
    assert sentence in said


def test_a_batch_system_that_refuses(site):
    (site / "bin/sbatch").write_text("#!/bin/sh\necho 'sbatch: error: invalid account' >&2\nexit 1\n")
    status, _, said = trainwright(site, "submit", "study.toml")
    assert (status, said) == (1, "trainwright: submit: sbatch refuses: error: invalid account\n")


def test_no_batch_system(site, monkeypatch):
    monkeypatch.setenv("PATH", "/nowhere")
    status, _, said = trainwright(site, "submit", "study.toml")
    assert status == 2
    assert said == "trainwright: submit: no sbatch here; run it on a login node of Slurm, or give --show or --system\n"
