"""Parallel plans as JSON files, so that a job sets up what was chosen on a login node."""

import json
from collections.abc import Mapping
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any

from trainwright.errors import InputError
from trainwright.files import read_json, write_text
from trainwright.plan.collective import Collective
from trainwright.plan.parallel_plan import Bottleneck, Breakdown, Degrees, ParallelPlan

__all__ = ["SCHEMA", "load", "plan_from", "save"]

SCHEMA = 1
_PARTS: dict[str, Any] = {"degrees": Degrees, "breakdown": Breakdown}
_LISTS: dict[str, Any] = {"collectives": Collective, "bottlenecks": Bottleneck}
_AGAIN = "make it again: trainwright plan MODEL ... --out FILE"


def save(plan: ParallelPlan, path: str | Path) -> None:
    """Write a plan to a file. Raises `InputError` where none can be written."""
    text = json.dumps({"schema": SCHEMA, **asdict(plan)}, indent=1) + "\n"
    write_text(path, "plan", text)


def load(path: str | Path) -> ParallelPlan:
    """Read a plan from a file. Raises `InputError` for what is none, or of another schema."""
    document = read_json(path, "plan", allowed="a file that `trainwright plan MODEL ... --out FILE` wrote")
    return plan_from(document, f"plan {str(path)!r}")


def plan_from(document: Any, where: str = "plan") -> ParallelPlan:
    """Return the plan that a JSON object holds."""
    if not isinstance(document, Mapping):
        raise InputError(f"{where}: got {type(document).__name__}; allowed: an object; {_AGAIN}")
    if document.get("schema") != SCHEMA:
        raise InputError(f"{where}, schema: got {document.get('schema')!r}; allowed: {SCHEMA}; {_AGAIN}")
    values = {key: value for key, value in document.items() if key != "schema"}
    for name, kind in _PARTS.items():
        values[name] = _record(kind, values.get(name, {}), f"{where}, {name}")
    for name, kind in _LISTS.items():
        values[name] = tuple(
            _record(kind, one, f"{where}, {name}, {place}") for place, one in enumerate(values.get(name, ()))
        )
    for name in ("stages", "cuts", "interval", "recomputed"):
        if name in values:
            values[name] = tuple(values[name])
    plan: ParallelPlan = _record(ParallelPlan, values, where)
    wrong = [each.name for each in fields(Degrees) if not _counts(getattr(plan.degrees, each.name))]
    if wrong:
        got = getattr(plan.degrees, wrong[0])
        raise InputError(f"{where}, degrees, {wrong[0]}: got {got!r}; allowed: a whole number >= 1; {_AGAIN}")
    return plan


def _record(kind: Any, values: Any, where: str) -> Any:
    known = [each.name for each in fields(kind)]
    if not isinstance(values, Mapping) or set(values) - set(known):
        extra = min(set(values) - set(known)) if isinstance(values, Mapping) else type(values).__name__
        raise InputError(f"{where}: got {extra!r}; allowed: {', '.join(known)}; {_AGAIN}")
    try:
        return kind(**values)
    except TypeError as error:
        raise InputError(f"{where}: {error}; {_AGAIN}") from error


def _counts(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 1
