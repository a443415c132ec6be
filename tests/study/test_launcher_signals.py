"""Signals of a launcher, to the driver alone or to every process: the epoch in work ends, the trial is paused."""

import itertools
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from scripts import log_of, wait_until

import trainwright as tw
from trainwright.engine import Died, Raised, Returned, StoppedEarly
from trainwright.ledger import TrialState
from trainwright.ledger.objectives import parse_objectives
from trainwright.ledger.trials import Report
from trainwright.schedule import Pause, Reason, Stop
from trainwright.schedule.rules.promotion_rule import CONTINUE
from trainwright.study.driver.trial_run import TrialRun, end_record

SCRIPT = Path(__file__).with_name("signalled.py")
LONG = 600.0
REASON = Reason(rule="a rule", epoch=1)
pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")


def descendants(pid):
    """Return the processes that a process has started, and those that they have."""
    found = []
    for path in Path(f"/proc/{pid}/task").glob("*/children"):
        for child in map(int, path.read_text().split()):
            found += [child, *descendants(child)]
    return found


class Driver:
    """The script with so many workers; trials have so many ranks."""

    def __init__(self, workers, ranks):
        environment = {
            **os.environ,
            "PYTHONPATH": os.pathsep.join([str(SCRIPT.parents[2] / "src"), str(SCRIPT.parent)]),
        }
        command = [sys.executable, str(SCRIPT), str(workers), str(ranks)]
        self.ranks = ranks
        self.process = subprocess.Popen(
            command,
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            bufsize=1,
            start_new_session=True,
        )

    def begin(self, directory, *, grace=LONG):
        """Begin a study, and wait until its trial is in its second epoch."""
        self.process.stdin.write(f"{directory} {grace}\n")
        wait_until(lambda: sum(line.epoch == 2 for line in log_of(directory)) == self.ranks)

    def signal(self, number, *, everybody):
        """Send a signal to the driver's group, and to every process that it has started."""
        os.killpg(self.process.pid, number)
        for pid in descendants(self.process.pid) if everybody else ():
            os.kill(pid, number)

    def ended(self):
        """Return how the run ended."""
        return self.process.stdout.readline().strip()

    def close(self):
        self.process.stdin.close()
        self.process.wait(60)
        self.process.stdout.close()


@pytest.fixture(scope="module", params=[(0, 1), (1, 1), (2, 2)], ids=["here", "1 rank", "2 ranks"])
def driver(request):
    """Return a driver whose trials run in its own process, in another, and in two."""
    driver = Driver(*request.param)
    yield driver
    driver.close()


def only_trial(directory):
    with tw.Study.open(directory) as study:
        [trial] = study.trials
        return trial


@pytest.mark.parametrize("everybody", [False, True], ids=["driver", "everybody"])
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGUSR1], ids=lambda number: number.name)
def test_the_epoch_in_work_is_reported_and_the_trial_paused(driver, tmp_path, number, everybody):
    """No process ends of it: the same ones run the next study."""
    directory = tmp_path / "study"
    driver.begin(directory)
    workers = descendants(driver.process.pid)
    driver.signal(number, everybody=everybody)
    Path(f"{directory}.go").touch()
    assert driver.ended() == "interrupted"
    trial = only_trial(directory)
    assert (trial.status, trial.preempted, trial.epoch, trial.blamed_losses) == ("paused", True, 2, 0)
    [lease] = trial.leases.values()
    assert (lease.lost, lease.end.reason, lease.why) == (False, "preempted", number.name)
    assert descendants(driver.process.pid) == workers


def test_the_end_of_the_grace(tmp_path):
    """An epoch that takes longer is lost, in the driver's own process too."""
    driver = Driver(0, 1)
    try:
        driver.begin(tmp_path / "study", grace=0.2)
        driver.signal(signal.SIGUSR2, everybody=False)
        assert driver.ended() == "interrupted"
    finally:
        driver.close()
    trial = only_trial(tmp_path / "study")
    assert (trial.status, trial.preempted, trial.epoch, trial.blamed_losses) == ("paused", True, 1, 0)


@pytest.mark.parametrize("workers", [0, 1])
def test_a_second_signal_ends_it_at_once(tmp_path, workers):
    """Another one at any time, the same one after a second; the trial is paused where its last report was."""
    driver = Driver(workers, 1)
    try:
        driver.begin(tmp_path / "study")
        driver.signal(signal.SIGTERM, everybody=True)
        driver.signal(signal.SIGTERM, everybody=True)  # an echo
        driver.signal(signal.SIGUSR1, everybody=True)
        assert driver.ended() == "interrupted"
    finally:
        Path(tmp_path / "study.go").touch()
        driver.close()
    trial = only_trial(tmp_path / "study")
    assert (trial.status, trial.preempted, trial.epoch, trial.blamed_losses) == ("paused", True, 1, 0)


OUTCOMES = [
    Died(why="the worker process was killed by SIGKILL"),
    Died(why="its node is gone", blame=False),
    StoppedEarly(metrics={"loss": 1.0}, epoch=1),
    Returned(metrics={"loss": 1.0}, epoch=1),
    *(
        Raised(failure=failure, message="no")
        for failure in ("exception", "killed", "out_of_memory", "timeout", "no_room")
    ),
]


@pytest.mark.parametrize("leaving", ["", "SIGTERM"])
@pytest.mark.parametrize("preempted", [False, True], ids=["", "told"])
@pytest.mark.parametrize("verdict", [CONTINUE, Stop(REASON), Pause(REASON)], ids=["continue", "stop", "pause"])
@pytest.mark.parametrize("outcome", OUTCOMES, ids=lambda one: getattr(one, "failure", type(one).__name__))
def test_no_death_while_leaving_is_the_trials_fault(outcome, verdict, preempted, leaving):
    """Every end of a run, whatever was decided: lost only if the driver stays, failed only by what nobody disturbs."""
    report = Report(epoch=1, step=None, metrics={"loss": 1.0}, wall_seconds=1.0, lease=1, at=0.0)
    trial = TrialState(0, epoch=1, reports={1: report})
    run = TrialRun(lease=1, block=(0,), since=0.0, verdict=verdict, preempted=preempted)
    record = end_record(trial, run, outcome, parse_objectives("min loss"), leaving=leaving)
    what = record.kind, record.body.get("reason")
    if isinstance(outcome, Died):
        assert what == (("paused", "preempted") if leaving else ("lost", None))
        assert leaving or record.body["blame"] == outcome.blame
    elif _interrupted(outcome, leaving) or (isinstance(outcome, StoppedEarly) and preempted and verdict == CONTINUE):
        assert what == ("paused", "preempted")
    elif isinstance(verdict, Pause):
        assert what == ("paused", "rung")
    elif isinstance(verdict, Stop):
        assert what == ("finished", "stopped")
    else:
        assert what == (("failed", None) if isinstance(outcome, Raised) else ("finished", "completed"))


def _interrupted(outcome, leaving):
    disturbed = {"no_room", "exception", "killed"} if leaving else {"no_room"}
    return isinstance(outcome, Raised) and outcome.failure in disturbed


# The end of the wall time.


@pytest.mark.parametrize(
    ("epoch", "wall", "grace"),
    list(itertools.product([0.7, 5.0, 12.0, 33.0, 150.0], [40.0, 100.0, 1000.0], [0.0, 2.0, 25.0, 400.0])),
)
def test_no_epoch_is_begun_that_cannot_end(monkeypatch, epoch, wall, grace):
    """What is begun is reported; the time that is left is less than another epoch, or than the grace."""
    now, begun = 1000.0, []
    monkeypatch.setattr(time, "monotonic", lambda: now)

    def train(trial):
        nonlocal now
        trial._started = now
        for number in trial.epochs():
            begun.append(number)
            now += epoch
            trial.report(loss=1.0)

    with tw.Study(tw.Space(x=tw.Float(0, 1)), "min loss") as study:
        study.run(
            train,
            trials=1,
            wall_seconds=wall,
            grace_seconds=grace,
            scheduler=tw.FixedEpochs(10_000),
            engine=tw.Local(workers=0),
            progress=False,
        )
        [trial] = study.trials
        assert (trial.preempted, trial.epoch, trial.blamed_losses) == (True, len(begun), 0)
        used = now - 1000.0
        assert used <= max(wall, epoch)
        assert used >= wall - max(1.1 * epoch, min(grace, wall / 10)) - 1e-6
