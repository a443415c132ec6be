"""An ensemble from trials that were trained anyway: each leaves its predictions, selection is cheap afterwards."""

import torch
from torch import nn

import trainwright as tw


def train(trial: tw.Trial) -> None:
    data = moons()
    width = trial.params["width"]
    model = nn.Sequential(nn.Linear(2, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU(), nn.Linear(width, 2))
    optimizer = torch.optim.SGD(model.parameters(), lr=trial.params["rate"], momentum=0.9)
    x, y = data["train"]
    for _ in trial.epochs(5):
        for rows in torch.randperm(len(x)).split(20):
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(x[rows]), y[rows]).backward()
            optimizer.step()
        with torch.no_grad():
            probabilities = {name: model(data[name][0]).softmax(1) for name in ("selection", "test")}
            val_loss = nn.functional.cross_entropy(model(data["validation"][0]), data["validation"][1]).item()
        targets = {name: data[name][1] for name in ("selection", "test")}
        tw.ensemble.leave(trial, model, predictions=probabilities, targets=targets, sample=x[:128])
        trial.report(val_loss=val_loss)  # makes what was left visible


def moons() -> dict[str, tuple[torch.Tensor, torch.Tensor]]:
    """Two noisy half circles in four splits; only "train" and "validation" are seen by the search."""
    generator = torch.Generator().manual_seed(0)
    y = torch.randint(2, (1000,), generator=generator)
    angle = torch.rand(1000, generator=generator) * torch.pi
    x = torch.stack([angle.cos() + y, (angle.sin() - 0.3) * (1 - 2.0 * y)], 1)
    x += 0.2 * torch.randn(1000, 2, generator=generator)
    names = ("train", "validation", "selection", "test")
    return dict(zip(names, zip(x.split(250), y.split(250), strict=True), strict=True))


if __name__ == "__main__":
    space = tw.Space(width=tw.Int(4, 64, log=True), rate=tw.Float(0.01, 0.5, log=True))
    study = tw.Study(space, objectives="min val_loss", directory="runs/moons", seed=0, searcher=tw.RandomSearcher())
    study.run(train, trials=16, engine=tw.Local(workers=2), progress=False)
    front = tw.Library.open("runs/moons").select(tw.BudgetedGreedy(max_members=4))
    single, chosen = front.single_best, front.pick("best")
    for name, model in (("best single", single), ("ensemble", chosen)):
        trials = [member.trial for member in model.members]
        print(f"{name}: trials {trials}, test cross-entropy {model.score('test', 'cross_entropy'):.4f}")
