"""`trainwright ...`: its commands, and what their exit status means.

0 done; 1 the work failed; 2 the input was wrong, told in one sentence; 130 interrupted.
"""

import signal
import sys
from typing import Annotated, NoReturn

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
from trainwright.cli._usage import UsageError, sentence
from trainwright.errors import InputError, TrainwrightError
from trainwright.signals import LAUNCHER_SIGNALS, raise_interrupt

__all__ = ["app", "main"]

_INTERRUPTED = 130

app = typer.Typer(
    name="trainwright",
    help="From hyperparameter search to a served ensemble.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.command(short_help="Run a study file, all its stages, or go on with it.")(run.run)
app.command(short_help="Work on a study from anywhere that sees its ledger.")(worker.worker)
app.command(short_help="Show how a study stands, or what became of a trial.")(status.status)
app.command()(report.report)
app.command(short_help="Show studies in a browser as they run.")(ui.ui)
app.command(short_help="Write the trials of a study for other tools.")(export.export)
app.command(short_help="Select an ensemble from the models of a study.")(ensemble.ensemble)
app.command(short_help="Forecast a study on a cluster that is simulated.")(simulate.simulate)
app.command(short_help="Tell what is installed and here, and what is missing.")(doctor.doctor)
app.add_typer(checkpoint.app, short_help="Look at checkpoints, verify and compare them.")
app.add_typer(plan.app, short_help="Predict the parallel strategies of a model.")
app.add_typer(memory.app, short_help="Train within a memory budget.")
app.add_typer(serve.app, short_help="Place an ensemble on devices and answer requests.")


def _show_version(asked: bool) -> None:
    if asked:
        from trainwright import __version__

        print(f"trainwright {__version__}")
        raise typer.Exit


@app.callback()
def _root(
    *,
    version: Annotated[
        bool, typer.Option("--version", help="Show the version and exit.", callback=_show_version, is_eager=True)
    ] = False,
) -> None:
    """From hyperparameter search to a served ensemble."""


def main() -> NoReturn:
    """Run the command line and exit with its status."""
    for number in LAUNCHER_SIGNALS:
        if signal.getsignal(number) == signal.SIG_DFL:  # Python itself handles SIGINT, if it is not ignored
            signal.signal(number, raise_interrupt)  # a batch system's warning is handled like Ctrl-C
    try:
        status = app(prog_name="trainwright", standalone_mode=False)
    except UsageError as error:
        if error.ctx is not None and error.message == error.ctx.get_help():  # a command that was given nothing
            error.show()
            sys.exit(2)
        _fail(sentence(error), 2)
    except InputError as error:
        _fail(str(error), 2)
    except TrainwrightError as error:
        _fail(str(error), 1)
    except (KeyboardInterrupt, typer.Abort):
        _interrupted()
    if status == _INTERRUPTED:  # what typer makes of a KeyboardInterrupt
        _interrupted()
    sys.exit(status or 0)


def _interrupted() -> NoReturn:
    _fail("interrupted; the same command goes on from here", _INTERRUPTED)


def _fail(message: str, status: int) -> NoReturn:
    print(f"trainwright: {message}", file=sys.stderr)
    sys.exit(status)
