"""`trainwright report DIR`: the study as one HTML file."""

from pathlib import Path
from typing import Annotated

import typer

from trainwright.cli.command import Result
from trainwright.cli.options import StudyFolder
from trainwright.report import write_report

__all__ = ["report"]


def report(
    directory: StudyFolder,
    *,
    out: Annotated[Path | None, typer.Option(help="The file to write [DIR/report.html].")] = None,
) -> Result:
    """Write the report of a study as one self-contained HTML file."""
    path = write_report(directory, out)
    return Result({"report": str(path), "bytes": path.stat().st_size}, lambda: print(f"report: {path}"))
