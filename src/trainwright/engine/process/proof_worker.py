"""Run one trial of a reproducibility proof: `python -m THIS_MODULE PLAN MODULE:FUNCTION ASSIGNMENT`."""

import importlib
import json
import os
import sys
from dataclasses import replace
from pathlib import Path

import trainwright.checkpoint
from trainwright.checkpoint import manager as home
from trainwright.checkpoint.tools.step_digests import ProofPlan, take_part
from trainwright.engine.devices import visible_gpus
from trainwright.engine.function_reference import load_function
from trainwright.engine.process.run_assignment import run_assignment
from trainwright.engine.protocol import Died, Returned, StoppedEarly
from trainwright.ledger import Record
from trainwright.train.assignment import Assignment

__all__ = ["main"]


class _Notebook:
    """The channel of a trial whose reports are written down, and which always goes on."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def exchange(self, records: list[Record]) -> bool:
        reports = [record.body for record in records if record.kind == "reported"]
        with self._path.open("a", encoding="utf-8") as file:
            for report in reports:
                file.write(f"{json.dumps({'epoch': report['epoch'], 'metrics': report['metrics']})}\n")
        return True


def main(arguments: list[str]) -> int:
    """Run the trial as the plan says; return the exit status."""
    plan_file, function, text = arguments
    plan = ProofPlan.read(plan_file)
    assignment = Assignment(**json.loads(text))
    if plan.ranks > 1:
        meeting = f"{os.environ['MASTER_ADDR']}:{os.environ['MASTER_PORT']}"
        assignment = replace(assignment, rank=int(os.environ["RANK"]), world_size=plan.ranks, address=meeting)
    sys.path[0] = str(Path.cwd())
    with take_part(plan) as manager:
        trial = importlib.import_module("trainwright.train.trial")
        # whichever the function takes, or `trial.prepare`
        home.Manager = trainwright.checkpoint.Manager = trial.Manager = manager  # type: ignore[misc,attr-defined]
        channel = _Notebook(Path(f"{plan.journal}.reports"))
        outcome = run_assignment(load_function(function), assignment, channel, gpu=bool(visible_gpus()))
    if isinstance(outcome, Returned | StoppedEarly):
        return 0
    sys.stderr.write(f"{outcome.why if isinstance(outcome, Died) else outcome.message}\n")
    return 1


if __name__ == "__main__":
    status = main(sys.argv[1:])
    sys.stderr.flush()
    os._exit(status)  # destructors of torch.distributed may wait for each other
