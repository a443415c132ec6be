"""`trainwright report DIR` and `export DIR`: the study as one HTML file, and its trials for other tools."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from trainwright.cli.command import Option, Result, StudyFolder, options_of
from trainwright.errors import InputError
from trainwright.integrations.mlflow import export_mlflow
from trainwright.integrations.optuna.journal import export_optuna_journal
from trainwright.integrations.tensorboard import export_tensorboard
from trainwright.integrations.wandb import export_wandb
from trainwright.report import export_csv, export_parquet, write_report
from trainwright.settings import Settings, settings_of

__all__ = ["export", "report"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Sinks(Settings):
    """Where the trials of a study may be written, in this order; each is written by its function in `_SINKS`."""

    optuna_journal: Annotated[Path | None, "a journal that Optuna and optuna-dashboard open"] = None
    tensorboard: Annotated[Path | None, "a log directory of TensorBoard, one run per trial"] = None
    mlflow: Annotated[str | None, "the URI of an MLflow store, one nested run per trial"] = None
    wandb: Annotated[str | None, "a project of Weights & Biases, [ENTITY/]NAME, one run per trial"] = None
    csv: Annotated[Path | None, "a CSV file, one row per trial"] = None
    parquet: Annotated[Path | None, "a Parquet file, one row per trial"] = None


_SINKS: Mapping[str, Callable[[Path, Any], object]] = {
    "optuna_journal": export_optuna_journal,
    "tensorboard": export_tensorboard,
    "mlflow": export_mlflow,
    "wandb": export_wandb,
    "csv": export_csv,
    "parquet": export_parquet,
}
"""All alike: called with the study's folder and a place, they add what is new there."""


@options_of(Sinks)
def export(directory: StudyFolder, *, changes: dict[str, Any]) -> Result:
    """Export the trials of a study for other tools; repeating it adds new ones."""
    if not changes:
        names = ", ".join(f"--{sink.name.replace('_', '-')}" for sink in settings_of(Sinks))
        raise InputError(f"export: no place was given; allowed: one or more of {names}")
    for name, place in changes.items():
        _SINKS[name](directory, place)
    content = {name: str(place) for name, place in changes.items()}
    return Result(content, lambda: print("\n".join(f"{name}: {place}" for name, place in content.items())))


def report(
    directory: StudyFolder,
    *,
    out: Annotated[Path | None, Option(help="The file to write [DIR/report.html].")] = None,
) -> Result:
    """Write the report of a study as one self-contained HTML file."""
    path = write_report(directory, out)
    return Result({"report": str(path), "bytes": path.stat().st_size}, lambda: print(f"report: {path}"))
