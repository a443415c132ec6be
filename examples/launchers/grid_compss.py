"""A grid of 27 independent tasks (3 optimizers, 3 numbers of epochs, 3 batch sizes): on PyCOMPSs if installed.

`python examples/launchers/grid_compss.py`, or with COMPSs `runcompss examples/launchers/grid_compss.py`.
"""

from importlib.util import find_spec

import torch
from torch.nn.functional import binary_cross_entropy_with_logits

import trainwright as tw

SLOTS = 3


def train(trial: tw.Trial) -> None:
    """Logistic regression on a thousand points; reports the share of them on the wrong side."""
    torch.manual_seed(0)
    points = torch.randn(1000, 8)
    labels = (points @ torch.randn(8, 1) > 0).float()
    model = torch.nn.Linear(8, 1)
    optimizer = getattr(torch.optim, trial.params["optimizer"])(model.parameters(), lr=0.1)
    for _ in trial.epochs(trial.params["epochs"]):
        for rows in torch.randperm(1000).split(trial.params["batch_size"]):
            optimizer.zero_grad()
            binary_cross_entropy_with_logits(model(points[rows]), labels[rows]).backward()
            optimizer.step()
        trial.report(error=((model(points) > 0) != labels.bool()).float().mean().item())


if __name__ == "__main__":
    space = tw.Space(
        optimizer=tw.Choice("SGD", "Adam", "Adagrad"),
        epochs=tw.Choice(1, 3, 9, ordered=True),
        batch_size=tw.Choice(16, 64, 256, ordered=True),
    )
    engine = tw.PyCOMPSs(slots=SLOTS) if find_spec("pycompss") else tw.Local(workers=SLOTS)
    study = tw.Study(space, objectives="min error", directory="runs/grid", seed=0)
    study.run(train, searcher=tw.GridSearcher(), engine=engine, progress=False)
    print(f"{study.state.results} tasks on {type(engine).__name__}, least error {study.best.values['error']:.3f}")
