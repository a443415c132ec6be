"""`trainwright simulate FILE`: what a study would take, under several schedulers, before it is submitted."""

import hashlib
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Annotated, Any

import typer

from trainwright.cli.command import Result
from trainwright.cli.formatting import print_table
from trainwright.cluster import Cluster
from trainwright.engine.simulated.settings import Scaling, Simulated
from trainwright.engine.simulated.table import tables
from trainwright.engine.simulated.task import Parametric, Task
from trainwright.errors import InputError
from trainwright.files import read_toml
from trainwright.plugins import describe, make
from trainwright.report.files import target
from trainwright.report.html import write_simulated_page
from trainwright.schedule import Scheduler
from trainwright.settings import Settings, refuse_unknown, settings_of
from trainwright.study import Forecast, Study
from trainwright.study.forecast.forecast import Spread, forecasts
from trainwright.validators import check, each, instance_of, integer, number

__all__ = ["simulate"]

_OWN = "this file"
_A_TABLE = instance_of(dict, words="a table, its entries below its name in brackets")
_COUNT = integer(minimum=1)
_SCALING = "an exponent such as 0.9, or speed-ups such as {2 = 1.8, 4 = 3}"


@dataclass(frozen=True, kw_only=True)
class SimulateTable(Settings, label=""):
    """The table [simulate] of a study file, without the settings of the engine that may be in it too."""

    gpus: Annotated[int | list[int], _COUNT | each(_COUNT, least=1), "devices of the cluster"]
    gpus_per_node: Annotated[int, _COUNT, "devices of a node"] = 8
    trials: Annotated[int, _COUNT, "trials of the study"]
    seeds: Annotated[int, _COUNT, "how many studies to simulate of each kind"] = 30
    task: Annotated[dict[str, Any], _A_TABLE, "what a trial does"] = field(default_factory=dict)
    scaling: Annotated[float | dict[str, float], number() | instance_of(dict, words=_SCALING), "speed by devices"] = (
        field(default_factory=dict)
    )
    schedulers: Annotated[dict[str, Any], _A_TABLE, "what is compared"] = field(default_factory=dict)


_ENGINE = tuple(each.name for each in settings_of(Simulated) if each.name not in {"cluster", "task", "scaling"})
_CURVES = ("loss", "seconds", "params", "run", "direction", "missing", "epoch_seconds", "speed_jitter")


@dataclass(frozen=True, kw_only=True)
class _Plan:
    """What to simulate: schedulers by name, on clusters of these numbers of devices."""

    gpus: tuple[int, ...]
    schedulers: Mapping[str, Scheduler]
    trials: int
    seeds: int
    engine: Callable[[int], Simulated]
    """Returns the engine of so many devices."""


def simulate(
    file: Annotated[Path, typer.Argument(help="A study file (.toml) with a [simulate] table.")],
    *,
    gpus: Annotated[list[int] | None, typer.Option(help="Devices of the cluster; may be repeated.")] = None,
    trials: Annotated[int | None, typer.Option(help="Trials of the study.")] = None,
    seeds: Annotated[int | None, typer.Option(help="How many studies to simulate of each kind.")] = None,
    gantt: Annotated[Path | None, typer.Option(help="Draw who held which device when, as .html.")] = None,
) -> Result:
    """Forecast time, GPU-hours, use and results of a study on a cluster, with intervals; nothing is trained."""
    if gantt is not None:
        target(gantt.parent, gantt, (".html",))
    plan = _read_plan(file, gpus=gpus, trials=trials, seeds=seeds)
    found: dict[int, dict[str, Forecast]] = {}
    for devices in plan.gpus:
        found[devices] = forecasts(
            plan.schedulers,
            plan.engine(devices),
            trials=plan.trials,
            seeds=plan.seeds,
            gantt=gantt is not None,
        )
        _show_forecasts(devices, plan.trials, plan.seeds, found[devices])
    if gantt is not None:
        # One simulated study of each kind is drawn: the first seed stands for the others.
        panels = {
            (name if len(plan.gpus) == 1 else f"{name}, {devices} GPUs"): (devices, forecast.runs[0])
            for devices, item in found.items()
            for name, forecast in item.items()
        }
        write_simulated_page(panels, gantt)
        print(f"gantt: {gantt}")
    content = [
        {"gpus": devices, "scheduler": name, **_collect_content(forecast)}
        for devices, item in found.items()
        for name, forecast in item.items()
    ]
    return Result({"trials": plan.trials, "seeds": plan.seeds, "forecasts": content})


_SPREADS = (
    "makespan_seconds", "gpu_hours", "utilisation", "first_full_seconds", "full", "best_loss", "resizes", "failed",
)  # fmt: skip


def _collect_content(forecast: "Forecast") -> dict[str, Any]:
    spreads = {name: getattr(forecast, name) for name in _SPREADS}
    return {
        "rule": describe("rule", forecast.scheduler.rule),
        "policy": describe("policy", forecast.scheduler.policy),
        **{name: {"mean": item.mean, "low": item.low, "high": item.high} for name, item in spreads.items()},
        "stalls": forecast.stalls,
        "substitutions": forecast.substitutions,
        "digest": hashlib.sha256("".join(run.digest for run in forecast.runs).encode()).hexdigest(),
    }


def _show_forecasts(devices: int, trials: int, seeds: int, found: "dict[str, Forecast]") -> None:
    print(
        f"\n{devices} GPUs, {trials} trials; means of {seeds} simulated studies, nine of ten lie between (low - high)\n"
    )
    header = ("scheduler", "makespan", "GPU-hours", "busy", "first full", "full", "best loss", "resizes")
    rows = [
        (
            _scheduler_name(name, forecast),
            _format_times(forecast.makespan_seconds),
            _format_spread(forecast.gpu_hours, 1.0, ""),
            f"{100 * forecast.utilisation.mean:.0f} %",
            _format_times(forecast.first_full_seconds),
            f"{forecast.full.mean:.1f}",
            f"{forecast.best_loss.mean:.4g}",
            f"{forecast.resizes.mean:.0f}",
        )
        for name, forecast in found.items()
    ]
    print_table(header, rows)
    for name, forecast in found.items():
        stalled = next((run for run in forecast.runs if run.stalled), None)
        if stalled is not None:
            stall = stalled.stalled[0]
            print(
                f"{name}: {forecast.stalls} of {seeds} studies stalled: trial {stall.trial} waits for "
                f"{stall.wanted} GPUs, there are {stall.devices}"
            )
        if forecast.substitutions:
            print(f"{name}: for {forecast.substitutions} trials of all studies the table had not what was asked")


def _scheduler_name(name: str, forecast: "Forecast") -> str:
    """Return the scheduler's name, and the size of a trial where that is all there is to its policy."""
    policy = forecast.scheduler.policy
    size = getattr(policy, "devices", None)
    return name if size is None else f"{name} ({size} GPU{'s' * (size > 1)} a trial)"


def _format_times(spread: "Spread") -> str:
    """Return a spread of seconds in the unit that fits its mean."""
    # One study without a whole trial makes the mean infinite.
    if math.isinf(spread.mean):
        return "never" if math.isinf(spread.low) else "not always"
    # A unit is used from two of it on, so that 90 minutes are not 1.5 hours.
    units = (("d", 172_800, 86_400), ("h", 7200, 3600), ("min", 120, 60))
    unit, seconds = next(((name, item) for name, least, item in units if spread.mean >= least), ("s", 1))
    return _format_spread(spread, seconds, f" {unit}")


def _format_spread(spread: "Spread", unit: float, name: str) -> str:
    # From 100 of a unit on, a decimal place tells nothing.
    low, mean, high = (
        f"{value / unit:.{0 if value >= 100 * unit else 1}f}" for value in (spread.low, spread.mean, spread.high)
    )
    return f"{mean}{name}" if low == high else f"{mean}{name} ({low} - {high})"


def _read_plan(path: Path, **changes: Any) -> _Plan:
    """Return what a study file's [simulate] asks for; `changes` that are not None override its entries."""
    content = read_toml(path, "study file", allowed="a study file (.toml) with a [simulate] table")
    where = f"{path}, [simulate]"
    entries = content.get("simulate", {})
    check(entries, _A_TABLE, where)
    refuse_unknown(entries, [*(each.name for each in settings_of(SimulateTable)), *_ENGINE], where)
    known = {name: content["study"][name] for name in ("trials",) if name in content.get("study", {})}
    known |= {name: value for name, value in entries.items() if name not in _ENGINE}
    known |= {name: value for name, value in changes.items() if value is not None}
    table = SimulateTable.from_table(known, where)
    settings = {name: _by_number(entries[name]) for name in _ENGINE if name in entries}
    settings["scaling"] = _make_scaling(table.scaling, where)
    # The curves of a study that has begun, or a formula or table.
    source = _study_of(table.task, path, where)
    task = None if source is not None else _make_task(table.task, path, where)

    def engine(devices: int) -> Simulated:
        cluster = _make_cluster(devices, table.gpus_per_node)
        if source is None:
            return Simulated(cluster=cluster, task=task or Parametric(), **settings)
        with Study.open(source) as study:
            return replace(study.measured(cluster), **settings)

    return _Plan(
        gpus=(table.gpus,) if isinstance(table.gpus, int) else tuple(table.gpus),
        schedulers=_make_schedulers(content, table, where),
        trials=table.trials,
        seeds=table.seeds,
        engine=engine,
    )


def _make_schedulers(content: Mapping[str, Any], table: SimulateTable, where: str) -> dict[str, Scheduler]:
    """Return the file's own rule and policy, and those of [simulate.schedulers], which may name only one of the two."""
    source = {kind: content[kind] for kind in ("rule", "policy") if kind in content}
    if not source and not table.schedulers:
        raise InputError(f"{where}: no scheduler; give a [rule], or [simulate.schedulers.NAME] with rule and policy")
    found = {_OWN: _make_scheduler(source)} if source else {}
    for name, parts in table.schedulers.items():
        check(parts, _A_TABLE, f"{where} schedulers.{name}")
        refuse_unknown(parts, ("rule", "policy"), f"{where} schedulers.{name}")
        # A named scheduler inherits what it does not name.
        found[name] = _make_scheduler({**source, **parts})
    return found


def _make_scheduler(parts: Mapping[str, Any]) -> Scheduler:
    for kind, table in parts.items():
        check(table, _A_TABLE, f"[{kind}]")
    return Scheduler(**{kind: make(kind, table) for kind, table in parts.items()})


def _make_scaling(speeds: float | Mapping[str, float], where: str) -> Scaling:
    # One number is the exponent of a power law of devices.
    if not isinstance(speeds, Mapping):
        return Scaling(alpha=speeds)
    return Scaling(curve={_read_number(key, f"{where} scaling"): float(value) for key, value in speeds.items()})


def _study_of(task: Mapping[str, Any], path: Path, where: str) -> Path | None:
    if "study" not in task:
        return None
    refuse_unknown(task, ("study",), f"{where} task")
    return path.parent / str(task["study"])


def _make_task(values: Mapping[str, Any], path: Path, where: str) -> Task:
    if "table" in values:
        refuse_unknown(values, ("table", *_CURVES), f"{where} task")
        return tables(path.parent / str(values["table"]), **{key: values[key] for key in _CURVES if key in values})
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


def _by_number(value: Any) -> Any:
    """Return a table by numbers, which TOML's keys are not, as such."""
    if not isinstance(value, Mapping):
        return value
    return {int(_read_number(key, "[simulate]")): item for key, item in value.items()}


def _read_number(text: str, where: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise InputError(f"{where}: got the key {text!r}; allowed: numbers of devices, such as 2") from None
