"""Words of a command line that no command takes, told in one sentence: what, the value, what is allowed, the cure."""

from typing import Any

import typer

from trainwright.errors import closest

__all__ = ["UsageError", "sentence"]

UsageError: Any = typer.BadParameter.__base__  # typer keeps it under names that change with its versions


def sentence(error: Any) -> str:
    """Return the sentence that tells a usage error of typer."""
    said = error.format_message()
    # An option at the end of the line, without its value.
    if error.ctx is None:
        return _join_sentence(said)
    command, path = error.ctx.command, error.ctx.command_path
    see = f"see `{path} --help`"
    # typer keeps its error classes private, so each is told by the attributes that only it has.
    if hasattr(error, "possibilities"):
        known = [name for param in command.params for name in param.opts if name.startswith("--")] + ["--help"]
        # Dashes are alike in all options, so they say nothing about the nearest.
        bare = closest(error.option_name.strip("-"), [name.strip("-") for name in known])
        near = bare.replace("'", "'--", 1) or f"; allowed: {', '.join(known)}"
        return f"unknown option {error.option_name} of `{path}`{near}; {see}"
    # A missing argument or option: its help says what it is.
    if hasattr(error, "param_type"):
        return f"missing {_parameter_name(error.param)} of `{path}`: {_join_sentence(error.param.help or '')}; {see}"
    if hasattr(error, "param"):
        # typer keeps the value that it could not convert only in the cause.
        # Pydantic's errors keep the value that was refused.
        refused: list[Any] = getattr(error.__cause__, "errors", list)()
        got = f"got {refused[0]['input']!r}; " if refused else ""
        return f"{_parameter_name(error.param)} of `{path}`: {got}{_join_sentence(error.message)}; {see}"
    # A group knows its commands, of which none was named.
    if hasattr(command, "commands"):
        name = said.partition("'")[2].partition("'")[0]
        near = closest(name, command.commands) or f"; allowed: {', '.join(command.commands)}"
        return f"unknown command {name} of `{path}`{near}; {see}"
    return f"`{path}`: {_join_sentence(said)}; {see}"


def _parameter_name(param: Any) -> str:
    return str(param.metavar or param.opts[0])


def _join_sentence(text: str) -> str:
    """Return a sentence as a part of another: no full stop, and no capital unless a word has more of them."""
    text = text.rstrip(".")
    return text[:1].lower() + text[1:] if text[1:2].islower() or text[1:2] == " " else text
