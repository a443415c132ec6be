"""What every command shares: its result as text or JSON, its exit status, its options, and tables in a terminal.

Options are made from the fields of a settings class:

    @options_of(EnsembleSettings)
    def ensemble(directory: Annotated[Path, Argument(...)], *, changes: dict[str, Any]) -> Result:

The command gets the options that were given on the command line, by field name, as `changes`.
"""

import inspect
import json as json_module
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import KW_ONLY, MISSING, dataclass
from functools import wraps
from pathlib import Path
from typing import Annotated, Any, get_args, get_origin

import click

from trainwright.errors import InputError
from trainwright.files import plain
from trainwright.settings import Setting, settings_of

__all__ = [
    "INTERRUPTED",
    "Argument",
    "ClusterName",
    "Command",
    "EnsembleFolder",
    "Nodes",
    "Option",
    "OrderedGroup",
    "PlanFile",
    "Result",
    "StudyFolder",
    "TokenFile",
    "add_command",
    "make_group",
    "options_of",
    "print_rows",
    "print_table",
    "seconds",
    "shorten",
    "shorten_list",
    "size",
]

INTERRUPTED = 130
"""Exit status of a command that a signal or the end of its time has ended; to run it again continues."""


@dataclass(frozen=True, slots=True)
class Argument:
    """Annotates a command's positional parameter: what it is for, and its name in the help, if not the parameter's."""

    help: str
    metavar: str | None = None


@dataclass(frozen=True, slots=True)
class Option:
    """Annotates a command's option: its name on the command line, if not the parameter's own, and what it is for.

    `minimum` is the least number that is allowed.
    """

    name: str | None = None
    _: KW_ONLY
    help: str
    minimum: float | None = None


_Json = Annotated[bool, Option("--json", help="End with one line of JSON.")]

StudyFolder = Annotated[Path, Argument(help="The study's directory.")]
EnsembleFolder = Annotated[Path, Argument(help="A folder that Ensemble.save wrote.")]
ClusterName = Annotated[str, Option("--cluster", help="A preset's name, or a .toml file.")]
Nodes = Annotated[int | None, Option(help="So many nodes of it.")]
PlanFile = Annotated[Path | None, Option("--out", help="Write the plan to this file.")]
TokenFile = Annotated[Path | None, Option(help="Holds the token; chmod 600.")]


@dataclass(frozen=True, slots=True)
class Result:
    """What a command came to, and its exit status; `show`, if any, prints it where no JSON is asked for."""

    content: Mapping[str, Any]
    show: Callable[[], None] | None = None
    status: int = 0


Command = Callable[..., Result | None]


class OrderedGroup(click.Group):
    """A group whose help lists its commands in the order in which they were added."""

    def list_commands(self, _context: click.Context) -> list[str]:
        """Return the names of the commands."""
        return list(self.commands)


def add_command(app: click.Group, command: Command, short_help: str) -> None:
    """Add a command to an application; one that returns a result gets the option --json."""
    if inspect.signature(command).return_annotation is not None:
        command = _end_with_json(command)
    name = command.__name__.replace("_", "-")
    parameters = [_make_click(each) for each in inspect.signature(command, eval_str=True).parameters.values()]
    app.add_command(
        click.Command(name, callback=command, params=parameters, help=inspect.getdoc(command), short_help=short_help)
    )


def make_group(
    name: str, help_text: str, commands: Mapping[Command, str], kind: type[click.Group] = OrderedGroup
) -> click.Group:
    """Return a command with commands of its own, each with its line in the help."""
    help_options = {"help_option_names": ["-h", "--help"]}
    app = kind(name, help=help_text, no_args_is_help=True, context_settings=help_options)
    for command, short_help in commands.items():
        add_command(app, command, short_help)
    return app


_CLICK_TYPES = {Path: click.Path(path_type=Path), int: click.INT, float: click.FLOAT, str: click.STRING}


def _make_click(parameter: inspect.Parameter) -> click.Parameter:
    """Return what click reads from the command line for one parameter of a command."""
    described, made = get_args(parameter.annotation)
    # `int | None` is read as int, and `list[int]` as several.
    kind = next(each for each in (*get_args(described), described) if each is not type(None))
    several = get_origin(described) is list or get_origin(kind) is list
    kind = get_args(kind)[0] if get_origin(kind) is list else kind
    settings: dict[str, Any] = {"help": made.help}
    # click has a mark of its own for what has no default.
    if parameter.default is not inspect.Parameter.empty and not several:
        settings["default"] = parameter.default
    if several:
        # click collects several values in a tuple, which is empty where none was given.
        settings["callback"] = lambda _context, _parameter, values: list(values) or None
    required = parameter.default is inspect.Parameter.empty
    if isinstance(made, Argument):
        settings |= {"nargs": -1 if several else 1, "required": required, "type": _CLICK_TYPES[kind]}
        return click.Argument([parameter.name], metavar=made.metavar, **settings)
    names = [parameter.name, made.name or f"--{parameter.name.replace('_', '-')}"]
    if kind is bool:
        return click.Option(names, is_flag=True, **settings)
    if made.minimum is not None:
        ranges = {int: click.IntRange, float: click.FloatRange}
        return click.Option(names, type=ranges[kind](min=made.minimum), required=required, **settings)
    return click.Option(names, type=_CLICK_TYPES[kind], required=required, multiple=several, **settings)


def _set_parameters(command: Callable[..., Any], parameters: Sequence[inspect.Parameter]) -> None:
    """Give a function the parameters that a command's arguments and options are made of."""
    returned = inspect.signature(command).return_annotation
    command.__signature__ = inspect.Signature(parameters, return_annotation=returned)  # type: ignore[attr-defined]
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
            raise click.exceptions.Exit(result.status)

    # The last option of every command that has a result.
    option = inspect.Parameter("json", inspect.Parameter.KEYWORD_ONLY, default=False, annotation=_Json)
    _set_parameters(run, [*inspect.signature(command, eval_str=True).parameters.values(), option])
    return run


def options_of(settings: type, *only: str, takes: str = "changes", **names: str) -> Callable[[Command], Command]:
    """Return a decorator that puts a settings class's options in the place of a command's parameter `takes`.

    An option is called as its field with dashes, unless `names` has other words for the field, such as
    "--keep/--drop"; `only` names the fields to take, all if none. Not given, an option is not in that parameter,
    whatever the field's default.
    """
    fields = [field for field in settings_of(settings) if not only or field.name in only]

    def decorate(command: Command) -> Command:
        @wraps(command)
        def run(**options: Any) -> Any:
            # None means that the option was not given: the command then keeps the stored or default
            # value.
            changes = {field.name: options.pop(field.name) for field in fields}
            given = {name: value for name, value in changes.items() if value is not None}
            return command(**options, **{takes: given})

        parameters: list[inspect.Parameter] = []
        for parameter in inspect.signature(command, eval_str=True).parameters.values():
            # The options stand where the command has that parameter, so that the help keeps its order.
            if parameter.name == takes:
                parameters.extend(_make_parameter(field, names.get(field.name)) for field in fields)
            else:
                parameters.append(parameter)
        _set_parameters(run, parameters)
        return run

    return decorate


def _make_parameter(field: Setting, words: str | None) -> inspect.Parameter:
    # `int | None` becomes an option of int; whether it was given says the rest.
    kinds = [kind for kind in get_args(field.type) if kind is not type(None)] or [field.type]
    default = "" if field.default in (None, False, MISSING) else f" [{field.default}]"
    help_text = f"{field.help[:1].upper()}{field.help[1:]}{default}."
    option = Option(words or f"--{field.name.replace('_', '-')}", help=help_text)
    annotation: Any = Annotated[kinds[0] | None, option]
    return inspect.Parameter(field.name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=annotation)


_UNITS = {"": 1.0, "ms": 1e-3, "s": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0, "d": 86_400.0}


def seconds(option: str, text: str) -> float:
    """Return the seconds that "90", "90s", "15m", "1.5h" or "2d" mean; `option` is for the error's sentence."""
    found = re.fullmatch(r"(\d+\.?\d*(?:e[+-]?\d+)?|\.\d+)\s*([a-z]*)", text.strip().lower())
    if found is None or found[2] not in _UNITS:
        raise InputError(f"{option}: got {text!r}; allowed: a time such as 90, 90s, 15m, 1.5h or 2d")
    return float(found[1]) * _UNITS[found[2]]


def size(count: float) -> str:
    """Return a number of bytes in decimal units: 999 B, 12.3 kB, 210.7 MB."""
    # Decimal units, as the vendors of disks and networks use them.
    for unit in ("B", "kB", "MB", "GB"):
        if count < 999.95:
            return f"{count:.0f} B" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1000
    return f"{count:.1f} TB"


def print_rows(rows: Sequence[Mapping[str, object]], *, left: int = 1) -> None:
    """Print rows that are cells by the names of their columns, as `print_table` does; no rows print nothing."""
    if rows:
        print_table(list(rows[0]), [list(row.values()) for row in rows], left=left)


def print_table(header: Sequence[str], rows: Sequence[Sequence[object]], *, left: int = 1) -> None:
    """Print columns, the first `left` ones to the left, the others to the right, under their names."""
    cells = [[str(cell) for cell in row] for row in (header, *rows)]
    widths = [max(len(row[place]) for row in cells) for place in range(len(header))]
    for row in cells:
        # Numbers to the right, so that their digits stand below each other.
        padded = [
            cell.ljust(width) if place < left else cell.rjust(width)
            for place, (cell, width) in enumerate(zip(row, widths, strict=True))
        ]
        print("  ".join(padded).rstrip())


def shorten_list(numbers: Sequence[int]) -> str:
    """Return rising numbers such as "0-3,6"."""
    found: list[list[int]] = []
    for number in numbers:
        if found and found[-1][-1] == number - 1:
            found[-1].append(number)
        else:
            found.append([number])
    return ",".join(f"{run[0]}-{run[-1]}" if len(run) > 1 else str(run[0]) for run in found)


def shorten(seconds: float) -> str:
    """Return seconds in three digits."""
    return "0" if seconds < 1e-9 else f"{seconds:.3g}"
