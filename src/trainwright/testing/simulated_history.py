"""A history of `simulation`: the workers of a team train a few trials, faults strike, and promises are checked.

At the end a worker without faults finishes the study, and a checker that knows only the promises reads what is there.
"""

import math
import random
import shutil
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from functools import cache, partial
from pathlib import Path
from typing import Any, Literal, NamedTuple, Self

from trainwright.checkpoint import CheckpointConfig, Manager
from trainwright.engine import Local
from trainwright.errors import TrainwrightError
from trainwright.ledger import DirectoryLedger, Record, State, Status, fold, state_of
from trainwright.schedule import ASHA, FixedEpochs, PromotionRule, Scheduler
from trainwright.search import GridSearcher, RandomSearcher, Searcher
from trainwright.space import Float, Space
from trainwright.study import Study, Worker
from trainwright.testing.simulated_files import SimulatedProcess
from trainwright.testing.simulated_machine import FAULTS, LETHAL, SimulatedMachine, Stalled
from trainwright.train import Trial

__all__ = ["MANY_FAULTS", "History", "plan_faults", "shrink_faults", "simulate_history"]

MANY_FAULTS = 10
_MOST_TRIALS, _MOST_WORKERS = 4, 14
_WEIGHTS = 20
_LAZY = frozenset({"proposed", "started", "reported", "decided", "promoted", "note"})
"""Kinds of records that only the loss of power may take (see `JournalWriter`)."""
_SPACE = Space(x=Float(0, 1))
_SEARCHERS: tuple[Searcher, ...] = (RandomSearcher(), GridSearcher(points=32))


class _Setup(NamedTuple):
    """The study of a history. Most are small: what goes wrong does so between few."""

    trials: int
    epochs: int
    workers: int
    searcher: Searcher
    rule: PromotionRule

    @classmethod
    def of(cls, seed: int) -> Self:
        draws = random.Random(f"setup of {seed}")
        trials = draws.choices(range(1, _MOST_TRIALS + 1), (6, 4, 2, 1))[0]
        epochs = draws.choices((1, 2, 3), (6, 4, 1))[0]
        workers = draws.choices((1, 2, 3), (4, 5, 1))[0]
        rule: PromotionRule = FixedEpochs(epochs)
        if epochs > 1 and trials > 1 and draws.random() < 0.6:
            kind: Literal["stopping", "promotion"] = "promotion" if draws.random() < 0.6 else "stopping"
            rule = ASHA(min_epochs=1, max_epochs=epochs, eta=2, kind=kind)
        return cls(trials, epochs, workers, _SEARCHERS[draws.randrange(len(_SEARCHERS))], rule)


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
                if epoch % 2 == 0:
                    manager.save(wait=True)
            # Saves, too.
            trial.report(loss=math.fsum(held["weights"]))


def _make_worker(setup: _Setup, folder: Path, acknowledged: _Acknowledged, process: SimulatedProcess) -> None:
    ledger = _WatchedLedger(folder / "ledger", process, acknowledged)
    study = Study(_SPACE, "min loss", directory=folder, ledger=ledger, searcher=setup.searcher)
    process.beat = ledger.heartbeat
    # A job without a name: others would differ by where this file lies.
    Worker(where=study, train=partial(_train), scheduler=Scheduler(setup.rule), engine=Local(workers=0), rank=0).run(
        trials=setup.trials, progress=False
    )
    study.close()


def plan_faults(seed: int) -> dict[int, str]:
    """Return the faults of a seed's history, by the number of the operation that each strikes.

    Each history has favourites among the kinds, drawn too: so every few kinds meet each other somewhere, often. What
    ends a process is drawn half as often as the rest.
    """
    draws, setup = random.Random(f"faults of {seed}"), _Setup.of(seed)
    favours = [draws.random() ** 2 * (0.5 if fault in LETHAL else 1.0) for fault in FAULTS]
    # A study without faults takes some 200 operations and 70 for each epoch.
    places = draws.sample(range(25, 100 + 40 * setup.trials * setup.epochs), draws.randint(MANY_FAULTS, 12))
    return dict(zip(places, draws.choices(FAULTS, favours, k=len(places)), strict=True))


@cache
def _run_alone() -> dict[Searcher, dict[int, object]]:
    """Return what each searcher proposes to a process alone, by number: what a replay of the decisions must come to.

    It also loads all modules, since no process may wait for the lock of another's late import.
    """
    proposals: dict[Searcher, dict[int, object]] = {}
    for searcher in _SEARCHERS:
        setup = _Setup(_MOST_TRIALS, 1, 1, searcher, FixedEpochs(1))
        folder = Path(tempfile.mkdtemp(prefix="trainwright-simulation-"))
        with SimulatedMachine(0, {}, folder) as machine:
            machine.start("alone", partial(_make_worker, setup, folder, []))
            machine.run()
        state = state_of(DirectoryLedger(folder / "ledger"))
        shutil.rmtree(folder, ignore_errors=True)
        proposals[searcher] = {number: trial.params for number, trial in state.trials.items()}
    return proposals


def simulate_history(seed: int, planned: dict[int, str]) -> History:
    """Run the history of a seed with these faults in a folder of its own, and check the promises."""
    setup = _Setup.of(seed)
    proposals = _run_alone()[setup.searcher]
    history = History(seed=seed, planned=planned)
    # In memory where that is possible: all syncs are simulated.
    base = "/dev/shm" if Path("/dev/shm").is_dir() else None  # noqa: S108 -- a folder of its own is made there
    folder = Path(tempfile.mkdtemp(prefix="trainwright-simulation-", dir=base))
    acknowledged: _Acknowledged = []
    try:
        with SimulatedMachine(seed, planned, folder) as machine:
            try:
                _run_workers(machine, setup, folder, acknowledged, history)
            except Stalled as error:
                history.broken.append(f"the study is not finished: {error}")
            history.happened, history.operations = machine.happened, machine.operations
        # What a failed sync leaves in doubt is written again, unless the process dies before.
        power = "power" in history.happened.values()
        excused = {one for one in machine.processes if power or (one.dead and one.sync_failed)}
        history.broken += _find_broken_promises(setup, folder, acknowledged, proposals, excused)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    return history


def _run_workers(
    machine: SimulatedMachine, setup: _Setup, folder: Path, acknowledged: _Acknowledged, history: History
) -> None:
    """Let workers work until none is left to replace, then one without faults."""
    body = partial(_make_worker, setup, folder, acknowledged)
    processes = [machine.start(f"worker {number}", body) for number in range(setup.workers)]
    while True:
        machine.run(lambda: sum(not one.ended for one in processes) == setup.workers)
        done = any(one.ended and not one.dead and one.error is None for one in processes)
        if done or len(processes) >= _MOST_WORKERS:
            break
        processes.append(machine.start(f"worker {len(processes)}", body))
    machine.run()
    if len(machine.happened) < MANY_FAULTS <= len(history.planned):
        machine.hasten_faults()
        processes.append(machine.start("the worker who is stopped", body))
        machine.run()
    # What faults have struck is over: whoever comes now finishes the study.
    machine.next_fault = math.inf
    last = machine.start("the last worker", body)
    machine.run()
    for process in (*processes, last):
        excused = () if process is last else (TrainwrightError, OSError)
        if process.error is not None and not isinstance(process.error, excused):
            history.broken.append(f"{process.name} ended by {type(process.error).__name__}: {process.error}")


def _find_broken_promises(
    setup: _Setup,
    folder: Path,
    acknowledged: _Acknowledged,
    proposals: Mapping[int, object],
    excused: AbstractSet[SimulatedProcess],
) -> list[str]:
    """Return which promises a finished study breaks; who is `excused` may have lost lazy records."""
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
    # A result of a worker that was thought dead counts, though the trial failed meanwhile and another took its place.
    failed = {record.trial for record in records if record.kind == "failed"}
    late = sum(trial.has_result and number in failed for number, trial in state.trials.items())
    if not setup.trials <= state.results <= setup.trials + late:
        broken.append(f"the budget is {setup.trials} results, there are {state.results}, {late} of them late")
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
            broken += _check_trial(state, number, setup.epochs)
        if number in proposals and trial.params != proposals[number]:
            broken.append(f"trial {number} is {trial.params}, a replay proposes {proposals[number]}")
    # A reader may see them in this order as well.
    by_writer = sorted(records, key=lambda record: (record.writer, record.seq))
    if _told(fold(by_writer)) != _told(state):
        broken.append("another order of reading gives another state")
    return broken


def _check_trial(state: State, number: int, epochs: int) -> Iterator[str]:
    """Yield what is wrong with a result: proposal, epochs, or a report that an uninterrupted training had not made."""
    trial = state.trials[number]
    if (trial.epoch == epochs) != (trial.status is Status.COMPLETE):
        yield f"trial {number} is {trial.status} after {trial.epoch} of {epochs} epochs"
    if "x" not in trial.params:
        yield f"trial {number} has a result, but its proposal is lost"
        return
    for epoch, report in trial.reports.items():
        wanted = _expected_loss(trial.params["x"], epoch)
        if report.metrics["loss"] != wanted:
            yield f"trial {number} reports {report.metrics['loss']} at epoch {epoch}, uninterrupted it is {wanted}"
    if trial.values.get("loss") != _expected_loss(trial.params["x"], trial.epoch):
        yield f"trial {number} ended with {trial.values}, after {trial.epoch} epochs"


def _told(state: State) -> dict[int, tuple[object, ...]]:
    return {n: (one.status, one.lease, repr(one.params), repr(one.values)) for n, one in state.trials.items()}


def shrink_faults(history: History) -> History:
    """Return a history of the same seed that breaks a promise by as few faults as leaving out one by one gives."""
    for at in sorted(history.planned, reverse=True):
        fewer = {place: fault for place, fault in history.planned.items() if place != at}
        if (found := simulate_history(history.seed, fewer)).broken:
            history = found
    return history
