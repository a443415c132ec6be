"""Running, watching and killing `small_study.py`, and what must hold whatever was killed."""

import gc
import os
import signal
import subprocess
import sys
import time
import traceback
import warnings
from collections import Counter
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import trainwright as tw
from trainwright.errors import StudyError
from trainwright.ledger import DirectoryLedger

__all__ = ["Begun", "Forked", "Watched", "check_study", "log_of", "running", "wait_until", "workers_of"]

SCRIPT = Path(__file__).with_name("small_study.py")
PATIENCE_SECONDS = 120.0


@dataclass(frozen=True)
class Begun:
    """One epoch that was begun."""

    trial: int
    epoch: int
    pid: int
    at: float


def log_of(directory):
    """Return what the script's trials logged."""
    path = Path(f"{directory}.log")
    lines = path.read_text().splitlines() if path.exists() else []
    return [Begun(int(a), int(b), int(c), float(d)) for a, b, c, d in map(str.split, lines)]


def wait_until(condition):
    """Wait until the condition holds; fail after a long time."""
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not (found := condition()):
        if time.monotonic() > deadline:
            raise TimeoutError
        time.sleep(0.005)
    return found


def workers_of(driver):
    """Return the processes of the workers that a driver, alive or not, has started."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            words = path.read_bytes().split(b"\0")
        except OSError:
            continue
        if b"trainwright.engine.process.worker" in words and words[-2] == str(driver).encode():
            found.append(int(path.parent.name))
    return found


@contextmanager
def running(directory, *arguments, script=SCRIPT):
    """Run a script; kill it and whatever it left in the end."""
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2] / "src")}
    command = [sys.executable, str(script), str(directory), *map(str, arguments)]
    process = subprocess.Popen(command, env=environment, stderr=subprocess.PIPE, start_new_session=True)
    try:
        yield process
    finally:
        process.kill()
        process.communicate()
        for pid in workers_of(process.pid):
            os.kill(pid, 9)


class Forked:
    """A fork of this process that runs `code` with `words` as its command line, and writes what it says to a file.

    It can be waited for and killed like a `subprocess.Popen`.
    """

    def __init__(self, code, words, said_at):
        self.returncode = None
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # newer Pythons warn of forks beside threads, of which the child uses none
            self.pid = os.fork()
        if not self.pid:
            status = 1
            try:
                status = _run(code, words, said_at)
            finally:
                os._exit(status)

    def poll(self):
        """Return the exit status, or None while it runs."""
        if self.returncode is None and (ended := os.waitpid(self.pid, os.WNOHANG))[0]:
            self.returncode = os.waitstatus_to_exitcode(ended[1])
        return self.returncode

    def wait(self, timeout=PATIENCE_SECONDS):
        """Wait for the exit status; fail after a long time."""
        deadline = time.monotonic() + timeout
        while self.poll() is None:
            if time.monotonic() > deadline:
                raise TimeoutError
            time.sleep(0.005)
        return self.returncode

    def kill(self):
        """Kill it if it runs."""
        if self.poll() is None:
            os.kill(self.pid, signal.SIGKILL)


def _run(code, words, said_at):
    """Become a program of its own, as far as that goes, and return its exit status."""
    handle = os.open(said_at, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    for standard in (1, 2):
        os.dup2(handle, standard)
    sys.stdout, sys.stderr = (open(standard, "w", buffering=1, closefd=False) for standard in (1, 2))  # noqa: SIM115
    warnings.resetwarnings()
    warnings.simplefilter("ignore")
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    gc.unfreeze()
    os.chdir("/")
    sys.argv = ["trainwright", *words]
    try:
        exec(code, {"__name__": "__main__"})  # noqa: S102 -- the test's own lines
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else int(end.code is not None)
    except BaseException:  # noqa: BLE001 -- a fork never runs on into the test
        traceback.print_exc()
        return 1
    return 0


class Watched:
    """A study's directory between one kill and the next: finished trials stay, and stay as they are."""

    def __init__(self, directory):
        self.directory = directory
        self.finished = {}

    def look(self):
        """Open the study, if it was made yet, and compare it with the last time."""
        try:
            study = tw.Study.open(self.directory)
        except StudyError:  # killed before it was made
            assert not self.finished
            return
        now = {trial.number: trial.values for trial in study.trials if trial.has_result}
        assert self.finished.items() <= now.items()
        assert study.dropped == []
        self.finished = now


def check_study(directory, trials, *, checkpoints=True):
    """Check what must hold at the end: results counted once, the budget exact, no reported epoch begun again.

    The last only if the trials keep `checkpoints`.
    """
    study = tw.Study.open(directory)
    counts = study.state.counts
    assert study.state.results == trials
    assert sorted(study.state.trials) == list(range(trials + counts["abandoned"] + counts["failed"]))
    assert counts["complete"] + counts["stopped"] == trials
    records, _ = DirectoryLedger(directory / "ledger").read(None)
    assert max(Counter(record.trial for record in records if record.kind == "finished").values()) == 1
    # Who takes a trial over writes its proposal again.
    proposed = Counter((record.trial, record.body["key"]) for record in records if record.kind == "proposed")
    assert len(proposed) == len({number for number, _ in proposed})
    assert all(times <= len(study.state.trials[number].leases) for (number, _), times in proposed.items())
    starts = (record for record in records if record.kind in {"proposed", "started"} and record.lease is not None)
    assert max(Counter((record.trial, record.lease) for record in starts).values()) == 1
    reported = {}
    for record in records:
        if record.kind == "reported":
            place = record.trial, record.body["epoch"]
            reported[place] = min(record.at, reported.get(place, record.at))
    again = [line for line in log_of(directory) if line.at > reported.get((line.trial, line.epoch), line.at)]
    assert again == [] or not checkpoints
    return study
