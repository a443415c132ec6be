"""`trainwright ui DIR`: studies as they run, in a browser."""

from contextlib import suppress
from typing import Annotated

from trainwright.cli.command import Argument, Option, TokenFile
from trainwright.ui.serving import serve_page

__all__ = ["ui"]


def ui(
    where: Annotated[str, Argument(help="A study's directory, a folder of studies, or a study's URL.")],
    *,
    host: Annotated[str, Option(help="The address to listen on; any but loopback needs a token.")] = "127.0.0.1",
    port: Annotated[int, Option(help="The port; 0 takes any that is free.")] = 8765,
    name: Annotated[list[str] | None, Option(help="A further host name that a browser may use.")] = None,
    token_file: TokenFile = None,
) -> None:
    """Show studies in a browser as they run, read-only, until Ctrl-C."""

    def announce(address: str) -> None:
        print(f"{where}: {address}", flush=True)
        print("Ctrl-C ends it", flush=True)

    # Ctrl-C is how the page ends.
    with suppress(KeyboardInterrupt):
        serve_page(where, host=host, port=port, names=name or (), token_file=token_file, ready=announce)
