"""Ray keeps the promises of engines, and what each kind of death of an actor, a process or a rank becomes."""

import os
import signal
import time
from contextlib import contextmanager
from pathlib import Path

import pytest
import trainings

from trainwright.engine import Died, Raised, Returned
from trainwright.engine.ray.engine import Ray
from trainwright.errors import EngineError
from trainwright.testing.engine import EngineConformance, OutcomeRecorder, run_all
from trainwright.train.assignment import Assignment

pytestmark = [pytest.mark.slow, pytest.mark.outside("Ray"), pytest.mark.usefixtures("cluster")]

MEGABYTE = 2**20


class TestTwoDevices(EngineConformance):
    def make_engine(self):
        return Ray(workers=2, timeout_seconds=300, memory_bytes=2**40)


@contextmanager
def opened(engine, directory=None, train=trainings.does):
    engine.open(train, directory)
    try:
        yield engine
    finally:
        engine.close()


def assignment(number, directory=None, **params):
    return Assignment(trial=number, lease=1, params=params, seed=number, directory=directory and str(directory))


def until(engine, handler, done):
    """Poll until something has come about."""
    deadline = time.monotonic() + 120
    while not done():
        assert time.monotonic() < deadline, f"after two minutes {list(engine._gangs)} still run"
        engine.poll(handler, 0.1)


def parent(pid):
    """Return the process that started another: the actor of a worker process."""
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


def gone(pid):
    """Wait until a process has gone."""
    deadline = time.monotonic() + 60
    while Path(f"/proc/{pid}").exists() and Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z":
        if time.monotonic() > deadline:
            return False
        time.sleep(0.05)
    return True


class TestEnds:
    @pytest.mark.parametrize(
        ("what", "kind", "sentence"),
        [
            ("raises", "exception", "ValueError: a first line"),
            ("raises_unprintable", "exception", "Unprintable"),
            ("returns_socket", "bad_objective", "train returned <socket."),
            ("exits_hard", "killed", "the worker process ended by itself with exit status 3"),
            ("crashes", "killed", "the worker process crashed with SIGSEGV"),
        ],
    )
    def test_failures(self, what, kind, sentence):
        """Each is a failure of the trial with its sentence, and the next trial runs."""
        with opened(Ray(workers=1)) as engine:
            handler = run_all(engine, [assignment(0, what=what), assignment(1, what="reports_pid")])
        outcome = handler.outcomes[0]
        assert isinstance(outcome, Raised)
        assert (outcome.failure, outcome.message[: len(sentence)]) == (kind, sentence)
        assert isinstance(handler.outcomes[1], Returned)

    def test_a_killed_actor_is_no_failure(self):
        """Neither before nor while a trial runs; its process goes with it, and the slot gets another."""
        with opened(Ray(workers=1)) as engine:
            handler = run_all(engine, [assignment(0, what="reports_pid")])
            first = int(handler.records[0][0].body["metrics"]["pid"])
            os.kill(parent(first), signal.SIGKILL)
            assert gone(first)
            handler = run_all(engine, [assignment(1, what="reports_pid")], handler)
            assert isinstance(handler.outcomes[1], Returned)
            engine.launch(assignment(2, what="reports_pid_and_sleeps"), range(1))
            until(engine, handler, lambda: 2 in handler.records)
            second = int(handler.records[2][0].body["metrics"]["pid"])
            os.kill(parent(second), signal.SIGKILL)
            until(engine, handler, lambda: 2 in handler.outcomes)
            handler = run_all(engine, [assignment(3, what="reports_pid")], handler)
        assert isinstance(handler.outcomes[2], Died)
        assert handler.outcomes[2].why.startswith("the actor of ")
        assert gone(second)
        assert isinstance(handler.outcomes[3], Returned)

    def test_timeout_kills_what_ignores_it(self, tmp_path):
        """A trial that ignores SIGTERM is killed after the grace, with its children that ignore it too."""
        file = tmp_path / "pids"
        with opened(Ray(workers=1, timeout_seconds=8, grace_seconds=0.5)) as engine:
            handler = run_all(engine, [assignment(0, what="hangs", file=str(file)), assignment(1, what="reports_pid")])
        outcome = handler.outcomes[0]
        assert isinstance(outcome, Raised)
        assert (outcome.failure, outcome.message) == ("timeout", "it ran longer than timeout_seconds=8")
        assert all(gone(int(pid)) for pid in file.read_text().split())
        assert isinstance(handler.outcomes[1], Returned)

    def test_memory_limit_kills(self):
        """The resident memory of a rank and its children together is what counts."""
        with opened(Ray(workers=1, memory_bytes=600 * MEGABYTE)) as engine:
            handler = run_all(
                engine, [assignment(0, what="child_hogs", bytes=700 * MEGABYTE), assignment(1, what="raises")]
            )
        outcome = handler.outcomes[0]
        assert isinstance(outcome, Raised)
        assert outcome.failure == "out_of_memory"
        assert outcome.message.endswith("bytes of memory, above memory_bytes=629,145,600")


class TestGangs:
    def test_ranks_find_each_other(self, tmp_path):
        """A trial of two devices is two processes, each with a log; the group is there before it and gone after."""
        with opened(Ray(workers=3), tmp_path) as engine:
            handler = OutcomeRecorder()
            engine.launch(assignment(0, what="sums_ranks"), range(2))
            engine.launch(assignment(1, what="reports_pid"), range(2, 3))
            until(engine, handler, lambda: len(handler.outcomes) == 2)
            engine.launch(assignment(2, what="sums_ranks"), range(1, 3))
            until(engine, handler, lambda: len(handler.outcomes) == 3)
        assert [handler.outcomes[number].value for number in (0, 2)] == [3.0, 3.0]
        assert len(handler.records[0]) == 1
        for rank, name in enumerate(("lease-1.log", "lease-1-rank-1.log")):
            assert f"rank {rank} of 2" in (tmp_path / "logs/trial-000000" / name).read_text()

    def test_a_rank_that_dies_ends_all(self):
        """The trial is lost, no process of it stays, and its slots serve the next."""
        with opened(Ray(workers=2)) as engine:
            handler = OutcomeRecorder()
            engine.launch(assignment(0, what="loses_rank_one"), range(2))
            until(engine, handler, lambda: 0 in handler.outcomes)
            handler = run_all(engine, [assignment(n, what="reports_pid") for n in (1, 2)], handler)
        outcome = handler.outcomes[0]
        assert isinstance(outcome, Died)
        assert outcome.why == "rank 1: the worker process was killed by SIGKILL"
        assert isinstance(handler.outcomes[1], Returned)
        assert isinstance(handler.outcomes[2], Returned)


class TestStarts:
    def test_devices_that_others_hold(self, tmp_path):
        """An engine that does not get its devices says so, and leaves nothing."""
        with opened(Ray(workers=3)):
            second = Ray(workers=2, start_seconds=1)
            with pytest.raises(EngineError, match=r"2 devices of .* were not free within start_seconds=1; end what"):
                second.open(trainings.does, tmp_path)
            second.close()

    def test_a_start_that_takes_too_long(self):
        """The trial is lost in time, though no process has come."""
        with opened(Ray(workers=1)) as engine:
            handler = run_all(engine, [assignment(0, what="reports_pid")])
            pid = int(handler.records[0][0].body["metrics"]["pid"])
            actor = parent(pid)
            os.kill(actor, signal.SIGSTOP)
            os.kill(pid, signal.SIGKILL)
            assert gone(pid)
            engine.start_seconds = 1
            engine.launch(assignment(1, what="reports_pid"), range(1))
            until(engine, handler, lambda: 1 in handler.outcomes)
            os.kill(actor, signal.SIGCONT)
            assert "within start_seconds=1" in handler.outcomes[1].why
            assert engine.gone == {0}
