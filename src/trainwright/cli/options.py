"""Options: those of a command made from the fields of a settings class, and those that several commands share.

    @options_of(EnsembleSettings)
    def ensemble(directory: Annotated[Path, typer.Argument(...)], *, changes: dict[str, Any]) -> Result:

The command gets the options that were given on the command line, by field name, as `changes`.
"""

import inspect
from collections.abc import Callable
from functools import wraps
from pathlib import Path
from typing import Annotated, Any, get_args

import typer

from trainwright.cli.command import Command, set_parameters
from trainwright.settings import Setting, settings_of

__all__ = ["ClusterName", "EnsembleFolder", "Nodes", "PlanFile", "StudyFolder", "TokenFile", "Trust", "options_of"]

StudyFolder = Annotated[Path, typer.Argument(help="The study's directory.")]
EnsembleFolder = Annotated[Path, typer.Argument(help="A folder that Ensemble.save wrote.")]
ClusterName = Annotated[str, typer.Option("--cluster", help="A preset's name, or a .toml or .yaml file.")]
Nodes = Annotated[int | None, typer.Option(help="So many nodes of it.")]
PlanFile = Annotated[Path | None, typer.Option("--out", help="Write the plan to this file.")]
TokenFile = Annotated[Path | None, typer.Option(help="Holds the token; chmod 600.")]
Trust = Annotated[
    bool, typer.Option("--trust", help="Load what needs more than known operators, as programs with your rights.")
]

_TAKES = "changes"


def options_of(settings: type, *only: str, **names: str) -> Callable[[Command], Command]:
    """Return a decorator that puts a settings class's options in the place of a command's parameter `changes`.

    An option is called as its field with dashes, unless `names` has other words for the field, such as
    "--keep/--drop"; `only` names the fields to take, all if none. Not given, an option is not in `changes`,
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
            return command(**options, **{_TAKES: given})

        parameters: list[inspect.Parameter] = []
        for parameter in inspect.signature(command, eval_str=True).parameters.values():
            # The options stand where the command has `changes`, so that the help keeps its order.
            if parameter.name == _TAKES:
                parameters.extend(_make_parameter(field, names.get(field.name)) for field in fields)
            else:
                parameters.append(parameter)
        set_parameters(run, parameters)
        return run

    return decorate


def _make_parameter(field: Setting, words: str | None) -> inspect.Parameter:
    # `int | None` becomes an option of int; whether it was given says the rest.
    kinds = [kind for kind in get_args(field.type) if kind is not type(None)] or [field.type]
    default = "" if field.default in (None, False) else f" [{field.default}]"
    help_text = f"{field.help[:1].upper()}{field.help[1:]}{default}."
    option = typer.Option(words or f"--{field.name.replace('_', '-')}", help=help_text)
    return inspect.Parameter(
        field.name,
        inspect.Parameter.KEYWORD_ONLY,
        default=None,
        annotation=Annotated[kinds[0] | None, option],
    )
