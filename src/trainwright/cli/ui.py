"""`trainwright ui DIR`: studies as they run, in a browser."""

from contextlib import suppress
from pathlib import Path
from typing import Annotated

import typer

from trainwright.http_security import token_for
from trainwright.ui.server_load import ServerLoad
from trainwright.ui.serving import serve_page

__all__ = ["ui"]


def ui(
    where: Annotated[str, typer.Argument(help="A study's directory, a folder of studies, or a study's URL.")],
    *,
    host: Annotated[str, typer.Option("--host", help="The address to listen on; any but loopback needs a token.")] = (
        "127.0.0.1"
    ),
    port: Annotated[int, typer.Option("--port", help="The port; 0 takes any that is free.")] = 8765,
    name: Annotated[
        list[str] | None, typer.Option("--name", help="A further host name that a browser may use, as behind a proxy.")
    ] = None,
    token_file: Annotated[
        Path | None, typer.Option("--token-file", help="A file with the token that is asked for.")
    ] = None,
    server: Annotated[
        str | None, typer.Option("--server", help="A served ensemble whose load is shown: http://HOST:PORT.")
    ] = None,
    ensemble: Annotated[str, typer.Option("--ensemble", help="The name of that ensemble.")] = "ensemble",
    server_token_file: Annotated[
        Path | None, typer.Option("--server-token-file", help="A file with the token that the server asks for.")
    ] = None,
) -> None:
    """Show studies in a browser as they run; nothing can be changed there. Ctrl-C ends it."""
    load = None
    if server is not None:
        token = None if server_token_file is None else token_for("127.0.0.1", server_token_file)
        load = ServerLoad(server, ensemble=ensemble, token=token)

    def announce(address: str) -> None:
        print(f"{where}: {address}", flush=True)
        print("Ctrl-C ends it", flush=True)

    with suppress(KeyboardInterrupt):  # how it ends
        serve_page(where, host=host, port=port, names=name or (), token_file=token_file, server=load, ready=announce)
