"""Networks and boosted trees in one study, on small tables: the ensemble beside what is simpler, by test log loss.

    python benchmarks/ensemble/small_tables.py --seeds 2 --json

Per table and seed a random search of `examples/projects/tabular/networks_and_trees.py`, every training row predicted
out of fold (three folds); half of the rows judge. `trees` is scikit-learn's HistGradientBoostingClassifier as it comes,
on all training rows; `single best` the one model of least out-of-fold loss, `caruana` greedy selection without limits,
`ours` that of at most eight members, and `auto` the same with a linear head where it helps out of fold. AutoGluon is
not run here.
"""

import argparse
import statistics
import sys
import tempfile
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

__all__ = ["main"]

Array = npt.NDArray[Any]
TABLES = ("breast cancer", "wine", "digits", "classification", "moons", "quantiles")
FOLDS = 3


def main(argv: Sequence[str] | None = None) -> dict[str, Any]:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=str(__doc__).splitlines()[0])
    parser.add_argument("--seeds", type=int, default=2)
    parser.add_argument("--trials", type=int, default=16)
    add_arguments(parser)
    arguments = parser.parse_args(argv)
    rows = []
    for name in TABLES:
        for seed in range(arguments.seeds):
            progress(f"{name}, seed {seed}")
            rows.append({"table": name, "seed": seed, **_compare(name, seed, arguments.trials)})
    methods = [key for key in rows[0] if key not in ("table", "seed", "members", "kinds")]
    summary = {
        name: {method: statistics.mean(row[method] for row in rows if row["table"] == name) for method in methods}
        for name in TABLES
    }
    header = ["table", *methods]
    cells = [[name, *(f"{one[method]:.3f}" for method in methods)] for name, one in summary.items()]
    print(table(header, cells))
    result = {
        "benchmark": "ensemble_small_tables",
        "summary": summary,
        "settings": {"seeds": arguments.seeds, "trials": arguments.trials, "folds": FOLDS},
        "rows": rows,
        "table": {"header": header, "rows": cells},
        "environment": environment(),
    }
    finish(result, arguments)
    return result


def _compare(name: str, seed: int, trials: int) -> dict[str, Any]:
    from networks_and_trees import SPACE, build
    from sklearn.ensemble import HistGradientBoostingClassifier

    import trainwright as tw

    x, y = _load(name, seed)
    order = np.random.default_rng(seed).permutation(len(y))
    train, test = order[: len(y) // 2], order[len(y) // 2 :]

    def run(trial: tw.Trial) -> float:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            fitted = tw.ensemble.out_of_fold(
                lambda rows, labels: build(trial.params).fit(rows, labels), x[train], y[train], folds=FOLDS
            )
            predictions = {"selection": fitted.predictions, "test": fitted(x[test])}
        tw.ensemble.leave(trial, predictions=predictions, targets={"selection": y[train], "test": y[test]})
        return _log_loss(fitted.predictions, y[train])

    with tempfile.TemporaryDirectory() as folder:
        study = tw.Study(SPACE, objectives="min log_loss", directory=folder, seed=seed)
        study.run(run, trials=trials, searcher=tw.RandomSearcher(), engine=tw.Local(workers=0), progress=False)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            front = tw.Library.open(folder).select(tw.BudgetedGreedy(max_members=8))
            ours = front.pick()
            found = {
                "single best": front.single_best.score("test", "log_loss"),
                "caruana": front.ensemble(front.baselines["caruana"]).score("test", "log_loss"),
                "ours": ours.score("test", "log_loss"),
                "auto": ours.with_rule("auto").score("test", "log_loss"),
            }
        kinds = [str(member.params["kind"]) for member in ours.members]
    trees = HistGradientBoostingClassifier().fit(x[train], y[train]).predict_proba(x[test])
    return {"trees": _log_loss(trees, y[test]), **found, "members": len(kinds), "kinds": kinds}


def _log_loss(predictions: Array, labels: Array) -> float:
    return float(-np.log(predictions[np.arange(len(labels)), labels].clip(1e-7)).mean())


def _load(name: str, seed: int) -> tuple[Array, Array]:
    from sklearn import datasets

    bundled = {
        "breast cancer": datasets.load_breast_cancer,
        "wine": datasets.load_wine,
        "digits": datasets.load_digits,
    }
    if name in bundled:
        x, y = bundled[name](return_X_y=True)
        kept = np.random.default_rng(0).permutation(len(y))[:800]
        x, y = x[kept], y[kept]
    elif name == "classification":
        x, y = datasets.make_classification(800, 20, n_informative=6, n_classes=3, flip_y=0.1, random_state=seed)
    elif name == "moons":
        x, y = datasets.make_moons(800, noise=0.35, random_state=seed)
    else:
        x, y = datasets.make_gaussian_quantiles(n_samples=800, n_features=8, n_classes=3, random_state=seed)
    return x.astype(np.float32), y.astype(np.int64)


if __name__ == "__main__":
    main()
