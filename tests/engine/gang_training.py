"""A trial of several nodes, apart from its tests: a process that runs it loads no test library, a driver no torch."""

import os
import time
from pathlib import Path

import trainwright as tw
from trainwright.engine.nodes.engine import Nodes

__all__ = ["Nodes", "run", "train_together"]


def train_together(trial):
    """Report the world size and the sum of all ranks, as torch.distributed finds it."""
    import torch

    for epoch in trial.epochs():
        total = torch.tensor([trial.rank + 1.0])
        if trial.world_size > 1:
            torch.distributed.all_reduce(total)
        gate = Path(f"{trial.assignment.directory}.go")
        Path(f"{trial.assignment.directory}.begun-{trial.rank}-{epoch}").write_text(str(os.getpid()))
        while epoch == 2 and not gate.exists():
            time.sleep(0.02)
        trial.report(loss=1.0 / epoch, total=total, world=trial.world_size)


def run(directory, engine, devices, trials=1):
    with tw.Study(tw.Space(x=tw.Float(0, 1)), "min loss", directory=directory, seed=0) as study:
        scheduler = tw.Scheduler(tw.FixedEpochs(3), tw.Fixed(devices))
        study.run(train_together, trials=trials, scheduler=scheduler, engine=engine, progress=False)
        return study.trials
