"""`trainwright report DIR`: the study as one HTML file."""

from pathlib import Path
from typing import Annotated

import typer

from trainwright.cli._json import print_json
from trainwright.report import write_report

__all__ = ["report"]


def report(
    directory: Annotated[Path, typer.Argument(help="The study's directory.")],
    *,
    out: Annotated[Path | None, typer.Option("--out", help="The file to write [DIR/report.html].")] = None,
    json: Annotated[bool, typer.Option("--json", help="End with one line of JSON.")] = False,
) -> None:
    """Write the report of a study as one self-contained HTML file."""
    path = write_report(directory, out)
    if json:
        print_json({"report": str(path), "bytes": path.stat().st_size})
    else:
        print(f"report: {path}")
