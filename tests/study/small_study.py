"""A small study as a user's script: `python small_study.py DIRECTORY TRIALS EPOCHS [torch] [asha] [gated]`.

Each epoch that is begun leaves a line in DIRECTORY.log: trial, epoch, process, time. Gated trials then wait for the
file DIRECTORY.go.
"""

import os
import sys
import time
from pathlib import Path

import trainwright as tw

SPACE = tw.Space(lr=tw.Float(1e-3, 1e-1, log=True))


def begun(trial, epoch):
    handle = os.open(f"{trial.assignment.directory}.log", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    os.write(handle, f"{trial.number} {epoch} {os.getpid()} {time.time()}\n".encode())
    os.close(handle)


def train(trial):
    for epoch in trial.epochs():
        begun(trial, epoch)
        time.sleep(0.02)
        trial.report(loss=trial.params["lr"] / epoch)


def train_gated(trial):
    begun(trial, 0)
    gate = Path(f"{trial.assignment.directory}.go")
    while not gate.exists():
        time.sleep(0.01)
    train(trial)


def train_with_torch(trial):
    """Fit a line to points that are drawn anew each epoch: any state that a resume forgets changes the loss."""
    import torch

    model = torch.nn.Linear(2, 1)
    optimizer = Momentum(model.parameters(), trial.params["lr"])
    run = trial.prepare(model, optimizer, loss=lambda model, x: (model(x) - x.sum(1, keepdim=True)).square().mean())
    for epoch in trial.epochs():
        begun(trial, epoch)
        time.sleep(0.02)
        trial.report(loss=run.step(torch.rand(16, 2)).item())


class Momentum:
    """Gradient descent with memory. torch.optim would load its compiler, a second and more in each new worker."""

    def __init__(self, parameters, lr):
        self.parameters = list(parameters)
        self.param_groups = [{"params": self.parameters, "lr": lr}]
        self.velocity = [parameter.detach() * 0 for parameter in self.parameters]

    def zero_grad(self, *, set_to_none):
        for parameter in self.parameters:
            parameter.grad = None

    def step(self):
        for parameter, velocity in zip(self.parameters, self.velocity, strict=True):
            velocity.mul_(0.9).add_(parameter.grad)
            parameter.data.sub_(self.param_groups[0]["lr"] * velocity)

    def state_dict(self):
        return {"velocity": self.velocity}

    def load_state_dict(self, state):
        self.velocity = state["velocity"]


def main(directory, trials, epochs, *words):
    study = tw.Study(SPACE, objectives="min loss", directory=directory, seed=5)
    study.run(
        train_with_torch if "torch" in words else train_gated if "gated" in words else train,
        trials=int(trials),
        searcher=tw.RandomSearcher(),
        scheduler=(tw.ASHA if "asha" in words else tw.FixedEpochs)(max_epochs=int(epochs)),
        engine=tw.Local(workers=0 if "here" in words else 2),
        progress=False,
    )
    study.close()


if __name__ == "__main__":
    main(*sys.argv[1:])
