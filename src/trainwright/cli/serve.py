"""`trainwright serve ...`: place an ensemble on devices, answer requests with it, and load it."""

import typer

from trainwright.cli._serve_allocate import allocate
from trainwright.cli._serve_load import load
from trainwright.cli._serve_run import run

__all__ = ["app"]

app = typer.Typer(
    name="serve",
    help="Place an ensemble on devices, answer requests with it, and load it.",
    no_args_is_help=True,
    rich_markup_mode=None,
)
for _command in (allocate, run, load):
    app.command()(_command)
