"""Uncertainty of regression: our selected mixture of networks beside what is usual, on test rows of real tables.

    python benchmarks/ensemble/regression.py --data DIR --kept DIR --seeds 5 --json

What lies in `--kept`, a library and its comparison as `NAME-SEED.json`, is not made again.

Per table and seed (which draws the splits) one search over the networks of `examples/projects/tabular`, 60 models,
each of which gives a mean and a variance. All choices are made on the same selection rows:

    single network   the one of least loss
    MC dropout       of the 10 best with dropout the one whose mean of 50 draws with dropout on has the least loss
    deep ensemble    the single network's configuration, trained 8 times from other weights, equal weights
    top-8            the 8 best with equal weights, as AutoDEUQ's top-k
    ours             budgeted greedy selection, at most 8 members; `fallback` is the choice within one standard error

`nll` and `crps` are of the normal distribution with the mixture's mean and variance, targets standardised; `scaled nll`
is after the variance was scaled on the calibration rows, for every method alike; `coverage` is the share of test rows
in the central 95 % interval of the mixture, `length` its mean length. Where a mean has a ±, half of its 95 % interval
over the seeds (Student's t) comes after it.
"""

import argparse
import json
import statistics
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
sys.path.insert(1, str(Path(__file__).resolve().parents[2] / "src"))
sys.path.insert(2, str(Path(__file__).resolve().parents[2] / "examples" / "projects" / "tabular"))

from benchmarks._report import add_arguments, environment, finish, mean_and_interval, progress, table
from benchmarks.ensemble.datasets import VALUES, Missing, load_values
from benchmarks.ensemble.intervals import coverage

__all__ = ["main", "network"]

Array = npt.NDArray[Any]
MODELS, EPOCHS, MEMBERS, DRAWS = 60, 81, 8, 50
RUNGS = (1, 3, 9, 27, 81)
LEVEL = 0.95


def main(argv: Sequence[str] | None = None) -> dict[str, Any]:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path, default=Path("/"), help="root below which Debian's packages lie")
    parser.add_argument("--kept", type=Path, default=Path("runs/regression"), help="where trained libraries are kept")
    parser.add_argument("--sets", default=",".join(VALUES), help=f"tables, of {','.join(VALUES)}")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--models", type=int, default=MODELS, help="models with a result in each library")
    add_arguments(parser)
    arguments = parser.parse_args(argv)
    rows: list[dict[str, Any]] = []
    missing = []
    for name in arguments.sets.split(","):
        for seed in range(arguments.seeds):
            try:
                data = _tensors(load_values(name, arguments.data, seed))
            except Missing as error:
                missing.append(str(error))
                progress(f"skipped: {error}")
                break
            folder = arguments.kept / f"{name}-{seed}"
            library = _library(folder, data, seed, arguments.models)
            kept = folder.parent / f"{folder.name}.json"
            if not kept.exists():
                kept.write_text(json.dumps(_compared(library, data)))
            rows += [{"set": name, "seed": seed, **row} for row in json.loads(kept.read_text())]
    header, lines = _lines(rows)
    print(table(header, lines))
    result = {
        "benchmark": "ensemble_regression",
        "summary": _summary(rows),
        "settings": {
            "sets": arguments.sets,
            "seeds": arguments.seeds,
            "models": arguments.models,
            "epochs": EPOCHS,
            "searcher": "ForestSearcher",
            "rule": "ASHA",
            "network": "examples/projects/tabular",
        },
        "missing": missing,
        "rows": rows,
        "table": {"header": header, "rows": lines},
        "environment": environment(),
    }
    finish(result, arguments)
    return result


def network(params: Mapping[str, Any]) -> Any:
    """Return the network of a configuration."""
    from autodeuq import Network

    return Network(params["inputs"], params)


def _tensors(data: Mapping[str, tuple[Array, Array]]) -> dict[str, tuple[Any, Any]]:
    import torch

    return {name: (torch.as_tensor(x), torch.as_tensor(y)) for name, (x, y) in data.items()}


def _library(folder: Path, data: dict[str, tuple[Any, Any]], seed: int, models: int) -> Any:
    """Return the library of a table and seed, trained first where it is not kept; a study that was cut off goes on."""
    from autodeuq import space

    import trainwright as tw

    whole = tw.Space(inputs=tw.Constant(data["train"][0].shape[1]), **dict(space().parameters))
    study = tw.Study(whole, objectives="min val_nll", directory=folder, seed=seed)
    if study.state.results < models:
        progress(f"{folder.name}: training {models - study.state.results} models")

        def train(trial: Any) -> None:
            _trained(network(trial.params), data, trial.params, trial.seed, trial)

        study.run(
            train,
            trials=models,
            searcher=tw.ForestSearcher(),
            scheduler=tw.Scheduler(tw.ASHA(max_epochs=EPOCHS)),
            engine=tw.Local(workers=0),
            progress=False,
        )
    study.close()
    return tw.Library.open(folder)


def _trained(model: Any, data: dict[str, tuple[Any, Any]], params: Mapping[str, Any], seed: int, trial: Any) -> Any:
    """Train a network for the trial, or for a number of epochs; of a trial each rung's predictions are left."""
    import torch
    from autodeuq import loss_of

    import trainwright as tw

    torch.set_num_threads(1)
    torch.manual_seed(seed)
    for module in model.modules():  # whoever built it may have drawn its weights by another seed
        if isinstance(module, torch.nn.Linear):
            module.reset_parameters()
    optimizer = torch.optim.AdamW(model.parameters(), lr=params["rate"], weight_decay=params["decay"])
    x, y = data["train"]
    of_trial = not isinstance(trial, int)
    for epoch in trial.epochs() if of_trial else range(1, trial + 1):
        model.train()
        for rows in torch.randperm(len(x)).split(params["batch"]):
            optimizer.zero_grad()
            loss_of(model, (x[rows], y[rows])).backward()
            optimizer.step()
        model.eval()
        if not of_trial:
            continue
        with torch.no_grad():
            val_nll = float(loss_of(model, data["validation"]))
            if epoch in RUNGS:
                tw.ensemble.leave(
                    trial,
                    model,
                    predictions={name: model(data[name][0]) for name in ("selection", "calibration", "test")},
                    targets={name: data[name][1] for name in ("selection", "calibration", "test")},
                    sample=x[:128],
                    factory="benchmarks.ensemble.regression:network",
                )
        trial.report(val_nll=val_nll)
    return model


def _compared(library: Any, data: dict[str, tuple[Any, Any]]) -> list[dict[str, Any]]:
    """One row per method: its scores on test rows."""
    import trainwright as tw

    front = library.select(tw.BudgetedGreedy(max_members=MEMBERS))
    single = front.single_best
    picks = {
        "single network": single,
        f"top-{MEMBERS}": front.ensemble(front.baselines[f"top-{MEMBERS}"]),
        "ours, best": front.pick("best"),
        "ours, fallback": front.pick("fallback"),
    }
    found = {
        name: {split: (list(one.member_predictions(split)), one.weights) for split in ("calibration", "test")}
        for name, one in picks.items()
    }
    found["MC dropout"] = _dropped(front, library, data)
    found["deep ensemble"] = _deep(single.members[0], data)
    order = ("single network", "MC dropout", "deep ensemble", f"top-{MEMBERS}", "ours, best", "ours, fallback")
    targets = {split: data[split][1].numpy().astype(np.float64)[:, None] for split in ("calibration", "test")}
    return [{"method": name, **_scored(found[name], targets)} for name in order]


def _dropped(front: Any, library: Any, data: dict[str, tuple[Any, Any]]) -> dict[str, tuple[list[Array], list[float]]]:
    """Return the draws with dropout of the network that is best so on the selection rows."""
    from trainwright.ensemble import Ensemble
    from trainwright.ensemble.metrics import METRICS

    metric = METRICS["normal_nll"]
    members = [member for member in library.members if member.params["dropout"] >= 0.02]
    alone = {
        member.trial: Ensemble(members=(member,), weights=(1.0,), rule=front.single_best.rule) for member in members
    }
    best = sorted(members, key=lambda member: alone[member.trial].score("selection", "normal_nll"))[:10]
    y = data["selection"][1].numpy().astype(np.float64)[:, None]
    weights = [1.0 / DRAWS] * DRAWS
    chosen = min(
        best, key=lambda member: metric.score(_mixed(_draws(alone[member.trial], data["selection"][0]), weights), y)
    )
    drawn = {split: _draws(alone[chosen.trial], data[split][0]) for split in ("calibration", "test")}
    return {split: (each, weights) for split, each in drawn.items()}


def _draws(ensemble: Any, x: Any) -> list[Array]:
    import torch

    model = ensemble.networks[0]
    torch.manual_seed(0)
    for module in model.modules():
        module.training = isinstance(module, torch.nn.Dropout)
    with torch.no_grad():
        found = [model(x).double().numpy()[:, None, :] for _ in range(DRAWS)]
    model.eval()
    return found


def _deep(member: Any, data: dict[str, tuple[Any, Any]]) -> dict[str, tuple[list[Array], list[float]]]:
    """Return an ensemble of one configuration, trained as long as it was, from other weights."""
    import torch

    models = [
        _trained(network(member.params), data, member.params, 1000 + each, member.epoch) for each in range(MEMBERS)
    ]
    with torch.no_grad():
        told = {
            split: [model(data[split][0]).double().numpy()[:, None, :] for model in models]
            for split in ("calibration", "test")
        }
    return {split: (each, [1.0 / MEMBERS] * MEMBERS) for split, each in told.items()}


def _mixed(members: Sequence[Array], weights: Sequence[float]) -> Array:
    from trainwright.ensemble.combine.rules import NormalMixture, combine

    return combine(NormalMixture(), members, weights)


def _scored(found: Mapping[str, tuple[list[Array], Sequence[float]]], targets: Mapping[str, Array]) -> dict[str, Any]:
    from trainwright.ensemble.combine.calibration import calibrate
    from trainwright.ensemble.metrics import METRICS

    metric = METRICS["normal_nll"]
    members, weights = found["test"]
    pooled = _mixed(members, weights)
    scale = calibrate(_mixed(*found["calibration"]), targets["calibration"])
    inside, length = coverage(members, weights, targets["test"], LEVEL)
    return {
        "nll": metric.score(pooled, targets["test"]),
        "scaled_nll": metric.score(scale.apply(pooled), targets["test"]),
        "crps": METRICS["crps"].score(pooled, targets["test"]),
        "coverage": inside,
        "length": length,
        "members": len(members),
    }


def _summary(rows: list[dict[str, Any]]) -> dict[str, Any]:
    methods = list(dict.fromkeys(row["method"] for row in rows))

    def of(method: str, key: str) -> list[float]:
        return [float(row[key]) for row in rows if row["method"] == method]

    ours = of("ours, best", "nll")
    return {
        **{
            key: {method: statistics.mean(of(method, key)) for method in methods}
            for key in ("nll", "scaled_nll", "crps", "coverage")
        },
        "better_than": {
            method: sum(one < other for one, other in zip(ours, of(method, "nll"), strict=True)) for method in methods
        },
        "libraries": len({(row["set"], row["seed"]) for row in rows}),
    }


def _lines(rows: list[dict[str, Any]]) -> tuple[list[str], list[list[object]]]:
    """One line a method: negative log-likelihood per table, and means over all libraries."""
    sets = list(dict.fromkeys(row["set"] for row in rows))
    header = ["method", *(f"{name}, nll" for name in sets), "scaled nll", "crps", "coverage", "length", "members"]
    lines: list[list[object]] = []
    for method in dict.fromkeys(row["method"] for row in rows):
        some = [row for row in rows if row["method"] == method]
        losses = [mean_and_interval([row["nll"] for row in some if row["set"] == name]) for name in sets]
        rest = [statistics.mean(row[key] for row in some) for key in ("scaled_nll", "crps", "coverage", "length")]
        members = statistics.mean(row["members"] for row in some)
        lines.append([method, *losses, *(f"{each:.3f}" for each in rest), f"{members:.1f}"])
    return header, lines


if __name__ == "__main__":
    main()
