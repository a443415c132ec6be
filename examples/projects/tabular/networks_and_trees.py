"""Networks and boosted trees in one study of a small table: each trial leaves a model, the ensemble takes the best."""

import io
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import joblib
import numpy as np
from sklearn.datasets import load_breast_cancer
from sklearn.ensemble import HistGradientBoostingClassifier
from sklearn.neural_network import MLPClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

import trainwright as tw

Table = dict[str, tuple[np.ndarray, np.ndarray]]


def train(trial: tw.Trial) -> float:
    data = table()
    rows, labels = data["selection"]
    # Every training row selects too, predicted by a model that did not see it.
    fitted = tw.ensemble.out_of_fold(lambda x, y: build(trial.params).fit(x, y), rows, labels, folds=4)
    predictions = {name: fitted(x) for name, (x, _) in data.items()} | {"selection": fitted.predictions}
    file = io.BytesIO()
    joblib.dump(fitted, file)
    tw.ensemble.leave(
        trial,
        fitted,
        predictions=predictions,
        targets={name: y for name, (_, y) in data.items()},
        sample=rows,
        factory=load,
        files={"model.joblib": file.getvalue()},
    )
    return float(-np.log(predictions["selection"][np.arange(len(labels)), labels].clip(1e-7)).mean())


def build(params: Mapping[str, Any]) -> Any:
    if params["kind"] == "trees":
        return HistGradientBoostingClassifier(
            learning_rate=params["trees_rate"], max_leaf_nodes=params["leaves"], max_iter=60
        )
    network = MLPClassifier((params["width"],), alpha=params["decay"], learning_rate_init=0.01, early_stopping=True)
    return make_pipeline(StandardScaler(), network)


def load(params: Mapping[str, Any], folder: Path) -> object:  # noqa: ARG001 - what an ensemble calls to predict
    return joblib.load(folder / "model.joblib")


def table() -> Table:
    """Cells of breast tumours, 569 rows of 30 numbers, in three parts."""
    x, y = load_breast_cancer(return_X_y=True)
    order = np.random.default_rng(0).permutation(len(y))
    parts = {"selection": order[:300], "calibration": order[300:400], "test": order[400:]}
    return {name: (x[rows].astype(np.float32), y[rows].astype(np.int64)) for name, rows in parts.items()}


SPACE = tw.Space(
    kind=tw.Choice("trees", "network"),
    trees_rate=tw.Float(0.03, 0.3, log=True, when=tw.equals("kind", "trees")),
    leaves=tw.Int(4, 31, log=True, when=tw.equals("kind", "trees")),
    width=tw.Int(8, 64, log=True, when=tw.equals("kind", "network")),
    decay=tw.Float(1e-4, 1.0, log=True, when=tw.equals("kind", "network")),
)

if __name__ == "__main__":
    study = tw.Study(SPACE, objectives="min log_loss", directory="runs/cells", seed=0)
    study.run(train, trials=12, searcher=tw.RandomSearcher(), engine=tw.Local(workers=2), progress=False)
    front = tw.Library.open("runs/cells").select(tw.BudgetedGreedy(max_members=4))
    single, chosen = front.single_best, front.pick().conformal(alpha=0.05)
    for name, model in (("best single", single), ("ensemble", chosen)):
        kinds = [member.params["kind"] for member in model.members]
        print(f"{name}: {', '.join(kinds)}, test log loss {model.score('test', 'log_loss'):.4f}")
    loaded = tw.Ensemble.load(chosen.save("runs/cells-ensemble", replace=True))
    sets = loaded.predict_set(table()["test"][0])
    inside = sets[np.arange(len(sets)), table()["test"][1]].mean()
    print(f"sets that miss 5 %: hold {inside:.1%} of the test rows, {sets.sum(axis=1).mean():.2f} classes each")
