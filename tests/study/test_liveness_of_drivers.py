"""Who counts as alive while it joins, ends by an error, or is cut off; and what must not rest on one that dies."""

import errno
import os
import threading
import time
from collections import deque

import pytest

import trainwright as tw
from trainwright.errors import LedgerError
from trainwright.ledger import DirectoryLedger, MemoryLedger, Writer, facts
from trainwright.study import StudyFailed
from trainwright.study.driver.heartbeat import Heartbeat

SPACE = tw.Space(x=tw.Float(0.0, 1.0))
HERE = tw.Local(workers=0)
pytestmark = pytest.mark.timeout(120)


def make(directory=None, objectives="min loss", **settings):
    return tw.Study(SPACE, objectives, directory=directory, searcher=tw.RandomSearcher(), **settings)


def train(trial):
    return trial.params["x"]


def run(study, function=train, **settings):
    study.run(function, **{"engine": HERE, "progress": False} | settings)


def joined(study, place=None):
    """Return another writer of the study, in a process that lives (ours) or at another `place`."""
    ledger = DirectoryLedger(study.directory / "ledger")
    ledger.append([facts.joined(place or Writer.here(), session=9)])
    return ledger


def begin(study, ledger, number):
    params = {"x": 0.25}
    key = study.space.configuration_of(params).key
    ledger.claim(f"number/{number}/0", ledger.writer)
    proposal = facts.proposed(number, params=params, key=key, origin={}, seen=0, seen_hash="")
    start = facts.started(number, 1, slot="0", devices=[], resumed_epoch=0)
    ledger.append([facts.begun(proposal, start)])


ELSEWHERE = Writer(host="elsewhere", boot="b", pid=1, process_start="1")


# The heartbeat.


@pytest.mark.parametrize("error", [OSError(errno.EIO, "no answer"), RuntimeError("a ledger of one's own")])
def test_a_heart_beats_on_after_any_error(error):
    ledger = MemoryLedger()
    ledger.lease_seconds = 0.12
    beat, calls = ledger.heartbeat, []

    def beats():
        calls.append(1)
        if len(calls) == 2:
            raise error
        beat()

    ledger.heartbeat = beats
    with Heartbeat(ledger) as heartbeat:
        deadline = time.monotonic() + 60
        while len(calls) < 4 and time.monotonic() < deadline:
            time.sleep(0.005)
        heartbeat.check()  # it was a passing trouble
    assert len(calls) >= 4


def test_a_trouble_that_stays_is_told():
    ledger = MemoryLedger()
    ledger.lease_seconds = 0.12
    failing = threading.Event()

    def beats():
        if failing.is_set():
            raise OSError(errno.EIO, "no answer")

    ledger.heartbeat = beats
    with Heartbeat(ledger) as heartbeat:
        failing.set()
        checks = iter(heartbeat.check, "until it raises")
        with pytest.raises(OSError, match="no answer"):
            deque(checks, maxlen=0)


def test_a_worker_beats_before_all_else(tmp_path, monkeypatch):
    """To replay a long study and to open an engine take a while, in which others must not hold it dead."""
    counts = []

    class Engine(tw.Local):
        def open(self, function, directory):
            ledger = DirectoryLedger(tmp_path / "study" / "ledger")
            counts.append([int(path.read_text()) for path in (ledger.directory / "beats").iterdir()])
            super().open(function, directory)

    make(tmp_path / "study").close()
    tw.Worker(where=tmp_path / "study", train=train, engine=Engine(workers=0)).run(trials=1, progress=False)
    with make(tmp_path / "study") as study:
        run(study, trials=2, engine=Engine(workers=0))
    assert all(max(found) >= 1 for found in counts)
    assert len(counts) == 2


# Drivers that ended, or stand still, in a process that lives.


def test_the_trials_of_a_driver_that_beats_no_more_are_taken_over(tmp_path, monkeypatch):
    """It was ended by an error that kept it from saying so; its process lives on."""
    monkeypatch.setattr(DirectoryLedger, "lease_seconds", 0.6)
    with make(tmp_path / "study") as study:
        other = joined(study)
        begin(study, other, 0)
        other.heartbeat()
        worker = tw.Worker(where=study, train=train, engine=HERE)
        worker.run(trials=2, wall_seconds=60, progress=False)
        assert [str(trial.status) for trial in study.trials] == ["complete"] * 2
        assert sorted(study.trials[0].leases) == [1, 2]


def test_the_trials_of_a_driver_that_beats_are_left_to_it(tmp_path, monkeypatch):
    monkeypatch.setattr(DirectoryLedger, "lease_seconds", 0.6)
    with make(tmp_path / "study") as study:
        other = joined(study)
        begin(study, other, 0)
        with Heartbeat(other):
            worker = tw.Worker(where=study, train=train, engine=HERE)
            worker.run(trials=2, wall_seconds=3, progress=False)
        assert sorted(study.trials[0].leases) == [1]


def test_what_a_loop_has_asked_for_is_its_own_while_its_process_lives(tmp_path, monkeypatch):
    """It never beats."""
    monkeypatch.setattr(DirectoryLedger, "lease_seconds", 0.1)
    with make(tmp_path / "study") as study, make(tmp_path / "study") as loop:
        asked = loop.ask()
        worker = tw.Worker(where=study, train=train, engine=HERE)
        worker.run(trials=2, wall_seconds=1.5, progress=False)
        assert study.trials[asked.number].status == "proposed"


def test_a_closed_study_leaves_nothing_running(tmp_path, monkeypatch):
    """A full disk ended its driver, which could not say what it left; closed when there was room again, it does."""
    real, full = os.write, threading.Event()

    def write(handle, data):
        if full.is_set() and b'"kind"' in bytes(data):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return real(handle, data)

    def fills(trial):
        full.set()
        return 1.0

    monkeypatch.setattr(os, "write", write)
    study = make(tmp_path / "study")
    with pytest.raises(LedgerError, match="no space left"):
        run(study, fills, trials=1)
    full.clear()
    study.close()
    with make(tmp_path / "study") as other:
        worker = tw.Worker(where=other, train=train, engine=HERE, other_job=True)
        worker.run(trials=1, wall_seconds=60, progress=False)
        assert other.state.results == 1
        assert all(writer.left for name, writer in other.state.writers.items() if name not in other._log.mine)


def test_whoever_writes_first_again_says_goodbye_for_who_it_was(tmp_path):
    """In whatever order the records are read."""
    first, second = MemoryLedger(), MemoryLedger()
    old = first.append([facts.joined(Writer.here(), session=1)])
    new = second.append([facts.joined(Writer.here(), session=2), facts.left([first.writer])])
    for records in (old + new, new + old):
        state = tw.ledger.fold(records)
        assert [writer.left for writer in state.writers.values()] == [True, True]


def test_one_that_cannot_be_written_keeps_no_other_running(tmp_path, monkeypatch):
    """At the end of a driver each of its trials is let go of, though one record could not be written."""
    with make(tmp_path / "study") as study:
        log, failed = study._log, []
        append = log.append

        def appends(*records):
            if records[0].kind == "paused" and not failed:
                failed.append(records[0].trial)
                raise LedgerError("for a moment")
            append(*records)

        monkeypatch.setattr(log, "append", appends)
        with pytest.raises(LedgerError, match="for a moment"):
            run(study, slow, trials=3, engine=tw.Local(workers=2), wall_seconds=3)
        assert sorted(str(trial.status) for trial in study.trials) == ["paused", "running"]


def slow(trial):
    while True:
        time.sleep(0.05)
        trial.report(loss=1.0)


# What must not rest on one that dies.


def test_the_reference_point_is_fixed_though_its_claimer_died(tmp_path):
    with make(tmp_path / "study", ["min a", "min b"]) as study:
        dead = joined(study, ELSEWHERE)
        dead.append([facts.left()])
        study.refresh()
        for key in ("reference", "reference/0"):
            dead.claim(key, dead.writer)
        run(study, lambda trial: {"a": trial.params["x"], "b": 1 - trial.params["x"]}, trials=6)
        assert study.state.reference is not None


def test_what_comes_while_a_worker_joins_reaches_its_rule_once(tmp_path, monkeypatch):
    """Between its look at the ledger and the replay for its rule others write on."""
    seen = []

    class Counting(tw.ASHA):
        def fold(self, index, event):
            seen.append((type(event).__name__, getattr(event, "trial", None)))
            return super().fold(index, event)

    with make(tmp_path / "study") as study, make(tmp_path / "study") as other:
        asked = other.ask()
        refresh, calls = study._log.refresh, []

        def refreshes(**named):
            refresh(**named)
            if not calls:
                calls.append(1)
                other.tell(asked, loss=1.0)

        monkeypatch.setattr(study._log, "refresh", refreshes)
        run(study, trials=2, scheduler=Counting(max_epochs=3))
    assert seen.count(("Ended", 0)) == 1


# Failures in a team.


def test_a_team_is_not_hopeless_before_as_many_failed_as_it_runs(tmp_path):
    """The first to fail are the quick ones, and the others have not had their time."""
    with make(tmp_path / "study") as study:
        other = joined(study, ELSEWHERE)
        for number in range(15):
            begin(study, other, number)
        study.refresh()

        def late(trial):
            if trial.number < 29:
                return float("nan")
            ends = [facts.finished(n, 1, reason="completed", values={"loss": 1.0}, wall_seconds=1.0) for n in range(15)]
            other.append(ends)
            return 1.0

        run(study, late, trials=16)
        assert study.state.counts["failed"] == 14
        with pytest.raises(StudyFailed, match="16 trials have failed"):
            run(study, lambda _: float("nan"), trials=30, max_failures=16)


def test_a_limit_of_failures_that_was_given_is_kept():
    with make() as study, pytest.raises(StudyFailed, match="3 trials have failed"):
        run(study, lambda trial: trial.params["x"] if trial.number % 2 else float("nan"), trials=30, max_failures=3)
