"""The stages of `trainwright run`: a file each, made from the tables of a study file, in this order."""

from collections.abc import Callable, Mapping
from typing import Any

from trainwright.cli.workflow.allocation import AllocationStage
from trainwright.cli.workflow.deployment import DeploymentStage
from trainwright.cli.workflow.ensemble import EnsembleStage
from trainwright.cli.workflow.plan import PlanStage
from trainwright.cli.workflow.search import SearchStage
from trainwright.cli.workflow.stage import EXPORT, StageOutcome, StageRun, WorkflowStage
from trainwright.errors import InputError, closest

__all__ = ["EXPORT", "ORDER", "StageOutcome", "StageRun", "WorkflowStage", "choose_stages", "make_stages"]

_MADE: Mapping[str, Callable[[Mapping[str, Any]], WorkflowStage]] = {
    "plan": PlanStage.of,
    "search": lambda _: SearchStage(),
    "ensemble": EnsembleStage.of,
    "allocation": AllocationStage.of,
    "deployment": DeploymentStage.of,
}
ORDER = tuple(_MADE)


def make_stages(tables: Mapping[str, Mapping[str, Any]]) -> tuple[WorkflowStage, ...]:
    """Return the stages that a study file's tables ask for; the search is always one of them."""
    return tuple(make(tables.get(name, {})) for name, make in _MADE.items() if name in tables or name == "search")


def choose_stages(stages: tuple[WorkflowStage, ...], names: list[str], file: object) -> tuple[WorkflowStage, ...]:
    """Return the stages of these names, in their order; all of them if none is named."""
    # A stage that exists but that this file does not ask for gets a sentence of its own.
    known = [stage.name for stage in stages]
    for name in names:
        if name not in ORDER:
            raise InputError(f"--stage: got {name!r}; allowed: {', '.join(ORDER)}{closest(name, ORDER)}")
        if name not in known:
            raise InputError(f"--stage: {file} has no [{name}]; stages there: {', '.join(known)}; add the table")
    return tuple(stage for stage in stages if not names or stage.name in names)
