"""`trainwright checkpoint ...`: look at checkpoints, check and compare them, and choose how and when to save."""

from collections.abc import Callable

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
_COMMANDS: dict[Callable[..., None], str] = {
    inspect: "Show what is in a checkpoint, without its tensors.",
    verify: "Compute every checksum again.",
    verify_resume: "Interrupt a training, resume it, compare every step.",
    diff: "Compare two checkpoints, tensor by tensor.",
    convert: "Write a checkpoint in another format.",
    bench: "Measure what saving and restoring a model takes.",
    interval: "How often to save, by every estimator.",
}
for _command, _short in _COMMANDS.items():
    app.command(short_help=_short)(_command)
