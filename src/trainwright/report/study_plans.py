"""What was planned for a study, as far as files in its folder tell: the search's cost, memory plans, strategies."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from trainwright.errors import TrainwrightError
from trainwright.memory import Plan
from trainwright.plan import Forecast

__all__ = ["Plans", "plans_of"]

_MOST_FILES, _MOST_BYTES = 20, 16_000_000


@dataclass(frozen=True, kw_only=True, slots=True)
class Plans:
    """What was found; `memory` and `strategies` have the names of their files, `refused` says what cannot be read.

    `search` is what the plan stage of a workflow said: `trials`, `cost`, `scaling`, `configurations`, `largest`.
    """

    search: Mapping[str, Any] | None = None
    memory: Sequence[tuple[str, Plan]] = ()
    strategies: Sequence[tuple[str, Mapping[str, Any]]] = ()
    refused: Sequence[str] = ()


@dataclass(slots=True)
class _Found:
    memory: list[tuple[str, Plan]] = field(default_factory=list)
    strategies: list[tuple[str, Mapping[str, Any]]] = field(default_factory=list)
    refused: list[str] = field(default_factory=list)


def plans_of(directory: Path) -> Plans:
    """Return what the JSON files of a study's folder, not of its subfolders, and its plan stage tell.

    A memory plan is what `trainwright memory plan --out` writes; strategies are what `trainwright plan --json` ends
    with, or the best one alone as `--out` keeps it.
    """
    found = _Found()
    try:
        # The study's own folder only: checkpoints below hold thousands of files.
        files = sorted(path for path in directory.glob("*.json") if path.is_file() and path.name != "summary.json")
    except OSError:
        files = []
    for path in files[:_MOST_FILES]:
        content = _read_content(path)
        if not isinstance(content, dict):
            continue
        if content.get("kind") == "memory plan":
            try:
                found.memory.append((path.stem, Plan.from_json(content)))
            except (TrainwrightError, TypeError, ValueError) as error:
                found.refused.append(f"{path.name}: {error}.")
        elif isinstance(content.get("plans"), list) and "rejected" in content:
            found.strategies.append((path.stem, content))
        elif {"layout", "forecast"} <= content.keys():
            try:
                found.strategies.append((path.stem, _wrap_plan(Forecast.load(path))))
            except TrainwrightError as error:
                found.refused.append(f"{path.name}: {error}.")
    stage = _read_content(directory / "stages" / "plan.json")
    table = stage.get("content") if isinstance(stage, dict) else None
    return Plans(
        search=table if isinstance(table, dict) and isinstance(table.get("cost"), dict) else None,
        memory=found.memory,
        strategies=found.strategies,
        refused=found.refused,
    )


def _wrap_plan(plan: Forecast) -> Mapping[str, Any]:
    table = {**asdict(plan), "devices": plan.devices, "seconds_per_iteration": plan.seconds_per_iteration}
    return {"plans": [table], "rejected": []}


def _read_content(path: Path) -> Any:
    try:
        if path.stat().st_size > _MOST_BYTES:
            return None
        return json.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError):
        return None
