"""What `trainwright demo` trains: small perceptrons on scikit-learn's digits, in a file that workers import."""

from collections.abc import Mapping
from functools import cache
from itertools import pairwise
from typing import Any

import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.nn.functional import cross_entropy

from trainwright.ensemble import leave
from trainwright.train import Trial

__all__ = ["load_rows", "make_network", "train"]

_SPLITS = {"training": slice(500), "selection": slice(500, 900), "test": slice(900, None)}
"""Few rows to learn from, so that single networks differ in what they get wrong; 897 to judge by."""
_BATCH = 32


@cache
def load_rows(split: str) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the images [rows, 64], values in [0, 1], and the digits [rows] of a split; the order is mixed once."""
    images, digits = load_digits(return_X_y=True)
    order = torch.randperm(len(images), generator=torch.Generator().manual_seed(0)).numpy()
    rows = order[_SPLITS[split]]
    return torch.tensor(images[rows], dtype=torch.float32) / 16, torch.tensor(digits[rows])


def make_network(params: Mapping[str, Any]) -> nn.Module:
    """Return a perceptron of three hidden layers."""
    layers: list[nn.Module] = []
    for inputs, outputs in pairwise((64, *[params["width"]] * 3)):
        layers += [nn.Linear(inputs, outputs), nn.ReLU(), nn.Dropout(params["dropout"])]
    return nn.Sequential(*layers, nn.Linear(params["width"], 10))


def train(trial: Trial) -> None:
    """Train one network; report its loss on the selection rows, and leave its predictions for an ensemble."""
    torch.set_num_threads(1)
    params = trial.params
    model = make_network(params)
    optimizer = torch.optim.AdamW(model.parameters(), lr=params["rate"], weight_decay=params["decay"])
    trial.prepare(model, optimizer)
    images, digits = load_rows("training")
    for epoch in trial.epochs():
        model.train()
        order = torch.randperm(len(images))
        for start in range(0, len(images), _BATCH):
            rows = order[start : start + _BATCH]
            optimizer.zero_grad()
            cross_entropy(model(images[rows]), digits[rows]).backward()
            optimizer.step()
        model.eval()
        splits = {split: load_rows(split) for split in ("selection", "test")}
        with torch.no_grad():
            scores = {split: model(inputs) for split, (inputs, _) in splits.items()}
        targets = {split: wanted for split, (_, wanted) in splits.items()}
        # What a rung may stop is kept as well: an ensemble can use a network that is not the best.
        if epoch in _LEAVES:
            leave(
                trial,
                model,
                predictions={split: each.softmax(1) for split, each in scores.items()},
                targets=targets,
                sample=images,
                factory=make_network,
            )
        loss = cross_entropy(scores["selection"], targets["selection"]).item()
        trial.report(val_loss=loss)


_LEAVES = frozenset({9, 27})
