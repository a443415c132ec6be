"""Deterministic simulation: histories of a study from seeds, with faults, until a promise is broken.

    python -m trainwright.testing.simulation --seeds 1000000 --results histories.json
    python -m trainwright.testing.simulation --replay 5f3a9c1e:17:kill@70,rot@300

One seed, one history: workers of a team train a few trials with checkpoints; each of the faults of `FAULTS` may strike
at any operation; dead workers are replaced. At the end a worker without faults finishes the study, and a checker that
knows only the promises reads what is there. With `--results` the count is kept as it grows: the same command, given
again, continues where it was interrupted. A history that breaks a promise is made shorter, fault by fault, and printed
as what `--replay` takes.
"""
# ruff: noqa: T201 -- a command of its own

import argparse
import hashlib
import json
import math
import os
import shutil
import signal
import sys
import tempfile
import time
import warnings
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

from trainwright.checkpoint import CheckpointConfig, Manager
from trainwright.engine import Local
from trainwright.errors import InputError, TrainwrightError
from trainwright.ledger import DirectoryLedger, Record, State, fold, state_of
from trainwright.publishing import write_file
from trainwright.randomness import rng
from trainwright.schedule import FixedEpochs, Scheduler
from trainwright.search import RandomSearcher
from trainwright.space import Float, Space
from trainwright.study import Study, Worker
from trainwright.testing.simulated_machine import FAULTS, SimulatedMachine, SimulatedProcess, Stalled
from trainwright.train import Trial

__all__ = [
    "SIMULATOR",
    "History",
    "find_broken_promises",
    "main",
    "plan_faults",
    "replay_history",
    "shrink_faults",
    "simulate_history",
]

SIMULATOR = hashlib.blake2b(
    b"".join(Path(__file__).with_name(name).read_bytes() for name in ("simulated_machine.py", "simulation.py")),
    digest_size=4,
).hexdigest()
"""Names the simulator: a seed of another one is another history."""

_SAVE_SECONDS = 10.0
_MANY_FAULTS = 10
_SIGNALS = (signal.SIGINT, signal.SIGTERM)
_TRIALS, _EPOCHS, _WORKERS, _MOST_WORKERS = 4, 2, 2, 14
_WEIGHTS = 20
_RANGE = (60, 1000)  # operations between which faults strike; a history without any has about 900
_LAZY = frozenset({"proposed", "started", "reported", "decided", "promoted", "note"})
"""Kinds of records that only the loss of power may take (see `JournalWriter`)."""
_SPACE = Space(x=Float(0, 1))


@dataclass(kw_only=True)
class History:
    """What happened: the faults by operation, and which promises are broken."""

    seed: int
    planned: dict[int, str]
    happened: dict[int, str] = field(default_factory=dict)
    operations: int = 0
    broken: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        faults = ",".join(f"{fault}@{at}" for at, fault in sorted(self.planned.items()))
        return f"{self.seed}:{faults}"


_Acknowledged = list[tuple[SimulatedProcess, Record]]


class _WatchedLedger(DirectoryLedger):
    """The ledger of a directory, which remembers what it has acknowledged to which process."""

    def __init__(self, directory: Path, process: SimulatedProcess, acknowledged: _Acknowledged) -> None:
        super().__init__(directory, create=True)
        self._process = process
        self._acknowledged = acknowledged

    def append(self, records: Sequence[Record]) -> list[Record]:
        """Append, and remember what came back."""
        stamped = super().append(records)
        self._acknowledged += [(self._process, record) for record in stamped]
        return stamped


def _train_epoch(weights: list[float], x: float, epoch: int) -> list[float]:
    """Return the weights after an epoch, which depend on all epochs before it."""
    return [weight * (0.5 + 0.4 * x) + 0.01 * epoch for weight in weights]


def _expected_loss(x: float, epochs: int) -> float:
    """Return what an uninterrupted training comes to."""
    weights = [1.0] * _WEIGHTS
    for epoch in range(1, epochs + 1):
        weights = _train_epoch(weights, x, epoch)
    return math.fsum(weights)


def _train(trial: Trial) -> None:
    held: dict[str, Any] = {"weights": [1.0] * _WEIGHTS, "epoch": 0}
    config = CheckpointConfig(writer="sync", staging="eager", interval=sys.maxsize, on_error="raise")
    with Manager(trial, config=config, held=held) as manager:
        manager.restore()
        for epoch in trial.epochs():
            # A run that died between a save and its report has this epoch behind it.
            if held["epoch"] < epoch:
                time.sleep(5.0)
                held |= {"weights": _train_epoch(held["weights"], trial.params["x"], epoch), "epoch": epoch}
                manager.count()
                manager.save(wait=True)
            trial.report(loss=math.fsum(held["weights"]))


def _make_worker(folder: Path, acknowledged: _Acknowledged, process: SimulatedProcess) -> None:
    ledger = _WatchedLedger(folder / "ledger", process, acknowledged)
    study = Study(_SPACE, "min loss", directory=folder, ledger=ledger, searcher=RandomSearcher())
    process.beat = ledger.heartbeat
    scheduler = Scheduler(FixedEpochs(_EPOCHS))
    Worker(where=study, train=_train, scheduler=scheduler, engine=Local(workers=0), rank=0).run(
        trials=_TRIALS, progress=False
    )
    study.close()


def plan_faults(seed: int, most: int = 20) -> dict[int, str]:
    """Return the faults of a seed's history, by the number of the operation that each strikes."""
    draws = rng(seed, "faults", 0)
    places = draws.choice(range(*_RANGE), size=int(draws.integers(min(12, most), most + 1)), replace=False)
    return {int(place): FAULTS[int(draws.integers(len(FAULTS)))] for place in places}


@cache
def _run_alone() -> dict[int, object]:
    """Return the proposals of a process alone, by number: what a replay of the decisions must come to.

    It also loads all modules, since no process may wait for the lock of another's late import.
    """
    folder = Path(tempfile.mkdtemp(prefix="trainwright-simulation-"))
    with SimulatedMachine(0, {}, folder) as machine:
        machine.start("alone", lambda process: _make_worker(folder, [], process))
        machine.run()
    state = state_of(DirectoryLedger(folder / "ledger"))
    shutil.rmtree(folder, ignore_errors=True)
    return {number: trial.params for number, trial in state.trials.items()}


def simulate_history(seed: int, planned: dict[int, str]) -> History:
    """Run the history of a seed with these faults in a folder of its own, and check the promises."""
    proposals = _run_alone()
    history = History(seed=seed, planned=planned)
    # In memory where that is possible: all syncs are simulated.
    base = "/dev/shm" if Path("/dev/shm").is_dir() else None  # noqa: S108 -- a folder of its own is made there
    folder = Path(tempfile.mkdtemp(prefix="trainwright-simulation-", dir=base))
    acknowledged: _Acknowledged = []
    try:
        with SimulatedMachine(seed, planned, folder) as machine:
            try:
                _run_workers(machine, folder, acknowledged, history)
            except Stalled as error:
                history.broken.append(f"the study is not finished: {error}")
            history.happened, history.operations = machine.happened, machine.operations
        # What a failed sync leaves in doubt is written again, unless the process dies before.
        power = "power" in history.happened.values()
        excused = {one for one in machine.processes if power or (one.dead and one.sync_failed)}
        history.broken += find_broken_promises(folder, acknowledged, proposals, excused)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    return history


def _run_workers(machine: SimulatedMachine, folder: Path, acknowledged: _Acknowledged, history: History) -> None:
    """Let workers work until none is left to replace, then one without faults."""

    def body(process: SimulatedProcess) -> None:
        _make_worker(folder, acknowledged, process)

    processes = [machine.start(f"worker {number}", body) for number in range(_WORKERS)]
    while True:
        machine.run(lambda: sum(not one.ended for one in processes) == min(_WORKERS, len(processes)))
        if any(one.ended and not one.dead and one.error is None for one in processes):
            break
        if len(processes) >= _MOST_WORKERS:
            break
        processes.append(machine.start(f"worker {len(processes)}", body))
    machine.run()
    # What faults have struck is over: whoever comes now finishes the study.
    machine.end_faults()
    last = machine.start("the last worker", body)
    machine.run()
    for process in processes:
        if process.error is not None and not isinstance(process.error, TrainwrightError | OSError):
            history.broken.append(f"{process.name} ended by {type(process.error).__name__}: {process.error}")
    if last.error is not None:
        history.broken.append(f"the last worker ended by {type(last.error).__name__}: {last.error}")


def find_broken_promises(
    folder: Path, acknowledged: _Acknowledged, proposals: Mapping[int, object], excused: AbstractSet[SimulatedProcess]
) -> list[str]:
    """Return which promises a finished study breaks; processes that are `excused` may have lost lazy records."""
    ledger = DirectoryLedger(folder / "ledger")
    records, _ = ledger.read()
    state = fold(records)
    broken = [
        f"an acknowledged record is lost: {record.kind} of trial {record.trial}"
        for who, record in acknowledged
        if not state.knows(record)
        and not (record.kind in _LAZY and who in excused)
        # What a failed sync left in doubt was written again, under another name.
        and not any((record.kind, record.body, record.trial) == (one.kind, one.body, one.trial) for one in records)
    ]
    if state.results != _TRIALS:
        broken.append(f"the budget is {_TRIALS} results, there are {state.results}")
    counted = sum(trial.has_result for trial in state.trials.values())
    if counted != state.results:
        broken.append(f"{state.results} results are counted, {counted} trials have one")
    # A loss of power may take a claim, and with it all who could hold it. Who stood still between a claim and its
    # record for longer than a lease may begin what another has taken over; the result counts once.
    starts = {
        (one.trial, one.lease, who.boot, who.name)
        for who, one in acknowledged
        if one.lease is not None and "slot" in one.body and state.knows(one) and not who.outlived
    }
    for (number, lease, _), times in Counter(start[:3] for start in starts).items():
        if times > 1:
            broken.append(f"lease {lease} of trial {number} was started by {times} workers")
    for number, trial in sorted(state.trials.items()):
        if trial.has_result:
            broken += _check_trial(state, number)
        if number in proposals and trial.params != proposals[number]:
            broken.append(f"trial {number} is {trial.params}, a replay proposes {proposals[number]}")
    # A reader may see them in this order as well.
    by_writer = sorted(records, key=lambda record: (record.writer, record.seq))
    if _told(fold(by_writer)) != _told(state):
        broken.append("another order of reading gives another state")
    return broken


def _check_trial(state: State, number: int) -> Iterator[str]:
    """Yield what is wrong with a result: the proposal, or a report that an uninterrupted training had not made."""
    trial = state.trials[number]
    if "x" not in trial.params:
        yield f"trial {number} has a result, but its proposal is lost"
        return
    for epoch, report in trial.reports.items():
        wanted = _expected_loss(trial.params["x"], epoch)
        if report.metrics["loss"] != wanted:
            yield f"trial {number} reports {report.metrics['loss']} at epoch {epoch}, uninterrupted it is {wanted}"
    if trial.values.get("loss") != _expected_loss(trial.params["x"], trial.epoch):
        yield f"trial {number} ended with {trial.values}, after {trial.epoch} epochs"


def _told(state: State) -> list[tuple[object, ...]]:
    trials = [state.trials[number] for number in sorted(state.trials)]
    return [(one.number, one.status, one.lease, repr(one.params), repr(one.values)) for one in trials]


def shrink_faults(history: History) -> History:
    """Return a history of the same seed that breaks a promise by as few faults as leaving out one by one gives."""
    for at in sorted(history.planned, reverse=True):
        fewer = {place: fault for place, fault in history.planned.items() if place != at}
        if (found := simulate_history(history.seed, fewer)).broken:
            history = found
    return history


def replay_history(text: str) -> History:
    """Return the history that `text` (SIMULATOR:SEED:FAULT@OPERATION,...) names, simulated again.

    Raises `InputError` if it is of another simulator, or if a fault of it finds nothing to strike any more.
    """
    simulator, _, rest = text.partition(":")
    seed, colon, listed = rest.partition(":")
    faults = [each.partition("@") for each in listed.split(",") if each]
    if not colon or not seed.isdecimal() or any(f not in FAULTS or not at.isdecimal() for f, _, at in faults):
        raise InputError(
            f"simulation: got the history {text!r}; allowed: SIMULATOR:SEED:FAULT@OPERATION,..., "
            f"as a failure is printed, with faults of {', '.join(FAULTS)}"
        )
    if simulator != SIMULATOR:
        raise InputError(
            f"simulation: the history is of simulator {simulator}, this is {SIMULATOR}, whose seeds are other "
            "histories; replay it with the version of Trainwright that printed it"
        )
    history = simulate_history(int(seed), {int(at): fault for fault, _, at in faults})
    missed = sorted(history.planned.keys() - history.happened.keys())
    if missed:
        raise InputError(
            f"simulation: the history no longer applies: {history.planned[missed[0]]} at operation {missed[0]} finds "
            f"nothing to strike in {history.operations} operations; the code that it ran has changed since"
        )
    return history


def _read_results(path: Path | None, first: int) -> dict[str, Any]:
    """Return what an interrupted run has kept, or a new count."""
    fresh = {
        "benchmark": "simulation", "simulator": SIMULATOR, "first": first, "histories": 0, "faults": 0,
        "fewest_faults": None, "of_ten_faults": 0, "struck": {}, "broken": [], "seconds": 0.0,
    }  # fmt: skip
    if path is None or not path.exists():
        return fresh
    try:
        kept = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise InputError(f"simulation: cannot read the results in {path}: {error}; give another file") from error
    if not isinstance(kept, dict) or not kept.keys() >= fresh.keys():
        raise InputError(f"simulation: {path} holds no results of a simulation; give another file")
    if kept["simulator"] != SIMULATOR:
        raise InputError(
            f"simulation: {path} counts seeds of simulator {kept['simulator']}, this is {SIMULATOR}, whose seeds are "
            "other histories; give another file to begin anew"
        )
    if kept["first"] != first:
        raise InputError(
            f"simulation: {path} counts from seed {kept['first']}, --first is {first}; give --first {kept['first']}, "
            "or another file"
        )
    return kept


def _run_seeds(seeds: int, results: dict[str, Any], path: Path | None) -> None:
    """Simulate until `seeds` histories are counted, or a signal comes; keep the count as it grows, and show it."""
    signals: list[int] = []
    before = {number: signal.signal(number, lambda number, _: signals.append(number)) for number in _SIGNALS}
    began, seconds, counted = time.monotonic(), results["seconds"], results["histories"]
    saved = began
    try:
        while results["histories"] < seeds and not signals:
            seed = results["first"] + results["histories"]
            _count_history(simulate_history(seed, plan_faults(seed)), results)
            now = time.monotonic()
            results["seconds"] = seconds + now - began
            if path is not None and now - saved > _SAVE_SECONDS:
                write_file(path, json.dumps(results, indent=1) + "\n")
                saved = now
                left = (now - began) / (results["histories"] - counted) * (seeds - results["histories"])
                print(f"{_summarise(results)}, {left / 60:.0f} min left", file=sys.stderr, flush=True)
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        if path is not None:
            write_file(path, json.dumps(results, indent=1) + "\n")


def _count_history(history: History, results: dict[str, Any]) -> None:
    """Add a history to the counts; print it if it breaks a promise, with as few faults as do so."""
    if history.broken:
        shortest = f"{SIMULATOR}:{shrink_faults(history)}"
        results["broken"].append({"history": shortest, "promises": history.broken})
        print(f"broken: {'; '.join(history.broken)}\n  --replay {shortest}", flush=True)
    struck = len(history.happened)
    results["histories"] += 1
    results["faults"] += struck
    results["of_ten_faults"] += struck >= _MANY_FAULTS
    results["fewest_faults"] = min(struck, results["fewest_faults"] or struck)
    for fault in history.happened.values():
        results["struck"][fault] = results["struck"].get(fault, 0) + 1


def _summarise(results: dict[str, Any]) -> str:
    return (
        f"{results['histories']} histories, {results['faults']} faults (at least {results['fewest_faults']} each, "
        f"{_MANY_FAULTS} or more in {results['of_ten_faults']}), "
        f"{len(results['broken'])} with a broken promise, {results['seconds']:.0f} s"
    )


def main(argv: Sequence[str] | None = None) -> int:
    """Simulate histories; 1 if one breaks a promise, 2 for what cannot be simulated."""
    parser = argparse.ArgumentParser(description=str(__doc__).splitlines()[0])
    parser.add_argument("--seeds", type=int, default=100, help="how many histories (default: 100)")
    parser.add_argument("--first", type=int, default=0, help="the first seed (default: 0)")
    parser.add_argument("--results", type=Path, metavar="FILE", help="keep the count in FILE, and continue from there")
    parser.add_argument("--replay", metavar="HISTORY", help="simulate one history again, as a failure is printed")
    given = parser.parse_args(argv)
    try:
        if given.seeds < 1 or given.first < 0:
            raise InputError(
                f"simulation: got --seeds {given.seeds} --first {given.first}; allowed: at least 1, and at least 0"
            )
        if given.replay is not None:
            replayed = replay_history(given.replay)
            print("; ".join(replayed.broken) or "every promise kept")
            return int(bool(replayed.broken))
        results = _read_results(given.results, given.first)
        _run_seeds(given.seeds, results, given.results)
    except InputError as error:
        print(error, file=sys.stderr)
        return 2
    print(_summarise(results))
    if results["histories"] < given.seeds:
        print(f"interrupted before {given.seeds}; with --results the same command continues", file=sys.stderr)
        return 130
    return int(bool(results["broken"]))


if __name__ == "__main__":
    # The order of sets is part of a history.
    if os.environ.get("PYTHONHASHSEED") != "0":
        arguments = [sys.executable, "-m", "trainwright.testing.simulation", *sys.argv[1:]]
        os.execve(sys.executable, arguments, {**os.environ, "PYTHONHASHSEED": "0"})  # noqa: S606 -- itself
    # Threads of a history take turns: none has to be interrupted for another.
    sys.setswitchinterval(1.0)
    # Damaged journals are what histories are about.
    warnings.filterwarnings("ignore", "the ledger cannot be read as a whole")
    sys.exit(main())
