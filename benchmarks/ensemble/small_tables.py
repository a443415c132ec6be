"""Networks, trees, forests and linear models in one study, on small tables, beside AutoGluon, by test log loss.

    python benchmarks/ensemble/small_tables.py --data FOLDER --autogluon VENV/bin/python --results FILE --json

FOLDER is where packages are unpacked (see `tables_data.py`); without it, and without AutoGluon's Python, what needs
them is left out. Per table and seed AutoGluon's `best_quality` is given `--seconds` of processor time, then ours the
processor time that it took, for everything: a search of the space of `examples/projects/tabular/networks_and_trees.py`,
every training row predicted out of fold (eight folds), models measured and left, the ensemble chosen. Searcher and
settings are the defaults.

`single best` is the one model of least out-of-fold loss, `caruana` greedy selection without limits, `ours` what
`EnsembleSettings()` choose: their mean with a linear head where it helps out of fold. Under a
budget of so many times the single best model's seconds a row, ours is compared with the best prefix of Caruana's that
fits. `at equal cost` is the best point of the front that costs no more processor time a row than AutoGluon's, where
there is one. Rows that FILE has are kept, so that tables may be run one by one (`--tables`).
"""

import argparse
import contextlib
import csv
import json
import math
import os
import statistics
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
sys.path.insert(1, str(Path(__file__).resolve().parents[2] / "src"))
sys.path.insert(2, str(Path(__file__).resolve().parents[2] / "examples/projects/tabular"))

from benchmarks._report import add_arguments, environment, finish, progress, table
from benchmarks.ensemble.datasets import Missing
from benchmarks.ensemble.tables_data import TABLES, UNSEEN, Table, load_table

__all__ = ["main"]

Array = npt.NDArray[Any]
FOLDS = 8
_BUDGETS = (1.0, 2.0, 4.0, 8.0)
_METHODS = ("single best", "caruana", "ours", "autogluon")


def main(argv: Sequence[str] | None = None) -> dict[str, Any]:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=str(__doc__).splitlines()[0])
    parser.add_argument("--tables", default=",".join(TABLES), help=f"of {', '.join(TABLES | UNSEEN)}")
    parser.add_argument("--seeds", default="0", help="such as 0,1")
    parser.add_argument("--seconds", type=float, default=60.0, help="that AutoGluon gets, or ours without it")
    parser.add_argument("--data", type=Path, default=Path(), help="where packages of data are unpacked")
    parser.add_argument("--autogluon", type=Path, help="a Python that has it")
    parser.add_argument("--kept", type=Path, help="a folder that keeps what AutoGluon came to")
    add_arguments(parser)
    arguments = parser.parse_args(argv)
    rows = [] if arguments.results is None or not arguments.results.exists() else _kept_rows(arguments.results)
    for name in arguments.tables.split(","):
        for seed in map(int, arguments.seeds.split(",")):
            if any((row["table"], row["seed"]) == (name, seed) for row in rows):
                continue
            progress(f"{name}, seed {seed}")
            try:
                data = load_table(name, arguments.data, seed)
            except Missing as missing:
                progress(str(missing))
                continue
            rows.append({"table": name, "seed": seed, **_compare(data, f"{name}-{seed}", seed, arguments)})
    result = {
        "benchmark": "ensemble_small_tables",
        **_summarise(rows),
        "settings": {"seconds": arguments.seconds, "folds": FOLDS},
        "rows": rows,
        "environment": environment(),
    }
    print(table(**result["table"]))
    finish(result, arguments)
    return result


def _kept_rows(file: Path) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(file.read_text())["rows"]
    return [row for row in found if "at_equal_cost" in row]


def _compare(data: Table, title: str, seed: int, arguments: argparse.Namespace) -> dict[str, Any]:
    peer = None
    if arguments.autogluon is not None:
        peer = _run_autogluon(data, title, arguments)
    budget = arguments.seconds if peer is None else peer["processor_seconds"]
    ours = _run_ours(data, seed, budget, math.inf if peer is None else peer["seconds_per_row"])
    return {**ours, "autogluon": None if peer is None else peer["log_loss"], "autogluon_details": peer}


def _run_ours(data: Table, seed: int, budget: float, row_seconds: float = math.inf) -> dict[str, Any]:
    """Search until the processor time is used up, then choose; also what costs `row_seconds` a row at most."""
    from networks_and_trees import SPACE, build

    import trainwright as tw

    x, y = data.numbers(), data.y
    began = time.process_time()
    with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        longest, costs = 0.0, dict[int, float]()

        def run(trial: tw.Trial) -> float:
            # A trial that would end after the budget is not begun; the longest so far says which would.
            nonlocal longest
            began_trial = time.process_time()
            if costs and began_trial - began + longest > budget:
                raise KeyboardInterrupt
            fitted = tw.ensemble.out_of_fold(
                lambda rows, labels: build(trial.params).fit(rows, labels), x[data.train], y[data.train], folds=FOLDS
            )
            before = time.process_time()
            predictions = {"selection": fitted.predictions, "test": fitted(x[data.test])}
            costs[trial.number] = (time.process_time() - before) / len(data.test)
            targets = {"selection": y[data.train], "test": y[data.test]}
            tw.ensemble.leave(trial, fitted, predictions=predictions, targets=targets, sample=x[data.train])
            longest = max(longest, time.process_time() - began_trial)
            return _log_loss(fitted.predictions, y[data.train])

        study = tw.Study(SPACE, objectives="min log_loss", directory=folder, seed=seed)
        with contextlib.suppress(KeyboardInterrupt):
            study.run(run, trials=1000, engine=tw.Local(workers=0), progress=False)
        library = tw.Library.open(folder)
        chosen = tw.ensemble.EnsembleSettings().choose(library)
        spent = time.process_time() - began
        front = chosen.front
        caruana = front.ensemble(front.baselines["caruana"])
        return {
            "single best": front.single_best.score("test", "log_loss"),
            "caruana": caruana.score("test", "log_loss"),
            "ours": chosen.ensemble.score("test", "log_loss"),
            "rule": chosen.ensemble.rule.name,
            "kinds": [str(member.params["kind"]) for member in chosen.ensemble.members],
            "trials": len(study.trials),
            "processor_seconds": spent,
            "seconds_per_row": sum(costs[member.trial] for member in chosen.ensemble.members),  # of processor
            "at_equal_cost": _score_at_cost(front, costs, row_seconds),
            "budgets": _compare_budgets(front),
        }


def _score_at_cost(front: Any, costs: dict[int, float], limit: float) -> float | None:
    """Return the test log loss of the front's best point within `limit` processor seconds a row; None if none is."""
    for point in front.points:
        if sum(costs[trial] for trial in set(point.members)) <= limit:
            return float(front.ensemble(point).score("test", "log_loss"))
    return None


def _compare_budgets(front: Any) -> dict[str, dict[str, float]]:
    """Return test log losses under budgets: what selection finds, and Caruana's best prefix that fits."""
    import trainwright as tw
    from trainwright.ensemble.selection.candidates import make_scorer
    from trainwright.ensemble.selection.front import make_point

    candidates = front.candidates
    steps = tw.BudgetedGreedy().run(candidates, make_scorer(candidates, front.scored_by)).steps
    picks = [step.index for step in steps]
    prefixes = [make_point(candidates, tuple(picks[: n + 1]), step.loss) for n, step in enumerate(steps)]
    single = front.single_best.cost_seconds
    found = {}
    for factor in _BUDGETS:
        limit = factor * single
        fitting = [point for point in prefixes if (point.seconds_per_row or 0.0) <= limit * (1 + 1e-9)]
        ours = front.pick(max_seconds=limit * (1 + 1e-9))
        theirs = front.ensemble(min(fitting, key=lambda point: point.loss)) if fitting else front.single_best
        found[f"{factor:g}"] = {
            "ours": ours.score("test", "log_loss"),
            "caruana": theirs.score("test", "log_loss"),
            "selection_behind": ours.score("selection", "log_loss") - theirs.score("selection", "log_loss"),
        }
    return found


def _run_autogluon(data: Table, title: str, arguments: argparse.Namespace) -> dict[str, Any]:
    """Return what AutoGluon came to, from the folder that keeps it or by running it now."""
    kept = None if arguments.kept is None else arguments.kept / f"{title}.json"
    if kept is not None and kept.exists():
        found: dict[str, Any] = json.loads(kept.read_text())
        return found
    with tempfile.TemporaryDirectory() as folder:
        for name, rows in (("train", data.train), ("test", data.test)):
            with (Path(folder) / f"{name}.csv").open("w", newline="") as file:
                writer = csv.writer(file)
                writer.writerow([*data.columns, "class"])
                columns = [*data.columns.values(), data.y]
                for row in rows:
                    values = (column[row] for column in columns)
                    # What is missing is an empty cell, as its reader expects.
                    writer.writerow(
                        ["" if isinstance(value, float) and math.isnan(value) else value for value in values]
                    )
        script = Path(__file__).parent / "_autogluon.py"
        command = [str(arguments.autogluon), str(script), folder, str(arguments.seconds)]
        subprocess.run(command, env={**os.environ, "OMP_NUM_THREADS": "1"}, check=True, capture_output=True)
        found = json.loads((Path(folder) / "autogluon.json").read_text())
    if kept is not None:
        kept.parent.mkdir(parents=True, exist_ok=True)
        kept.write_text(json.dumps(found))
    return found


def _summarise(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """Return summary and table: per table the means over seeds, and over tables the geometric mean of ratios."""
    names = list(dict.fromkeys(row["table"] for row in rows))
    compared = [row for row in rows if row["autogluon"] is not None]

    def ratio(of: str, to: str, among: list[dict[str, Any]]) -> float | None:
        logs = [math.log(row[of] / row[to]) for row in among]
        return math.exp(statistics.mean(logs)) if logs else None

    cells = []
    for name in names:
        among = [row for row in rows if row["table"] == name]
        means = {
            method: statistics.mean(row[method] for row in among)
            for method in _METHODS
            if all(row[method] is not None for row in among)
        }
        to_peer = ratio("ours", "autogluon", [row for row in among if row["autogluon"] is not None])
        figures = [f"{means[method]:.4f}" if method in means else "-" for method in _METHODS]
        cells.append([name, *figures, "-" if to_peer is None else f"{to_peer:.3f}"])
    budgets = [one for row in rows for one in row["budgets"].values()]
    summary = {
        "tables": len(names),
        "runs": len(rows),
        "ours_over_autogluon": ratio("ours", "autogluon", compared),
        "ours_ahead_of_autogluon": sum(row["ours"] < row["autogluon"] for row in compared),
        "ours_over_caruana": ratio("ours", "caruana", rows),
        "ours_over_single_best": ratio("ours", "single best", rows),
        "seconds_per_row_over_autogluon": statistics.median(
            row["seconds_per_row"] / row["autogluon_details"]["seconds_per_row"] for row in compared
        )
        if compared
        else None,
        "at_equal_cost_over_autogluon": ratio(
            "at_equal_cost", "autogluon", [row for row in compared if row["at_equal_cost"] is not None]
        ),
        "tables_with_none_at_equal_cost": sum(row["at_equal_cost"] is None for row in compared),
        "budgets_mean_log_ratio_to_caruana": statistics.mean(math.log(one["ours"] / one["caruana"]) for one in budgets),
        "budgets_behind_on_selection": sum(one["selection_behind"] > 1e-6 for one in budgets),
        "budgets_compared": len(budgets),
    }
    overall = [ratio(method, "autogluon", compared) for method in _METHODS]
    geometric = ["-" if one is None else f"{one:.3f}" for one in overall]
    cells.append(["ratio to AutoGluon, geometric mean", *geometric, geometric[_METHODS.index("ours")]])
    return {"summary": summary, "table": {"header": ["table", *_METHODS, "ours / AutoGluon"], "rows": cells}}


def _log_loss(predictions: Array, labels: Array) -> float:
    return float(-np.log(predictions[np.arange(len(labels)), labels].clip(1e-7)).mean())


if __name__ == "__main__":
    main()
