"""Runs the page's server behind the guard, by default on loopback, until it is interrupted."""

import socket
from collections.abc import Callable, Sequence
from pathlib import Path

from trainwright.errors import MissingExtra
from trainwright.http_security import Guard, bind, is_loopback, token_for
from trainwright.ui.study_follower import StudyRegistry

__all__ = ["serve_page"]


def serve_page(
    where: str | Path,
    *,
    host: str = "127.0.0.1",
    port: int = 8765,
    names: Sequence[str] = (),
    token_file: str | Path | None = None,
    ready: Callable[[str], None] = lambda _page_address: None,
) -> None:
    """Serve the studies at `where` until interrupted; `ready` gets the address once it listens, with the token if any.

    Needs the extra `ui`. Raises InputError for what is no study, a host or a token file that cannot be; ListenError for
    a port in use.
    """
    with MissingExtra.instead_of_import_error("the live page", "fastapi and uvicorn", "ui"):
        import uvicorn

        from trainwright.ui.app import POLICY, application
    token = token_for(host, token_file)
    # Refuses a place without studies before a port is bound.
    registry = StudyRegistry(where)
    try:
        # Bound before anything is announced: a port in use is refused at once.
        with bind(host, port) as listener:
            guard = Guard(
                application(registry),
                host=host,
                token=token,
                names=names,
                headers={"content-security-policy": POLICY},
            )
            settings = uvicorn.Config(
                guard,
                log_level="warning",
                access_log=False,
                timeout_graceful_shutdown=1,
                server_header=False,
                limit_concurrency=256,
            )
            ready(_page_address(listener, host, token))
            uvicorn.Server(settings).run(sockets=[listener])
    finally:
        registry.close()


def _page_address(listener: socket.socket, host: str, token: str | None) -> str:
    port = listener.getsockname()[1]
    bare = host.strip("[]")
    if bare in {"0.0.0.0", "::"}:  # noqa: S104 -- it is told how to reach it
        bare = socket.gethostname()
    # An IPv6 address stands in brackets in an address of the web.
    shown = f"[{bare}]" if ":" in bare else "127.0.0.1" if is_loopback(bare) and bare != "localhost" else bare
    return f"http://{shown}:{port}/" + (f"?token={token}" if token is not None else "")
