"""Deterministic simulation: histories of a study from seeds, with faults, until a promise is broken.

    python -m trainwright.testing.simulation --seeds 1000000 --jobs 2 --results histories.json
    python -m trainwright.testing.simulation --replay 5f3a9c1e:17:kill@70,rot@300

One seed, one history: workers of a team train a few trials with checkpoints, by a searcher and a rule that are drawn as
well; each of the faults of `FAULTS` may strike at any operation; dead workers are replaced. At the end a worker without
faults finishes the study, and a checker that knows only the promises reads what is there. With `--results` the count is
kept as it grows: the same command, given again, continues where it was interrupted. A history that breaks a promise is
made shorter, fault by fault, and printed as what `--replay` takes.
"""
# ruff: noqa: T201 -- a command of its own

import argparse
import gc
import hashlib
import json
import multiprocessing
import os
import signal
import sys
import time
import warnings
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

from trainwright.errors import InputError
from trainwright.publishing import write_file
from trainwright.testing.simulated_history import MANY_FAULTS, History, plan_faults, shrink_faults, simulate_history
from trainwright.testing.simulated_machine import FAULTS

__all__ = ["SIMULATOR", "main", "replay_history"]

SIMULATOR = hashlib.blake2b(
    b"".join(path.read_bytes() for path in sorted(Path(__file__).parent.glob("simulat*.py"))), digest_size=4
).hexdigest()
"""Names the simulator: a seed of another one is another history."""

_SAVE_SECONDS = 10.0
_SIGNALS = (signal.SIGINT, signal.SIGTERM)
_AHEAD = 500  # seeds that are handed out at once
_BREATHER = 500  # of seeds, between two collections of garbage


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


def _read_results(path: Path | None) -> dict[str, Any]:
    """Return what an interrupted run has kept, or a new count."""
    fresh = {
        "benchmark": "simulation", "simulator": SIMULATOR, "histories": 0, "faults": 0,
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
    return kept


def _run_seeds(seeds: int, jobs: int, results: dict[str, Any], path: Path | None) -> None:
    """Simulate until `seeds` histories are counted, or a signal comes; keep the count as it grows, and show it."""
    signals: list[int] = []
    before = {number: signal.signal(number, lambda number, _: signals.append(number)) for number in _SIGNALS}
    began, seconds, counted = time.monotonic(), results["seconds"], results["histories"]
    saved = began
    context = multiprocessing.get_context("spawn")
    try:
        with ProcessPoolExecutor(jobs, context, _prepare_process) as pool:
            while results["histories"] < seeds and not signals:
                todo = range(results["histories"], min(seeds, results["histories"] + _AHEAD))
                # Counted in the order of seeds: those behind the last one that was kept are simulated again.
                for history in map(_simulate_seed, todo) if jobs == 1 else pool.map(_simulate_seed, todo, chunksize=10):
                    _count_history(history, results)
                    now = time.monotonic()
                    results["seconds"] = seconds + now - began
                    if path is not None and now - saved > _SAVE_SECONDS:
                        write_file(path, json.dumps(results, indent=1) + "\n")
                        saved = now
                        left = (now - began) / (results["histories"] - counted) * (seeds - results["histories"])
                        print(f"{_summarise(results)}, {left / 60:.0f} min left", file=sys.stderr, flush=True)
                    if signals:
                        pool.shutdown(cancel_futures=True)
                        break
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        if path is not None:
            write_file(path, json.dumps(results, indent=1) + "\n")


def _prepare_process() -> None:
    # Threads of a history take turns: none has to be interrupted for another.
    sys.setswitchinterval(1.0)
    # It would look through all of torch, many times in each history.
    gc.disable()
    # Damaged journals are what histories are about.
    warnings.filterwarnings("ignore", "the ledger cannot be read as a whole")
    for number in _SIGNALS if multiprocessing.parent_process() else ():
        signal.signal(number, signal.SIG_IGN)


def _simulate_seed(seed: int) -> History:
    if seed % _BREATHER == 0:
        gc.collect()
    return simulate_history(seed, plan_faults(seed))


def _count_history(history: History, results: dict[str, Any]) -> None:
    """Add a history to the counts; print it if it breaks a promise, with as few faults as do so."""
    if history.broken:
        shortest = f"{SIMULATOR}:{shrink_faults(history)}"
        results["broken"].append({"history": shortest, "promises": history.broken})
        print(f"broken: {'; '.join(history.broken)}\n  --replay {shortest}", flush=True)
    struck = len(history.happened)
    results["histories"] += 1
    results["faults"] += struck
    results["of_ten_faults"] += struck >= MANY_FAULTS
    results["fewest_faults"] = min(struck, results["fewest_faults"] or struck)
    for fault in history.happened.values():
        results["struck"][fault] = results["struck"].get(fault, 0) + 1


def _summarise(results: dict[str, Any]) -> str:
    return (
        f"{results['histories']} histories, {results['faults']} faults (at least {results['fewest_faults']} each, "
        f"{MANY_FAULTS} or more in {results['of_ten_faults']}), "
        f"{len(results['broken'])} with a broken promise, {results['seconds']:.0f} s"
    )


def main(argv: Sequence[str] | None = None) -> int:
    """Simulate histories; 1 if one breaks a promise, 2 for what cannot be simulated."""
    parser = argparse.ArgumentParser(description=str(__doc__).splitlines()[0])
    parser.add_argument("--seeds", type=int, default=100, help="how many histories (default: 100)")
    parser.add_argument("--jobs", type=int, default=1, help="how many processes simulate (default: 1)")
    parser.add_argument("--results", type=Path, metavar="FILE", help="keep the count in FILE, and continue from there")
    parser.add_argument("--replay", metavar="HISTORY", help="simulate one history again, as a failure is printed")
    given = parser.parse_args(argv)
    try:
        for option in ("seeds", "jobs"):
            if (value := getattr(given, option)) < 1:
                raise InputError(f"simulation: got --{option} {value}; allowed: at least 1")
        if given.replay is not None:
            replayed = replay_history(given.replay)
            print("; ".join(replayed.broken) or "every promise kept")
            return int(bool(replayed.broken))
        results = _read_results(given.results)
        _run_seeds(given.seeds, given.jobs, results, given.results)
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
    _prepare_process()
    sys.exit(main())
