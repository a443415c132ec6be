"""One measurement of one ledger in a fresh process: `write KIND PATH TRIALS [FSYNC]` or `replay KIND PATH`.

The study is the same for both kinds: each trial has 6 parameters, 3 reports of one metric and an end. Ours takes 6
records for that (proposed, started, 3 x reported, finished), Optuna's 11 (created, 6 parameters, 3 values, end).
"""

import ctypes
import gc
import json
import os
import sys
import time
from pathlib import Path
from typing import Any

__all__ = ["RECORDS_PER_TRIAL", "main"]

RECORDS_PER_TRIAL = {"own": 6, "optuna": 11}
_REPORTS = 3


def main(argv: list[str]) -> dict[str, float]:
    """Do one measurement and give its numbers."""
    act, kind, path, *rest = argv
    if act == "write":
        write = _write_own if kind == "own" else _write_optuna
        seconds = write(Path(path), int(rest[0]), *rest[1:])
        return {"seconds": seconds}
    replay = _replay_own if kind == "own" else _replay_optuna
    held, seconds, resident = _measured(replay, Path(path))
    return {"seconds": seconds, "resident_bytes": resident, "trials": held}


def _params(number: int) -> dict[str, Any]:
    return {
        "lr": 1e-5 * 1.001 ** (number % 9000),
        "weight_decay": 1e-6 * (1 + number % 977),
        "momentum": 0.5 + (number % 491) / 1000,
        "dropout": (number % 313) / 626,
        "width": 16 + number % 500,
        "depth": 1 + number % 7,
    }


def _write_own(path: Path, trials: int, fsync: Any = "lifecycle") -> float:
    from trainwright.ledger import DirectoryLedger, facts

    ledger = DirectoryLedger(path, create=True, fsync=fsync)
    start = time.perf_counter()
    for number in range(trials):
        params = _params(number)
        key = f"{number:032x}"
        ledger.append(
            [facts.proposed(number, params=params, key=key, origin={"searcher": "random"}, seen=0, seen_hash="0")]
        )
        ledger.append([facts.started(number, 1, slot="0", devices=["cpu"], resumed_epoch=0)])
        for epoch in range(1, _REPORTS + 1):
            metrics = {"val_loss": 1 / (epoch + number % 13)}
            ledger.append([facts.reported(number, 1, epoch=epoch, step=None, metrics=metrics, wall_seconds=epoch)])
        ledger.append([facts.finished(number, 1, reason="completed", values={"val_loss": 0.1}, wall_seconds=9.5)])
    seconds = time.perf_counter() - start
    ledger.close()
    return seconds


def _write_optuna(path: Path, trials: int) -> float:
    import optuna

    optuna.logging.set_verbosity(optuna.logging.ERROR)
    storage = _optuna_storage(path)
    study = storage.create_new_study([optuna.study.StudyDirection.MINIMIZE])
    floats, ints = optuna.distributions.FloatDistribution(0, 1), optuna.distributions.IntDistribution(0, 1000)
    start = time.perf_counter()
    for number in range(trials):
        trial = storage.create_new_trial(study)
        for name, value in _params(number).items():
            storage.set_trial_param(trial, name, value, ints if isinstance(value, int) else floats)
        for epoch in range(1, _REPORTS + 1):
            storage.set_trial_intermediate_value(trial, epoch, 1 / (epoch + number % 13))
        storage.set_trial_state_values(trial, optuna.trial.TrialState.COMPLETE, [0.1])
    return time.perf_counter() - start


def _replay_own(path: Path | None) -> tuple[Any, int]:
    from trainwright.ledger import DirectoryLedger, state_of

    if path is None:
        return None, 0
    state = state_of(DirectoryLedger(path))
    return state, len(state.trials)


def _replay_optuna(path: Path | None) -> tuple[Any, int]:
    import optuna

    optuna.logging.set_verbosity(optuna.logging.ERROR)
    if path is None:
        return None, 0
    storage = _optuna_storage(path)
    return storage, len(storage.get_all_trials(storage.get_all_studies()[0]._study_id, deepcopy=False))  # noqa: SLF001  the only way to its id


def _optuna_storage(path: Path) -> Any:
    from optuna.storages import JournalStorage
    from optuna.storages.journal import JournalFileBackend

    return JournalStorage(JournalFileBackend(str(path)))


def _measured(replay: Any, path: Path) -> tuple[int, float, int]:
    replay(None)  # imports are not charged
    before = _resident_bytes()
    start = time.perf_counter()
    held, trials = replay(path)
    seconds = time.perf_counter() - start
    resident = _resident_bytes() - before
    del held
    return trials, seconds, resident


def _resident_bytes() -> int:
    """Resident set after garbage was collected and free pages were given back to the system."""
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


if __name__ == "__main__":
    print(json.dumps(main(sys.argv[1:])))
