"""`trainwright export DIR`: the trials for other tools."""

from pathlib import Path
from typing import Annotated

import typer

from trainwright.cli._json import print_json
from trainwright.errors import InputError
from trainwright.integrations.mlflow import MLflowRuns
from trainwright.integrations.optuna.journal import OptunaJournal
from trainwright.integrations.tensorboard import TensorBoardLog
from trainwright.report import export_csv, export_importance, export_parquet
from trainwright.report.finished_trials import Growing
from trainwright.report.finished_trials import follow as keep_up

__all__ = ["export"]


def export(
    directory: Annotated[Path, typer.Argument(help="The study's directory.")],
    *,
    optuna_journal: Annotated[
        Path | None, typer.Option("--optuna-journal", help="A journal that Optuna and optuna-dashboard open.")
    ] = None,
    tensorboard: Annotated[
        Path | None, typer.Option("--tensorboard", help="A log directory of TensorBoard, one run per trial.")
    ] = None,
    mlflow: Annotated[
        str | None, typer.Option("--mlflow", help="The URI of an MLflow store, one nested run per trial.")
    ] = None,
    csv: Annotated[Path | None, typer.Option("--csv", help="A CSV file, one row per trial.")] = None,
    parquet: Annotated[Path | None, typer.Option("--parquet", help="A Parquet file, one row per trial.")] = None,
    importance: Annotated[
        Path | None, typer.Option("--importance", help="A CSV file of which parameters matter.")
    ] = None,
    last: Annotated[int | None, typer.Option("--last", help="Only so many of the trials, the last ones.")] = None,
    follow: Annotated[
        bool, typer.Option("--follow", help="Go on as trials end, until the study is done or Ctrl-C.")
    ] = False,
    json: Annotated[bool, typer.Option("--json", help="End with one line of JSON.")] = False,
) -> None:
    """Write the trials of a study for other tools; to do so again adds what is new."""
    tables = {
        "csv": (export_csv, csv),
        "parquet": (export_parquet, parquet),
        "importance": (export_importance, importance),
    }
    tables = {name: item for name, item in tables.items() if item[1] is not None}
    wanted = {"optuna_journal": optuna_journal, "tensorboard": tensorboard, "mlflow": mlflow, "csv": csv}
    wanted |= {"parquet": parquet, "importance": importance}
    written = {name: str(place) for name, place in wanted.items() if place is not None}
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
    for write, path in tables.values():
        if path is not None:
            write(directory, path)
    if follow:
        try:
            keep_up(growing)
        except KeyboardInterrupt:  # the usual end
            print()
    if json:
        print_json(written)
    else:
        for name, place in written.items():
            print(f"{name}: {place}")
