"""Are the probabilities of Extrapolate right: the stated chance of ending no better than the best, against frequency.

Curves: TaskSet's recurrent text classifiers (Metz et al., arXiv 2002.11887; 51 points of validation loss), and the runs
of the AlgoPerf leaderboard that used nine tenths of their time or more (an epoch is a fiftieth of that; the workload's
validation metric). Trials of a table finish one after another; each is judged at its rungs by what is finished by then,
and runs on, so that the truth is known. The rule recalibrates its probability by a map that was fitted on these tables;
so the gap is of maps that are fitted here on all tables but the one that is judged, and that of the raw probability
stands beside it. Targets: gap between stated and true over ten bins, weighted by verdicts, at most 0.05; 85 to 95 % of
final losses inside the 90 % interval; at most 15 % wrong among the stops at p = 0.9; 30 ms a verdict on 50 points with
all families, on a core of its own.

    python benchmarks/schedule/calibration.py --taskset FOLDER --algoperf FOLDER --json
"""

import argparse
import math
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from benchmarks._report import add_arguments, environment, finish, progress, table

from trainwright.randomness import rng
from trainwright.schedule import Ended, Extrapolate, Opened, Reported, TrialView, View
from trainwright.schedule.extrapolate import recalibrated

__all__ = ["main"]

_WARM = 10  # trials of a table before the first verdict that counts
_EPOCHS = 50  # of AlgoPerf's runs
_SHARE = 0.9  # of the time allowed, that a run must have used
_LEAST = 25  # such runs in a workload

Points = list[tuple[int, float]]


@dataclass(frozen=True, kw_only=True, slots=True)
class _Judged:
    """One verdict beside what came of the trial."""

    raw: float
    stated: float
    worse: bool
    stopped: bool
    inside: bool


def main(argv: list[str] | None = None) -> dict[str, Any]:
    """Judge, print the table and the bins."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--taskset", type=Path, metavar="FOLDER", help="with the tables *.npz")
    parser.add_argument("--algoperf", type=Path, metavar="FOLDER", help="with algoperf_runs and _curves .parquet")
    parser.add_argument("--trials", type=int, default=40, help="of each table, drawn at random")
    add_arguments(parser)
    arguments = parser.parse_args(argv)
    found: dict[str, dict[str, list[_Judged]]] = {}
    milliseconds: list[float] = []
    for kind, folder, read in (("taskset", arguments.taskset, _taskset), ("algoperf", arguments.algoperf, _algoperf)):
        for seed, (name, epochs, trials) in enumerate(read(folder) if folder is not None else ()):
            chosen = rng(0, "calibration", seed).permutation(len(trials))[: arguments.trials]
            here = _judge([trials[row] for row in chosen], epochs, seed)
            milliseconds += _time([trials[row] for row in chosen[:20]], epochs, seed)
            progress(f"{kind} {name}: {len(chosen)} trials, {len(here)} verdicts")
            found.setdefault(kind, {})[name] = here
    if not found:
        parser.error("give --taskset, --algoperf, or both")
    result = _result(found, milliseconds)
    print(table(result["table"]["header"], result["table"]["rows"]))
    for kind, bins in result["bins"].items():
        for row in bins:
            print("{kind}: stated {stated:.3f}  true {true:.3f}  verdicts {verdicts}".format(kind=kind, **row))
    finish(result, arguments)
    return result


def _taskset(folder: Path) -> Iterator[tuple[str, int, list[Points]]]:
    for path in sorted(folder.glob("*.npz")):
        losses = np.load(path)["valid_loss"].astype(float)
        yield path.stem, losses.shape[1], [list(enumerate(_finite(row), start=1)) for row in losses]


def _algoperf(folder: Path) -> Iterator[tuple[str, int, list[Points]]]:
    import polars as pl

    runs = pl.read_parquet(folder / "algoperf_runs.parquet")
    curves = pl.read_parquet(folder / "algoperf_curves.parquet").join(runs, on="run")
    for (workload,), rows in sorted(curves.group_by("workload")):
        trials = []
        for _, run in sorted(rows.group_by("run")):
            sign = 1.0 if run["metric"][0] == "loss" else -1.0
            spent = (run["submission_time_s"] / run["max_runtime_s"]).to_numpy()
            epochs = np.ceil(spent * (_EPOCHS / _SHARE)).astype(int)
            losses = _finite(sign * run["val_metric"].to_numpy())
            if epochs.max() >= _EPOCHS:
                latest = {max(1, epoch): loss for epoch, loss in zip(epochs, losses, strict=True) if epoch <= _EPOCHS}
                trials.append(sorted({**latest, _EPOCHS: latest[max(latest)]}.items()))
        if len(trials) >= _LEAST:
            yield workload, _EPOCHS, trials


def _finite(losses: np.ndarray) -> list[float]:
    return [loss if math.isfinite(loss) else math.inf for loss in losses.tolist()]


def _play(rule: Extrapolate, trials: list[Points], seed: int) -> Iterator[tuple[Any, TrialView, float, float]]:
    """Yield index, trial, best finished loss and final loss at each rung of each trial but the first few."""
    index, best = rule.fold(rule.empty(), Opened(seed=seed)), math.inf
    for number, points in enumerate(trials):
        final, rungs = points[-1][1], list(rule.rungs)
        for epoch, loss in points:
            index = rule.fold(index, Reported(trial=number, epoch=epoch, losses=(loss,)))
            reached = [rung for rung in rungs if rung <= epoch < rule.max_epochs]
            rungs = rungs[len(reached) :]
            if reached and number >= _WARM:
                yield index, TrialView(number=number, epoch=epoch, losses=(loss,), best_loss=loss), best, final
        best = min(best, final)
        index = rule.fold(index, Ended(trial=number, failed=False))


def _judge(trials: list[Points], epochs: int, seed: int) -> list[_Judged]:
    """Return the verdicts at a tenth, three tenths and nine tenths of each trial."""
    rule, found = Extrapolate(max_epochs=epochs, min_epochs=epochs // 10), []
    for index, trial, best, final in _play(rule, trials, seed):
        believed = rule.forecast(index, trial.number)
        if believed is not None:
            low, high = believed.interval(0.9)
            raw = believed.above(best)
            stated = recalibrated(raw)  # as `on_report` does, without drawing all again
            found.append(
                _Judged(
                    raw=raw,
                    stated=stated,
                    worse=final >= best,
                    stopped=stated > rule.p,
                    inside=low <= final <= high,
                )
            )
    return found


def _time(trials: list[Points], epochs: int, seed: int) -> list[float]:
    """Return processor milliseconds of the last verdict before the end, with a prior; the first pays for its fits."""
    rule, found = Extrapolate(max_epochs=epochs, min_epochs=epochs - 1), []
    for index, trial, _, _ in _play(rule, trials, seed):
        began = time.process_time()
        rule.on_report(index, View(remaining=0), trial)
        found.append(1e3 * (time.process_time() - began))
    return found[1:]


def _held_out(found: dict[str, dict[str, list[_Judged]]], kind: str, name: str) -> list[float]:
    """Return the probabilities of one table by the beta calibration that is fitted on all others."""
    from scipy.optimize import minimize

    others = [
        row for k, tables in found.items() for n, rows in tables.items() if (k, n) != (kind, name) for row in rows
    ]
    sides = _sides(others)
    signs = np.where([row.worse for row in others], -1.0, 1.0)

    def loss(weights: np.ndarray) -> float:
        return float(np.logaddexp(0.0, signs * (sides @ weights)).mean())

    fitted = minimize(loss, [0.0, 1.0, 1.0], method="L-BFGS-B", bounds=[(None, None), (0.0, None), (0.0, None)]).x
    mapped: list[float] = (1.0 / (1.0 + np.exp(-(_sides(found[kind][name]) @ fitted)))).tolist()
    return mapped


def _sides(rows: list[_Judged]) -> np.ndarray:
    raw = np.clip([row.raw for row in rows], 1e-3, 1 - 1e-3)
    return np.stack([np.ones(len(rows)), np.log(raw), -np.log1p(-raw)], axis=1)


def _bins(stated: list[float], worse: list[bool]) -> list[dict[str, float]]:
    place = np.minimum((np.array(stated) * 10).astype(int), 9)
    return [
        {
            "stated": float(np.array(stated)[mine].mean()),
            "true": float(np.array(worse)[mine].mean()),
            "verdicts": int(mine.sum()),
        }
        for mine in (place == bin_ for bin_ in range(10))
        if mine.any()
    ]


def _gap(stated: list[float], worse: list[bool]) -> float:
    return sum(abs(row["stated"] - row["true"]) * row["verdicts"] for row in _bins(stated, worse)) / len(stated)


def _measured(found: dict[str, dict[str, list[_Judged]]], kind: str) -> dict[str, float]:
    tables = found[kind]
    rows = [row for here in tables.values() for row in here]
    worse, stops = [row.worse for row in rows], [row for row in rows if row.stopped]
    several = sum(map(len, found.values())) > 1
    held_out = [value for name in tables for value in _held_out(found, kind, name)] if several else None
    return {
        "tables": len(tables),
        "verdicts": len(rows),
        "calibration_error": math.nan if held_out is None else _gap(held_out, worse),
        "calibration_error_raw": _gap([row.raw for row in rows], worse),
        "calibration_error_shipped": _gap([row.stated for row in rows], worse),
        "coverage_90": sum(row.inside for row in rows) / len(rows),
        "stops": len(stops),
        "wrong_stops": sum(not row.worse for row in stops) / max(1, len(stops)),
    }


def _result(found: dict[str, dict[str, list[_Judged]]], milliseconds: list[float]) -> dict[str, Any]:
    parts = {kind: _measured(found, kind) for kind in found}
    # The worse of the kinds, not their mean; times are of all.
    summary = {
        "calibration_error": max(part["calibration_error"] for part in parts.values()),
        "coverage_90": max((part["coverage_90"] for part in parts.values()), key=lambda share: abs(share - 0.9)),
        "wrong_stops": max(part["wrong_stops"] for part in parts.values()),
        "verdict_ms": float(np.median(milliseconds)),
        "verdict_ms_95": float(np.quantile(milliseconds, 0.95)),
        **{f"{name}_{kind}": value for kind, part in parts.items() for name, value in part.items()},
    }
    header = ["curves", "tables", "verdicts", "gap", "raw gap", "inside 90 %", "stops", "wrong"]
    rows = [
        [
            kind,
            f"{part['tables']}",
            f"{part['verdicts']}",
            *(f"{part[name]:.3f}" for name in ("calibration_error", "calibration_error_raw", "coverage_90")),
            f"{part['stops']}",
            f"{part['wrong_stops']:.3f}",
        ]
        for kind, part in parts.items()
    ]
    judged = {kind: [row for here in tables.values() for row in here] for kind, tables in found.items()}
    return {
        "benchmark": "calibration",
        "summary": summary,
        "bins": {kind: _bins([r.stated for r in rows], [r.worse for r in rows]) for kind, rows in judged.items()},
        "table": {"header": header, "rows": rows},
        "environment": environment(),
    }


if __name__ == "__main__":
    main()
