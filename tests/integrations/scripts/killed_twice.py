"""Run scripts undisturbed, and killed twice: `python killed_twice.py FOLDER SCRIPT...` prints what each run reported.

A process loads the libraries once and forks for each run. A run is a study of one trial in its own process, which is
killed (SIGKILL) right after a given step of any optimizer.
"""

import importlib
import json
import os
import signal
import sys
import warnings
from pathlib import Path

import torch
import torch._dynamo  # which else every run loads, with its first optimizer
from torch.optim.optimizer import register_optimizer_step_post_hook

import trainwright as tw


def run_study(script, folder, kill_at):
    """Run the one trial of a study in this process, to its end or to its death; write how many steps it took."""
    taken = 0
    counted = (folder.parent / f"{folder.name}.steps").open("a")

    def count(*_):
        nonlocal taken
        taken += 1
        print(".", end="", file=counted, flush=True)
        if taken == kill_at:
            os.kill(os.getpid(), signal.SIGKILL)

    register_optimizer_step_post_hook(count)
    module = importlib.import_module(script)
    objective = getattr(module, "OBJECTIVE", "min val_loss")
    study = tw.Study(tw.Space(lr=tw.Float(1e-3, 1e-1, log=True)), objective, directory=folder, seed=1)
    study.run(
        module.train,
        trials=1,
        searcher=tw.RandomSearcher(),
        scheduler=tw.FixedEpochs(6),
        engine=tw.Local(workers=0),
    )
    study.close()


def fork_run(script, folder, kill_at=0):
    """Return the signal that ended a run, 0 if it ended by itself."""
    pid = os.fork()
    if not pid:
        status = 1
        try:
            # Streams of the parent's hold its answer.
            os.dup2(os.open(folder.parent / f"{folder.name}.log", os.O_CREAT | os.O_APPEND | os.O_WRONLY), 1)
            os.dup2(1, 2)
            run_study(script, folder, kill_at)
            status = 0
        finally:
            sys.stderr.flush()
            os._exit(status)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def reports_of(folder):
    """Return what was reported: the metrics of each epoch, as their exact bits."""
    with tw.Study.open(folder) as study:
        trial = study.trials[0]
        reports = {e: {n: v.hex() for n, v in sorted(r.metrics.items())} for e, r in sorted(trial.reports.items())}
        return {
            "status": str(trial.status),
            "reports": reports,
            "failure": None if trial.failure is None else trial.failure.message,
        }


def main():
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    home, scripts = Path(sys.argv[1]), sys.argv[2:]
    os.chdir(home)
    sys.path.insert(0, str(Path(__file__).parent))
    found = {}
    for script in scripts:
        importlib.import_module(script)
    for script in scripts:
        whole, torn = home / f"{script}-whole", home / f"{script}-torn"
        fork_run(script, whole)
        steps = len((home / f"{whole.name}.steps").read_text())
        # The first death within the second epoch or so, the second one soon after the trial goes on.
        ends = [fork_run(script, torn, kill_at) for kill_at in (steps * 2 // 5, steps // 3, 0)]
        found[script] = {
            "whole": reports_of(whole),
            "torn": reports_of(torn),
            "ends": ends,
            "steps": steps,
            "torn_steps": len((home / f"{torn.name}.steps").read_text()),
            "log": (home / f"{torn.name}.log").read_text()[-3000:],
        }
    print(json.dumps(found))


if __name__ == "__main__":
    main()
