"""Libraries really trained: small networks from our own search on public data, each leaving its predictions."""

import os
from pathlib import Path
from typing import Any

import numpy as np
from benchmarks._report import progress
from benchmarks.ensemble.datasets import load

__all__ = ["library_of", "settings"]

MODELS = 60
EPOCHS = 9
_KEPT = ("selection", "calibration", "test")


def settings(models: int) -> dict[str, Any]:
    """Return how libraries are trained."""
    return {"models": models, "epochs": EPOCHS, "searcher": "ForestSearcher", "rule": "ASHA", "network": "MLP"}


def library_of(name: str, seed: int, *, root: Path, kept: Path, models: int = MODELS) -> Any:
    """Return the library of a data set and seed from the folder `kept`, where it is trained first if it is not there.

    A study that was cut off goes on.
    """
    import trainwright as tw

    folder = kept / f"{name}-{seed}"
    study = tw.Study(_space(tw), objectives="min val_loss", directory=folder, seed=seed)
    if study.state.results < models:
        progress(f"{name}, seed {seed}: training {models - study.state.results} models")
        os.environ.setdefault("OMP_NUM_THREADS", "1")
        study.run(
            _Training(load(name, root)),
            trials=models,
            searcher=tw.ForestSearcher(),
            scheduler=tw.Scheduler(tw.ASHA(max_epochs=EPOCHS)),
            engine=tw.Local(workers=0),
            progress=False,
        )
    study.close()
    return tw.Library.open(folder)


def _space(tw: Any) -> Any:
    return tw.Space(
        width=tw.Int(8, 128, log=True),
        layers=tw.Int(1, 3),
        activation=tw.Choice("relu", "tanh", "gelu"),
        dropout=tw.Float(0.0, 0.5),
        optimizer=tw.Choice("adamw", "sgd"),
        rate=tw.Float(1e-4, 1e-1, log=True),
        decay=tw.Float(1e-6, 1e-2, log=True),
        batch=tw.Choice(32, 64, 128, 256, ordered=True),
    )


class _Training:
    """The training function: an object, so that the data are read once."""

    def __init__(self, data: dict[str, tuple[Any, Any]]) -> None:
        import torch

        self.data = {name: (torch.as_tensor(x), torch.as_tensor(y, dtype=torch.int64)) for name, (x, y) in data.items()}

    def __call__(self, trial: Any) -> None:
        import torch

        import trainwright as tw

        torch.set_num_threads(1)
        torch.manual_seed(trial.seed)
        x, y = self.data["train"]
        model = network(trial.params, x.shape[1], int(y.max()) + 1)
        optimizer = _optimizer(model, trial.params)
        for _ in trial.epochs():
            model.train()
            for rows in torch.randperm(len(x)).split(trial.params["batch"]):
                optimizer.zero_grad()
                torch.nn.functional.cross_entropy(model(x[rows]), y[rows]).backward()
                optimizer.step()
            model.eval()
            with torch.no_grad():
                loss = float(
                    torch.nn.functional.cross_entropy(model(self.data["validation"][0]), self.data["validation"][1])
                )
                found = {name: model(self.data[name][0]).softmax(1).numpy() for name in _KEPT}
            tw.ensemble.leave(
                trial,
                model,
                predictions=found,
                targets={name: self.data[name][1].numpy() for name in _KEPT},
                rows={name: np.arange(len(self.data[name][1])) + 10**6 * place for place, name in enumerate(_KEPT)},
                sample=x[:128],
            )
            trial.report(val_loss=loss)


def network(params: Any, inputs: int, outputs: int) -> Any:
    """Return the network of a configuration."""
    from torch import nn

    activation = {"relu": nn.ReLU, "tanh": nn.Tanh, "gelu": nn.GELU}[params["activation"]]
    parts: list[Any] = []
    for layer in range(params["layers"]):
        before = inputs if layer == 0 else params["width"]
        parts += [nn.Linear(before, params["width"]), activation(), nn.Dropout(params["dropout"])]
    return nn.Sequential(*parts, nn.Linear(params["width"], outputs))


def _optimizer(model: Any, params: Any) -> Any:
    import torch

    if params["optimizer"] == "sgd":
        return torch.optim.SGD(model.parameters(), lr=params["rate"], momentum=0.9, weight_decay=params["decay"])
    return torch.optim.AdamW(model.parameters(), lr=params["rate"], weight_decay=params["decay"])
