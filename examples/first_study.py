"""A first study: a small network learns to tell a ring from what is around it."""

import torch
from torch import nn
from torch.nn.functional import cross_entropy

import trainwright as tw

space = tw.Space(
    learning_rate=tw.Float(1e-3, 1.0, log=True),
    width=tw.Int(4, 64, log=True),
    batch_size=tw.Choice(16, 32, 64, ordered=True),
)


def train(trial: tw.Trial) -> None:
    points = 4 * torch.rand(3000, 2, generator=torch.Generator().manual_seed(0)) - 2
    labels = ((points.norm(dim=1) - 1).abs() < 0.4).long()
    dataset = torch.utils.data.TensorDataset(points[:2000], labels[:2000])
    loader = torch.utils.data.DataLoader(dataset, batch_size=trial.params["batch_size"], shuffle=True)
    width = trial.params["width"]
    model = nn.Sequential(nn.Linear(2, width), nn.ReLU(), nn.Linear(width, 2))
    optimizer = torch.optim.SGD(model.parameters(), lr=trial.params["learning_rate"], momentum=0.9)
    run = trial.prepare(model, optimizer, loader, loss=loss_of)
    for _ in trial.epochs():
        for batch in run.loader:
            run.step(batch)
        with torch.no_grad():
            val_loss = cross_entropy(model(points[2000:]), labels[2000:]).item()
        trial.report(val_loss=val_loss)  # saves a checkpoint; ASHA may end the trial here, quietly


def loss_of(model: nn.Module, batch: list[torch.Tensor]) -> torch.Tensor:
    return cross_entropy(model(batch[0]), batch[1])


if __name__ == "__main__":
    study = tw.Study(space, objectives="min val_loss", directory="runs/first", seed=0)
    study.run(train, trials=20, scheduler=tw.ASHA(max_epochs=9), engine=tw.Local(workers=2))
    best = study.best
    print(f"best: trial {best.number} with val_loss {best.values['val_loss']:.3f} after {best.epoch} epochs")
