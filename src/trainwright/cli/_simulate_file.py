"""The [simulate] table of a study file, as clusters and schedulers to simulate."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from trainwright.cluster import Cluster
from trainwright.engine.simulated.settings import Scaling, Simulated
from trainwright.engine.simulated.table import tables
from trainwright.engine.simulated.task import Parametric, Task
from trainwright.errors import InputError
from trainwright.files import read_toml
from trainwright.plugins import make
from trainwright.schedule import Scheduler
from trainwright.settings import refuse_unknown
from trainwright.study import Study

__all__ = ["Plan", "read_plan"]

_ENGINE = (
    "task_devices", "start_seconds", "restart_seconds", "resume", "stragglers", "drops_per_second", "node_mtbf_seconds",
    "repair_seconds",
)  # fmt: skip
_KEYS = ("gpus", "gpus_per_node", "trials", "seeds", "task", "scaling", "schedulers", *_ENGINE)
_TABLE = (
    "loss", "seconds", "params", "run", "direction", "missing", "epoch_seconds", "speed_jitter",
)  # fmt: skip
_OWN = "this file"


@dataclass(frozen=True, kw_only=True)
class Plan:
    """What to simulate: schedulers by name, on clusters of these numbers of devices."""

    gpus: tuple[int, ...]
    schedulers: Mapping[str, Scheduler]
    trials: int
    seeds: int
    engine: Callable[[int], Simulated]
    """Returns the engine of so many devices."""


def read_plan(
    path: Path, *, gpus: list[int] | None = None, trials: int | None = None, seeds: int | None = None
) -> Plan:
    """Return what a study file's [simulate] asks for; the arguments override it."""
    content = read_toml(path, "study file", allowed="a study file (.toml) with a [simulate] table")
    table = content.get("simulate", {})
    _check_table(table, f"{path}, [simulate]")
    refuse_unknown(table, _KEYS, f"{path}, [simulate]")
    where = f"{path}, [simulate]"
    sizes = _check_numbers(gpus or table.get("gpus"), f"{where} gpus")
    per_node = _check_numbers(table.get("gpus_per_node", 8), f"{where} gpus_per_node")[0]
    wanted = trials if trials is not None else table.get("trials", content.get("study", {}).get("trials"))
    settings = {name: _by_number(table[name]) for name in _ENGINE if name in table}
    scaling = _make_scaling(table.get("scaling", {}), where)
    task = table.get("task", {})
    _check_table(task, f"{where} task")
    source = _study_of(task, path, where)
    result = None if source is not None else _make_task(task, path, where)

    def engine(devices: int) -> Simulated:
        cluster = _make_cluster(devices, per_node)
        if source is None:
            return Simulated(cluster=cluster, task=result or Parametric(), scaling=scaling, **settings)
        with Study.open(source) as study:
            measured = study.measured(cluster)
        known = {field.name: getattr(measured, field.name) for field in fields(measured)}
        return Simulated(**{**known, "scaling": scaling, **settings})

    return Plan(
        gpus=tuple(sizes),
        schedulers=_make_schedulers(content, table, where),
        trials=_check_numbers(wanted, f"{where} trials")[0],
        seeds=seeds if seeds is not None else _check_numbers(table.get("seeds", 30), f"{where} seeds")[0],
        engine=engine,
    )


def _make_schedulers(content: Mapping[str, Any], table: Mapping[str, Any], where: str) -> dict[str, Scheduler]:
    """Return the file's own rule and policy, and those of [simulate.schedulers], which may name only one of the two."""
    source = {kind: content[kind] for kind in ("rule", "policy") if kind in content}
    named = table.get("schedulers", {})
    _check_table(named, f"{where} schedulers")
    if not source and not named:
        raise InputError(f"{where}: no scheduler; give a [rule], or [simulate.schedulers.NAME] with rule and policy")
    found = {_OWN: _make_scheduler(source)} if source else {}
    for name, parts in named.items():
        _check_table(parts, f"{where} schedulers.{name}")
        refuse_unknown(parts, ("rule", "policy"), f"{where} schedulers.{name}")
        found[name] = _make_scheduler({**source, **parts})
    return found


def _make_scheduler(parts: Mapping[str, Any]) -> Scheduler:
    for kind, table in parts.items():
        _check_table(table, f"[{kind}]")
    return Scheduler(**{kind: make(kind, table) for kind, table in parts.items()})


def _make_scaling(values: Any, where: str) -> Scaling:
    # One number is the exponent of a power law of devices.
    if isinstance(values, int | float) and not isinstance(values, bool):
        return Scaling(alpha=values)
    if not isinstance(values, Mapping):
        raise InputError(
            f"{where} scaling: got {values!r}; allowed: an exponent such as 0.9, or speed-ups such as "
            "{2 = 1.8, 4 = 3}"
        )
    return Scaling(curve={_check_number(key, f"{where} scaling"): float(value) for key, value in values.items()})


def _study_of(task: Mapping[str, Any], path: Path, where: str) -> Path | None:
    if "study" not in task:
        return None
    refuse_unknown(task, ("study",), f"{where} task")
    return path.parent / str(task["study"])


def _make_task(values: Mapping[str, Any], path: Path, where: str) -> Task:
    if "table" in values:
        refuse_unknown(values, ("table", *_TABLE), f"{where} task")
        return tables(path.parent / str(values["table"]), **{key: values[key] for key in _TABLE if key in values})
    refuse_unknown(values, [field.name for field in fields(Parametric)], f"{where} task (or table, study)")
    return Parametric(**values)


def _make_cluster(devices: int, per_node: int) -> Cluster:
    """Return a cluster of whole nodes, or one smaller node."""
    if devices < per_node:
        return Cluster(1, devices)
    if devices % per_node:
        near = devices // per_node * per_node
        raise InputError(
            f"simulate: gpus: got {devices} in nodes of {per_node}; allowed: whole nodes, such as {near} or "
            f"{near + per_node}, or another gpus_per_node"
        )
    return Cluster(devices // per_node, per_node)


def _check_numbers(values: Any, where: str) -> list[int]:
    found = values if isinstance(values, list) else [values]
    if not found or any(isinstance(item, bool) or not isinstance(item, int) or item < 1 for item in found):
        shown = "nothing" if values is None else repr(values)
        raise InputError(f"{where}: got {shown}; allowed: a whole number >= 1")
    return found


def _by_number(value: Any) -> Any:
    """Return a table by numbers, which TOML's keys are not, as such."""
    if not isinstance(value, Mapping):
        return value
    return {int(_check_number(key, "[simulate]")): item for key, item in value.items()}


def _check_number(text: str, where: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise InputError(f"{where}: got the key {text!r}; allowed: numbers of devices, such as 2") from None


def _check_table(values: Any, where: str) -> None:
    if not isinstance(values, dict):
        raise InputError(f"{where}: got {values!r}; allowed: a table, its entries below its name in brackets")
