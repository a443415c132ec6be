"""What every command shares: its result as one JSON object in the last line, its exit status, groups of commands."""

import inspect
import json as json_module
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import wraps
from typing import Annotated, Any

import typer

from trainwright.strict_json import plain

__all__ = ["INTERRUPTED", "Command", "Result", "add_command", "make_group", "set_parameters"]

INTERRUPTED = 130
"""Exit status of a command that a signal or the end of its time has ended; to run it again continues."""

_Json = Annotated[bool, typer.Option("--json", help="End with one line of JSON.")]


@dataclass(frozen=True, slots=True)
class Result:
    """What a command came to, and its exit status; `show`, if any, prints it where no JSON is asked for."""

    content: Mapping[str, Any]
    show: Callable[[], None] | None = None
    status: int = 0


Command = Callable[..., Result | None]


def add_command(app: typer.Typer, command: Command, short_help: str) -> None:
    """Add a command to an application; one that returns a result gets the option --json."""
    if inspect.signature(command).return_annotation is not None:
        command = _end_with_json(command)
    app.command(short_help=short_help)(command)


def make_group(name: str, help_text: str, commands: Mapping[Command, str], **settings: Any) -> typer.Typer:
    """Return a command with commands of its own, each with its line in the help."""
    app = typer.Typer(name=name, help=help_text, no_args_is_help=True, rich_markup_mode=None, **settings)
    for command, short_help in commands.items():
        add_command(app, command, short_help)
    return app


def set_parameters(command: Callable[..., Any], parameters: Sequence[inspect.Parameter]) -> None:
    """Give a function the parameters that typer makes a command's arguments and options of."""
    # typer reads both: the order and defaults from the signature, the types from the annotations.
    returned = inspect.signature(command).return_annotation
    command.__signature__ = inspect.Signature(parameters, return_annotation=returned)  # type: ignore[attr-defined]
    command.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    del command.__wrapped__  # type: ignore[attr-defined]


def _end_with_json(command: Command) -> Command:
    @wraps(command)
    def run(*, json: bool, **options: Any) -> None:
        result = command(**options)
        # Another process of the same command has the result.
        if result is None:
            return
        if json:
            # NaN and infinities become null, for JSON has none.
            print(json_module.dumps(plain(result.content), default=str))
        elif result.show is not None:
            result.show()
        if result.status:
            raise typer.Exit(result.status)

    # The last option of every command that has a result.
    option = inspect.Parameter("json", inspect.Parameter.KEYWORD_ONLY, default=False, annotation=_Json)
    set_parameters(run, [*inspect.signature(command, eval_str=True).parameters.values(), option])
    return run
