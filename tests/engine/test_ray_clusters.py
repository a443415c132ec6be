"""Nodes that die, drivers that are killed, clusters that stop: the study goes on, and nothing is left behind."""

import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

import trainwright as tw
from trainwright.errors import StudyError
from trainwright.ledger import Status

pytest.importorskip("ray")
pytestmark = [pytest.mark.slow, pytest.mark.outside("Ray")]

SCRIPT = str(Path(__file__).with_name("ray_cluster.py"))
# Whoever joins by address has to agree with the cluster on tokens; these clusters are for this machine alone.
ENVIRONMENT = {**os.environ, "RAY_AUTH_MODE": "disabled", "PYTHONWARNINGS": "ignore"}


class Cluster:
    """A cluster in a process of its own."""

    def __init__(self, *cpus):
        self._process = subprocess.Popen(
            [sys.executable, SCRIPT, "cluster", *map(str, cpus)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=ENVIRONMENT,
            start_new_session=True,
        )
        self.address = self._answer()

    def ask(self, line):
        self._process.stdin.write(f"{line}\n")
        self._process.stdin.flush()
        return self._answer()

    def _answer(self):
        for line in self._process.stdout:
            if line.startswith(("[", '"', "null")) and not line.startswith("[20"):
                return json.loads(line)
        raise AssertionError("the cluster ended")

    def empty(self):
        """Wait until no placement group and no actor is left."""
        return within(60, lambda: not self.ask("left"))

    def stop(self):
        self._process.stdin.close()
        self._process.wait(60)
        self._process.stdout.close()


@pytest.fixture
def clusters():
    """Start clusters, and stop those that still run."""
    started = []

    def start(*cpus):
        started.append(Cluster(*cpus))
        return started[-1]

    yield start
    for one in started:
        if one._process.poll() is None:
            one.stop()


def drive(cluster, directory, trials):
    """Start a driver of the study in `directory`."""
    command = [sys.executable, SCRIPT, "study", cluster.address, str(directory), str(trials)]
    return subprocess.Popen(command, env=ENVIRONMENT, stderr=subprocess.PIPE, text=True, start_new_session=True)


def finish(driver, seconds=200):
    _, errors = driver.communicate(timeout=seconds)
    assert driver.returncode == 0, errors


def within(seconds, done):
    deadline = time.monotonic() + seconds
    while not done():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.1)
    return True


def look(directory):
    """Return the study as it is on the disk."""
    with tw.Study.open(directory) as study:
        study.refresh()
        return study.trials


def pids(directory):
    """Return the worker processes of trials that run."""
    running = [trial for trial in look(directory) if trial.status is Status.RUNNING and trial.reports]
    return [int(trial.reports[trial.epoch].metrics["pid"]) for trial in running]


def alive(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in {"Z", "X"}
    except OSError:
        return False


def actor_of(pid):
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


def created(directory):
    """Whether the study is on the disk: its folder is there before its first record."""
    try:
        look(directory)
    except StudyError:
        return False
    return True


def started(directory):
    """Wait until trials run and have reported."""
    assert within(120, lambda: created(directory) and any(map(alive, pids(directory))))


def test_a_node_that_dies_shrinks_the_engine(clusters, tmp_path):
    """Its trials go on elsewhere and are not blamed; the study ends with all results on what is left."""
    cluster, directory = clusters(1, 1, 1), tmp_path / "study"
    driver = drive(cluster, directory, 8)
    started(directory)
    cluster.ask("kill 1")
    finish(driver)
    trials = look(directory)
    assert sum(trial.status is Status.COMPLETE for trial in trials) == 8
    assert all(trial.blamed_losses <= 1 for trial in trials)
    assert cluster.empty()


def test_a_driver_that_is_killed_leaves_nothing_and_is_resumed(clusters, tmp_path):
    """Workers, actors and placement groups go with it; the next driver ends the study."""
    cluster, directory = clusters(2), tmp_path / "study"
    driver = drive(cluster, directory, 6)
    started(directory)
    workers = pids(directory)
    actors = [actor_of(pid) for pid in workers]
    driver.kill()
    driver.communicate()
    assert within(60, lambda: not any(map(alive, [*workers, *actors])))
    assert cluster.empty()
    finish(drive(cluster, directory, 6))
    assert sum(trial.status is Status.COMPLETE for trial in look(directory)) == 6
    assert cluster.empty()


def test_a_cluster_that_stops(clusters, tmp_path):
    """The driver ends with a sentence, no worker stays, and the study goes on in the next cluster."""
    cluster, directory = clusters(2), tmp_path / "study"
    driver = drive(cluster, directory, 6)
    started(directory)
    workers = pids(directory)
    cluster.stop()
    _, errors = driver.communicate(timeout=120)
    assert driver.returncode != 0
    # its nodes may be gone for a moment before its head is
    assert any(text in errors for text in ("tw.Ray: the cluster is gone", "engine: 2 of its 2 slots are gone")), errors
    assert within(60, lambda: not any(map(alive, workers)))
    finish(drive(clusters(2), directory, 6))
    assert sum(trial.status is Status.COMPLETE for trial in look(directory)) == 6


def test_random_kills(clusters, tmp_path):
    """Actors, workers and drivers are killed at random; then all trials come to their end, none is lost."""
    cluster, directory, draws = clusters(2), tmp_path / "study", random.Random(0)
    driver = drive(cluster, directory, 16)
    for what in draws.sample(["worker", "actor", "driver"] * 2, 6):
        started(directory)
        time.sleep(draws.uniform(0, 2))
        assert driver.poll() is None
        if what == "driver":
            driver.kill()
            driver.communicate()
            driver = drive(cluster, directory, 16)
        elif running := [pid for pid in pids(directory) if alive(pid)]:
            pid = draws.choice(running)
            os.kill(pid if what == "worker" else actor_of(pid), signal.SIGKILL)
    finish(driver)
    trials = look(directory)
    counts = {status: sum(trial.status is status for trial in trials) for status in Status}
    assert counts[Status.COMPLETE] == 16, counts
    assert all(counts[status] == 0 for status in (Status.RUNNING, Status.LOST, Status.FAILED))
    assert sum(len(trial.leases) for trial in trials) > 16, "nothing was killed in the middle of a trial"
    assert cluster.empty()
