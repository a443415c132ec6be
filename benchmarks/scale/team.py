"""A team of real processes on one study: `python -m benchmarks.scale.team SYSTEM SAMPLER WHERE WORKERS TRIALS SECONDS`.

The team's members are forked from one process that has imported and compiled everything, and all begin at one moment.
A member runs an objective that sleeps and gives Ackley's function; what its process spends beside is what is measured.
Prints one line of JSON: seconds from the beginning to the last end, utilisation, processor seconds, results; where the
rest of the time went: until a member's first start, and between its trials; and the utilisation from the members' own
first starts on. With a seventh word so many members are killed at random moments of the first half, each replaced at
once; then only what the ledger holds is told: trials with a result, those with none or with several ends, and the
kills.
"""

import gc
import itertools
import json
import math
import os
import pickle
import random
import signal
import statistics
import sys
import time
import traceback
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

__all__ = ["main"]

_COLUMNS = [f"x{i}" for i in range(5)]
_BOUND = 32.768
_SETTLED_SECONDS = 1.0
_WORDS = 6  # on the command line, without kills


class Clocked:
    """The objective; it remembers when each of its calls began."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self.starts: list[float] = []

    def __call__(self, x: list[float]) -> float:
        """Sleep, and return Ackley's function of x."""
        self.starts.append(time.monotonic())
        time.sleep(self.seconds)
        square, wave = (sum(f(v) for v in x) / len(x) for f in (lambda v: v * v, lambda v: math.cos(2 * math.pi * v)))
        return 20 + math.e - 20 * math.exp(-0.2 * math.sqrt(square)) - math.exp(wave)


def main(argv: list[str]) -> None:
    """Run one team and print what it took."""
    system, sampler, where = argv[:3]
    workers, trials = (int(word) for word in argv[3:5])
    objective = Clocked(float(argv[5]))
    join = {"ours": _ours, "optuna": _optuna}[system](sampler, where, trials, objective)
    # What the members share stays shared only as long as no collector marks it.
    gc.collect()
    gc.freeze()
    begin, go = os.pipe()
    share = trials // workers
    children = [_fork(partial(join, rank, share), objective, begin, go) for rank in range(workers)]
    for _, pipe in children:
        os.read(pipe, 1)  # it is ready
    time.sleep(_SETTLED_SECONDS)
    start = time.monotonic()
    os.close(go)
    if len(argv) > _WORDS:
        kills, draw = int(argv[_WORDS]), random.Random(0)
        for _ in range(kills):
            time.sleep(share * objective.seconds / (2 * kills))
            place = draw.randrange(workers)
            pid, pipe = children[place]
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
            os.close(pipe)
            children[place] = _fork(partial(join, place, share), objective, begin, go)
            os.read(children[place][1], 1)
        for pid, pipe in children:
            _result(pid, pipe)
        print(json.dumps({"seconds": time.monotonic() - start, "kills": kills, **_look_through(where, trials)}))
        return
    found = [_result(pid, pipe) for pid, pipe in children]
    starts = sorted(at for one in found for at in one["starts"])
    last = starts[-1]
    busy = sum(min(objective.seconds, last - at) for at in starts)
    firsts = [min(one["starts"], default=last) for one in found]
    pauses = [late - soon - objective.seconds for one in found for soon, late in itertools.pairwise(one["starts"])]
    print(
        json.dumps(
            {
                "seconds": max(one["end"] for one in found) - start,
                "utilisation": busy / (workers * (last - start)),
                "utilisation_once_started": busy / max(1e-9, sum(last - first for first in firsts)),
                "start_seconds": statistics.fmean(firsts) - start,
                "between_seconds": statistics.fmean(pauses) if pauses else 0.0,
                "processor_seconds": sum(one["processor_seconds"] for one in found),
                "megabytes": max(one["megabytes"] for one in found),
                "trials": len(starts),
            }
        )
    )


def _look_through(where: str, trials: int) -> dict[str, int]:
    """Return how many trials have a result, none, or more than one end."""
    from trainwright.ledger import blocks, state_of
    from trainwright.ledger.opening import open_ledger

    ledger = open_ledger(where)
    ends = Counter(record.trial for records, _ in blocks(ledger) for record in records if record.kind == "finished")
    found = state_of(ledger).trials
    return {
        "trials": sum(found[number].has_result for number in range(trials) if number in found),
        "lost": sum(number not in found or not found[number].has_result for number in range(trials)),
        "doubled": sum(count > 1 for count in ends.values()) + sum(number >= trials for number in found),
    }


def _fork(join: Callable[[], None], objective: Clocked, begin: int, go: int) -> tuple[int, int]:
    """Start a member that joins once `go` is closed; return its pid and the pipe on which it answers."""
    near, far = os.pipe()
    if pid := os.fork():
        os.close(far)
        return pid, near
    status = 1
    try:
        with suppress(OSError):  # closed already, where a member replaces another
            os.close(go)
        os.write(far, b"+")
        os.read(begin, 1)
        before = time.process_time()
        join()
        spent = time.process_time() - before
        told = {"end": time.monotonic(), "processor_seconds": spent, "starts": objective.starts, "megabytes": _memory()}
        with os.fdopen(far, "wb") as pipe:
            pickle.dump(told, pipe)
        status = 0
    except BaseException:  # noqa: BLE001  a forked child must never run on into its parent's code
        traceback.print_exc()
    finally:
        os._exit(status)


def _memory() -> float:
    """Return the megabytes that this process holds for itself."""
    lines = Path("/proc/self/smaps_rollup").read_text(encoding="ascii").splitlines()
    return sum(int(line.split()[1]) for line in lines if line.startswith("Private_")) / 1024


def _result(pid: int, pipe: int) -> dict[str, Any]:
    with os.fdopen(pipe, "rb") as answer:
        told = answer.read()
    if os.waitpid(pid, 0)[1] != 0:
        raise SystemExit(f"member {pid} of the team failed")
    return dict(pickle.loads(told))  # noqa: S301  our own child wrote it


def _ours(sampler: str, where: str, trials: int, objective: Clocked) -> Callable[[int, int], None]:
    import trainwright as tw

    space = tw.Space.of({name: tw.Float(-_BOUND, _BOUND) for name in _COLUMNS})
    searcher: Any = {"random": tw.RandomSearcher, "forest": tw.ForestSearcher, "default": tw.DefaultSearcher}[sampler]()

    def train(trial: tw.Trial) -> float:
        return objective([trial.params[name] for name in _COLUMNS])

    # The default asks the forest later, whose compiled code takes seconds to load.
    for one in (searcher, tw.ForestSearcher()):
        warm = tw.Study(space, "min loss", searcher=one)
        for number in range(30):
            warm.tell(warm.ask(), loss=float(number))
    place: dict[str, Any] = {"ledger": where} if "://" in where else {"directory": where}
    tw.Study(space, "min loss", **place).close()

    def join(rank: int, _: int) -> None:
        worker = tw.Worker(where=where, train=train, searcher=searcher, engine=tw.Local(workers=0), rank=rank)
        worker.run(trials=trials, progress=False)

    return join


def _optuna(sampler: str, where: str, trials: int, objective: Clocked) -> Callable[[int, int], None]:  # noqa: ARG001
    import optuna
    from optuna.storages import JournalStorage
    from optuna.storages.journal import JournalFileBackend, JournalRedisBackend

    optuna.logging.set_verbosity(optuna.logging.ERROR)

    def of(trial: Any) -> float:
        return objective([trial.suggest_float(name, -_BOUND, _BOUND) for name in _COLUMNS])

    def chosen(rank: int) -> Any:
        samplers: dict[str, Any] = {"random": optuna.samplers.RandomSampler, "tpe": optuna.samplers.TPESampler}
        return samplers[sampler](seed=rank)

    def storage() -> Any:
        return JournalStorage(JournalRedisBackend(where) if "://" in where else JournalFileBackend(where))

    warm = optuna.create_study(sampler=chosen(0))
    for number in range(30):
        trial = warm.ask()
        for name in _COLUMNS:
            trial.suggest_float(name, -_BOUND, _BOUND)
        warm.tell(trial, float(number))
    optuna.create_study(storage=storage(), study_name="scale")

    def join(rank: int, share: int) -> None:
        study = optuna.load_study(storage=storage(), study_name="scale", sampler=chosen(rank))
        study.optimize(of, n_trials=share)  # a fixed share each: the cheapest that it can do

    return join


if __name__ == "__main__":
    main(sys.argv[1:])
