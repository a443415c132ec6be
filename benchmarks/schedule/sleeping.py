"""A training that sleeps as long as an epoch of Sia's ImageNet takes; its checkpoints and moves are real."""

import time

from benchmarks.schedule.speeds import SPEEDS

import trainwright as tw

__all__ = ["SPEED", "loss", "train"]

SPEED: dict[float, float] = {1: 1.0, **dict(zip((2, 4), SPEEDS["ImageNet", "DGX"]["held"], strict=True))}
"""How many times as fast a trial is on so many times its devices, with the batch held (SOSP 2023)."""


def loss(quality: float, epoch: int) -> float:
    """Return the loss of a trial at an epoch: curves that do not cross."""
    return quality + 1.0 / epoch


def train(trial: tw.Trial) -> None:
    """Sleep, and save what there is of a model."""
    import torch

    model = torch.nn.Linear(1, 1)
    trial.prepare(model, torch.optim.SGD(model.parameters(), lr=0.1))
    for epoch in trial.epochs():
        time.sleep(trial.params["seconds"] / SPEED[trial.devices])
        trial.report(loss=loss(trial.params["quality"], epoch))
