"""`trainwright serve ...`: place an ensemble on devices, answer requests with it, and load it."""

from collections.abc import Callable

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
_COMMANDS: dict[Callable[..., None], str] = {
    allocate: "Find which member runs where, with which batch size.",
    run: "Serve an ensemble over HTTP (Open Inference Protocol).",
    load: "Send requests at times drawn beforehand, and measure.",
}
for _command, _short in _COMMANDS.items():
    app.command(short_help=_short)(_command)
