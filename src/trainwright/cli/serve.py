"""`trainwright serve ...`: place an ensemble on devices."""

import typer

from trainwright.cli._serve_allocate import allocate

__all__ = ["app"]

app = typer.Typer(
    name="serve",
    help="Place an ensemble on devices, answer requests with it, and load it.",
    no_args_is_help=True,
    rich_markup_mode=None,
)
for _command in (allocate,):
    app.command()(_command)
