"""The training code of a small workflow: two half moons, one hidden layer, everything repeats to the bit.

No sample is left, so that no time is measured: costs would differ between two runs.
"""

import sys
from functools import cache

import torch
from torch import nn
from torch.nn.functional import cross_entropy

import trainwright as tw

__all__ = ["asked", "network", "profile_of", "rows", "train"]

SPLITS = ("train", "validation", "selection", "calibration", "test")


def network(params):
    """Return the network of a trial."""
    return nn.Sequential(nn.Linear(2, params["width"]), nn.Tanh(), nn.Linear(params["width"], 2))


def rows(split):
    """Return points [120, 2] and their half [120] of a split."""
    generator = torch.Generator().manual_seed(SPLITS.index(split))
    y = torch.randint(2, (120,), generator=generator)
    angle = torch.rand(120, generator=generator) * torch.pi
    x = torch.stack([angle.cos() + y, (angle.sin() - 0.3) * (1 - 2.0 * y)], 1)
    return x + 0.35 * torch.randn(120, 2, generator=generator), y


def loss_of(model, batch):
    """Return the cross-entropy of a batch."""
    sys.audit("workflow.batch", "batch")  # a point at which a test may kill
    return cross_entropy(model(batch[0]), batch[1])


def train(trial):
    """Train, leave predictions and weights, report."""
    torch.set_num_threads(1)
    model = network(trial.params)
    optimizer = torch.optim.SGD(model.parameters(), lr=trial.params["rate"], momentum=0.9)
    data = torch.utils.data.TensorDataset(*rows("train"))
    loader = torch.utils.data.DataLoader(data, batch_size=24, shuffle=True)
    run = trial.prepare(model, optimizer, loader, loss=loss_of)
    for _ in trial.epochs():
        for batch in run.loader:
            run.step(batch)
        with torch.no_grad():
            predictions = {split: model(rows(split)[0]).softmax(1) for split in SPLITS[2:]}
            val_loss = float(cross_entropy(model(rows("validation")[0]), rows("validation")[1]))
        targets = {split: rows(split)[1] for split in SPLITS[2:]}
        tw.ensemble.leave(trial, model, predictions=predictions, targets=targets, factory=network)
        trial.report(val_loss=val_loss)


def profile_of(params):
    """Return the profile of a trial's network, and its batch."""
    return traced(params["width"]), 24


@cache
def traced(width):
    """Return the profile of a network of that width, traced once."""
    with torch.device("meta"):
        model = network({"width": width})
    return tw.Profile.trace(model, (torch.empty(24, 2),))


def asked():
    """Return rows to ask a service."""
    return rows("calibration")[0]
