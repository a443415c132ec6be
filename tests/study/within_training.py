"""A training of long epochs under `trainwright worker`: a step leaves "trial epoch step pid time" in DIRECTORY.log.

A step takes as many seconds as the file DIRECTORY.pace says; an epoch has WITHIN_STEPS of them. At its end a trial
writes its weights to DIRECTORY.weights-NUMBER.
"""

import os
import time
from pathlib import Path

import torch

STEPS, EPOCHS = int(os.environ.get("WITHIN_STEPS", "40")), 3


def train(trial):
    directory = trial.assignment.directory
    pace = Path(f"{directory}.pace")
    model = torch.nn.Sequential(torch.nn.Linear(1, 8), torch.nn.Dropout(0.2), torch.nn.Tanh(), torch.nn.Linear(8, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=trial.params["lr"], momentum=0.9)
    data = torch.utils.data.TensorDataset(torch.linspace(-1, 1, 4 * STEPS)[:, None])
    loader = torch.utils.data.DataLoader(data, batch_size=4, shuffle=True)
    epoch = step = 0

    def loss_of(model, batch):
        if trial.rank == 0:
            # Only steps that are computed come here.
            handle = os.open(f"{directory}.log", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
            os.write(handle, f"{trial.number} {epoch} {step} {os.getpid()} {time.time()}\n".encode())
            os.close(handle)
        if pace.exists():
            time.sleep(float(pace.read_text()))
        return (model(batch[0]) - batch[0].sin()).square().mean()

    run = trial.prepare(model, optimizer, loader, loss=loss_of, save_every=10)
    total = 0.0
    for epoch in trial.epochs(EPOCHS):  # noqa: B007 -- `loss_of` reads it
        for step, batch in enumerate(run.loader):  # noqa: B007 -- likewise
            total += run.step(batch).item()
        trial.report(loss=total)
        total = 0.0
    if trial.rank == 0:
        weights = [weight.detach().tolist() for weight in model.parameters()]
        Path(f"{directory}.weights-{trial.number}").write_text(repr(weights))
