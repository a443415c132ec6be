"""What a ledger costs its workers, measured here, and the utilisation that the simulator makes of it."""

import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np

import trainwright as tw
from trainwright.engine.simulated.simulation import simulate
from trainwright.schedule import Scheduler
from trainwright.search import SearchView

__all__ = ["measure", "utilisation"]

_FEW, _MANY = 50, 250  # trials of one worker alone, whose difference is what is measured
_WRITERS, _LOOKS = 64, 50
_RESULTS, _REPEATS = 400, 4  # read at once
_OBSERVATIONS, _ASKS = (100, 10_000), 40
_SPACE = {f"x{i}": tw.Float(-32.768, 32.768) for i in range(5)}


def measure(searcher: Any, place: Callable[[str], dict[str, Any]]) -> tw.LedgerCost:
    """Measure the costs with a searcher; `place` gives the directory or the ledger of a study, by its name."""
    space = tw.Space.of(_SPACE)
    alone = [_alone(space, searcher, place(f"alone-{i}"), trials) for i, trials in enumerate((_FEW, _FEW, _MANY))]
    processor, wall = ((alone[2][i] - alone[1][i]) / (_MANY - _FEW) for i in (0, 1))
    few, many = (_ask_seconds(space, searcher, count) for count in _OBSERVATIONS)
    return tw.LedgerCost(
        trial_seconds=processor,
        growth_seconds=max(0.0, many - few) / (_OBSERVATIONS[1] - _OBSERVATIONS[0]),
        result_seconds=_result_seconds(space, searcher, place("read")),
        look_seconds=_look_seconds(space, place("look")),
        wait_seconds=max(0.0, wall - processor),
    )


def _alone(space: tw.Space, searcher: Any, where: dict[str, Any], trials: int) -> tuple[float, float]:
    """Return processor and wall seconds of a worker that works alone on trials that do nothing."""
    with tw.Study(space, "min loss", **where, searcher=searcher) as study:
        study.ask()  # what is compiled and imported is so now
    worker = tw.Worker(where=_name(where), train=_nothing, searcher=searcher, engine=tw.Local(workers=0))
    began = time.process_time(), time.perf_counter() - _delayed()
    worker.run(trials=trials, progress=False)
    return time.process_time() - began[0], time.perf_counter() - _delayed() - began[1]


def _delayed() -> float:
    """Return the seconds in which this thread could have run and another process did: those are not the ledger's."""
    return int(Path("/proc/thread-self/schedstat").read_text().split()[1]) / 1e9


def _nothing(trial: tw.Trial) -> float:
    return float(trial.number)


def _name(where: dict[str, Any]) -> Any:
    return where.get("ledger", where.get("directory"))


def _ask_seconds(space: tw.Space, searcher: Any, count: int) -> float:
    """Return the processor seconds of a proposal at so many results, all of them learnt."""
    view = SearchView(space, 0, slot=3)
    for number, one in enumerate(space.configurations(space.sample(np.random.default_rng(0), count))):
        view.propose(number, one)
        view.result(number, [sum(value * value for value in one.params.values())], epoch=None, complete=True)
    searcher.ask(view, [10**7])
    began = time.process_time()
    for repeat in range(_ASKS):
        searcher.ask(view, [10**7 + 1 + repeat])
    return (time.process_time() - began) / _ASKS


def _result_seconds(space: tw.Space, searcher: Any, where: dict[str, Any]) -> float:
    """Return the processor seconds to read and learn one of many results of another."""
    spent = 0.0
    with tw.Study(space, "min loss", **where, searcher=searcher) as reader:
        reader.ask()
        for repeat in range(_REPEATS + 1):
            # Written by a searcher that costs nothing, in another session.
            with tw.Study(space, "min loss", **where, searcher=tw.RandomSearcher()) as other:
                for one in other.ask(_RESULTS):
                    other.tell(one, loss=float(np.sum(np.square(list(one.params.values())))))
            began = time.process_time()
            reader.refresh()
            reader.ask()
            between = time.process_time()
            reader.ask()
            if repeat:  # the first is what is compiled
                spent += (between - began) - (time.process_time() - between)
    return max(0.0, spent) / (_REPEATS * _RESULTS)


def _look_seconds(space: tw.Space, where: dict[str, Any]) -> float:
    """Return the processor seconds to look at one writer's journal that has not grown."""
    with tw.Study(space, "min loss", **where) as reader, ExitStack() as others:
        for _ in range(_WRITERS):
            others.enter_context(tw.Study.open(_name(where))).ask()
        reader.refresh()
        time.sleep(2.5)  # a folder that has just changed is listed
        reader.refresh()
        began = time.process_time()
        for _ in range(_LOOKS):
            reader.refresh()
        return (time.process_time() - began) / (_LOOKS * _WRITERS)


def utilisation(cost: tw.LedgerCost, workers: int, *, trials: int, seconds: float, spread: float, seed: int) -> float:
    """Return the share of device time up to the last start in which trials ran, as the simulator has it."""

    def holds(ledger: tw.LedgerCost | None) -> dict[int, tuple[float, float]]:
        task = tw.Parametric(epoch_seconds=seconds, speed_jitter=spread)
        engine = tw.Simulated(cluster=tw.Cluster(1, workers), task=task, ledger=ledger)
        found = simulate(Scheduler(rule=tw.FixedEpochs(1)), engine, trials=trials, seed=seed, gantt=True)
        return {hold.trial: (hold.start, hold.end) for hold in found.gantt}

    trained = {trial: end - start for trial, (start, end) in holds(None).items()}
    starts = {trial: end - trained[trial] for trial, (_, end) in holds(cost).items()}
    last = max(starts.values())
    return sum(min(trained[trial], last - start) for trial, start in starts.items()) / (workers * last)
