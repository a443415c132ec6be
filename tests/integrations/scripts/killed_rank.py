"""Run scripts in trials of two processes, one of which is killed: `python killed_rank.py FOLDER SCRIPT...`.

The second process of the first trial dies (SIGKILL) in its second epoch; the engine ends the first one, and the trial
resumes. With three trials and successive halving some are stopped at the first rung: on both processes alike, else
the study would hang.
"""

import importlib
import json
import os
import signal
import sys
from pathlib import Path

import trainwright as tw

sys.path.insert(0, str(Path(__file__).parent))


def train(trial):
    """Train by the script that the environment names; rank 1 of trial 0 dies at a step, once."""
    import torch
    from torch.optim.optimizer import register_optimizer_step_post_hook

    torch.set_num_threads(1)
    marker, kill_at, taken = Path(os.environ["MARKER"]), int(os.environ["KILL_AT"]), 0

    def count(*_):
        nonlocal taken
        taken += 1
        if (trial.rank, trial.number, taken) == (1, 0, kill_at) and not marker.exists():
            marker.touch()
            os.kill(os.getpid(), signal.SIGKILL)

    hook = register_optimizer_step_post_hook(count)
    try:
        importlib.import_module(os.environ["SCRIPT"]).train(trial)
    finally:
        hook.remove()


def run_study(script, folder, kill_at):
    """Return what each trial reported, and how often it was started."""
    objective = getattr(importlib.import_module(script), "OBJECTIVE", "min val_loss")
    os.environ.update(SCRIPT=script, KILL_AT=str(kill_at), MARKER=str(folder.parent / f"{folder.name}.died"))
    study = tw.Study(tw.Space(lr=tw.Float(1e-3, 1e-1, log=True)), objective, directory=folder, seed=1)
    study.run(
        train,
        trials=3,
        searcher=tw.RandomSearcher(),
        scheduler=tw.Scheduler(tw.ASHA(max_epochs=4, min_epochs=2, eta=2), tw.Fixed(2)),
        engine=tw.Local(workers=2),
        progress=False,
    )
    found = [
        {
            "status": str(trial.status),
            "leases": len(trial.leases),
            "reports": {
                e: {n: v.hex() for n, v in sorted(r.metrics.items())} for e, r in sorted(trial.reports.items())
            },
            "failure": None if trial.failure is None else trial.failure.message,
        }
        for trial in study.trials
    ]
    study.close()
    return found


if __name__ == "__main__":
    home = Path(sys.argv[1])
    os.chdir(home)
    answers = {
        script: {
            "whole": run_study(script, home / f"{script}-whole", 0),
            "torn": run_study(script, home / f"{script}-torn", 4),
        }
        for script in sys.argv[2:]
    }
    print(json.dumps(answers))
