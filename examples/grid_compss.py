"""A grid of 27 independent tasks (3 optimizers, 3 numbers of epochs, 3 batch sizes): on PyCOMPSs if it is there.

`python examples/grid_compss.py`, or `runcompss examples/grid_compss.py` where COMPSs is installed.
"""

from importlib.util import find_spec

import numpy as np

import trainwright as tw

SLOTS = 3


def train(trial: tw.Trial) -> float:
    """Logistic regression on a thousand points; returns the share of them on the wrong side."""
    draw = np.random.default_rng(0)
    points, direction = draw.standard_normal((1000, 8)), draw.standard_normal(8)
    labels = points @ direction > 0
    weights, speed, scale = np.zeros(8), np.zeros(8), np.full(8, 1e-8)
    size, optimizer = trial.params["batch_size"], trial.params["optimizer"]
    for epoch in trial.epochs(trial.params["epochs"]):
        for batch in np.array_split(draw.permutation(1000), 1000 // size):
            error = 1 / (1 + np.exp(-points[batch] @ weights)) - labels[batch]
            gradient = points[batch].T @ error / len(batch)
            speed = 0.9 * speed + gradient if optimizer == "momentum" else gradient
            scale = scale + gradient**2
            weights -= 0.1 * (speed / np.sqrt(scale) if optimizer == "adagrad" else speed)
        wrong = float(np.mean((points @ weights > 0) != labels))
        trial.report(error=wrong, epoch=epoch)
    return wrong


if __name__ == "__main__":
    space = tw.Space(
        optimizer=tw.Choice("sgd", "momentum", "adagrad"),
        epochs=tw.Choice(1, 3, 9, ordered=True),
        batch_size=tw.Choice(16, 64, 256, ordered=True),
    )
    engine = tw.PyCOMPSs(slots=SLOTS) if find_spec("pycompss") else tw.Local(workers=SLOTS)
    study = tw.Study(space, objectives="min error", directory="runs/grid", seed=0)
    study.run(train, searcher=tw.GridSearcher(), engine=engine, progress=False)
    print(f"{study.state.results} tasks on {type(engine).__name__}, least error {study.best.values['error']:.3f}")
