"""Proves that a trial resumes exactly: `trainwright checkpoint verify-resume MODULE:FUNCTION --param NAME=VALUE`.

The study's own `train(trial)` is run as an engine runs it, each time in a process of its own:
`python -m THIS_MODULE PLAN MODULE:FUNCTION ASSIGNMENT`. What `trial.prepare` has made saves at reports; a Manager of
the trial's own whose `step` is called also after a step drawn at random.
"""

import importlib
import json
import os
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import Any

import trainwright.checkpoint
from trainwright.checkpoint import manager as home
from trainwright.checkpoint.tools.proof import Proof, launch_ranks, prove
from trainwright.checkpoint.tools.step_digests import ProofPlan, take_part
from trainwright.cluster.visible_devices import visible_gpus
from trainwright.engine.function_reference import load_function
from trainwright.engine.process.run_assignment import run_assignment
from trainwright.engine.protocol import Died, Returned, StoppedEarly
from trainwright.errors import CheckpointConfigError
from trainwright.ledger import Record
from trainwright.randomness import rng
from trainwright.train.assignment import Assignment
from trainwright.validators import check, integer, optional

__all__ = ["main", "verify_trial"]


def verify_trial(
    function: str,
    params: Mapping[str, Any],
    *,
    epochs: int | None = None,
    steps: int | None = None,
    seed: int = 0,
    drop: Sequence[str] = (),
    ranks: int = 1,
    timeout_seconds: float = 3600.0,
) -> Proof:
    """Run the trial that "module:function" trains with `params` four times, one of them interrupted, and compare.

    `epochs` is the study's `max_epochs`. The trial is killed after so many `steps` of its optimizer; without it after
    one that `seed` draws between its first checkpoint and its end. `drop` names items, or "rng", that are not restored.
    Raises `EngineError` if there is no such function, and `CheckpointError` if the trial fails, keeps no checkpoint, or
    none before that step.
    """
    check(epochs, optional(integer(minimum=1)), "verify-resume: epochs", CheckpointConfigError)
    load_function(function, "verify-resume")
    assignment = Assignment(
        trial=0, lease=1, params=params, seed=int(rng(seed, "trial", 0).integers(2**63)), max_epochs=epochs
    )
    launch = partial(
        launch_ranks,
        name=function,
        command=("-m", "trainwright.engine.process.proof"),
        arguments=(function, json.dumps(asdict(assignment))),
        timeout_seconds=timeout_seconds,
    )
    with tempfile.TemporaryDirectory(prefix="trainwright-proof-") as folder:
        return prove(launch, Path(folder), steps=steps, drop=drop, ranks=ranks, trial=function, seed=seed)


class _ContinueChannel:
    """The channel of a trial that always goes on."""

    def exchange(self, _records: list[Record]) -> bool:
        return True

    def leaves(self) -> bool:
        return False


def main(arguments: list[str]) -> int:
    """Run the trial as the plan says; return the exit status."""
    plan_file, function, text = arguments
    plan = ProofPlan.read(plan_file)
    assignment = replace(Assignment(**json.loads(text)), directory=plan.folder, lease=plan.lease)
    if plan.ranks > 1:
        meeting = f"{os.environ['MASTER_ADDR']}:{os.environ['MASTER_PORT']}"
        assignment = replace(assignment, rank=int(os.environ["RANK"]), world_size=plan.ranks, address=meeting)
    sys.path[0] = str(Path.cwd())
    with take_part(plan) as manager:
        trial = importlib.import_module("trainwright.train.trial")
        # whichever the function takes, or `trial.prepare`
        home.Manager = trainwright.checkpoint.Manager = trial.Manager = manager  # type: ignore[misc,attr-defined]
        outcome = run_assignment(load_function(function), assignment, _ContinueChannel(), gpu=bool(visible_gpus()))
    if isinstance(outcome, Returned | StoppedEarly):
        return 0
    sys.stderr.write(f"{outcome.why if isinstance(outcome, Died) else outcome.message}\n")
    return 1


if __name__ == "__main__":
    status = main(sys.argv[1:])
    sys.stderr.flush()
    os._exit(status)  # destructors of torch.distributed may wait for each other
