"""`trainwright report DIR` and `export DIR`: the study as one HTML file, and its trials for other tools."""

from pathlib import Path
from typing import Annotated

import typer

from trainwright.cli.command import Result, StudyFolder
from trainwright.errors import InputError
from trainwright.integrations.mlflow import MLflowRuns
from trainwright.integrations.optuna.journal import OptunaJournal
from trainwright.integrations.tensorboard import TensorBoardLog
from trainwright.report import export_csv, export_importance, export_parquet, write_report
from trainwright.report.finished_trials import Growing
from trainwright.report.finished_trials import follow as keep_up

__all__ = ["export", "report"]

_TABLES = {"csv": export_csv, "parquet": export_parquet, "importance": export_importance}


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
    last: Annotated[int | None, typer.Option(help="Only so many of the trials, the last ones.")] = None,
    follow: Annotated[
        bool, typer.Option("--follow", help="Go on as trials end, until the study is done or Ctrl-C.")
    ] = False,
) -> Result:
    """Write the trials of a study for other tools; to do so again adds what is new."""
    asked = {"csv": csv, "parquet": parquet, "importance": importance}
    tables = {name: path for name, path in asked.items() if path is not None}
    logs = {"optuna_journal": optuna_journal, "tensorboard": tensorboard, "mlflow": mlflow}
    # In the order in which they are written.
    written = {name: str(place) for name, place in {**logs, **tables}.items() if place is not None}
    if not written:
        raise InputError(
            "export: no file was asked for; give --optuna-journal FILE, --tensorboard FOLDER, --mlflow URI, "
            "--csv FILE, --parquet FILE or --importance FILE"
        )
    # Tables are written whole, so they can neither grow nor start in the middle.
    if tables and (follow or last is not None):
        option = "--follow" if follow else "--last"
        raise InputError(f"export: {option} is not for tables, which are written as a whole; leave --{min(tables)} out")
    growing: list[Growing] = []
    if optuna_journal is not None:
        growing.append(OptunaJournal(directory, optuna_journal, last=last, follow=follow))
    if tensorboard is not None:
        growing.append(TensorBoardLog(directory, tensorboard, last=last))
    if mlflow is not None:
        growing.append(MLflowRuns(directory, mlflow, last=last))
    for name, path in tables.items():
        _TABLES[name](directory, path)
    if follow:
        try:
            keep_up(growing)
        except KeyboardInterrupt:
            # The usual end of following.
            print()
    return Result(written, lambda: print("\n".join(f"{name}: {place}" for name, place in written.items())))


def report(
    directory: StudyFolder,
    *,
    out: Annotated[Path | None, typer.Option(help="The file to write [DIR/report.html].")] = None,
) -> Result:
    """Write the report of a study as one self-contained HTML file."""
    path = write_report(directory, out)
    return Result({"report": str(path), "bytes": path.stat().st_size}, lambda: print(f"report: {path}"))
