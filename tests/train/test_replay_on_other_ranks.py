"""An epoch that was interrupted on some ranks goes on with others: the same batches, the same curve but rounding."""

import os
import time
from pathlib import Path

import pytest
import torch
from torch import nn

import trainwright as tw

STEPS = 90


def train(trial):
    directory = trial.assignment.directory
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(1, 8), nn.Tanh(), nn.Linear(8, 1)).double()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    x = torch.linspace(-1, 1, 8 * STEPS, dtype=torch.float64)[:, None]
    # Of its own, for the global ones are seeded anew where other ranks go on.
    generator = torch.Generator().manual_seed(1)
    loader = torch.utils.data.DataLoader(
        torch.utils.data.TensorDataset(x), batch_size=8, shuffle=True, generator=generator
    )

    def loss_of(model, batch):
        if trial.rank == 0:
            with Path(f"{directory}.log").open("a") as log:
                log.write(f"{os.getpid()}\n")
        if Path(f"{directory}.pace").exists():
            time.sleep(0.1)
        return (model(batch[0]) - batch[0].sin()).square().mean()

    run = trial.prepare(model, optimizer, loader, loss=loss_of, batch=trial.params["batch"])
    for _ in trial.epochs():
        total = sum(run.step(batch).item() for batch in run.loader)
        trial.report(loss=total, devices=trial.devices)


def study(directory, batch):
    space = tw.Space(x=tw.Float(0, 1), batch=tw.Constant(batch))
    return tw.Study(space, "min loss", directory=directory, seed=3, searcher=tw.RandomSearcher())


def run(made, devices, **budget):
    scheduler = tw.Scheduler(tw.FixedEpochs(2), tw.Fixed(devices))
    made.run(train, trials=1, scheduler=scheduler, engine=tw.Local(workers=2), progress=False, **budget)


@pytest.mark.parametrize(("before", "after"), [(2, 1), (1, 2)])
@pytest.mark.slow
def test_from_some_ranks_to_others(tmp_path, before, after):
    """The number of ranks changes within an epoch; no step is computed twice."""
    with study(tmp_path / "whole", "constant") as whole:
        run(whole, 1)
        expected = [report.metrics["loss"] for report in whole.trials[0].reports.values()]
    directory = tmp_path / "study"
    Path(f"{directory}.pace").touch()
    with study(directory, "constant") as made:
        run(made, before, wall_seconds=8, grace_seconds=2)
        [trial] = made.trials
        assert trial.preempted
        assert trial.leases[1].step % STEPS, "it was to end within an epoch"
        Path(f"{directory}.pace").unlink()
        run(made, after)
        [trial] = made.trials
        assert trial.status == "complete"
        found = [report.metrics["loss"] for report in trial.reports.values()]
        assert trial.reports[2].metrics["devices"] == after
    assert found == pytest.approx(expected, abs=1e-10)
    assert len(Path(f"{directory}.log").read_text().splitlines()) == 2 * STEPS
