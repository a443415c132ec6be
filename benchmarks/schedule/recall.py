"""How many coming winners a rule ends, and what it saves: Extrapolate beside a rule that keeps the better half.

Curves: TaskSet's recurrent text classifiers (Metz et al., arXiv 2002.11887; 51 points of validation loss), and the runs
of the AlgoPerf leaderboard that used nine tenths of their time or more (an epoch is a fiftieth of that; the workload's
validation metric). Trials of a table come one after another in a random order; a coming winner is one that, trained to
its end, would be better than all before it (the first ten trials do not count). "Ended" are those that it stops at
some rung, "saved" the epochs of all trials that it leaves out. Targets: at most a tenth ended, 10 ms a verdict.

    python benchmarks/schedule/recall.py --taskset FOLDER --algoperf FOLDER --json
"""

import argparse
import math
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from benchmarks._report import add_arguments, environment, finish, progress, table

from trainwright.randomness import rng
from trainwright.schedule import Extrapolate, Reason, Reported, RuleView, Stop, TrialView
from trainwright.schedule.rules.promotion_rule import CONTINUE, Verdict

__all__ = ["main"]

_WARM = 10  # trials of a table before the first winner that counts
_EPOCHS = 50  # of AlgoPerf's runs
_SHARE = 0.9  # of the time allowed, that a run must have used
_LEAST = 25  # such runs in a workload
HEADER = ("curves", "tables", "rule", "coming winners", "ended", "share", "epochs saved", "verdict, ms")

Points = list[tuple[int, float]]


class _BetterHalf:
    """Stop whoever is not among the better half of all trials at its epoch."""

    def __init__(self, rungs: tuple[int, ...]) -> None:
        self.rungs = rungs

    def empty(self) -> dict[int, list[float]]:
        return {rung: [] for rung in self.rungs}

    def fold(self, index: dict[int, list[float]], event: Reported) -> dict[int, list[float]]:
        if event.epoch in index:
            index[event.epoch].append(event.losses[0])
        return index

    def on_report(self, index: dict[int, list[float]], view: RuleView, trial: TrialView) -> Verdict:
        del view
        losses = index.get(trial.epoch, ())
        worse = bool(losses) and sum(loss < trial.loss for loss in losses) > len(losses) / 2
        return Stop(Reason(rule="better half", epoch=trial.epoch)) if worse else CONTINUE


def main(argv: list[str] | None = None) -> dict[str, Any]:
    """Play all tables under both rules, print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--taskset", type=Path, metavar="FOLDER", help="with the tables *.npz")
    parser.add_argument("--algoperf", type=Path, metavar="FOLDER", help="with algoperf_runs and _curves .parquet")
    parser.add_argument("--trials", type=int, default=60, help="of each table at most, drawn at random")
    parser.add_argument("--seeds", type=int, default=20, help="orders of each table")
    add_arguments(parser)
    arguments = parser.parse_args(argv)
    found: dict[tuple[str, str], list[tuple[int, int, float, float]]] = {}
    for kind, folder, read in (("taskset", arguments.taskset, _taskset), ("algoperf", arguments.algoperf, _algoperf)):
        for name, epochs, trials in read(folder) if folder is not None else ():
            for label in ("Extrapolate", "better half"):
                for seed in range(arguments.seeds):
                    order = rng(0, "recall", seed).permutation(len(trials))[: arguments.trials]
                    ours = Extrapolate(max_epochs=epochs, min_epochs=max(1, epochs // 27))
                    rule = ours if label == "Extrapolate" else _BetterHalf(ours.rungs)
                    found.setdefault((kind, label), []).append(_play(rule, [trials[row] for row in order], epochs))
            progress(f"{kind} {name}: {len(trials)} curves")
    if not found:
        parser.error("give --taskset, --algoperf, or both")
    lines: list[list[str]] = []
    summary: dict[str, float] = {}
    for (kind, label), rows in found.items():
        winners, ended = sum(row[0] for row in rows), sum(row[1] for row in rows)
        saved, slowest = float(np.mean([row[2] for row in rows])), max(row[3] for row in rows)
        tables = str(len(rows) // arguments.seeds)
        share = ended / max(1, winners)
        lines.append(
            [kind, tables, label, str(winners), str(ended), f"{share:.3f}", f"{100 * saved:.0f} %", f"{slowest:.2f}"]
        )
        name = f"{label.lower().replace(' ', '_')}_{kind}"
        summary |= {f"{name}_ended": share, f"{name}_saved": saved, f"{name}_milliseconds": slowest}
    print(table(HEADER, lines))
    result = {
        "benchmark": "recall",
        "environment": environment(),
        "summary": summary,
        "table": {"header": HEADER, "rows": lines},
    }
    finish(result, arguments)
    return result


def _play(rule: Any, trials: list[Points], epochs: int) -> tuple[int, int, float, float]:
    """Return coming winners, those of them that were ended, the share of epochs saved, and milliseconds a verdict."""
    index, best, winners, ended, saved = rule.empty(), math.inf, 0, 0, 0
    seconds: list[float] = []
    for trial, points in enumerate(trials):
        curve, stopped = dict(points), None
        for epoch in (*rule.rungs, epochs):
            loss = curve[max(at for at in curve if at <= max(epoch, points[0][0]))]
            began = time.perf_counter()
            index = rule.fold(index, Reported(trial=trial, epoch=epoch, losses=(loss,)))
            seen = TrialView(number=trial, epoch=epoch, losses=(loss,))
            verdict = rule.on_report(index, RuleView(remaining=0), seen)
            seconds.append(time.perf_counter() - began)
            if isinstance(verdict, Stop):
                stopped = epoch
                break
        if points[-1][1] < best:
            winners += trial >= _WARM
            ended += trial >= _WARM and stopped is not None
            best = points[-1][1]
        saved += 0 if stopped is None else epochs - stopped
    return winners, ended, saved / (epochs * len(trials)), 1000 * sum(seconds) / len(seconds)


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


if __name__ == "__main__":
    main()
