"""Options of a command made from the fields of a settings class: same names, types and help, checked by the class.

    @options_of(EnsembleSettings)
    def ensemble(directory: Annotated[Path, typer.Argument(...)], *, changes: dict[str, Any], json: bool = False):

The command gets the options that were given on the command line, by field name, as `changes`.
"""

import inspect
from collections.abc import Callable
from functools import wraps
from typing import Annotated, Any, get_args

import typer

from trainwright.settings import Setting, settings_of

__all__ = ["options_of"]

_TAKES = "changes"


def options_of(settings: type, **names: str) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Return a decorator that puts a settings class's options in the place of a command's parameter `changes`.

    An option is called as its field with dashes, unless `names` has other words for the field, such as
    "--common-rows/--all-rows". Not given, it is not in `changes`, whatever the field's default.
    """
    fields = settings_of(settings)

    def decorate(command: Callable[..., None]) -> Callable[..., None]:
        @wraps(command)
        def run(**options: Any) -> None:
            # None means that the option was not given: the command then keeps the stored or default
            # value.
            changes = {field.name: options.pop(field.name) for field in fields}
            command(**options, **{_TAKES: {name: value for name, value in changes.items() if value is not None}})

        parameters: list[inspect.Parameter] = []
        for parameter in inspect.signature(command, eval_str=True).parameters.values():
            if parameter.name == _TAKES:
                parameters.extend(_make_parameter(field, names.get(field.name)) for field in fields)
            else:
                parameters.append(parameter)
        # typer reads both: the order and defaults from the signature, the types from the annotations.
        run.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
        run.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
        del run.__wrapped__
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
