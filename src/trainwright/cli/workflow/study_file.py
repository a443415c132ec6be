"""Study files: a TOML file, or a Python file with `study` and `train`, as the objects that they name."""

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import trainwright as tw
from trainwright.cli.workflow.stage import StudyJob
from trainwright.cli.workflow.stages import ORDER, make_stages
from trainwright.engine.function_reference import load_function, load_module
from trainwright.errors import InputError, StudyError
from trainwright.files import read_text, read_toml
from trainwright.plugins import make
from trainwright.settings import refuse_unknown

__all__ = ["read_job"]

_TABLES = (
    "study",
    "space",
    "searcher",
    "rule",
    "policy",
    "stop",
    "engine",
    "simulate",
    *(name for name in ORDER if name != "search"),
)
_ALLOWED = "a study file (.toml), or a Python file (.py) with `study` and `train`"
_STUDY_KEYS = (
    "train", "objectives", "constraints", "directory", "ledger", "seed", "trials", "wall_seconds", "device_seconds",
    "require",
)  # fmt: skip


def read_job(path: Path, *, directory: Path | None = None, workers: int | None = None) -> StudyJob:
    """Return the job of a .toml or .py file; `directory` and `workers` override those that it names."""
    read_text(path, "study file", allowed=_ALLOWED)
    if path.suffix not in {".toml", ".py"}:
        raise InputError(f"study file {str(path)!r}: it ends in {path.suffix or 'nothing'!r}; allowed: {_ALLOWED}")
    # Modules beside the file are found, whatever the current folder is.
    sys.path.insert(0, str(path.resolve().parent))  # where its modules are
    if path.suffix == ".toml":
        return _of_toml(path, directory, workers)
    if directory is not None:
        raise InputError(f"run: --directory goes with a .toml file; {path} makes its own study")
    return _of_python(path, workers)


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
    budget = {name: getattr(module, name) for name in ("trials", "wall_seconds", "stop_when") if hasattr(module, name)}
    return StudyJob(
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
    for name, table in content.items():
        _check_table(table, f"{path}, [{name}]")
    settings = content.get("study", {})
    refuse_unknown(settings, _STUDY_KEYS, f"{path}, [study]")
    for name in ("train", "objectives"):
        if name not in settings:
            raise StudyError(f"{path}, [study]: {name!r} is missing; give train = 'module:function' and objectives")
    _check_settings(settings, f"{path}, [study]")
    stages = make_stages(content)
    if not content.get("space"):
        raise StudyError(f"{path}: no [space.NAME] table; give one per parameter, such as [space.lr] kind = 'float'")
    for name, table in content["space"].items():
        _check_table(table, f"{path}, [space.{name}]")
    # The file's tables are the space's own JSON form, so both refuse the same mistakes in the same words.
    space = tw.Space.from_json(
        {
            "parameters": [{"name": name, **table} for name, table in content["space"].items()],
            "requirements": [{"text": text} for text in settings.get("require", [])],
        }
    )
    if workers is not None:
        content["engine"] = {"name": "Local", **content.get("engine", {}), "workers": workers}
    where = directory if directory is not None else settings.get("directory")
    kinds = ("searcher", "rule", "policy", "stop", "engine")
    result = {kind: make(kind, content[kind]) for kind in kinds if kind in content}
    scheduler = {kind: result[kind] for kind in ("rule", "policy") if kind in result}
    return StudyJob(
        open_study=lambda: tw.Study(
            space,
            settings["objectives"],
            constraints=settings.get("constraints", ()),
            directory=where,
            ledger=settings.get("ledger"),
            seed=settings.get("seed", 0),
        ),
        train=load_function(settings["train"]),
        budget={
            **{name: settings[name] for name in ("trials", "wall_seconds", "device_seconds") if name in settings},
            **({"stop_when": result["stop"]} if "stop" in result else {}),
        },
        searcher=result.get("searcher"),
        scheduler=tw.Scheduler(**scheduler) if scheduler else None,
        engine=result.get("engine"),
        directory=None if where is None else Path(where),
        space=space,
        stages=stages,
        tables=content,
    )


def _check_table(values: Any, where: str) -> None:
    if not isinstance(values, dict):
        raise InputError(f"{where}: got {values!r}; allowed: a table, its entries below its name in brackets")


def _check_settings(settings: Mapping[str, Any], where: str) -> None:
    objectives, rules = settings["objectives"], settings.get("require", [])
    if not isinstance(objectives, str | list):
        raise InputError(f"{where} objectives: got {objectives!r}; allowed: 'min val_loss', or a list of such texts")
    limits = settings.get("constraints", [])
    if not isinstance(limits, str | list):
        raise InputError(f"{where} constraints: got {limits!r}; allowed: 'peak_bytes <= 8e9', or a list of such texts")
    if not isinstance(rules, list) or not all(isinstance(rule, str) for rule in rules):
        raise InputError(f"{where} require: got {rules!r}; allowed: a list of texts, such as ['width * depth <= 512']")
    for name, allowed in (("directory", "a path, such as 'runs/digits'"), ("ledger", "redis://HOST:PORT/0?study=NAME")):
        if not isinstance(settings.get(name, ""), str):
            raise InputError(f"{where} {name}: got {settings[name]!r}; allowed: {allowed}")
