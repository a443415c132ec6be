"""`trainwright export DIR`: the trials for other tools."""

from pathlib import Path
from typing import Annotated

import typer

from trainwright.cli._json import print_json
from trainwright.errors import InputError

__all__ = ["export"]


def export(
    directory: Annotated[Path, typer.Argument(help="The study's directory.")],
    *,
    optuna_journal: Annotated[
        Path | None, typer.Option("--optuna-journal", help="A journal that Optuna and optuna-dashboard open.")
    ] = None,
    csv: Annotated[Path | None, typer.Option("--csv", help="A CSV file, one row per trial.")] = None,
    parquet: Annotated[Path | None, typer.Option("--parquet", help="A Parquet file, one row per trial.")] = None,
    json: Annotated[bool, typer.Option("--json", help="End with one line of JSON.")] = False,
) -> None:
    """Write the trials of a study to one or more files."""
    from trainwright.report import export_csv, export_optuna_journal, export_parquet

    wanted = {
        "optuna_journal": (export_optuna_journal, optuna_journal),
        "csv": (export_csv, csv),
        "parquet": (export_parquet, parquet),
    }
    if not any(path for _, path in wanted.values()):
        raise InputError("export: no file was asked for; give --optuna-journal FILE, --csv FILE or --parquet FILE")
    written = {name: str(write(directory, path)) for name, (write, path) in wanted.items() if path is not None}
    if json:
        print_json(written)
    else:
        for name, path in written.items():
            print(f"{name}: {path}")
