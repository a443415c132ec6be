"""Regression with honest uncertainty: networks of mean and variance, found by a search over architecture and training.

The recipe of AutoDEUQ (Egele et al., arXiv 2110.13511), on scikit-learn's diabetes data: each trial trains one network
by the negative log-likelihood, the best ones together are the ensemble, and its variance splits into what the data
leave open (aleatoric) and what the networks disagree on (epistemic).
"""

from collections.abc import Mapping
from functools import cache
from typing import Any

import numpy as np
import torch
from torch import nn

import trainwright as tw

SPLITS = ("train", "validation", "selection", "calibration", "test")


class Network(nn.Module):
    """Inputs [N, D] to mean and variance [N, 2]."""

    def __init__(self, inputs: int, params: Mapping[str, Any]) -> None:
        super().__init__()
        activation = {"relu": nn.ReLU, "tanh": nn.Tanh, "silu": nn.SiLU}[params["activation"]]
        parts: list[nn.Module] = []
        for layer in range(params["layers"]):
            before = inputs if layer == 0 else params["width"]
            parts += [nn.Linear(before, params["width"]), activation(), nn.Dropout(params["dropout"])]
        self.body = nn.Sequential(*parts, nn.Linear(params["width"], 2))
        self.skip = nn.Linear(inputs, 2) if params["skip"] else None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out = self.body(x) if self.skip is None else self.body(x) + self.skip(x)
        return torch.stack([out[:, 0], nn.functional.softplus(out[:, 1]) + 1e-3], 1)


def network(params: Mapping[str, Any]) -> nn.Module:
    return Network(10, params)


def space() -> tw.Space:
    return tw.Space(
        layers=tw.Int(1, 3),
        width=tw.Int(4, 64, log=True),
        activation=tw.Choice("relu", "tanh", "silu"),
        skip=tw.Choice(False, True),
        dropout=tw.Float(0.0, 0.3),
        rate=tw.Float(1e-3, 3e-2, log=True),
        decay=tw.Float(1e-5, 1e-1, log=True),
        batch=tw.Choice(16, 32, 64, ordered=True),
    )


def loss_of(model: nn.Module, batch: Any) -> torch.Tensor:
    mean, variance = model(batch[0]).unbind(1)
    return nn.functional.gaussian_nll_loss(mean, batch[1], variance, full=True)


def train(trial: tw.Trial) -> None:
    data = diabetes()
    model = network(trial.params)
    optimizer = torch.optim.AdamW(model.parameters(), lr=trial.params["rate"], weight_decay=trial.params["decay"])
    dataset = torch.utils.data.TensorDataset(*data["train"])
    loader = torch.utils.data.DataLoader(dataset, batch_size=trial.params["batch"], shuffle=True)
    run = trial.prepare(model, optimizer, loader, loss=loss_of)
    for _ in trial.epochs(27):
        model.train()
        for batch in run.loader:
            run.step(batch)
        model.eval()
        with torch.no_grad():
            predictions = {name: model(data[name][0]) for name in SPLITS[2:]}
            val_nll = float(loss_of(model, data["validation"]))
        targets = {name: data[name][1] for name in SPLITS[2:]}
        tw.ensemble.leave(
            trial, model, predictions=predictions, targets=targets, sample=data["train"][0], factory=network
        )
        trial.report(val_nll=val_nll)


@cache
def diabetes() -> dict[str, tuple[torch.Tensor, torch.Tensor]]:
    """442 patients, 10 measurements each; inputs and target standardised by the training rows."""
    from sklearn.datasets import load_diabetes

    x, y = load_diabetes(return_X_y=True)
    order = np.random.default_rng(0).permutation(len(x))
    both = np.column_stack([x, y])[order]
    cuts = np.cumsum([0, 200, 50, 60, 40, 92])
    both = (both - both[: cuts[1]].mean(0)) / both[: cuts[1]].std(0)
    rows = torch.tensor(both, dtype=torch.float32)
    return {name: (rows[a:b, :-1], rows[a:b, -1]) for name, a, b in zip(SPLITS, cuts[:-1], cuts[1:], strict=True)}


if __name__ == "__main__":
    study = tw.Study(space(), objectives="min val_nll", directory="runs/autodeuq", seed=0)
    scheduler = tw.Scheduler(tw.ASHA(max_epochs=27))
    study.run(train, trials=20, scheduler=scheduler, engine=tw.Local(workers=2), progress=False)
    front = tw.Library.open("runs/autodeuq").select(tw.BudgetedGreedy(max_members=5))
    chosen = front.pick("best").calibrated()
    for name, model in (("best network", front.single_best), ("ensemble", chosen)):
        print(f"{name}: {len(model.members)} members, test NLL {model.score('test', 'normal_nll'):.3f}")
    unsure = chosen.uncertainty(diabetes()["test"][0])
    if unsure.aleatoric is not None:
        print(f"variance: {unsure.aleatoric.mean():.2f} aleatoric + {unsure.epistemic.mean():.2f} epistemic")
    for each in (chosen.report().before or {})["coverage"]:
        print(f"{each['nominal']:.0%} intervals hold {each['empirical']:.0%} of the test rows")
