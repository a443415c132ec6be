"""`trainwright simulate FILE`: what a study would take, under several schedulers, before it is submitted."""

import hashlib
import math
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import Annotated, Any

from trainwright.cli.command import Argument, Option, Result, options_of, print_table
from trainwright.cli.workflow.stage import A_TABLE
from trainwright.cluster import Cluster
from trainwright.engine.simulated.settings import Scaling, Simulated, SimulationLimits
from trainwright.engine.simulated.table import tables
from trainwright.engine.simulated.task import Parametric
from trainwright.errors import InputError
from trainwright.files import read_toml
from trainwright.plugins import describe, make
from trainwright.report.formatting import duration
from trainwright.schedule import Scheduler
from trainwright.settings import refuse_unknown, settings_of
from trainwright.study import Forecast, Study
from trainwright.study.forecast.forecast import Spread, forecasts
from trainwright.validators import check, each, instance_of, integer, number, optional, text

__all__ = ["simulate"]

_OWN = "this file"
_COUNT = integer(minimum=1)
_SCALING = "an exponent such as 0.9, or speed-ups such as {2 = 1.8, 4 = 3}"
_LIMITS = tuple(limit.name for limit in settings_of(SimulationLimits))


@dataclass(frozen=True, kw_only=True)
class SimulateTable(SimulationLimits, error=InputError, label=""):
    """The table [simulate] of a study file, without the settings of the engine that may be in it too."""

    gpus: Annotated[int | list[int] | None, optional(_COUNT | each(_COUNT, least=1)), "devices of the cluster"] = None
    cluster: Annotated[str | None, optional(text()), "instead of gpus, a cluster file; its nodes may differ"] = None
    gpus_per_node: Annotated[int, _COUNT, "devices of a node"] = 8
    seeds: Annotated[int, _COUNT, "how many studies to simulate of each kind"] = 30
    task: Annotated[dict[str, Any], A_TABLE, "what a trial does"] = field(default_factory=dict)
    scaling: Annotated[float | dict[str, float], number() | instance_of(dict, words=_SCALING), "speed by devices"] = (
        field(default_factory=dict)
    )
    schedulers: Annotated[dict[str, Any], A_TABLE, "what is compared"] = field(default_factory=dict)

    def clusters(self, folder: Path) -> list[Cluster]:
        """Return the clusters to simulate; a file is found from `folder` on."""
        if (self.gpus is None) == (self.cluster is None):
            problem = "'gpus' is missing (devices of the cluster)" if self.gpus is None else "got gpus and cluster"
            raise InputError(f"[simulate]: {problem}; give gpus = 64, or a cluster file: cluster = 'nodes.toml'")
        if self.cluster is not None:
            return [Cluster.load(folder / self.cluster)]
        counts = self.gpus if isinstance(self.gpus, list) else [self.gpus or 0]
        return [_make_cluster(devices, self.gpus_per_node) for devices in counts]

    def limits(self) -> dict[str, Any]:
        """Return what ends a study, by name."""
        return {name: value for name in _LIMITS if (value := getattr(self, name)) is not None}


_ENGINE = tuple(each.name for each in settings_of(Simulated) if each.name not in {"cluster", "task", "scaling"})
_CURVES = ("loss", "seconds", "params", "run", "direction", "missing", "epoch_seconds", "speed_jitter")


@options_of(SimulateTable, *_LIMITS, "seeds")
def simulate(
    file: Annotated[Path, Argument(help="A study file (.toml) with a [simulate] table.")],
    *,
    gpus: Annotated[list[int] | None, Option(help="Devices of the cluster; may be repeated.")] = None,
    changes: dict[str, Any],
) -> Result:
    """Forecast time, GPU-hours, use and results of a study on a cluster, with intervals; nothing is trained."""
    content = read_toml(file, "study file", allowed="a study file (.toml) with a [simulate] table")
    where, entries = f"{file}, [simulate]", content.get("simulate", {})
    check(entries, A_TABLE, where)
    refuse_unknown(entries, [*(each.name for each in settings_of(SimulateTable)), *_ENGINE], where)
    # Options override the table, which overrides the study's own number of trials.
    own = {name: value for name, value in entries.items() if name not in _ENGINE}
    trials = {key: value for key, value in content.get("study", {}).items() if key == "trials"}
    table = SimulateTable.from_table({**trials, **own, **changes, **({"gpus": gpus} if gpus else {})}, where)
    schedulers = _make_schedulers(content, table, where)
    settings = {name: entries[name] for name in _ENGINE if name in entries}
    engine = _make_engine(table, settings, file)
    found: dict[int, dict[str, Forecast]] = {}
    for cluster in table.clusters(file.parent):
        devices = cluster.devices
        found[devices] = forecasts(schedulers, engine(cluster), seeds=table.seeds, **table.limits())
        _show_forecasts(devices, table, found[devices])
    forecast_contents = [
        {"gpus": devices, "scheduler": name, **_collect_content(forecast)}
        for devices, item in found.items()
        for name, forecast in item.items()
    ]
    return Result({**table.limits(), "seeds": table.seeds, "forecasts": forecast_contents})


def _collect_content(forecast: Forecast) -> dict[str, Any]:
    values = {field.name: getattr(forecast, field.name) for field in fields(forecast)}
    return {
        "rule": describe("rule", forecast.scheduler.rule),
        "policy": describe("policy", forecast.scheduler.policy),
        **{name: asdict(value) for name, value in values.items() if isinstance(value, Spread)},
        "stalls": forecast.stalls,
        "substitutions": forecast.substitutions,
        "digest": hashlib.sha256("".join(run.digest for run in forecast.runs).encode()).hexdigest(),
    }


def _show_forecasts(devices: int, table: SimulateTable, found: Mapping[str, Forecast]) -> None:
    limits = [
        f"{value} trials" if name == "trials" else f"{name.removesuffix('_seconds')} {duration(value)}"
        for name, value in table.limits().items()
    ]
    studies = f"{devices} GPUs, {', '.join(limits)}; means of {table.seeds} simulated studies"
    print(f"\n{studies}, with 90 % intervals (low - high)\n")
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
                f"{name}: {forecast.stalls} of {table.seeds} studies stalled: trial {stall.trial} waits for "
                f"{stall.wanted} GPUs, there are {stall.devices}"
            )
        if forecast.substitutions:
            print(f"{name}: for {forecast.substitutions} trials of all studies the table had not what was asked")


def _scheduler_name(name: str, forecast: Forecast) -> str:
    """Return the scheduler's name, and the size of a trial where that is all there is to its policy."""
    policy = forecast.scheduler.policy
    size = getattr(policy, "devices", None)
    return name if size is None else f"{name} ({size} GPU{'s' * (size > 1)} a trial)"


def _format_times(spread: Spread) -> str:
    """Return a spread of seconds in the unit that fits its mean."""
    # One study without a whole trial makes the mean infinite.
    if math.isinf(spread.mean):
        return "never" if math.isinf(spread.low) else "not always"
    # A unit is used from two of it on, so that 90 minutes are not 1.5 hours.
    units = (("d", 172_800, 86_400), ("h", 7200, 3600), ("min", 120, 60))
    unit, seconds = next(((name, item) for name, least, item in units if spread.mean >= least), ("s", 1))
    return _format_spread(spread, seconds, f" {unit}")


def _format_spread(spread: Spread, unit: float, name: str) -> str:
    # From 100 of a unit on, a decimal place tells nothing.
    low, mean, high = (
        f"{value / unit:.{0 if value >= 100 * unit else 1}f}" for value in (spread.low, spread.mean, spread.high)
    )
    return f"{mean}{name}" if low == high else f"{mean}{name} ({low} - {high})"


def _make_engine(table: SimulateTable, settings: Mapping[str, Any], path: Path) -> Callable[[Cluster], Simulated]:
    """Return what makes the engine of a cluster: trials are a formula, a table, or those of a study that has begun."""
    where, task = f"{path}, [simulate]", table.task
    scaling = _make_scaling(table.scaling, where)
    if "study" in task:
        refuse_unknown(task, ("study",), f"{where} task")
        with Study.open(path.parent / str(task["study"])) as study:
            measured = study.measured(Cluster(1, 1))
        return lambda cluster: replace(measured, cluster=cluster, scaling=scaling, **settings)
    if "table" in task:
        refuse_unknown(task, ("table", *_CURVES), f"{where} task")
        curves = {key: value for key, value in task.items() if key != "table"}
        made = tables(path.parent / str(task["table"]), **curves)
        return lambda cluster: Simulated(cluster=cluster, task=made, scaling=scaling, **settings)
    refuse_unknown(task, [field.name for field in fields(Parametric)], f"{where} task (or table, study)")
    formula = Parametric(**task)
    return lambda cluster: Simulated(cluster=cluster, task=formula, scaling=scaling, **settings)


def _make_schedulers(content: Mapping[str, Any], table: SimulateTable, where: str) -> dict[str, Scheduler]:
    """Return the file's own rule and policy, and those of [simulate.schedulers], which may name only one of the two."""
    source = {kind: content[kind] for kind in ("rule", "policy") if kind in content}
    if not source and not table.schedulers:
        raise InputError(f"{where}: no scheduler; give a [rule], or [simulate.schedulers.NAME] with rule and policy")
    found = {_OWN: _make_scheduler(source)} if source else {}
    for name, parts in table.schedulers.items():
        check(parts, A_TABLE, f"{where} schedulers.{name}")
        refuse_unknown(parts, ("rule", "policy"), f"{where} schedulers.{name}")
        # A named scheduler inherits what it does not name.
        found[name] = _make_scheduler({**source, **parts})
    return found


def _make_scheduler(parts: Mapping[str, Any]) -> Scheduler:
    for kind, table in parts.items():
        check(table, A_TABLE, f"[{kind}]")
    return Scheduler(**{kind: make(kind, table) for kind, table in parts.items()})


def _make_scaling(speeds: float | Mapping[str, float], where: str) -> Scaling:
    # One number is the exponent of a power law of devices.
    if not isinstance(speeds, Mapping):
        return Scaling(alpha=speeds)
    try:
        return Scaling(curve={float(key): float(value) for key, value in speeds.items()})
    except ValueError:
        raise InputError(f"{where} scaling: got the keys {', '.join(speeds)}; allowed: numbers of devices") from None


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
