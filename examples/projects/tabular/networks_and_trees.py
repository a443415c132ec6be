"""Networks, boosted trees, forests and linear models in one study of a small table; the ensemble takes the best.

Needs scikit-learn and LightGBM. Every trial fits its model eight times, each time without an eighth of the rows: what
the eight say of the rows that they did not see selects, and together they are one member of the library.
"""

import io
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import joblib
import numpy as np
from lightgbm import LGBMClassifier
from sklearn.datasets import load_breast_cancer
from sklearn.ensemble import ExtraTreesClassifier, RandomForestClassifier
from sklearn.linear_model import LogisticRegression
from sklearn.neural_network import MLPClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import QuantileTransformer, StandardScaler

import trainwright as tw

Table = dict[str, tuple[np.ndarray, np.ndarray]]


def train(trial: tw.Trial) -> float:
    data = table()
    rows, labels = data["selection"]
    # Every training row selects too, predicted by a model that did not see it.
    fitted = tw.ensemble.out_of_fold(lambda x, y: build(trial.params).fit(x, y), rows, labels, folds=8)
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
    kind = params["kind"]
    if kind == "trees":
        return LGBMClassifier(
            n_estimators=params["rounds"],
            learning_rate=params["rate"],
            num_leaves=params["leaves"],
            min_child_samples=params["least_rows"],
            colsample_bytree=params["columns"],
            reg_lambda=params["shrink"],
            extra_trees=params["random_cuts"],
            subsample=0.8,
            subsample_freq=1,
            n_jobs=1,
            verbose=-1,
        )
    if kind == "forest":
        forest = ExtraTreesClassifier if params["random_splits"] else RandomForestClassifier
        leaf, columns = params["leaf_rows"], params["split_columns"]
        return forest(150, criterion="entropy", min_samples_leaf=leaf, max_features=columns)
    if kind == "linear":
        return make_pipeline(StandardScaler(), LogisticRegression(C=params["looseness"], max_iter=300))
    scaled = QuantileTransformer(output_distribution="normal", n_quantiles=100)
    network = MLPClassifier(
        (params["width"],) * params["depth"],
        alpha=params["decay"],
        learning_rate_init=params["step"],
        max_iter=params["epochs"],
        batch_size=64,
    )
    return make_pipeline(scaled if params["ranks"] else StandardScaler(), network)


def load(params: Mapping[str, Any], folder: Path) -> object:  # noqa: ARG001 - what an ensemble calls to predict
    return joblib.load(folder / "model.joblib")


def table() -> Table:
    """Cells of breast tumours, 569 rows of 30 numbers, in three parts."""
    x, y = load_breast_cancer(return_X_y=True)
    order = np.random.default_rng(0).permutation(len(y))
    parts = {"selection": order[:300], "calibration": order[300:400], "test": order[400:]}
    return {name: (x[rows].astype(np.float32), y[rows].astype(np.int64)) for name, rows in parts.items()}


TREES, FOREST, NETWORK = (tw.equals("kind", kind) for kind in ("trees", "forest", "network"))
SPACE = tw.Space(
    kind=tw.Choice("trees", "forest", "network", "linear"),
    rate=tw.Float(0.02, 0.2, log=True, when=TREES),
    rounds=tw.Int(40, 300, log=True, when=TREES),
    leaves=tw.Int(3, 48, log=True, when=TREES),
    least_rows=tw.Int(2, 40, log=True, when=TREES),
    columns=tw.Float(0.3, 1.0, when=TREES),
    shrink=tw.Float(1e-3, 10.0, log=True, when=TREES),
    random_cuts=tw.Choice(False, True, when=TREES),
    random_splits=tw.Choice(False, True, when=FOREST),
    leaf_rows=tw.Int(1, 10, log=True, when=FOREST),
    split_columns=tw.Float(0.1, 1.0, when=FOREST),
    width=tw.Int(16, 256, log=True, when=NETWORK),
    depth=tw.Int(1, 2, when=NETWORK),
    decay=tw.Float(1e-3, 10.0, log=True, when=NETWORK),
    step=tw.Float(1e-3, 1e-2, log=True, when=NETWORK),
    epochs=tw.Int(15, 120, log=True, when=NETWORK),
    ranks=tw.Choice(False, True, when=NETWORK),
    looseness=tw.Float(1e-3, 1e2, log=True, when=tw.equals("kind", "linear")),
)

if __name__ == "__main__":
    study = tw.Study(SPACE, objectives="min log_loss", directory="runs/cells", seed=0)
    study.run(train, trials=12, searcher=tw.RandomSearcher(), engine=tw.Local(workers=2), progress=False)
    front = tw.Library.open("runs/cells").select(tw.BudgetedGreedy(max_members=4))
    single, chosen = front.single_best, front.pick().with_rule("auto").conformal(alpha=0.05)
    for name, model in (("best single", single), ("ensemble", chosen)):
        kinds = [member.params["kind"] for member in model.members]
        print(f"{name}: {', '.join(kinds)}, test log loss {model.score('test', 'log_loss'):.4f}")
    loaded = tw.Ensemble.load(chosen.save("runs/cells-ensemble", replace=True))
    sets = loaded.predict_set(table()["test"][0])
    inside = sets[np.arange(len(sets)), table()["test"][1]].mean()
    print(f"sets that miss 5 %: hold {inside:.1%} of the test rows, {sets.sum(axis=1).mean():.2f} classes each")
