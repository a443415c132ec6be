"""A trial that grows from one process to two while it trains: its steps and losses are those of one."""

import torch
from torch import nn

import trainwright as tw


def train(trial: tw.Trial) -> None:
    x = torch.linspace(-3, 3, 240, dtype=torch.float64)[:, None]
    dataset = torch.utils.data.TensorDataset(x, torch.sin(x))
    loader = tw.train.Loader(dataset, global_batch=32, trial=trial)  # of all devices together
    model = nn.Sequential(nn.Linear(1, 16), nn.Tanh(), nn.Linear(16, 1)).double()
    optimizer = torch.optim.Adam(model.parameters(), lr=trial.params["rate"])
    run = trial.prepare(model, optimizer, loader, loss=loss_of, micro_batch=16)
    print(f"rank {trial.rank} of {trial.world_size}: {run.accumulate} x {run.micro_batch} samples a step")
    for _ in trial.epochs():
        for batch in run.loader:  # this rank's part of a batch; one iteration is one step
            run.step(batch)
        with torch.no_grad():
            mse = nn.functional.mse_loss(model(x), torch.sin(x)).item()
        trial.report(mse=mse)  # on every rank; what rank 0 says counts


def loss_of(model: nn.Module, batch: list[torch.Tensor]) -> torch.Tensor:
    return nn.functional.mse_loss(model(batch[0]), batch[1])


if __name__ == "__main__":
    space = tw.Space(rate=tw.Float(0.005, 0.02))
    curves = []
    for name, policy in (("one", tw.Fixed(1)), ("grown", tw.DoublingAsPublished())):
        study = tw.Study(space, objectives="min mse", directory=f"runs/{name}", seed=0)
        scheduler = tw.Scheduler(tw.ASHA(max_epochs=4, eta=2, min_epochs=2), policy)
        study.run(train, trials=1, scheduler=scheduler, engine=tw.Local(workers=2), progress=False)
        curves.append([report.metrics["mse"] for report in study.best.reports.values()])
    for epoch, (one, grown) in enumerate(zip(*curves, strict=True), 1):
        print(f"epoch {epoch}: {one:.12f} on one, {grown:.12f} if it grows")
