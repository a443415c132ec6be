"""`trainwright ...`: its commands, and what their exit status means.

0 done; 1 the work failed; 2 the input was wrong, told in one sentence; 130 interrupted.
"""

import signal
import sys
from collections.abc import Iterable, Mapping
from importlib import import_module
from typing import NoReturn

import click

from trainwright.cli.command import INTERRUPTED, add_command, make_group
from trainwright.errors import InputError, TrainwrightError, closest
from trainwright.signals import LAUNCHER_SIGNALS, raise_interrupt

__all__ = ["COMMANDS", "build_app", "main"]

COMMANDS: Mapping[str, tuple[str, str]] = {
    "run": ("trainwright.cli.run", "Run a study file with all its stages, or resume it."),
    "worker": ("trainwright.cli.worker", "Work on a study from anywhere that sees its ledger."),
    "submit": ("trainwright.cli.submit", "Submit batch jobs that work on a study until it is done."),
    "status": ("trainwright.cli.status", "Show the state of a study, or of one trial."),
    "report": ("trainwright.cli.export", "Write the report of a study as one self-contained HTML file."),
    "figure": ("trainwright.cli.figure", "Draw a figure of a study for a paper."),
    "ui": ("trainwright.cli.ui", "Show studies in a browser as they run."),
    "export": ("trainwright.cli.export", "Write the trials of a study for other tools."),
    "ensemble": ("trainwright.cli.ensemble", "Select an ensemble from the models of a study."),
    "simulate": ("trainwright.cli.simulate", "Forecast a study on a simulated cluster."),
    "demo": ("trainwright.cli.demo", "Search, choose and serve an ensemble of digits in two minutes."),
    "doctor": ("trainwright.cli.doctor", "Check what is installed, and what is missing."),
    "checkpoint": ("trainwright.cli.checkpoint", "Look at checkpoints, verify and compare them."),
    "plan": ("trainwright.cli.plan", "Predict the parallel strategies of a model."),
    "memory": ("trainwright.cli.memory", "Train within a memory budget."),
    "serve": ("trainwright.cli.serve", "Place an ensemble on devices and answer requests."),
}
"""Of each command its module, imported only when needed, and its line in the help."""


def build_app(names: Iterable[str] = COMMANDS) -> click.Group:
    """Return the command line with these commands, whose modules are imported."""
    app = make_group("trainwright", "From hyperparameter search to a served ensemble.", {})
    click.version_option(package_name="trainwright", message="trainwright %(version)s")(app)
    for name in names:
        # Only the modules of the commands asked for are imported: some of them take a second.
        path, short_help = COMMANDS[name]
        module = import_module(path)
        # A command with commands of its own brings them all.
        if hasattr(module, "app"):
            module.app.short_help = short_help
            app.add_command(module.app)
        else:
            add_command(app, getattr(module, name), short_help)
    return app


def main() -> NoReturn:
    """Run the command line and exit with its status."""
    for number in LAUNCHER_SIGNALS:
        # A handler that is not the default was set on purpose, or ignores the signal as nohup does.
        if signal.getsignal(number) == signal.SIG_DFL:  # Python itself handles SIGINT, if it is not ignored
            # A batch system's warning is handled like Ctrl-C.
            signal.signal(number, raise_interrupt)
    # A word that is no command, or none, needs them all: for the help, or to name the nearest.
    named = [word for word in sys.argv[1:2] if word in COMMANDS]
    try:
        status = build_app(named or COMMANDS)(prog_name="trainwright", standalone_mode=False)
    except click.exceptions.NoArgsIsHelpError as error:
        error.show()
        sys.exit(2)
    except click.UsageError as error:
        _exit_failed(_usage_sentence(error), 2)
    except InputError as error:
        _exit_failed(str(error), 2)
    except TrainwrightError as error:
        _exit_failed(str(error), 1)
    except (KeyboardInterrupt, click.Abort):
        _exit_interrupted()
    # A command that was interrupted returns this status when it has saved its work.
    if status == INTERRUPTED:
        _exit_interrupted()
    sys.exit(status or 0)


def _exit_interrupted() -> NoReturn:
    _exit_failed("interrupted; the same command goes on from here", INTERRUPTED)


def _exit_failed(message: str, status: int) -> NoReturn:
    print(f"trainwright: {message}", file=sys.stderr)
    sys.exit(status)


def _usage_sentence(error: click.UsageError) -> str:
    """Return the sentence that tells a usage error of click."""
    said = _join_sentence(error.format_message())
    # An option at the end of the line, without its value.
    if error.ctx is None:
        return said
    command, path = error.ctx.command, error.ctx.command_path
    see = f"see `{path} --help`"
    if isinstance(error, click.NoSuchOption):
        known = [name for param in command.params for name in param.opts if name.startswith("--")] + ["--help"]
        # Dashes are alike in all options, so they say nothing about the nearest.
        bare = closest(error.option_name.strip("-"), [name.strip("-") for name in known])
        near = bare.replace("'", "'--", 1) or f"; allowed: {', '.join(known)}"
        return f"unknown option {error.option_name} of `{path}`{near}; {see}"
    # A missing argument or option: its help says what it is.
    if isinstance(error, click.MissingParameter) and isinstance(error.param, click.Option | click.Argument):
        return f"missing {error.param.opts[0]} of `{path}`: {_join_sentence(error.param.help or '')}; {see}"
    if isinstance(error, click.BadParameter) and error.param is not None:
        return f"{error.param.opts[0]} of `{path}`: {_join_sentence(error.message)}; {see}"
    # A group knows its commands, of which none was named.
    if isinstance(command, click.Group):
        name = said.partition("'")[2].partition("'")[0]
        near = closest(name, command.commands) or f"; allowed: {', '.join(command.commands)}"
        return f"unknown command {name} of `{path}`{near}; {see}"
    return f"`{path}`: {said}; {see}"


def _join_sentence(text: str) -> str:
    """Return a sentence as a part of another: no full stop, and no capital unless a word has more of them."""
    text = text.rstrip(".")
    return text[:1].lower() + text[1:] if text[1:2].islower() or text[1:2] == " " else text
