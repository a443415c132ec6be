"""Study files: a TOML file, or a Python file with `study` and `train`, as the objects that they name."""

import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime, time
from pathlib import Path
from typing import Annotated, Any

import trainwright as tw
from trainwright.cli.workflow.ensemble import EnsembleStage
from trainwright.cli.workflow.plan import PlanStage
from trainwright.cli.workflow.serving import AllocationStage, DeploymentStage
from trainwright.cli.workflow.stage import A_TABLE, SearchStage, StudyJob, WorkflowStage
from trainwright.engine.function_reference import load_function, load_module
from trainwright.errors import InputError, StudyError
from trainwright.files import read_text, read_toml
from trainwright.plugins import make
from trainwright.settings import Settings, refuse_unknown
from trainwright.validators import check, each, instance_of, optional, text

__all__ = ["STAGES", "read_job"]

STAGES: Mapping[str, type[WorkflowStage]] = {
    "plan": PlanStage,
    "search": SearchStage,
    "ensemble": EnsembleStage,
    "allocation": AllocationStage,
    "deployment": DeploymentStage,
}
"""By name of the table that asks for it, in the order in which they run; the search needs no table."""

_PLUGINS = ("searcher", "rule", "policy", "engine")
_TABLES = ("study", "space", *_PLUGINS, "simulate", "job", *STAGES)
_ALLOWED = "a study file (.toml), or a Python file (.py) with `study` and `train`"
_OBJECTIVES = instance_of(str, list, words="'min val_loss', or a list of such texts")
_CONSTRAINTS = instance_of(str, list, words="'peak_bytes <= 8e9', or a list of such texts")
_BUDGET = ("trials", "wall_seconds", "device_seconds", "deadline")


@dataclass(frozen=True, kw_only=True)
class StudyTable(Settings, error=StudyError, label=""):
    """The table [study] of a study file; the budget is checked where it is used."""

    train: Annotated[str, text("'module:function'"), "'module:function' that trains a trial"]
    objectives: Annotated[str | list[str], _OBJECTIVES, "such as 'min val_loss'"]
    constraints: Annotated[str | list[str], _CONSTRAINTS, "such as 'peak_bytes <= 8e9'"] = field(default_factory=list)
    directory: Annotated[str | None, optional(text("a path, such as 'runs/digits'")), "where to keep the study"] = None
    ledger: Annotated[str | None, optional(text("redis://HOST:PORT/0?study=NAME")), "where its records are"] = None
    seed: int = 0
    trials: int | None = None
    wall_seconds: float | None = None
    device_seconds: float | None = None
    deadline: str | datetime | time | None = None
    require: Annotated[
        list[str],
        each(instance_of(str), words="a list of texts, such as ['width * depth <= 512']"),
        "what holds of all configurations",
    ] = field(default_factory=list)


def read_job(path: Path, *, directory: Path | None = None, workers: int | None = None) -> StudyJob:
    """Return the job of a .toml or .py file; `directory` and `workers` override those that it names."""
    read_text(path, "study file", allowed=_ALLOWED)
    if path.suffix not in {".toml", ".py"}:
        raise InputError(f"study file {str(path)!r}: it ends in {path.suffix or 'nothing'!r}; allowed: {_ALLOWED}")
    # Modules beside the study file are found first, whatever the current folder is.
    sys.path.insert(0, str(path.resolve().parent))
    if path.suffix == ".toml":
        return _of_toml(path, directory, workers)
    if directory is not None:
        raise InputError(f"run: --directory goes with a .toml file; {path} makes its own study")
    return _of_python(path, workers)


def make_stages(tables: Mapping[str, Mapping[str, Any]]) -> tuple[WorkflowStage, ...]:
    """Return the stages that a study file's tables ask for; the search is always one of them."""
    wanted = [name for name in STAGES if name in tables or name == "search"]
    return tuple(STAGES[name].from_table(tables.get(name, {}), f"[{name}]") for name in wanted)


def _of_python(path: Path, workers: int | None) -> StudyJob:
    module = load_module(path.stem, "run")
    # A file called like an installed module would silently load that module.
    found = getattr(module, "__file__", None)
    if found is None or Path(found).resolve() != path.resolve():
        raise InputError(f"run: {path} has the name of another module ({found or 'built in'}); rename the file")
    if not isinstance(getattr(module, "study", None), tw.Study):
        raise InputError(f"run: {path} has no study; define study = tw.Study(...) at its top level")
    if not callable(getattr(module, "train", None)):
        raise InputError(f"run: {path} has no function train; define def train(trial) at its top level")
    if workers is not None and hasattr(module, "engine"):
        raise InputError(f"run: --workers {workers} and {path} both name an engine; leave one out")
    budget = {name: getattr(module, name) for name in _BUDGET if hasattr(module, name)}
    return StudyJob(
        file=path,
        open_study=lambda: module.study,
        directory=module.study.directory,
        space=module.study.space,
        stages=make_stages({}),
        train=module.train,
        budget=budget,
        searcher=getattr(module, "searcher", None),
        scheduler=getattr(module, "scheduler", None),
        engine=getattr(module, "engine", None) if workers is None else tw.Local(workers=workers),
    )


def _of_toml(path: Path, directory: Path | None, workers: int | None) -> StudyJob:
    content = read_toml(path, "study file", allowed=_ALLOWED)
    refuse_unknown(content, _TABLES, str(path))
    parameters = {f"space.{name}": table for name, table in dict(content.get("space", {})).items()}
    for name, table in (content | parameters).items():
        check(table, A_TABLE, f"{path}, [{name}]")
    study = StudyTable.from_table(content.get("study", {}), f"{path}, [study]")
    if not parameters:
        raise StudyError(f"{path}: no [space.NAME] table; give one per parameter, such as [space.lr] kind = 'float'")
    # The file's tables are the space's own JSON form, so both refuse the same mistakes in the same words.
    space = tw.Space.from_json(
        {
            "parameters": [{"name": name, **table} for name, table in content["space"].items()],
            "requirements": [{"text": text} for text in study.require],
        }
    )
    if workers is not None:
        content["engine"] = {"name": "Local", **content.get("engine", {}), "workers": workers}
    where = directory if directory is not None else study.directory
    result = {kind: make(kind, content[kind]) for kind in _PLUGINS if kind in content}
    # A rule or a policy alone is a scheduler too.
    scheduler = {kind: result[kind] for kind in ("rule", "policy") if kind in result}
    return StudyJob(
        file=path,
        open_study=lambda: tw.Study(
            space,
            study.objectives,
            constraints=study.constraints,
            directory=where,
            ledger=study.ledger,
            seed=study.seed,
        ),
        train=load_function(study.train),
        budget={name: getattr(study, name) for name in _BUDGET if getattr(study, name) is not None},
        searcher=result.get("searcher"),
        scheduler=tw.Scheduler(**scheduler) if scheduler else None,
        engine=result.get("engine"),
        directory=None if where is None else Path(where),
        space=space,
        stages=make_stages(content),
        tables=content,
    )
