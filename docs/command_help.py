"""The help of every command, as the program prints it: what the page of commands is made of."""

from collections.abc import Iterator

import click

from trainwright.cli.main import build_app


def command_helps() -> Iterator[tuple[str, str]]:
    """Yield each command as it is typed and its help, a group of commands before its members."""
    root = build_app()
    yield from _helps(root, root.context_class(root, info_name="trainwright", terminal_width=80))


def _helps(command: click.Command, context: click.Context) -> Iterator[tuple[str, str]]:
    yield context.command_path, command.get_help(context)
    for name, member in getattr(command, "commands", {}).items():
        yield from _helps(member, member.context_class(member, parent=context, info_name=name, terminal_width=80))
