"""Workers under bad input and faults: another version, a full disk, a server that forgot, two of one name, a freeze.

Each worker is the command in a process of its own, a fork of this one: to import all that anew takes most of the time.
`with_` are lines that it runs before, which bring the fault.
"""

import contextlib
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest
import small_study
from scripts import Forked, check_study, log_of, wait_until

import trainwright as tw
from trainwright.errors import LedgerFull, LedgerTooNew, TrainwrightError
from trainwright.ledger import DirectoryLedger, Record, Status, Writer, facts
from trainwright.publishing import FileLayer

sys.path.append(str(Path(__file__).parents[1] / "ledger"))  # where the tests of ledgers keep their servers
from servers import Server

HERE = tw.Local(workers=0)
CONTAINER = ("unshare", "--pid", "--fork", "--mount-proc", "--kill-child")
EPOCHS = 2
pytestmark = [pytest.mark.timeout(600), pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")]


def make(directory, **settings):
    searcher = tw.RandomSearcher()
    return tw.Study(
        small_study.SPACE, objectives="min loss", directory=directory, seed=5, searcher=searcher, **settings
    )


def train(trial):
    for epoch in trial.epochs(EPOCHS):
        trial.report(loss=trial.params["lr"] / epoch)


@pytest.fixture
def begun(tmp_path):
    """Return the directory of a study of which one trial was run."""
    return begin(tmp_path / "study")


def begin(directory, epochs=EPOCHS, **settings):
    with make(directory, **settings) as study:
        study.run(small_study.train, trials=1, scheduler=tw.FixedEpochs(epochs), engine=HERE, progress=False)
    return directory


class Running:
    """A worker in a process of its own, and what it has said so far."""

    def __init__(self, directory, *arguments, with_, launcher):
        code = f"import os, sys, time\n{with_}\nfrom trainwright.cli.main import main\nmain()"
        self.said_at = Path(f"{directory}-{time.monotonic_ns()}.said")
        words = ["worker", str(directory), "--workers", "0", *arguments]
        if not launcher:
            self.process = Forked(code, words, self.said_at)
            return
        environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2] / "src")}
        command = [*launcher, sys.executable, "-c", code, *words]
        with self.said_at.open("wb") as said:
            self.process = subprocess.Popen(command, env=environment, stderr=said, stdout=said, cwd="/")

    @property
    def said(self):
        return self.said_at.read_text()

    @property
    def alive(self):
        return self.process.poll() is None

    def ends(self, status=0):
        assert self.process.wait(timeout=120) == status, self.said
        return self.said


@contextlib.contextmanager
def worker(directory, *arguments, with_="", launcher=()):
    """Run a worker; kill it in the end."""
    running = Running(directory, *arguments, with_=with_, launcher=launcher)
    try:
        yield running
    finally:
        running.process.kill()
        running.process.wait()


def at_work(directory, *workers, lines):
    """Wait until so many epochs more were begun, and each worker has begun one."""
    before = len(log_of(directory))

    def begun():
        new = log_of(directory)[before:]
        return len(new) >= lines and len({line.pid for line in new}) >= len(workers)

    wait_until(lambda: begun() or not all(worker.alive for worker in workers))
    assert all(worker.alive for worker in workers), [worker.said for worker in workers]


def check_nothing_twice(directory, trials, epochs=EPOCHS):
    """Check that the budget is exact and no epoch of any trial was begun twice."""
    with tw.Study.open(directory) as study:
        assert study.state.results == trials
        assert sorted(study.state.trials) == list(range(trials))
        assert all(len(trial.leases) == 1 for trial in study.trials)
    begun = [(line.trial, line.epoch) for line in log_of(directory)]
    assert sorted(begun) == [(trial, epoch) for trial in range(trials) for epoch in range(1, epochs + 1)]


# Another version: the records' format alone decides who may work together.


def test_a_worker_of_another_version_is_told_and_works(tmp_path, monkeypatch, capsys):
    """The same format is the same facts: how others choose their trials is theirs, as it is with another searcher."""
    with make(tmp_path / "study") as study:
        monkeypatch.setattr(tw, "__version__", "9.8.7")
        assert tw.Worker(where=study, train=train, engine=HERE).run(trials=2) == 2
        made_by = study.state.versions["trainwright"]
    assert f"this study was made by trainwright {made_by}, this is 9.8.7\n" in capsys.readouterr().err


def test_a_newer_format_is_refused_before_anything_is_written(begun):
    path = begun / "ledger" / "study.json"
    path.write_text(path.read_text().replace('"format": 1', '"format": 2'))
    before = sorted(begun.rglob("*"))
    with pytest.raises(LedgerTooNew, match=r"study\.json: format 2; this version reads up to 1; upgrade trainwright"):
        tw.Worker(where=begun, engine=HERE).run(trials=3, progress=False)
    assert sorted(begun.rglob("*")) == before


def test_a_newer_worker_ends_the_older_ones(tmp_path):
    """What they do not understand they do not work beside; their trials wait for whoever does."""

    def beside_a_newer_one(trial):
        newer.append([Record(kind="note", body={"name": "news", "value": 1}, v=2)])
        for epoch in trial.epochs(10**6):
            trial.report(loss=1 / epoch)

    with make(tmp_path / "study") as study:
        newer = DirectoryLedger(tmp_path / "study" / "ledger")
        with pytest.raises(LedgerTooNew, match="records of format 2; this version reads up to 1; upgrade trainwright"):
            tw.Worker(where=study, train=beside_a_newer_one, engine=HERE).run(trials=2, progress=False)
        assert study.trials[0].preempted
        assert study.state.counts["failed"] == 0


# Clocks.


def test_clocks_two_hours_apart(begun):
    """Times are shown, never compared between workers: nobody is held dead, nothing is done twice."""
    clock = "real = time.time\ntime.time = lambda: real() {:+}"
    ahead, behind = (clock.format(seconds) for seconds in (3600, -3600))
    with worker(begun, "--trials", "6", with_=ahead) as one, worker(begun, "--trials", "6", with_=behind) as other:
        one.ends()
        other.ends()
    check_nothing_twice(begun, 6)


# A full disk.

FULL = """
real, flag = os.write, sys.argv.pop()
def full(handle, *data):
    if os.path.exists(flag) and "/journal/" in os.readlink(f"/proc/self/fd/{handle}"):
        raise OSError(28, "No space left on device")
    return real(handle, *data)
os.write = full
"""


@pytest.mark.parametrize("call", ["write", pytest.param("fdatasync", marks=pytest.mark.slow)])
def test_a_worker_waits_for_room(begun, tmp_path, call):
    """It stands still, says so once, and goes on where it was when there is room: nothing lost, nothing twice."""
    flag = tmp_path / "full"
    with worker(begun, "--trials", "8", str(flag), with_=FULL.replace("os.write", f"os.{call}")) as waiting:
        at_work(begun, waiting, lines=3)
        flag.touch()
        wait_until(lambda: "waiting" in waiting.said)
        lines = len(log_of(begun))
        time.sleep(1.0)  # it tries again, and works no more
        assert len(log_of(begun)) == lines
        flag.unlink()
        said = waiting.ends()
    assert (
        len(re.findall(r"waiting 600 s for room, then giving up: cannot write .*: no space left on device; ", said))
        == 1
    )
    assert "there is room again: going on\n" in said
    check_nothing_twice(begun, 8)


def test_a_worker_gives_up(begun, tmp_path):
    """One sentence with the path and the bytes free, status 1; what it had is there, and others go on with it."""
    flag = tmp_path / "full"
    with worker(begun, "--trials", "6", "--give-up", "1", str(flag), with_=FULL) as impatient:
        at_work(begun, impatient, lines=3)
        flag.touch()
        said = impatient.ends(1)
    end = r"trainwright: cannot write .*/journal/.*: no space left on device; [\d,]+ bytes are free there; .*lost"
    assert re.fullmatch(end, said.splitlines()[-1])
    assert "Traceback" not in said
    with worker(begun, "--trials", "6") as successor:
        successor.ends()
    study = check_study(begun, 6, checkpoints=False)
    assert study.state.counts["failed"] == 0


def test_without_patience_a_full_disk_fails_no_trial(tmp_path, monkeypatch):
    """A trial in this very process whose report is not taken is not to blame for that."""
    real = os.write

    def full_for_once(*_):
        monkeypatch.setattr(os, "write", real)
        raise OSError(28, "No space left on device")

    def unlucky(trial):
        if trial.number == 1 and trial.assignment.lease == 1:
            monkeypatch.setattr(os, "write", full_for_once)
        return train(trial)

    with make(tmp_path / "study") as study:
        ours = tw.Worker(where=study, train=unlucky, engine=HERE, give_up_seconds=0)
        with pytest.raises(LedgerFull, match="no space left on device"):
            ours.run(trials=3, progress=False)
        assert study.trials[1].preempted
        assert ours.run(trials=3, progress=False) == 3
        assert study.state.counts["failed"] == 0


@pytest.fixture
def no_room_for_checkpoints(torch, monkeypatch):
    """Let the second checkpoint and the next two attempts at it find no room; return how often that was."""
    real, calls, failed = FileLayer.create, iter(range(10**9)), []

    def create(self, path):
        if path.name == "manifest.json" and 0 < next(calls) <= 6:  # each is tried again at once
            failed.append(path)
            raise OSError(28, "No space left on device")
        return real(self, path)

    monkeypatch.setattr(FileLayer, "create", create)
    return failed


def run_with_checkpoints(directory, **settings):
    with make(directory) as study:
        worker = tw.Worker(where=study, train=small_study.train_with_torch, engine=HERE, scheduler=tw.FixedEpochs(4))
        replace(worker, **settings).run(trials=2, progress=False)


def test_a_checkpoint_without_room_fails_no_trial(tmp_path, no_room_for_checkpoints):
    """The trial is paused and goes on from the checkpoint before, once there is room."""
    run_with_checkpoints(tmp_path / "study")
    assert len(no_room_for_checkpoints) == 6
    study = check_study(tmp_path / "study", 2)
    assert study.state.counts["failed"] == 0
    assert [lease.end.reason for lease in study.trials[0].leases.values()] == ["preempted"] * 3 + ["completed"]


def test_a_worker_gives_up_on_checkpoints(tmp_path, no_room_for_checkpoints):
    del no_room_for_checkpoints
    with pytest.raises(
        TrainwrightError, match=r"cannot save the checkpoint .*: no space left on device; the one before"
    ):
        run_with_checkpoints(tmp_path / "study", give_up_seconds=0)
    with make(tmp_path / "study") as study:
        assert study.trials[0].preempted
        assert study.trials[0].checkpoints
    run_with_checkpoints(tmp_path / "study")
    check_study(tmp_path / "study", 2)


def test_a_disk_that_is_really_full(tmp_path):
    """Journals, claims and beats find no room; a file goes, and the worker goes on."""
    directory = tmp_path / "study"
    directory.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=512k", "tmpfs", str(directory)]
    if os.geteuid() != 0 or subprocess.run(mount, capture_output=True, check=False).returncode:
        pytest.skip("file systems cannot be mounted here")
    try:
        begin(directory)
        often = "from trainwright.ledger import DirectoryLedger\nDirectoryLedger.lease_seconds = 2.4"
        with worker(directory, "--trials", "12", with_=often) as waiting:
            at_work(directory, waiting, lines=3)
            fill(directory / "logs")
            wait_until(lambda: "waiting" in waiting.said or not waiting.alive)
            time.sleep(1.0)
            (directory / "logs").unlink()
            waiting.ends()
        check_nothing_twice(directory, 12)
    finally:
        subprocess.run([shutil.which("umount"), "--lazy", str(directory)], check=True)


def fill(path):
    """Let a file take all the room that there is."""
    with path.open("wb", buffering=0) as file, contextlib.suppress(OSError):
        while True:
            file.write(bytes(4096))


# A Redis server that is started anew.


@pytest.fixture
def server(tmp_path):
    """Start a server; kill it in the end."""
    pytest.importorskip("redis", reason="redis-py is not installed; install the extra redis")
    if shutil.which("redis-server") is None:
        pytest.skip("redis-server is not installed: apt-get install redis-server")
    server = Server(tmp_path / "redis")
    yield server
    server.kill()


def test_redis_restarted_with_its_data(tmp_path, server):
    """Both workers wait for it and go on: nothing lost, nothing twice."""
    directory = begin(tmp_path / "study", ledger=server.url("s"))
    with worker(directory, "--trials", "24") as one, worker(directory, "--trials", "24") as other:
        at_work(directory, lines=4)
        server.kill()
        time.sleep(0.3)
        server.start()
        one.ends()
        other.ends()
    check_nothing_twice(directory, 24)


def test_redis_restarted_without_its_data(tmp_path, server):
    """Both workers end with one sentence, and make nothing anew."""
    directory = begin(tmp_path / "study", ledger=server.url("s"))
    with worker(directory, "--trials", "9999") as one, worker(directory, "--trials", "9999") as other:
        at_work(directory, one, other, lines=4)
        server.forget()
        server.start()
        for each in (one, other):
            said = each.ends(1)
            assert re.match(r"trainwright: redis://.* has lost records of this study: ", said.splitlines()[-1])
            assert "Traceback" not in said
    assert server.client().keys("*") == []


# Two of one name.


def test_two_workers_of_one_rank_have_two_slots(tmp_path):
    with make(tmp_path / "study") as study:
        first = DirectoryLedger(tmp_path / "study" / "ledger")
        first.append([facts.joined(Writer.here(), session=1)])
        first.claim("slot/0/0", first.writer)
        tw.Worker(where=study, train=train, engine=HERE, rank=0).run(trials=2, progress=False)
        assert {trial.leases[1].slot for trial in study.trials} == {"1:0"}


@pytest.fixture
def container():
    """Return what runs a command in a process namespace of its own, on this host and its file systems."""
    if (
        shutil.which("unshare") is None
        or subprocess.run([*CONTAINER, "true"], capture_output=True, check=False).returncode
    ):
        pytest.skip("process namespaces cannot be made here: needs root and util-linux")
    return CONTAINER


def test_two_containers_of_one_name(tmp_path, container):
    """The worker of each is process 1 on a host of one name: neither takes the other for gone."""
    epochs = 60  # more than a second: time enough to look at each other
    begun, budget = begin(tmp_path / "study", epochs=epochs), ("--trials", "3")
    with worker(begun, *budget, launcher=container) as one:
        at_work(begun, one, lines=1)
        with worker(begun, *budget, launcher=container) as other:
            one.ends()
            other.ends()
    with tw.Study.open(begun) as study:
        places = [(writer.pid, writer.namespace) for writer in study.state.writers.values() if writer.pid == 1]
    assert len(places) == len(set(places)) == 2
    check_nothing_twice(begun, 3, epochs)


# A worker that is stopped for longer than its lease.


@pytest.mark.slow
def test_stopped_for_longer_than_its_lease(tmp_path, container):
    """Its trial is taken over; when it comes back it gives way, and each trial has one result."""
    epochs = 50
    directory = begin(tmp_path / "study", epochs=epochs)
    soon = "from trainwright.ledger import DirectoryLedger\nDirectoryLedger.lease_seconds = 2.4"
    budget = ("--trials", "3")
    with worker(directory, *budget, with_=soon, launcher=container) as stopped:
        at_work(directory, stopped, lines=2)
        pid = child_of(stopped.process.pid)
        os.kill(pid, signal.SIGSTOP)
        with worker(directory, *budget, with_=soon) as successor:
            wait_until(lambda: taken_over(directory) or not successor.alive)
            os.kill(pid, signal.SIGCONT)
            successor.ends()
            stopped.ends()
    with tw.Study.open(directory) as study:
        assert study.state.results == 3
        assert sorted(study.trials[1].leases) == [1, 2]
        assert study.trials[1].leases[1].lost
        records, _ = DirectoryLedger(directory / "ledger").read()
        done = [
            record.trial for record in records if record.kind == "finished" and record.body["reason"] == "completed"
        ]
        assert sorted(done) == [0, 1, 2]


def child_of(pid):
    return int(Path(f"/proc/{pid}/task/{pid}/children").read_text().split()[0])


def taken_over(directory):
    """Return whether two processes have begun epochs of trial 1."""
    return len({line.pid for line in log_of(directory) if line.trial == 1}) == 2


# A trial that takes its worker with it.

DEADLY = """
import os, signal, sys
import trainwright as tw

def train(trial):
    if trial.number == 0:
        os.kill(os.getpid(), signal.SIGKILL)
    return trial.params["x"]

loaded = tw.Study(tw.Space(x=tw.Float(0, 1)), "min loss", searcher=tw.RandomSearcher()), tw.Worker, tw.Local
for run in range(40):
    child = os.fork()
    if not child:
        study = tw.Study(tw.Space(x=tw.Float(0, 1)), "min loss", directory=sys.argv[1], searcher=tw.RandomSearcher())
        tw.Worker(where=study, train=train, engine=tw.Local(workers=0)).run(trials=2, progress=False)
        os._exit(0)
    _, status = os.waitpid(child, 0)
    if not status:
        print(run)
        break
"""


def test_a_trial_that_kills_twenty_workers_is_given_up(tmp_path):
    """Nobody can say whose fault it was, as when the memory of the machine runs out: it does not go on for ever."""
    command = [sys.executable, "-c", DEADLY, str(tmp_path / "study")]
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2] / "src")}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.stdout == "20\n", done.stderr
    with tw.Study.open(tmp_path / "study") as study:
        assert study.trials[0].status is Status.ABANDONED
        assert len(study.trials[0].leases) == 20
        assert [trial.status for trial in study.trials[1:]] == [Status.COMPLETE] * 2
