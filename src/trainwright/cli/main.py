"""`trainwright ...`: its commands, and what their exit status means.

0 done; 1 the work failed; 2 the input was wrong, told in one sentence; 130 interrupted.
"""

import signal
import sys
from types import FrameType
from typing import NoReturn

import typer

from trainwright.cli import (
    checkpoint,
    doctor,
    ensemble,
    export,
    memory,
    plan,
    report,
    run,
    serve,
    simulate,
    status,
    ui,
    worker,
)
from trainwright.errors import InputError, TrainwrightError

__all__ = ["app", "main"]

_INTERRUPTED = 130

app = typer.Typer(
    name="trainwright",
    help="From hyperparameter search to a served ensemble.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)
app.command()(run.run)
app.command()(worker.worker)
app.command()(status.status)
app.command()(report.report)
app.command()(ui.ui)
app.command()(export.export)
app.command()(ensemble.ensemble)
app.command()(simulate.simulate)
app.command()(doctor.doctor)
app.add_typer(checkpoint.app)
app.add_typer(plan.app)
app.add_typer(memory.app)
app.add_typer(serve.app)


@app.callback()
def _root() -> None:
    """From hyperparameter search to a served ensemble."""


def main() -> NoReturn:
    """Run the command line and exit with its status."""
    signal.signal(signal.SIGTERM, _interrupt)  # a batch system's warning is handled like Ctrl-C
    try:
        app()
    except InputError as error:
        _fail(str(error), 2)
    except TrainwrightError as error:
        _fail(str(error), 1)
    except KeyboardInterrupt:
        _interrupted()
    except SystemExit as end:
        if end.code == _INTERRUPTED:  # what typer makes of a KeyboardInterrupt
            _interrupted()
        raise
    sys.exit(0)


def _interrupt(_number: int, _frame: FrameType | None) -> None:
    raise KeyboardInterrupt


def _interrupted() -> NoReturn:
    _fail("interrupted; the same command goes on from here", _INTERRUPTED)


def _fail(message: str, status: int) -> NoReturn:
    print(f"trainwright: {message}", file=sys.stderr)
    sys.exit(status)
