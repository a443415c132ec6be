"""Training functions that the study files of these tests name."""

import time
from pathlib import Path

__all__ = ["fails", "train", "two", "waits"]


def train(trial):
    """Three epochs towards (x - 0.3)^2."""
    for epoch in trial.epochs(3):
        trial.report(val_loss=(trial.params["x"] - 0.3) ** 2 + 1 / epoch)


def two(trial):
    """Two objectives that contradict each other."""
    trial.report(val_loss=trial.params["x"], size=1 - trial.params["x"])


def fails(trial):
    """Never come to a result."""
    raise ArithmeticError(f"diverged with {trial.params['x']:.0f}")


def waits(trial):
    """After the second epoch wait until there is a file `go` beside the ledger."""
    go = Path(trial.assignment.directory) / "ledger" / "go"
    for epoch in trial.epochs(4):
        trial.report(val_loss=1 / epoch)
        while epoch == 2 and not go.exists():
            time.sleep(0.05)
