"""Ctrl-C and a batch system's signals: an end with status 130, and a study that goes on."""

import json
import os
import signal
import subprocess
import sys
import time

import pytest

import trainwright as tw
from trainwright.errors import StudyError


@pytest.mark.parametrize(
    "number",
    [pytest.param(signal.SIGINT, marks=pytest.mark.slow), signal.SIGUSR1],  # others: study/test_signals
    ids=lambda number: number.name,
)
def test_interrupted_and_resumed(study_file, tmp_path, number):
    """The driver ends with 130 and a sentence; the next run finishes the trial under a new lease."""
    file = study_file(
        ("workers = 0", "workers = 1"), ("cli_training:train", "cli_training:waits"), ("trials = 4", "trials = 1")
    )
    python = [sys.executable, "-c", "from trainwright.cli import main; main()"]
    command = [*python, "run", str(file), "--json", "--grace", "0.5"]  # its epoch does not end by itself
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    driver = subprocess.Popen(command, env=environment, stderr=subprocess.PIPE, text=True, start_new_session=True)
    with driver:
        try:
            while not reported(tmp_path / "study") >= 2:
                assert driver.poll() is None
                time.sleep(0.1)
            driver.send_signal(number)
            _, said = driver.communicate(timeout=120)
        finally:
            driver.kill()
    assert driver.returncode == 130
    assert said.splitlines()[-1] == "trainwright: interrupted; the same command goes on from here"
    assert "Traceback" not in said
    with tw.Study.open(tmp_path / "study") as study:
        [trial] = study.trials
        assert (trial.status, trial.preempted) == ("paused", True)
    (tmp_path / "study/ledger/go").touch()
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=240, check=True)
    assert json.loads(done.stdout.splitlines()[-1])["finished"] == 1
    with tw.Study.open(tmp_path / "study") as study:
        [trial] = study.trials
        assert (trial.status, trial.lease, trial.epoch) == ("complete", 2, 4)


def reported(directory):
    """Return how many epochs the study's first trial has reported."""
    try:
        with tw.Study.open(directory) as study:
            return max((trial.epoch for trial in study.trials), default=0)
    except StudyError:  # it is being made
        return 0
