"""`trainwright serve ...`: place an ensemble on devices, answer requests with it, and load it."""

from trainwright.cli._serve_allocate import allocate
from trainwright.cli._serve_load import load
from trainwright.cli._serve_run import run
from trainwright.cli.command import make_group

__all__ = ["app"]

app = make_group(
    "serve",
    "Place an ensemble on devices, answer requests with it, and load it.",
    {
        allocate: "Find which member runs where, with which batch size.",
        run: "Serve an ensemble over HTTP (Open Inference Protocol).",
        load: "Send requests at times drawn beforehand, and measure.",
    },
)
