"""Conformal sets and intervals of ensembles on generated rows, beside the intervals of mixtures and MAPIE.

    python benchmarks/ensemble/conformal.py --seeds 100 --json

Per seed and data set, four members are averaged: ridge regressions on random features, each on a bootstrap sample of
300 rows, with a second one for the logarithm of the variance; or logistic regressions. 200 rows calibrate, 1,000 judge.
Regression: normal, skewed and heavy-tailed (t with 2 degrees) noise whose size depends on x. Classes: three of them,
drawn alike; with noise in the labels; and with other shares of the classes among the rows that judge ("shift"), where
ours is by class. `mixture` is the central 90 % interval of the members' mixture after the variance was scaled on the
calibration rows; `oracle` knows the law of every row: the shortest that covers 90 % whatever x is. `length` is the mean
over the rows that judge, of intervals, or of classes in a set.
"""

import argparse
import statistics
import sys
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
sys.path.insert(1, str(Path(__file__).resolve().parents[2] / "src"))

from benchmarks._report import add_arguments, environment, finish, progress, table
from benchmarks.ensemble.intervals import coverage

__all__ = ["main"]

Array = npt.NDArray[Any]
ALPHA, MEMBERS, ROWS = 0.1, 4, (300, 200, 1000)
NOISE: dict[str, Callable[[np.random.Generator, int], Array]] = {
    "normal": lambda draws, rows: draws.normal(size=rows),
    "skewed": lambda draws, rows: draws.exponential(size=rows) - 1,
    "heavy": lambda draws, rows: draws.standard_t(2, size=rows),
}
SHORTEST = {"normal": (-1.6449, 1.6449), "skewed": (-1.0, np.log(10) - 1), "heavy": (-2.92, 2.92)}
"""Ends of the shortest interval that holds 90 % of a noise, for the `oracle`, which knows the law of every row."""
CLASSES = ("balanced", "noisy labels", "shift")


def main(argv: Sequence[str] | None = None) -> dict[str, Any]:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=str(__doc__).splitlines()[0])
    parser.add_argument("--seeds", type=int, default=100)
    add_arguments(parser)
    arguments = parser.parse_args(argv)
    rows: list[dict[str, Any]] = []
    for name in (*NOISE, *CLASSES):
        progress(name)
        for seed in range(arguments.seeds):
            found = (_regression if name in NOISE else _classification)(name, seed)
            rows += [{"set": name, "seed": seed, "method": method, **one} for method, one in found.items()]
    summary = _summarise(rows)
    header = ["data", "method", "coverage", "length"]
    cells = [[*key.split("/"), f"{one['coverage']:.3f}", f"{one['length']:.3f}"] for key, one in summary.items()]
    print(table(header, cells))
    result = {
        "benchmark": "ensemble_conformal",
        "summary": summary,
        "settings": {"seeds": arguments.seeds, "rows": ROWS, "members": MEMBERS, "alpha": ALPHA},
        "table": {"header": header, "rows": cells},
        "environment": environment(),
    }
    finish(result, arguments)
    return result


def _summarise(rows: Sequence[dict[str, Any]]) -> dict[str, Any]:
    keys = dict.fromkeys((row["set"], row["method"]) for row in rows)
    chosen = {key: [row for row in rows if (row["set"], row["method"]) == key] for key in keys}
    return {
        "/".join(key): {what: round(statistics.mean(one[what] for one in some), 4) for what in ("coverage", "length")}
        for key, some in chosen.items()
    }


def _regression(name: str, seed: int) -> dict[str, dict[str, float]]:
    from trainwright.ensemble.combine.calibration import calibrate
    from trainwright.ensemble.combine.conformal import Conformal
    from trainwright.ensemble.combine.rules import NormalMixture, combine

    draws = np.random.default_rng(seed)
    x = draws.uniform(-2, 2, size=(sum(ROWS), 2))
    middle, spread = np.sin(2 * x[:, 0]) + x[:, 1], 0.2 + 0.4 * np.abs(x[:, 0])
    y = middle + spread * NOISE[name](draws, len(x))
    train, held, test = np.split(np.arange(len(x)), np.cumsum(ROWS)[:-1])
    members = [_fit_moments(draws, x[train], y[train]) for _ in range(MEMBERS)]
    told = {"held": [one(x[held]) for one in members], "test": [one(x[test]) for one in members]}
    pooled = {part: combine(NormalMixture(), one, [1.0] * MEMBERS) for part, one in told.items()}
    targets = {"held": y[held][:, None], "test": y[test][:, None]}
    scale = calibrate(pooled["held"], targets["held"]).applied
    scaled = [np.stack([one[..., 0], one[..., 1] * scale], axis=-1) for one in told["test"]]
    share, length = coverage(scaled, [1.0] * MEMBERS, targets["test"], 1 - ALPHA)
    truth = np.stack([middle + end * spread for end in SHORTEST[name]], axis=-1)
    found = {"oracle": _judge_interval(truth[test], y[test]), "mixture": {"coverage": share, "length": length}}
    for method in ("scaled", "quantile", "absolute"):
        promise = Conformal.fit(pooled["held"], targets["held"], output="moments", alpha=ALPHA, method=method)
        found[method] = _judge_interval(promise.predict_interval(pooled["test"])[:, 0], y[test])
    return found | _mapie_interval(pooled, y[held], y[test])


def _judge_interval(ends: Array, y: Array) -> dict[str, float]:
    inside = (ends[:, 0] <= y) & (y <= ends[:, 1])
    return {"coverage": float(inside.mean()), "length": float((ends[:, 1] - ends[:, 0]).mean())}


class _Looked:
    """An estimator for MAPIE that looks its predictions up: x is the row's place among them."""

    def __init__(self, predictions: Array, classes: Array | None = None) -> None:
        self.predictions = predictions
        if classes is not None:
            self.classes_ = classes

    def fit(self, x: Array, y: Array) -> "_Looked":  # noqa: ARG002 - it is fitted
        return self

    def predict(self, x: Array) -> Array:
        found = self.predictions[x[:, 0].astype(int)]
        return np.asarray(found if found.ndim == 1 else found.argmax(axis=1))

    def predict_proba(self, x: Array) -> Array:
        return np.asarray(self.predictions[x[:, 0].astype(int)])

    def __sklearn_is_fitted__(self) -> bool:
        return True

    def get_params(self, deep: bool = True) -> dict[str, Any]:  # noqa: ARG002
        return {"predictions": self.predictions}


def _mapie_interval(pooled: dict[str, Array], held: Array, test: Array) -> dict[str, dict[str, float]]:
    try:
        from mapie.regression import SplitConformalRegressor
    except ImportError:
        return {}
    means = np.concatenate([pooled["held"][:, 0, 0], pooled["test"][:, 0, 0]])
    places = np.arange(len(means))[:, None]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = SplitConformalRegressor(_Looked(means), confidence_level=1 - ALPHA, prefit=True)
        model.conformalize(places[: len(held)], held)
        _, ends = model.predict_interval(places[len(held) :])
    return {"MAPIE absolute": _judge_interval(ends[:, :, 0], test)}


def _fit_moments(draws: np.random.Generator, x: Array, y: Array) -> Callable[[Array], Array]:
    """Return a member: a mean, and a variance from the squared residuals, on random features of its own."""
    frequencies, phases = draws.normal(size=(x.shape[1], 40)), draws.uniform(0, 2 * np.pi, 40)

    def features(rows: Array) -> Array:
        return np.concatenate([np.ones((len(rows), 1)), rows, np.cos(rows @ frequencies + phases)], axis=1)

    def ridge(terms: Array, values: Array, strength: float) -> Array:
        return np.asarray(np.linalg.solve(terms.T @ terms + strength * np.eye(terms.shape[1]), terms.T @ values))

    chosen = draws.integers(0, len(x), len(x))
    terms = features(x[chosen])
    mean = ridge(terms, y[chosen], 1.0)
    spread = ridge(terms, np.log((y[chosen] - terms @ mean) ** 2 + 1e-3), 10.0)
    # The logarithm of a squared normal residual is 1.27 too low on average.
    return lambda rows: np.stack([features(rows) @ mean, np.exp(features(rows) @ spread + 1.27)], axis=-1)[:, None]


def _classification(name: str, seed: int) -> dict[str, dict[str, float]]:
    from sklearn.linear_model import LogisticRegression

    from trainwright.ensemble.combine.conformal import Conformal

    draws = np.random.default_rng(seed)
    shares = np.repeat([[0.5, 0.3, 0.2]], sum(ROWS), axis=0)
    if name == "shift":
        shares[sum(ROWS[:2]) :] = [0.1, 0.2, 0.7]
    y = (draws.random((len(shares), 1)) > shares.cumsum(axis=1)).sum(axis=1)
    x = draws.normal(size=(len(y), 4)) + 1.2 * np.eye(3, 4)[y]
    if name == "noisy labels":
        y = np.where(draws.random(len(y)) < 0.15, draws.integers(0, 3, len(y)), y)
    train, held, test = np.split(np.arange(len(x)), np.cumsum(ROWS)[:-1])
    members = []
    for _ in range(MEMBERS):
        chosen = train[draws.integers(0, len(train), len(train))]
        members.append(LogisticRegression().fit(x[chosen], y[chosen]).predict_proba(x))
    pooled = np.mean(members, axis=0)
    promise = Conformal.fit(
        pooled[held], y[held], output="classes", alpha=ALPHA, by="class" if name == "shift" else None
    )
    found = {"by class" if name == "shift" else "sets": _judge_sets(promise.predict_set(pooled[test]), y[test])}
    try:
        from mapie.classification import SplitConformalClassifier
    except ImportError:
        return found
    places = np.arange(len(pooled))[:, None]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        looked = _Looked(pooled, np.arange(3))
        model = SplitConformalClassifier(looked, confidence_level=1 - ALPHA, conformity_score="lac", prefit=True)
        model.conformalize(places[held], y[held])
        _, sets = model.predict_set(places[test])
    return found | {"MAPIE lac": _judge_sets(sets[:, :, 0], y[test])}


def _judge_sets(sets: Array, y: Array) -> dict[str, float]:
    return {"coverage": float(sets[np.arange(len(y)), y].mean()), "length": float(sets.sum(axis=1).mean())}


if __name__ == "__main__":
    main()
