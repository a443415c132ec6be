"""Who is held dead, when: processes of this host at once, others after unmoved beats on the observer's own clock."""

import os
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest

from trainwright.ledger import Writer
from trainwright.ledger.writers import Liveness

ELSEWHERE = Writer(host="another-host", boot="b", pid=1, process_start="1")


class Clock:
    now = 1000.0

    def __call__(self):
        return self.now


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def liveness(clock):
    return Liveness(180.0, clock)


def test_a_live_process_of_this_host_never_dies(liveness, clock):
    """However long it is silent: a step may take hours."""
    for _ in range(3):
        assert liveness.is_dead("w", Writer.here(), 0) is False
        clock.now += 1e6


def test_a_process_that_is_gone_is_dead_at_once(liveness):
    process = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    stat = Path(f"/proc/{process.pid}/stat").read_text()
    writer = replace(Writer.here(), pid=process.pid, process_start=stat.rpartition(")")[2].split()[19])
    assert liveness.is_dead("w", writer, 0) is False
    process.kill()
    deadline = time.monotonic() + 30
    while not liveness.is_dead("w", writer, 0) and time.monotonic() < deadline:  # a zombie, not waited for
        time.sleep(0.01)
    assert liveness.is_dead("w", writer, 0) is True
    process.wait()
    assert liveness.is_dead("w", writer, 0) is True


def test_another_process_of_the_same_number_is_not_the_writer(liveness):
    assert liveness.is_dead("w", replace(Writer.here(), process_start="1"), 0) is True


def watched(liveness, clock, seconds, writer, beats):
    """Look every 15 seconds for so long, and return the last verdict."""
    for _ in range(round(seconds / 15)):
        clock.now += 15.0
        verdict = liveness.is_dead("w", writer, beats)
    return verdict


@pytest.mark.parametrize(
    "place", [{"boot": "of another machine, or an older one"}, {"namespace": "pid:[1]"}, {"namespace": ""}]
)
def test_processes_of_another_place_are_told_by_their_beats(liveness, clock, place):
    """Two machines of one name, two containers on one host: the same process id is another process there."""
    writer = replace(Writer.here(), process_start="1", **place)
    assert liveness.is_dead("w", writer, 0) is None
    clock.now += 180.0
    assert liveness.is_dead("w", writer, 1) is False
    assert watched(liveness, clock, 180.0, writer, 1) is True


def test_a_foreign_proc_tells_nothing(liveness, monkeypatch):
    """A namespace of its own, but the /proc of the host: no process can be looked at."""
    here = Writer.here()
    monkeypatch.setattr(os, "getpid", lambda: here.pid + 1)
    assert Writer.here().namespace == ""
    assert liveness.is_dead("w", here, 0) is None


def test_a_writer_of_before_namespaces_were_noted(liveness):
    body = Writer.here().body()
    del body["namespace"]
    assert liveness.is_dead("w", Writer.of(body), 0) is None


def test_whoever_left_is_gone(liveness):
    assert liveness.is_dead("w", replace(Writer.here(), left=True), 0) is True
    assert liveness.is_dead("w", replace(ELSEWHERE, left=True), 7) is True


@pytest.mark.parametrize("writer", [ELSEWHERE, None])
def test_another_host_dies_only_after_unmoved_beats(liveness, clock, writer):
    """A newcomer waits the whole time from first sight and does not know until then."""
    assert liveness.is_dead("w", writer, 5) is None
    assert watched(liveness, clock, 165.0, writer, 5) is None
    assert watched(liveness, clock, 15.0, writer, 5) is True


def test_every_beat_gives_the_whole_time_again(liveness, clock):
    liveness.is_dead("w", ELSEWHERE, 0)
    for beats in range(1, 5):
        watched(liveness, clock, 165.0, ELSEWHERE, beats - 1)
        assert liveness.is_dead("w", ELSEWHERE, beats) is False
    assert watched(liveness, clock, 165.0, ELSEWHERE, 4) is False  # it was seen to live
    assert watched(liveness, clock, 15.0, ELSEWHERE, 4) is True
    assert liveness.is_dead("w", ELSEWHERE, 5) is False  # it was only cut off


@pytest.mark.parametrize("moved", [False, True])
def test_after_an_outage_the_living_have_time_to_beat(liveness, clock, moved):
    """The file system was away, or the observer stood still, for an hour: nobody could beat, and nobody is dead."""
    liveness.is_dead("w", ELSEWHERE, 1)
    liveness.is_dead("w", ELSEWHERE, 1 + moved)
    watched(liveness, clock, 60.0, ELSEWHERE, 1 + moved)
    clock.now += 3600.0
    assert liveness.is_dead("w", ELSEWHERE, 1 + moved) is (False if moved else None)
    clock.now += 15.0
    assert liveness.is_dead("w", ELSEWHERE, 2 + moved) is False


def test_whoever_looks_seldom_finds_the_dead_in_the_end(liveness, clock):
    liveness.is_dead("w", ELSEWHERE, 1)
    verdicts = []
    for _ in range(4):
        clock.now += 3600.0
        verdicts.append(liveness.is_dead("w", ELSEWHERE, 1))
    assert verdicts == [None, None, None, True]


def test_observers_and_writers_are_told_apart(liveness, clock):
    newcomer = Liveness(180.0, clock)
    liveness.is_dead("w", ELSEWHERE, 0)
    watched(liveness, clock, 90.0, ELSEWHERE, 0)
    newcomer.is_dead("w", ELSEWHERE, 0)
    liveness.is_dead("other", ELSEWHERE, 0)
    assert watched(liveness, clock, 90.0, ELSEWHERE, 0) is True
    assert liveness.is_dead("other", ELSEWHERE, 0) is None
    assert newcomer.is_dead("w", ELSEWHERE, 0) is None


@pytest.mark.parametrize("step", [3600.0, -3600.0])
def test_the_wall_clock_is_irrelevant(monkeypatch, step):
    """It may be an hour off and step in the middle of a run: only the monotonic clock of the observer counts."""
    now = time.time()
    liveness = Liveness(180.0)
    monkeypatch.setattr(time, "time", lambda: now)
    assert liveness.is_dead("w", ELSEWHERE, 0) is None
    assert liveness.is_dead("here", Writer.here(), 0) is False
    now += step
    assert liveness.is_dead("w", ELSEWHERE, 0) is None
    assert liveness.is_dead("here", Writer.here(), 0) is False


def test_here_is_this_process():
    writer = Writer.here()
    assert writer.pid == os.getpid()
    assert writer.gone() is False
    assert Writer.of(writer.body()) == writer
