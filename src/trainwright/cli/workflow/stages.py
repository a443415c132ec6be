"""The stages of `trainwright run`: a file each, made from the tables of a study file, in this order."""

from collections.abc import Callable, Mapping
from typing import Any

from trainwright.cli.workflow.allocation import Allocating
from trainwright.cli.workflow.deployment import Deploying
from trainwright.cli.workflow.ensemble import Selecting
from trainwright.cli.workflow.plan import Planning
from trainwright.cli.workflow.search import Search
from trainwright.cli.workflow.stage import EXPORT, Outcome, Stage, Work
from trainwright.errors import InputError, closest

__all__ = ["EXPORT", "ORDER", "Outcome", "Stage", "Work", "chosen", "stages_of"]

_MADE: Mapping[str, Callable[[Mapping[str, Any]], Stage]] = {
    "plan": Planning.of,
    "search": lambda _: Search(),
    "ensemble": Selecting.of,
    "allocation": Allocating.of,
    "deployment": Deploying.of,
}
ORDER = tuple(_MADE)


def stages_of(tables: Mapping[str, Mapping[str, Any]]) -> tuple[Stage, ...]:
    """Return the stages that a study file's tables ask for; the search is always one of them."""
    return tuple(make(tables.get(name, {})) for name, make in _MADE.items() if name in tables or name == "search")


def chosen(stages: tuple[Stage, ...], names: list[str], file: object) -> tuple[Stage, ...]:
    """Return the stages of these names, in their order; all of them if none is named."""
    there = [stage.name for stage in stages]
    for name in names:
        if name not in ORDER:
            raise InputError(f"--stage: got {name!r}; allowed: {', '.join(ORDER)}{closest(name, ORDER)}")
        if name not in there:
            raise InputError(f"--stage: {file} has no [{name}]; stages there: {', '.join(there)}; add the table")
    return tuple(stage for stage in stages if not names or stage.name in names)
