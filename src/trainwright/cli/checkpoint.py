"""`trainwright checkpoint ...`: look at checkpoints, check and compare them, and choose how and when to save."""

import typer

from trainwright.cli._checkpoint_costs import bench, interval
from trainwright.cli._checkpoint_files import convert, diff, inspect, verify
from trainwright.cli._checkpoint_proof import verify_resume

__all__ = ["app"]

app = typer.Typer(
    name="checkpoint",
    help="Look at checkpoints, check and compare them; when to save, and what it costs.",
    no_args_is_help=True,
    rich_markup_mode=None,
)
for _command in (inspect, verify, verify_resume, diff, convert, bench, interval):
    app.command()(_command)
