"""The task of the PyCOMPSs engine: one segment of a trial. Imported only where PyCOMPSs is, by driver and workers."""

import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from pycompss.api.constraint import constraint
from pycompss.api.task import task

from trainwright.engine.function_reference import FunctionReference, load_reference
from trainwright.engine.process.run_assignment import run_assignment
from trainwright.engine.protocol import Outcome
from trainwright.ledger import Record
from trainwright.train.assignment import Assignment

__all__ = ["segment"]


class _Kept:
    """The channel of a task, which hears nothing from the driver: it keeps the records, and ends at an epoch."""

    def __init__(self, until: int | None) -> None:
        self.until = until
        self.batches: list[list[Record]] = []
        self.reached = False

    def exchange(self, records: list[Record]) -> bool:
        self.batches.append(records)
        epochs = [record.body["epoch"] for record in records if record.kind == "reported"]
        self.reached = self.reached or (self.until is not None and max(epochs, default=0) >= self.until)
        return not self.reached

    def leaves(self) -> bool:
        return False


@constraint(  # type: ignore[untyped-decorator]  # PyCOMPSs has no types
    processors=[
        {"processorType": "CPU", "computingUnits": "$TRAINWRIGHT_CPUS"},
        {"processorType": "GPU", "computingUnits": "$TRAINWRIGHT_GPUS"},
    ]
)
@task(returns=1)  # type: ignore[untyped-decorator]  # likewise
def segment(
    reference: FunctionReference, assignment: Assignment, until: int | None, gpu: bool, ended: Path | None
) -> tuple[list[list[Record]], Outcome, bool]:
    """Run a trial until it has reported `until`; return its records, its outcome, and whether it came so far.

    The file `ended` is there when it is over: whoever waits for any of several tasks cannot ask their futures.
    """
    kept = _Kept(until)
    try:
        outcome = run_assignment(_function(reference), assignment, kept, gpu=gpu)
    finally:
        if ended is not None:
            ended.touch()
    return kept.batches, outcome, kept.reached


def _function(reference: FunctionReference) -> Callable[..., Any]:
    """Return the training function; of a script that runs in this very process, as it stands there."""
    main = sys.modules["__main__"]
    path = getattr(main, "__file__", None)
    if reference.script is not None and path is not None and Path(os.path.abspath(path)) == Path(reference.script):  # noqa: PTH100 -- links stay links
        return getattr(main, reference.name)  # type: ignore[no-any-return]
    return load_reference(reference)
