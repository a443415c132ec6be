"""An ensemble from trials that were trained anyway: each leaves its predictions behind."""

from collections.abc import Sequence

import torch
from torch import nn

import trainwright as tw


def train(trial: tw.Trial) -> None:
    data = moons()
    width = trial.params["width"]
    hidden = [nn.Linear(2, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU()]
    model = nn.Sequential(*hidden, nn.Linear(width, 2))
    optimizer = torch.optim.SGD(model.parameters(), lr=trial.params["rate"], momentum=0.9)
    loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(*data["train"]), batch_size=20, shuffle=True)
    run = trial.prepare(model, optimizer, loader, loss=loss_of)
    for _ in trial.epochs(8):
        for batch in run.loader:
            run.step(batch)
        with torch.no_grad():
            probabilities = {name: model(data[name][0]).softmax(1) for name in ("selection", "test")}
            val_loss = loss_of(model, data["validation"]).item()
        targets = {name: data[name][1] for name in ("selection", "test")}
        tw.ensemble.leave(trial, model, predictions=probabilities, targets=targets, sample=data["train"][0])
        trial.report(val_loss=val_loss)  # makes what was left visible


def loss_of(model: nn.Module, batch: Sequence[torch.Tensor]) -> torch.Tensor:
    return nn.functional.cross_entropy(model(batch[0]), batch[1])


def moons() -> dict[str, tuple[torch.Tensor, torch.Tensor]]:
    """Two noisy half circles in four splits; only "train" and "validation" are seen by the search."""
    generator = torch.Generator().manual_seed(0)
    y = torch.randint(2, (800,), generator=generator)
    angle = torch.rand(800, generator=generator) * torch.pi
    x = torch.stack([angle.cos() + y, (angle.sin() - 0.3) * (1 - 2.0 * y)], 1)
    x += 0.35 * torch.randn(800, 2, generator=generator)
    names = ("train", "validation", "selection", "test")
    return dict(zip(names, zip(x.chunk(4), y.chunk(4), strict=True), strict=True))


if __name__ == "__main__":
    space = tw.Space(width=tw.Int(4, 64, log=True), rate=tw.Float(0.01, 0.5, log=True))
    study = tw.Study(space, objectives="min val_loss", directory="runs/moons", seed=0)
    study.run(train, trials=16, searcher=tw.RandomSearcher(), engine=tw.Local(workers=2), progress=False)
    front = tw.Library.open("runs/moons").select(tw.BudgetedGreedy(max_members=4))
    single, chosen = front.single_best, front.pick("best")
    for name, model in (("best single", single), ("ensemble", chosen)):
        trials = [member.trial for member in model.members]
        print(f"{name}: trials {trials}, test cross-entropy {model.score('test', 'cross_entropy'):.4f}")
