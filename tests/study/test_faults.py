"""Drivers and workers killed at random times: no finished trial lost, none counted twice, nothing reported redone."""

import os
import random
import signal
import sys
import time
from pathlib import Path

import pytest
import small_study
from scripts import Watched, check_study, log_of, running, wait_until, workers_of

import trainwright as tw

EPOCHS = 3
pytestmark = [pytest.mark.timeout(3000), pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")]


@pytest.fixture(scope="module")
def reference(tmp_path_factory, torch):
    """Return the results of trials by number in a run that nobody disturbed, in this very process."""
    directory = tmp_path_factory.mktemp("reference") / "study"
    small_study.main(directory, 8, EPOCHS, "torch", "here")
    return curves(check_study(directory, 8))


def curves(study):
    return {number: trial.values for number, trial in study.state.trials.items() if trial.has_result}


def kill_drivers(directory, arguments, kills, generator):
    """Kill the driver at random times and start it anew, until it has been killed so often; return the last one's."""
    watched = Watched(directory)
    for _ in range(kills):
        with running(directory, *arguments) as driver:
            epochs = generator.choice([0, 1, 1, 2, 3])
            lines = len(log_of(directory)) + epochs
            wait_until(lambda: driver.poll() is not None or len(log_of(directory)) >= lines)  # noqa: B023 -- called here
            time.sleep(generator.uniform(0.0, 0.1 if epochs else 1.5))  # else while it starts, claims and proposes
            assert driver.poll() is None
            driver.send_signal(signal.SIGKILL)
            driver.wait()
            wait_until(lambda: workers_of(driver.pid) == [])
        watched.look()
    with running(directory, *arguments) as driver:
        assert driver.wait() == 0, driver.stderr.read().decode()
        assert workers_of(driver.pid) == []
    watched.look()


def kill_workers(directory, arguments, kills, generator):
    """Kill random workers of one driver at random times; return how many were killed before it came to its end."""
    killed = 0
    with running(directory, *arguments) as driver:
        while killed < kills and driver.poll() is None:
            lines = len(log_of(directory)) + generator.choice([0, 1, 2, 3])
            wait_until(lambda: driver.poll() is not None or len(log_of(directory)) >= lines)  # noqa: B023 -- called here
            time.sleep(generator.uniform(0.0, 0.1))
            for pid in generator.sample(workers := workers_of(driver.pid), min(1, len(workers))):
                try:
                    os.kill(pid, signal.SIGKILL)
                except ProcessLookupError:
                    continue
                killed += 1
        assert driver.wait() == 0, driver.stderr.read().decode()
        assert workers_of(driver.pid) == []
    return killed


def test_killed_drivers(tmp_path, reference):
    """One kill in the midst of trials; then each has the very loss that it has in an undisturbed run."""
    kill_drivers(tmp_path / "study", (4, EPOCHS, "torch"), 1, random.Random(1))
    losses = curves(check_study(tmp_path / "study", 4))
    assert losses == {number: reference[number] for number in range(4)}


@pytest.mark.slow
def test_killed_workers(tmp_path, reference):
    """Two kills, which no trial is given up for; then every trial has the loss of an undisturbed run."""
    assert kill_workers(tmp_path / "study", (8, EPOCHS, "torch"), 2, random.Random(2)) == 2
    losses = curves(check_study(tmp_path / "study", 8))
    assert losses == {number: reference[number] for number in range(8)}


@pytest.mark.slow
@pytest.mark.parametrize("rule", [(), ("asha",)], ids=["fixed", "asha"])
def test_fifty_killed_drivers(tmp_path, rule):
    kill_drivers(tmp_path / "study", (40, 9, "torch", *rule), 50, random.Random(3))
    check_study(tmp_path / "study", 40)


@pytest.mark.slow
def test_fifty_killed_workers(tmp_path):
    assert kill_workers(tmp_path / "study", (60, 9, "torch"), 50, random.Random(4)) == 50
    check_study(tmp_path / "study", 60)


def test_ctrl_c(tmp_path):
    """The driver ends at once, pauses what ran, leaves no process; the next run goes on with nothing done twice."""
    directory = tmp_path / "study"
    with running(directory, 6, 5 * EPOCHS, "torch") as driver:  # long enough to be still at work
        wait_until(lambda: driver.poll() is not None or len(log_of(directory)) >= 4)
        driver.send_signal(signal.SIGINT)
        assert driver.wait() == -signal.SIGINT
        assert workers_of(driver.pid) == []
    study = tw.Study.open(directory)
    assert study.state.counts["running"] == 0
    paused = [trial for trial in study.trials if trial.preempted]
    assert paused
    with running(directory, 6, 5 * EPOCHS, "torch", "here") as driver:
        assert driver.wait() == 0
    study = check_study(directory, 6)
    for trial in paused:
        leases = study.state.trials[trial.number].leases
        assert (leases[1].end.reason, leases[2].end.reason) == ("preempted", "completed")


def both_at_work(directory):
    """Wait until trials have begun in three processes: each driver has two."""
    wait_until(lambda: len({line.pid for line in log_of(directory)}) >= 3)


def test_two_drivers_at_once(tmp_path):
    """Both make the study, both run it: every number once, the budget exact."""
    directory = tmp_path / "study"
    with running(directory, 8, 2, "gated") as one, running(directory, 8, 2, "gated") as other:
        both_at_work(directory)
        Path(f"{directory}.go").touch()
        assert (one.wait(), other.wait()) == (0, 0)
    study = check_study(directory, 8)
    assert len({trial.leases[1].writer for trial in study.trials}) == 2  # each had its share


@pytest.mark.slow
def test_one_of_two_drivers_is_killed(tmp_path):
    """What it held is taken over by a later run at the latest; the other one goes on undisturbed."""
    directory = tmp_path / "study"
    with running(directory, 8, 2, "gated") as one, running(directory, 8, 2, "gated") as other:
        both_at_work(directory)
        one.send_signal(signal.SIGKILL)
        Path(f"{directory}.go").touch()
        assert other.wait() == 0
    with running(directory, 8, 2, "gated") as last:
        assert last.wait() == 0
    study = tw.Study.open(directory)
    assert study.state.results == 8
    assert sorted(study.state.trials) == list(range(8))
