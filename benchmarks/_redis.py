"""A Redis server of a benchmark's own: on a free port, its append-only file synced every second."""

import shutil
import socket
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager

__all__ = ["server"]


@contextmanager
def server(folder: str) -> Iterator[str]:
    """Run it while entered, with its data in `folder`; gives redis://HOST:PORT once it answers."""
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        port = one.getsockname()[1]
    settings = ["--port", str(port), "--dir", folder, "--save", "", "--appendonly", "yes", "--appendfsync", "everysec"]
    with subprocess.Popen([str(shutil.which("redis-server")), *settings], stdout=subprocess.DEVNULL) as process:
        try:
            while not _answers(port):
                if process.poll() is not None:
                    raise SystemExit("redis-server ended at once; look at its settings")
            yield f"redis://127.0.0.1:{port}"
        finally:
            process.terminate()


def _answers(port: int) -> bool:
    try:
        with socket.create_connection(("127.0.0.1", port), timeout=1) as one:
            one.sendall(b"PING\r\n")
            return one.recv(100).startswith(b"+PONG")
    except OSError:
        return False
