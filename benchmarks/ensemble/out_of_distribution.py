"""Out-of-distribution scores: area under the ROC curve between test rows and rows of another kind.

    python benchmarks/ensemble/out_of_distribution.py --seeds 3 --json

Pairs are of data that come with scikit-learn: classes that no model saw (digits 5 to 9, a cultivar, an iris), digits
with their pixels shuffled, and cells of breast tumours whose columns are shuffled each by itself. `ours` is what
`EnsembleSettings` choose from a random search of networks, by each of its scores; `deep ensemble` five networks of one
architecture that differ in their seeds; `Laplace` that of laplace-torch (last layer, full covariance, prior by marginal
likelihood) on one such network: probit for the entropy, 200 samples for the mutual information. `single` is that
network by itself.
"""

import argparse
import itertools
import statistics
import sys
import tempfile
import warnings
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
sys.path.insert(1, str(Path(__file__).resolve().parents[2] / "src"))

from benchmarks._report import add_arguments, environment, finish, progress, table

__all__ = ["build_network", "main"]

Array = npt.NDArray[Any]
PAIRS = ("digits: unseen", "digits: shuffled", "wine: unseen", "iris: unseen", "cancer: shuffled")
_PLAIN = {"width": 64, "depth": 2, "rate": 3e-3, "decay": 1e-4, "epochs": 60, "dropout": 0.0}


def main(argv: Sequence[str] | None = None) -> dict[str, Any]:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=str(__doc__).splitlines()[0])
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--trials", type=int, default=12)
    parser.add_argument("--pairs", default=",".join(PAIRS))
    add_arguments(parser)
    arguments = parser.parse_args(argv)
    rows = []
    for pair in arguments.pairs.split(","):
        for seed in range(arguments.seeds):
            progress(f"{pair}, seed {seed}")
            rows.append({"pair": pair, "seed": seed, **_compare(pair, seed, arguments.trials)})
    methods = [name for name in rows[0] if name not in ("pair", "seed")]
    pairs = list(dict.fromkeys(row["pair"] for row in rows))
    means = {
        pair: {method: statistics.mean(row[method] for row in rows if row["pair"] == pair) for method in methods}
        for pair in pairs
    }
    overall = {method: statistics.mean(means[pair][method] for pair in pairs) for method in methods}
    header = ["method, score", *pairs, "mean"]
    cells = [[m, *(f"{means[pair][m]:.3f}" for pair in pairs), f"{overall[m]:.3f}"] for m in methods]
    print(table(header, cells))
    result = {
        "benchmark": "ensemble_ood",
        "summary": {"mean": overall, "pairs": means},
        "settings": {"seeds": arguments.seeds, "trials": arguments.trials},
        "rows": rows,
        "table": {"header": header, "rows": cells},
        "environment": environment(),
    }
    finish(result, arguments)
    return result


def _compare(pair: str, seed: int, trials: int) -> dict[str, float]:
    import torch

    torch.set_num_threads(1)
    data = _load(pair, seed)
    (inside, _), outside = data["test"], data["outside"][0]

    def area(score: Callable[[Array], Array]) -> float:
        from sklearn.metrics import roc_auc_score

        found = np.concatenate([score(inside), score(outside)])
        return float(roc_auc_score(np.repeat([0, 1], [len(inside), len(outside)]), found))

    ours = _choose_ensemble(data, seed, trials)
    plain = [_fit(_PLAIN, data, 1000 * seed + number) for number in range(5)]
    knowing = ours.with_inputs(*data["train"])
    scores: dict[str, Callable[[Array], Array]] = {
        "ours, distance": lambda x: knowing.ood_score(x, "distance"),
        "ours, epistemic": lambda x: ours.ood_score(x, "epistemic"),
        "ours, total": lambda x: ours.ood_score(x, "total"),
    }
    scores |= _of_samples("deep ensemble", lambda x: np.stack([_predict(one, x) for one in plain]))
    scores["single, total"] = lambda x: _entropy(_predict(plain[0], x))
    scores |= _of_laplace(plain[0], data)
    return {name: area(score) for name, score in scores.items()}


def _of_samples(name: str, samples: Callable[[Array], Array]) -> dict[str, Callable[[Array], Array]]:
    """Return the two scores of equally likely predictions [S, N, C]."""

    def epistemic(x: Array) -> Array:
        found = samples(x)
        return np.asarray(_entropy(found.mean(axis=0)) - _entropy(found).mean(axis=0))

    return {f"{name}, epistemic": epistemic, f"{name}, total": lambda x: _entropy(samples(x).mean(axis=0))}


def _of_laplace(network: Any, data: Mapping[str, tuple[Array, Array]]) -> dict[str, Callable[[Array], Array]]:
    import torch

    try:
        from laplace import Laplace
    except ModuleNotFoundError:
        progress("laplace-torch is not installed: left out")
        return {}
    rows = torch.utils.data.TensorDataset(*map(torch.from_numpy, data["train"]))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found = Laplace(network, "classification", subset_of_weights="last_layer", hessian_structure="full")
        found.fit(torch.utils.data.DataLoader(rows, batch_size=256))
        found.optimize_prior_precision(method="marglik")

    def samples(x: Array) -> Array:
        return np.asarray(found.predictive_samples(torch.from_numpy(x), n_samples=200).numpy(), dtype=np.float64)

    def probit(x: Array) -> Array:
        return _entropy(found(torch.from_numpy(x), link_approx="probit").detach().numpy().astype(np.float64))

    return {"Laplace, epistemic": _of_samples("Laplace", samples)["Laplace, epistemic"], "Laplace, total": probit}


def _choose_ensemble(data: Mapping[str, tuple[Array, Array]], seed: int, trials: int) -> Any:
    """Return what the default settings choose from a random search."""
    import trainwright as tw

    space = tw.Space(
        width=tw.Int(16, 128, log=True),
        depth=tw.Int(1, 3),
        rate=tw.Float(1e-3, 1e-2, log=True),
        decay=tw.Float(1e-6, 1e-2, log=True),
        epochs=tw.Int(20, 80, log=True),
        dropout=tw.Float(0.0, 0.3),
        columns=tw.Constant(data["train"][0].shape[1]),
        classes=tw.Constant(int(data["train"][1].max()) + 1),
    )

    def run(trial: Any) -> float:
        network = _fit(trial.params, data, 1000 * seed + 100 + trial.number)
        said = {name: _predict(network, data[name][0]) for name in ("selection", "test")}
        targets = {name: data[name][1] for name in said}
        tw.ensemble.leave(
            trial,
            network,
            predictions=said,
            targets=targets,
            sample=data["train"][0],
            factory="benchmarks.ensemble.out_of_distribution:build_network",
        )
        truth = said["selection"][np.arange(len(targets["selection"])), targets["selection"]]
        return float(-np.log(truth.clip(1e-7)).mean())

    with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        study = tw.Study(space, objectives="min log_loss", directory=folder, seed=seed)
        study.run(run, trials=trials, searcher=tw.RandomSearcher(), engine=tw.Local(workers=0), progress=False)
        chosen = tw.ensemble.EnsembleSettings().choose(tw.Library.open(folder)).ensemble
        len(chosen.networks)  # read while their files are there
    return chosen


def build_network(params: Mapping[str, Any]) -> Any:
    """Return a perceptron; also what the ensemble's members are built by."""
    from torch import nn

    sizes = [params["columns"], *[int(params["width"])] * int(params["depth"])]
    layers: list[Any] = []
    for before, after in itertools.pairwise(sizes):
        layers += [nn.Linear(before, after), nn.ReLU(), nn.Dropout(float(params["dropout"]))]
    return nn.Sequential(*layers, nn.Linear(sizes[-1], params["classes"]))


def _fit(params: Mapping[str, Any], data: Mapping[str, tuple[Array, Array]], seed: int) -> Any:
    import torch

    x, y = map(torch.from_numpy, data["train"])
    torch.manual_seed(seed)
    network = build_network({"columns": x.shape[1], "classes": int(y.max()) + 1, **params})
    optimizer = torch.optim.AdamW(network.parameters(), params["rate"], weight_decay=params["decay"])
    for _ in range(int(params["epochs"])):
        for rows in torch.randperm(len(x)).split(32):
            optimizer.zero_grad()
            torch.nn.functional.cross_entropy(network(x[rows]), y[rows]).backward()
            optimizer.step()
    return network.eval()


def _predict(network: Any, x: Array) -> Array:
    import torch

    with torch.inference_mode():
        found: Array = network(torch.from_numpy(x)).double().softmax(1).numpy()
    return found


def _entropy(chance: Array) -> Array:
    return np.asarray(-(chance * np.log(chance.clip(1e-12))).sum(axis=-1))


def _load(pair: str, seed: int) -> dict[str, tuple[Array, Array]]:
    """Return train (60 %), selection and test (20 % each) of the classes seen, and the rows outside; standardised."""
    from sklearn import datasets

    name, kind = pair.split(": ")
    loader = {"cancer": "breast_cancer"}.get(name, name)
    x, y = getattr(datasets, f"load_{loader}")(return_X_y=True)
    draws = np.random.default_rng(seed)
    if kind == "unseen":
        # Digits 5 to 9; of three classes another one for each seed.
        hidden = y >= 5 if name == "digits" else y == seed % 3
        outside = x[hidden]
        x, (_, y) = x[~hidden], np.unique(y[~hidden], return_inverse=True)
    order = draws.permutation(len(y))
    cuts = (len(y) * np.array([0.6, 0.8])).astype(int)
    parts = dict(zip(("train", "selection", "test"), np.split(order, cuts), strict=True))
    if kind == "shuffled":
        # Pixels are moved alike in all images; columns each among the rows, so that every one alone looks right.
        rows = x[parts["test"]]
        outside = rows[:, draws.permutation(x.shape[1])] if name == "digits" else draws.permuted(rows, axis=0)
    mean, deviation = x[parts["train"]].mean(axis=0), x[parts["train"]].std(axis=0)
    scale = np.where(deviation > 0, deviation, 1.0)
    found = {
        part: (((x[rows] - mean) / scale).astype(np.float32), y[rows].astype(np.int64)) for part, rows in parts.items()
    }
    return {**found, "outside": (((outside - mean) / scale).astype(np.float32), np.zeros(len(outside), np.int64))}


if __name__ == "__main__":
    main()
