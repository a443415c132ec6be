"""The figures of `laptop`, measured in a process of its own: python -m trainwright.cluster.presets.laptop_process.

Prints one JSON object. With a port as argument it is the other end of the connection that is measured.
"""

import json
import socket
import subprocess
import sys
from collections.abc import Callable

import numpy as np

from trainwright.cluster.calibration.timing import fastest

__all__: list[str] = []

_REPEATS = 25
_SIDES = (128, 256, 384, 512)
_COPIED = (3 << 23, 1 << 25, 3 << 24)  # beyond what caches hold
_SENT = (256, 4096, 65_536, 1 << 18, 1 << 20, 1 << 21)


def _measure_all() -> dict[str, object]:
    return {
        "products": [_time_product(side) for side in _SIDES],
        "copies": [_time_copy(size) for size in _COPIED],
        "launch_seconds": fastest(_make_addition(), warmup=1, repeats=1000),
        "messages": _time_messages(),
    }


def _time_product(side: int) -> tuple[float, float]:
    left, right = (np.full((side, side), value, dtype=np.float32) for value in (1.5, 0.5))
    out = np.empty_like(left)
    return 2.0 * side**3, fastest(lambda: np.matmul(left, right, out=out), warmup=1, repeats=_REPEATS)


def _time_copy(size: int) -> tuple[float, float]:
    source, target = np.ones(size, dtype=np.uint8), np.zeros(size, dtype=np.uint8)
    return 2.0 * size, fastest(lambda: np.copyto(target, source), warmup=1, repeats=_REPEATS)


def _make_addition() -> Callable[[], object]:
    one, out = np.ones(1, dtype=np.float32), np.ones(1, dtype=np.float32)
    return lambda: np.add(one, one, out=out)


def _time_messages() -> list[tuple[int, float]]:
    """Return the seconds of messages one way: half of what they take there and back."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        command = [sys.executable, "-m", "trainwright.cluster.presets.laptop_process", str(server.getsockname()[1])]
        # The other end is a process of its own, as two ranks are.
        with subprocess.Popen(command) as other:
            try:
                connection, _ = server.accept()
                with connection:
                    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                    return [(size, _time_round_trip(connection, size) / 2) for size in _SENT]
            finally:
                other.terminate()


def _time_round_trip(connection: socket.socket, size: int) -> float:
    content = memoryview(bytearray(size))

    def once() -> None:
        # The size goes first, so that the other end knows how much to send back.
        connection.sendall(size.to_bytes(8, "little"))
        connection.sendall(content)
        _receive_exactly(connection, content)

    return fastest(once, warmup=1, repeats=_REPEATS)


def _receive_exactly(connection: socket.socket, content: memoryview) -> bool:
    """Fill `content`; return whether the other end is still there."""
    got = 0
    while got < len(content):
        new = connection.recv_into(content[got:])
        if not new:
            return False
        got += new
    return True


def _echo_messages(port: int) -> None:
    """Send every message back until the connection ends."""
    header = memoryview(bytearray(8))
    with socket.create_connection(("127.0.0.1", port)) as connection:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        while _receive_exactly(connection, header):
            content = memoryview(bytearray(int.from_bytes(header, "little")))
            _receive_exactly(connection, content)
            connection.sendall(content)


if __name__ == "__main__":
    if len(sys.argv) > 1:
        _echo_messages(int(sys.argv[1]))
    else:
        print(json.dumps(_measure_all()))  # noqa: T201 (what the process that asked reads)
