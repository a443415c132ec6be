"""Trials of several devices: as many processes, one report, one end."""

import ast
import os
import signal
import socket
import time
from pathlib import Path

import pytest
import trainings

from trainwright.engine import Died, Local, Raised, Returned, StoppedEarly
from trainwright.engine.process.run_assignment import run_assignment
from trainwright.engine.process.worker_process import find_free_address
from trainwright.errors import MissingExtra
from trainwright.testing.engine import OutcomeRecorder
from trainwright.train.assignment import Assignment


class Trials:
    """Runs trials on all slots of an engine, one after the other."""

    def __init__(self, engine, directory=None):
        self.engine, self.count = engine, 0
        engine.open(trainings.does, directory)

    def run(self, what, *, reports=99, slots=None, act=None, may_grow=False, **params):
        """Run a trial to its end; return its outcome and the metrics reported. `act(handler)` may meddle."""
        number, self.count = self.count, self.count + 1
        handler = OutcomeRecorder(reports={number: reports})
        assignment = Assignment(trial=number, lease=1, params={"what": what, **params}, seed=number, may_grow=may_grow)
        self.engine.launch(assignment, range(slots or self.engine.slots))
        deadline = time.monotonic() + 120
        while number not in handler.outcomes:
            assert time.monotonic() < deadline
            self.engine.poll(handler, 0.1)
            if act is not None and act(handler):
                act = None
        records = handler.records.get(number, [])
        return handler.outcomes[number], [record.body["metrics"] for record in records]


@pytest.fixture(scope="module")
def trials(tmp_path_factory):
    folder = tmp_path_factory.mktemp("study")
    trials = Trials(Local(workers=2, gpus=()), folder)
    trials.folder = folder
    yield trials
    trials.engine.close()


def test_ranks_report_as_one_and_end_together(trials, tmp_path):
    """Rank 0 alone speaks; each rank has its slot's share of the machine, its number and its log."""
    outcome, reports = trials.run("is_a_rank", folder=str(tmp_path), epochs=2)
    assert isinstance(outcome, Returned)
    assert (outcome.value, outcome.epoch) == (0.0, 2)
    assert [(report["rank"], report["sum"]) for report in reports] == [(0.0, 1.0)] * 2
    told = [ast.literal_eval((tmp_path / str(rank)).read_text()) for rank in range(2)]
    assert [one["place"] for one in told] == [(0, 2, 2), (1, 2, 2)]
    assert told[0]["threads"] == told[1]["threads"]
    assert told[0]["draw"] == told[1]["draw"]
    logs = trials.folder / f"logs/trial-{trials.count - 1:06d}"
    assert [(logs / name).read_text() for name in ("lease-1.log", "lease-1-rank-1.log")] == ["rank 0\n", "rank 1\n"]
    again, _ = trials.run("is_a_rank", folder=str(tmp_path), epochs=9, reports=1)
    assert isinstance(again, StoppedEarly), "told to end by the driver, through rank 0"
    assert told == [ast.literal_eval((tmp_path / str(rank)).read_text()) | {"draw": told[0]["draw"]} for rank in (0, 1)]


def test_an_exception_of_one_rank_fails_the_trial(trials):
    outcome, reports = trials.run("fails_as_rank_1")
    assert isinstance(outcome, Raised)
    assert (outcome.failure, outcome.message) == ("exception", "rank 1: ValueError: out of luck")
    assert "in _fails_as_rank_1" in outcome.traceback
    assert len(reports) == 1


@pytest.mark.slow
class TestTroubles:
    def test_a_rank_that_is_killed(self, trials):
        """The trial is lost, through no fault of its own; the other rank is gone at once, and the next trial runs."""
        outcome, reports = trials.run("hangs_but_rank_1", act=lambda seen: kill(seen, "pid of 1"))
        assert outcome == Died(why="rank 1: the worker process was killed by SIGKILL", seconds=pytest.approx(0, abs=90))
        assert all(gone(int(reports[0][f"pid of {rank}"])) for rank in range(2))
        assert isinstance(trials.run("is_a_rank")[0], Returned)

    def test_rank_0_is_killed(self, trials):
        outcome, _ = trials.run("hangs_but_rank_1", act=lambda seen: kill(seen, "pid of 0"))
        assert isinstance(outcome, Died)
        assert outcome.why.startswith("rank 0: ")

    def test_a_report_on_rank_0_alone(self, trials):
        outcome, reports = trials.run("reports_as_rank_0_alone")
        assert isinstance(outcome, Raised)
        assert outcome.message == (
            "rank 0: trial.report: rank 1 has returned from train without it; report on every rank, equally often: "
            "what rank 0 says counts"
        )
        assert reports == []

    def test_a_limit_ends_all_ranks(self):
        """Also one that ignores the polite request."""
        trials = Trials(Local(workers=2, gpus=(), timeout_seconds=25, grace_seconds=1))
        outcome, reports = trials.run("hangs_but_rank_1")
        trials.engine.close()
        assert isinstance(outcome, Raised)
        assert (outcome.failure, outcome.message) == ("timeout", "it ran longer than timeout_seconds=25")
        assert all(gone(int(reports[0][f"pid of {rank}"])) for rank in range(2))

    def test_blocks_of_other_sizes(self, trials):
        """A slot's process serves trials of one device and of two."""
        alone, reports = trials.run("reports_pid", slots=1)
        both, _ = trials.run("is_a_rank")
        again, more = trials.run("reports_pid", slots=1)
        assert [type(one) for one in (alone, both, again)] == [Returned] * 3
        assert reports[0]["pid"] == more[0]["pid"]


@pytest.mark.parametrize("may_grow", [pytest.param(False, marks=pytest.mark.slow), True])
def test_processes_are_ready_for_growth(tmp_path, may_grow):
    """While a trial that may grow runs, those of its buddies start and import torch, and become its new ranks."""
    trials = Trials(Local(workers=4, gpus=()))
    trials.run("reports_pid", slots=1, may_grow=may_grow)
    ready = {worker.part[0]: worker for worker in trials.engine._idle.values()}
    assert set(ready) == ({0, 1} if may_grow else {0})
    trials.run("is_a_rank", slots=2, folder=str(tmp_path), may_grow=may_grow)
    found = {worker.part[0]: worker for worker in trials.engine._idle.values()}
    assert found.items() >= ready.items(), "the same processes"
    assert set(found) == ({0, 1, 2, 3} if may_grow else {0, 1})
    pids = [worker._process.pid for worker in found.values()]
    trials.engine.close()
    assert all(gone(pid) for pid in pids)


def test_one_process_with_all_devices(tmp_path, monkeypatch):
    """For functions that see to their devices themselves; blocks of another size take its place."""
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "4, 7")
    trials = Trials(Local(workers=2, process_per_device=False))
    file = tmp_path / "seen"
    trials.run("shows_environment", file=str(file))
    assert ast.literal_eval(file.read_text())["CUDA_VISIBLE_DEVICES"] == "4,7"
    trials.run("shows_environment", file=str(file), slots=1)
    assert ast.literal_eval(file.read_text())["CUDA_VISIBLE_DEVICES"] == "4"
    trials.engine.close()


def test_a_port_in_use_is_no_failure_of_the_trial():
    """It may run again, at another address."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        assignment = Assignment(trial=0, lease=1, params={}, seed=0, world_size=2, address=address)
        outcome = run_assignment(trainings.plain, assignment, OutcomeRecorder(), gpu=False)
    assert isinstance(outcome, Died)
    assert outcome.why.startswith(f"its 2 processes did not find each other at {address}: ")
    assert not outcome.blame


def test_ports_are_none_of_outgoing_connections():
    """Between the choice and its use another process would often be given one of those."""
    ports = [int(find_free_address().partition(":")[2]) for _ in range(200)]
    first = Path("/proc/sys/net/ipv4/ip_local_port_range")
    assert max(ports) < (int(first.read_text().split()[0]) if first.exists() else 32768)


def test_a_group_needs_torch(monkeypatch):
    from trainwright.train.group import join_process_group

    monkeypatch.setitem(__import__("sys").modules, "torch.distributed", None)
    with pytest.raises(MissingExtra, match=r'a trial on several devices needs torch: pip install "\.\[torch\]"'):
        join_process_group(Assignment(trial=0, lease=1, params={}, seed=0, world_size=2), None, gpu=False)


def kill(handler, whom):
    """Kill a rank once it has told its number; return whether it was."""
    for records in handler.records.values():
        os.kill(int(records[0].body["metrics"][whom]), signal.SIGKILL)
        return True
    return False


def gone(pid):
    return not Path(f"/proc/{pid}").exists()
