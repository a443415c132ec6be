"""Whether a model over configurations foretells who wins better than a trial's loss, and what stopping by it would do.

The model is the searchers' Gaussian process, over configurations and what a trial's curve shows so far (last loss,
best so far, slope over the last third, all as normal scores), of how far the loss will still fall. Who was stopped
counts at the rungs below with the end foreseen. Nothing in it is tuned to a family. A winner is among the best tenth.

- 60 trials are known, to the end ("nobody stopped") or as far as ASHA let them train ("ASHA stopped"), and 60 others
  are ordered at epochs 1, 3, 9 and 27: by the best loss so far, and by the model. "AUC more": than that of the current
  loss (a constant has 0.5), at epoch 1 and in the mean over the later ones.
- Rules play up to 120 trials one after another, with rungs at 3, 9 and 27. By the model a trial stops if the best end
  so far is below all but a share `risk` of what it may come to, going by the model's errors for complete trials, each
  left out. "Ended": of coming winners after the tenth trial, which would be better than all before. AUC of verdicts:
  more than that of ranks among those at the rung so far. Regret as in `fidelity/run.py`, after the epochs of 8 trials.

    python benchmarks/schedule/verdicts.py --data DIR --json
"""

import argparse
import math
import sys
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from benchmarks._report import add_arguments, environment, finish, progress, table
from benchmarks.fidelity.problems import CurveProblem, find_curves
from benchmarks.schedule.paired import Kept, average, shown

from trainwright.randomness import rng
from trainwright.search.bayes.gaussian_process import Embedding, Posterior, fit_hyperparameters

__all__ = ["main"]

Array = NDArray[np.float64]

_RUNGS = (1, 3, 9, 27)
_KNOWN, _PLAYED, _WARM = 60, 120, 10
_FEWEST = 3  # results of a fit
_GROWTH = 1.25  # of complete trials from fit to fit
_TRAININGS = 8
_WORST = 1e30  # in place of infinity
RISKS = (0.03, 0.1)
HEADER = (
    "curves", "studies", "who judges", "AUC more, at epoch 1", "AUC more, later", "winners ended", "epochs saved",
    "regret", "verdict, ms",
)  # fmt: skip


class _Scores:
    """Normal scores of ranks among losses; a straight line below the least."""

    def __init__(self, losses: Array) -> None:
        from scipy.special import ndtri

        self.losses, counts = np.unique(losses, return_counts=True)
        self.scores = ndtri((np.cumsum(counts) - 0.5 * counts) / len(losses))
        tenth = len(self.losses) // 10
        fall, drop = (float(each[tenth] - each[0]) for each in (self.losses, self.scores))
        self.slope = drop / fall if fall > 0 else 1.0

    def __call__(self, losses: Array) -> Array:
        below = np.minimum(losses - self.losses[0], 0.0)
        return np.asarray(np.interp(losses, self.losses, self.scores) + np.maximum(self.slope * below, -1.0))


class _Model:
    """What is known of trials [rows, epochs], each up to the epoch that it reached, and a process for each rung."""

    def __init__(self, problem: CurveProblem, rungs: Sequence[int], rows: Array, curves: Array, reached: Array) -> None:
        self._embedding, full = Embedding(problem.space, fidelity=False), curves.shape[1]
        at = {rung: np.flatnonzero(reached >= rung) for rung in rungs}
        complete = reached >= full
        low = curves.min(axis=1)
        parts = [curves[at[rung], rung - 1] for rung in rungs]
        self._scores = _Scores(np.concatenate([*parts, low[complete]]))
        ends = np.where(complete, self._scores(low), np.nan)
        self.best = float(np.nanmin(ends, initial=math.inf))
        self._processes: dict[int, tuple[Array, float, float, Posterior]] = {}
        self.errors: dict[int, Array] = {}  # of complete trials, each left out
        for rung in reversed(rungs):
            known = at[rung][~np.isnan(ends[at[rung]])]
            left = np.setdiff1d(at[rung], known)
            if len(known) >= _FEWEST:
                points, now = self._points(rows[known], curves[known], rung)
                self._fit(rung, points, ends[known] - now, complete[known])
            if len(left):
                ends[left] = self.ends(rows[left], curves[left], rung)

    def _points(self, rows: Array, curves: Array, rung: int) -> tuple[Array, Array]:
        now, best, before = (
            self._scores(losses)
            for losses in (curves[:, rung - 1], curves[:, :rung].min(axis=1), curves[:, rung - 1 - rung // 3])
        )
        shown = np.clip(np.stack([now, best - now, now - before], axis=1) / 2.0, -1.5, 1.5)
        return np.concatenate([self._embedding(rows), shown], axis=1), now

    def _fit(self, rung: int, points: Array, falls: Array, complete: Array) -> None:
        from scipy.linalg import cho_solve

        owners = self._embedding.owners
        owners = np.concatenate([owners, owners.max() + 1 + np.arange(points.shape[1] - len(owners))])
        mean, spread = float(falls.mean()), float(falls.std()) or 1.0
        targets = (falls - mean) / spread
        posterior = Posterior.of(fit_hyperparameters(points, owners, targets, rng(0, "verdicts", rung)), points, owners)
        alpha = posterior.coefficients(targets)
        self._processes[rung] = alpha, mean, spread, posterior
        diagonal = cho_solve((posterior.factor, True), np.eye(len(points))).diagonal()
        self.errors[rung] = (spread * alpha / diagonal)[complete]

    def ends(self, rows: Array, curves: Array, rung: int) -> Array:
        """Return the scores of the best losses that trials will have had at their ends."""
        points, now = self._points(rows, curves, rung)
        if rung not in self._processes:
            return now
        alpha, mean, spread, posterior = self._processes[rung]
        foreseen: Array = now + mean + spread * (alpha @ posterior.between(posterior.points, points))
        return foreseen


def _trials(problem: CurveProblem, seed: int, count: int) -> tuple[Array, Array]:
    """Return random configurations, of a table some of its rows, and their curves."""
    generator = rng(seed, "verdicts", 0)
    table_rows = getattr(problem.model, "rows", None)
    # A configuration between a table's rows would have the curve of another.
    rows = problem.space.sample(generator, count) if table_rows is None else generator.permutation(table_rows)[:count]
    curves = problem.model(rows)
    return rows, np.where(np.isfinite(curves), curves, _WORST)


def _reached(curves: Array, rungs: Sequence[int]) -> Array:
    """Return how far ASHA lets trials train that come one after another."""
    reached = np.full(len(curves), curves.shape[1])
    for rung in rungs:
        losses: list[float] = []
        for trial in np.flatnonzero(reached >= rung):
            losses.append(curves[trial, rung - 1])
            if losses[-1] > sorted(losses)[max(1, len(losses) // 3) - 1]:
                reached[trial] = rung
    return reached


def _auc(scores: Array, winners: NDArray[np.bool_]) -> float:
    """Return how often a winner has a lower score than another trial; NaN if there are not both."""
    from scipy.stats import rankdata

    ours, others = int(winners.sum()), int((~winners).sum())
    if not ours or not others:
        return math.nan
    return float(1.0 - (rankdata(scores)[winners].sum() - ours * (ours + 1) / 2) / (ours * others))


def _winners(low: Array) -> NDArray[np.bool_]:
    return np.asarray(low <= np.sort(low)[max(2, len(low) // 10) - 1])


def _foretell(problem: CurveProblem, seed: int, *, stopped: bool) -> list[float]:
    """Return the AUC at each rung of the current loss, the best so far, and the model."""
    rows, curves = _trials(problem, seed, 2 * _KNOWN)
    known, rungs = len(rows) // 2, [rung for rung in _RUNGS if rung < problem.length]
    winners = _winners(curves.min(axis=1))[known:]
    reached = _reached(curves[:known], rungs) if stopped else np.full(known, problem.length)
    model = _Model(problem, rungs, rows[:known], curves[:known], reached)
    found = []
    for rung in rungs:
        now, best = curves[known:, rung - 1], curves[known:, :rung].min(axis=1)
        found += [_auc(scores, winners) for scores in (now, best, model.ends(rows[known:], curves[known:], rung))]
    return found


def _play(problem: CurveProblem, seed: int, risk: float | None) -> list[float]:
    """Return winners, those ended, epochs saved, AUC minus rank's, regret, ms; of ASHA without a risk."""
    rows, curves = _trials(problem, seed, _PLAYED)
    rungs, full, low = [rung for rung in _RUNGS[1:] if rung < problem.length], problem.length, curves.min(axis=1)
    reached = np.zeros(len(rows), int)
    model, due = None, 0.0
    judged: dict[int, list[tuple[float, float, bool]]] = {rung: [] for rung in rungs}
    top, seconds, verdicts = _winners(low), 0.0, 0
    for trial in range(len(rows)):
        for rung in (*rungs, full):
            reached[trial] = rung
            if rung == full:
                break
            among = curves[:trial][reached[:trial] >= rung, rung - 1]
            now = curves[trial, rung - 1]
            place = int((among < now).sum())
            if risk is None:
                if place >= max(1, (len(among) + 1) // 3):
                    break
                continue
            began = time.perf_counter()
            complete = int((reached[:trial] >= full).sum())
            # Between fits a verdict is a prediction; the time of a fit counts with the verdict that it delays.
            if complete >= max(due, 1.0 / risk - 1.0):
                model, due = _Model(problem, rungs, rows[:trial], curves[:trial], reached[:trial]), _GROWTH * complete
            if model is not None:
                end = float(model.ends(rows[trial : trial + 1], curves[trial : trial + 1], rung)[0])
                errors = model.errors[rung]
                judged[rung].append((end - model.best, (place + 0.5) / (len(among) + 1), bool(top[trial])))
                stops = (end + errors <= model.best).sum() + 1 <= risk * (len(errors) + 1)
            seconds, verdicts = seconds + time.perf_counter() - began, verdicts + 1
            if model is not None and stops:
                break
    comes = np.concatenate([[False], low[1:] < np.minimum.accumulate(low)[:-1]]) & (np.arange(len(low)) >= _WARM)
    spent = np.concatenate([[0], np.cumsum(reached)[:-1]])
    within = np.clip(_TRAININGS * full - spent, 0, reached)
    seen = min(float(curves[trial, :epochs].min()) for trial, epochs in enumerate(within) if epochs)
    gains = [
        _auc(values[:, 0], values[:, 2] > 0) - _auc(values[:, 1], values[:, 2] > 0)
        for values in (np.array(each, float) for each in judged.values() if each)
    ]
    gain = float(np.nanmean(gains)) if not np.isnan(gains).all() else math.nan
    saved = 1.0 - float(reached.mean()) / full
    milliseconds = 1000.0 * seconds / max(1, verdicts)
    ended = float((comes & (reached < full)).sum())
    return [float(comes.sum()), ended, saved, gain, problem.regret(seen), milliseconds]


def main(argv: list[str] | None = None) -> dict[str, Any]:
    """Play all studies, print both tables."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path, required=True, metavar="DIR", help="a folder of families")
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--cells", type=Path, metavar="FILE", help="where finished studies are kept")
    add_arguments(parser)
    arguments = parser.parse_args(argv)
    kept, summary = Kept(arguments.cells), {}
    rows: list[list[str]] = []
    problems = list(find_curves(arguments.data, ("lcbench", "taskset", "algoperf")))
    if not problems:
        parser.error(f"--data: no curves in {arguments.data}")

    def values_of(family: str, part: str, make: Callable[[CurveProblem, int], list[float]]) -> Array:
        ours = [problem for problem in problems if problem.family == family]
        found = []
        for seed in range(arguments.seeds):
            for problem in ours:
                key = f"{part} {family} {problem.name} {seed}"
                found.append(kept.of(key, partial(make, problem, seed)))
        progress(f"{part}: {family}")
        return np.array(found)

    for family in dict.fromkeys(problem.family for problem in problems):
        for stopped in (False, True):
            label = "ASHA stopped" if stopped else "nobody stopped"
            values = values_of(family, label, partial(_foretell, stopped=stopped))
            found = values.reshape(len(values), -1, 3)  # studies, rungs, predictors
            more = found[:, :, 1:] - found[:, :, :1]
            for k, name in enumerate(("best so far", "model")):
                later, first = (_figure(part) for part in (more[:, 1:, k].mean(axis=1), more[:, 0, k]))
                summary[f"{family}_{label}_{name}_auc_minus_loss".replace(" ", "_").lower()] = later[0]
                if not (stopped and k == 0):  # the loss so far does not depend on it
                    text = name if k == 0 else f"{name}, {label}"
                    cells = [shown(first, "+.3f") if k else "", shown(later, "+.3f")]
                    rows.append([family, str(len(values)), text, *cells, *[""] * 4])
        for risk in (None, *RISKS):
            label = "ASHA" if risk is None else f"model, risk {risk:g}"
            values = values_of(family, label, partial(_play, risk=risk))
            figures = {
                "ended": values[:, 1].sum() / max(1.0, values[:, 0].sum()),
                "saved": values[:, 2].mean(),
                "regret": values[:, 4].mean(),
            }
            key = f"{family}_{label}".replace(", risk", "").replace(" ", "_").lower()
            summary |= {f"{key}_{name}": float(figure) for name, figure in figures.items()}
            cells = ["", "" if risk is None else shown(_figure(values[:, 3]), "+.3f"), f"{figures['ended']:.2f}"]
            cells += [f"{100 * figures['saved']:.0f} %", shown(average(values[:, 4]))]
            rows.append([family, str(len(values)), label, *cells, "" if risk is None else f"{values[:, 5].mean():.1f}"])
    print(table(HEADER, rows))
    result = {
        "benchmark": "verdicts",
        "environment": environment(),
        "summary": summary,
        "table": {"header": HEADER, "rows": rows},
    }
    finish(result, arguments)
    return result


def _figure(values: Array) -> tuple[float, float, float]:
    """Return a mean with its interval, of the studies that had winners to tell from others."""
    return average(values[~np.isnan(values)])


if __name__ == "__main__":
    main()
