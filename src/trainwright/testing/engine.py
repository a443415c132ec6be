"""What every engine promises, as tests that any engine inherits.

    class TestMine(EngineConformance):
        def make_engine(self):
            return Mine(workers=2)

Needs no test library of its own: any runner that collects classes and methods named test will do.
"""
# ruff: noqa: S101 -- a test kit is made of asserts

import os
import subprocess
import sys
import tempfile
import time
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

from trainwright.engine.protocol import Died, Engine, Outcome, Raised, Returned, StoppedEarly
from trainwright.ledger import Record
from trainwright.train import Trial
from trainwright.train.assignment import Assignment

__all__ = ["EngineConformance", "OutcomeRecorder", "run_all"]


def train(trial: Trial) -> Any:
    """Do what the trial's parameters say."""
    params, directory = trial.params, Path(trial.assignment.directory or "")
    began = time.monotonic()
    for epoch in range(1, params.get("reports", 0) + 1):
        with suppress(Exception):  # as careless users write it; the end of a trial is no Exception
            trial.report(loss=1.0 / epoch, pid=os.getpid())
    if "fails" in params:
        raise RuntimeError(params["fails"])
    if params.get("starts_child"):
        child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
        (directory / f"child-{trial.number}").write_text(str(child.pid), encoding="ascii")
    time.sleep(params.get("seconds", 0.0))
    (directory / f"ran-{trial.number}").write_text(f"{began} {time.monotonic()}", encoding="ascii")
    return params.get("returns")


@dataclass
class OutcomeRecorder:
    """A handler that keeps what it is told and lets each trial go on for `reports` reports (default: for ever)."""

    reports: dict[int, int] = field(default_factory=dict)
    records: dict[int, list[Record]] = field(default_factory=dict)
    outcomes: dict[int, Outcome] = field(default_factory=dict)

    def facts(self, trial: int, records: list[Record]) -> bool:
        """Keep the records."""
        assert trial not in self.outcomes, f"trial {trial} reported after its end"
        kept = self.records.setdefault(trial, [])
        kept.extend(records)
        return len(kept) < self.reports.get(trial, sys.maxsize)

    def exited(self, trial: int, outcome: Outcome) -> None:
        """Keep the outcome."""
        assert trial not in self.outcomes, f"trial {trial} ended twice"
        self.outcomes[trial] = outcome

    def leaves(self) -> bool:
        """Let trials go on."""
        return False


def run_all(
    engine: Engine,
    assignments: Sequence[Assignment],
    handler: OutcomeRecorder | None = None,
    *,
    within_seconds: float = 120,
) -> OutcomeRecorder:
    """Run assignments on one slot each, as many at once as there are slots, until all have ended."""
    kept = handler or OutcomeRecorder()
    # As a driver does: each free slot takes the next assignment, and is free again with its outcome.
    waiting, running, free = list(assignments), dict[int, int](), list(range(engine.slots))
    deadline = time.monotonic() + within_seconds
    while waiting or running:
        assert time.monotonic() < deadline, f"after {within_seconds} s trials {sorted(running)} still run"
        while waiting and free:
            assignment = waiting.pop(0)
            running[assignment.trial] = free.pop(0)
            engine.launch(assignment, (running[assignment.trial],))
        engine.poll(kept, 0.5)
        free += [running.pop(trial) for trial in list(running) if trial in kept.outcomes]
    return kept


class EngineConformance(ABC):
    """Inherit as Test<Engine> and give `make_engine`; `processes` says whether trials run in other processes."""

    processes: ClassVar[bool] = True

    @abstractmethod
    def make_engine(self) -> Engine:
        """Return an engine, not opened yet."""

    @contextmanager
    def opened(self) -> Iterator[tuple[Engine, Path]]:
        """Open an engine on a directory of its own, and close it in the end."""
        engine = self.make_engine()
        with tempfile.TemporaryDirectory() as folder:
            engine.open(train, Path(folder))
            try:
                yield engine, Path(folder)
            finally:
                engine.close()

    def test_every_launch_ends_in_one_outcome(self) -> None:
        """Returning, raising and being stopped each give one outcome, with the last metrics and a traceback."""
        with self.opened() as (engine, folder):
            handler = OutcomeRecorder(reports={2: 2})
            cases: list[dict[str, Any]] = [
                {"reports": 2, "returns": 0.25},
                {"reports": 1, "fails": "out of luck"},
                {"reports": 9},
                {"returns": {"loss": 0.5, "accuracy": 1}},
                {},
            ]
            run_all(engine, [_assignment(n, folder, params) for n, params in enumerate(cases)], handler)
            returned, raised, stopped, mapping, nothing = (handler.outcomes[n] for n in range(5))
        assert isinstance(returned, Returned)
        assert (returned.value, returned.metrics["loss"], returned.epoch) == (0.25, 0.5, 2)
        assert isinstance(raised, Raised)
        assert (raised.failure, raised.message) == ("exception", "RuntimeError: out of luck")
        assert "in train" in raised.traceback
        assert raised.metrics["loss"] == 1.0
        assert isinstance(stopped, StoppedEarly), "a trial that is told to end does, whatever exceptions it swallows"
        assert len(handler.records[2]) == 2
        assert isinstance(mapping, Returned)
        assert mapping.value == {"loss": 0.5, "accuracy": 1.0}
        assert isinstance(nothing, Returned)
        assert (nothing.value, dict(nothing.metrics), nothing.epoch) == (None, {}, 0)

    def test_what_is_no_number_fails_the_trial(self) -> None:
        """A result that no objective can be is a failure of that trial, and the next one runs."""
        with self.opened() as (engine, folder):
            # Text, lists, objects and None are no losses; the last trial shows that the engine goes on.
            values = ["0.5", [1, 2], {"loss": object}, {"loss": None}, 1.0]
            handler = run_all(engine, [_assignment(n, folder, {"returns": value}) for n, value in enumerate(values)])
        for number in range(4):
            outcome = handler.outcomes[number]
            assert isinstance(outcome, Raised)
            assert outcome.failure == "bad_objective"
            assert outcome.message.startswith("train returned ")
        assert isinstance(handler.outcomes[4], Returned)

    def test_never_more_at_once_than_slots(self) -> None:
        """No more trials run at one time than the engine has slots."""
        with self.opened() as (engine, folder):
            # Three rounds, so that slots are used again.
            count = 3 * engine.slots
            run_all(engine, [_assignment(number, folder, {"seconds": 0.1}) for number in range(count)])
            # By the trials' own clocks: what the engine says of itself proves nothing.
            spans = [tuple(map(float, path.read_text().split())) for path in folder.glob("ran-*")]
            slots = engine.slots
        assert len(spans) == count
        # The number of running trials grows only where one begins, so looking there is enough.
        assert max(sum(begin <= at < end for begin, end in spans) for at, _ in spans) <= slots

    def test_blocks_name_their_devices(self) -> None:
        """Every slot has a device, and a block has those of its slots."""
        engine = self.make_engine()
        assert engine.slots >= 1
        assert all(engine.devices((slot,)) for slot in range(engine.slots))
        engine.close()

    def test_close_ends_what_runs(self) -> None:
        """Closing ends running trials and their children without an outcome, and leaves no process."""
        handler = OutcomeRecorder()
        with self.opened() as (engine, folder):
            # Children of the training function must go too, or they would keep their device.
            endless = {"reports": 1, "seconds": 600.0, "starts_child": True}
            for slot in range(engine.slots):
                engine.launch(_assignment(slot, folder, endless), (slot,))
            if self.processes:
                _poll_until(engine, handler, lambda: len(list(folder.glob("child-*"))) == engine.slots)
            engine.close()
            pids = [int(record.body["metrics"]["pid"]) for records in handler.records.values() for record in records]
            pids += [int(path.read_text() or 0) for path in folder.glob("child-*")]
            assert len(pids) == (2 * engine.slots if self.processes else 0)
        deadline = time.monotonic() + 60
        while any(_alive(pid) for pid in pids):
            assert time.monotonic() < deadline, "a process was left behind"
            time.sleep(0.05)
        assert not handler.outcomes

    def test_can_be_opened_again(self) -> None:
        """An engine that was closed serves the next run."""
        engine = self.make_engine()
        for number in range(2):
            with tempfile.TemporaryDirectory() as folder:
                engine.open(train, Path(folder))
                handler = run_all(engine, [_assignment(number, Path(folder), {"returns": 1.0})])
                engine.close()
            assert isinstance(handler.outcomes[number], Returned)

    def test_a_process_that_dies_is_no_failure_of_the_trial(self) -> None:
        """A kill from outside gives one outcome that says so; the slot serves the next trial."""
        if not self.processes:
            return
        with self.opened() as (engine, folder):
            handler = OutcomeRecorder()
            engine.launch(_assignment(0, folder, {"reports": 1, "seconds": 600.0}), (0,))
            _poll_until(engine, handler, lambda: 0 in handler.records)
            # From outside, as an out-of-memory killer does.
            os.kill(int(handler.records[0][0].body["metrics"]["pid"]), 9)
            _poll_until(engine, handler, lambda: 0 in handler.outcomes)
            run_all(engine, [_assignment(1, folder, {})], handler)
        outcome = handler.outcomes[0]
        assert isinstance(outcome, Died)
        assert "SIGKILL" in outcome.why
        assert isinstance(handler.outcomes[1], Returned)


def _assignment(number: int, folder: Path, params: dict[str, Any]) -> Assignment:
    return Assignment(trial=number, lease=1, params=params, seed=number, metrics=("loss",), directory=str(folder))


def _poll_until(engine: Engine, handler: OutcomeRecorder, done: Any) -> None:
    deadline = time.monotonic() + 120
    while not done():
        assert time.monotonic() < deadline, "waited for two minutes"
        engine.poll(handler, 0.1)


def _alive(pid: int) -> bool:
    try:
        # The name in brackets may hold spaces and brackets itself; the state is the first word behind it.
        state = Path(f"/proc/{pid}/stat").read_text(encoding="ascii", errors="replace").rpartition(")")[2].split()[0]
    except OSError:
        return False
    # A zombie has ended, and only waits for its parent to ask how.
    return state not in {"Z", "X"}
