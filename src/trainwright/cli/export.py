"""`trainwright report DIR` and `export DIR`: the study as one HTML file, and its trials for other tools."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from trainwright.cli.command import Result, StudyFolder
from trainwright.errors import InputError
from trainwright.integrations.mlflow import export_mlflow
from trainwright.integrations.optuna.journal import export_optuna_journal
from trainwright.integrations.tensorboard import export_tensorboard
from trainwright.report import export_csv, export_importance, export_parquet, write_report

__all__ = ["export", "report"]

_EXPORTS: Mapping[str, Callable[[Path, Any], object]] = {
    "optuna_journal": export_optuna_journal,
    "tensorboard": export_tensorboard,
    "mlflow": export_mlflow,
    "csv": export_csv,
    "parquet": export_parquet,
    "importance": export_importance,
}


def export(
    directory: StudyFolder,
    *,
    optuna_journal: Annotated[
        Path | None, typer.Option(help="A journal that Optuna and optuna-dashboard open.")
    ] = None,
    tensorboard: Annotated[Path | None, typer.Option(help="A log directory of TensorBoard, one run per trial.")] = None,
    mlflow: Annotated[str | None, typer.Option(help="The URI of an MLflow store, one nested run per trial.")] = None,
    csv: Annotated[Path | None, typer.Option(help="A CSV file, one row per trial.")] = None,
    parquet: Annotated[Path | None, typer.Option(help="A Parquet file, one row per trial.")] = None,
    importance: Annotated[Path | None, typer.Option(help="A CSV file of which parameters matter.")] = None,
) -> Result:
    """Write the trials of a study for other tools; to do so again adds what is new."""
    asked = (optuna_journal, tensorboard, mlflow, csv, parquet, importance)
    # In the order in which they are written.
    written = {name: place for name, place in zip(_EXPORTS, asked, strict=True) if place is not None}
    if not written:
        raise InputError(
            "export: no file was asked for; give --optuna-journal FILE, --tensorboard FOLDER, --mlflow URI, "
            "--csv FILE, --parquet FILE or --importance FILE"
        )
    for name, place in written.items():
        _EXPORTS[name](directory, place)
    content = {name: str(place) for name, place in written.items()}
    return Result(content, lambda: print("\n".join(f"{name}: {place}" for name, place in content.items())))


def report(
    directory: StudyFolder,
    *,
    out: Annotated[Path | None, typer.Option(help="The file to write [DIR/report.html].")] = None,
) -> Result:
    """Write the report of a study as one self-contained HTML file."""
    path = write_report(directory, out)
    return Result({"report": str(path), "bytes": path.stat().st_size}, lambda: print(f"report: {path}"))
