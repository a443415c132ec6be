"""An open loop of equal requests that takes little of the processor itself: latency counts from times drawn beforehand.

`_load.py` checks every answer and draws its rows; this one is for rates at which that would be the slower part.
"""

import asyncio
import gc
import re
import time
from collections import Counter, deque
from typing import Any
from urllib.parse import urlsplit

import numpy as np

__all__ = ["run_open_loop"]

_LENGTH = re.compile(rb"content-length: *(\d+)", re.IGNORECASE)
_CLIENTS = 64
_LAST_SECONDS = 10.0  # for answers that are on their way at the end
_LATE_SECONDS = 2e-3


def run_open_loop(url: str, path: str, body: bytes, *, rate: float, seconds: float, seed: int) -> dict[str, Any]:
    """Send so many requests a second at the times of a Poisson process; return latencies in ms and what came back."""
    head = (
        f"POST {path} HTTP/1.1\r\nHost: {urlsplit(url).netloc}\r\nContent-Type: application/json\r\n"
        f"Content-Length: {len(body)}\r\n\r\n"
    )
    gaps = np.random.default_rng(seed).exponential(1 / rate, size=max(1, round(rate * seconds)))
    # A pass of the garbage collector here would be taken for a slow server.
    gc.collect()
    gc.disable()
    try:
        return asyncio.run(_Run(url, head.encode() + body, gaps.cumsum()).result())
    finally:
        gc.enable()


class _Run:
    def __init__(self, url: str, message: bytes, times: Any) -> None:
        self.message, self.times, self.place = message, times, urlsplit(url)
        self.free: list[_Connection] = []
        # Moments at which requests were meant to be sent that found no connection free.
        self.waiting: deque[float] = deque()
        self.latencies: list[float] = []
        self.statuses: Counter[str] = Counter()
        self.late = 0
        self.over = asyncio.Event()

    async def result(self) -> dict[str, Any]:
        loop = asyncio.get_running_loop()
        for _ in range(_CLIENTS):
            _, connection = await loop.create_connection(
                lambda: _Connection(self), self.place.hostname or "", self.place.port or 80
            )
            self.free.append(connection)
        start = time.perf_counter() + 0.05
        offset = loop.time() - time.perf_counter()
        for moment in self.times.tolist():
            loop.call_at(start + moment + offset, self.send_next, start + moment)
        try:
            await asyncio.wait_for(self.over.wait(), float(self.times[-1]) + _LAST_SECONDS)
        finally:
            for connection in self.free:
                connection.transport.close()
        found = 1e3 * np.array(self.latencies)
        return {
            "asked_rate": len(self.times) / float(self.times[-1]),
            "requests": len(self.times),
            "statuses": dict(self.statuses),
            "late_share": self.late / len(self.times),
            **{f"p{q}_ms": round(float(np.percentile(found, q)), 2) for q in (50, 90, 99)},
            "max_ms": round(float(found.max()), 2),
        }

    def send_next(self, meant: float) -> None:
        self.late += time.perf_counter() > meant + _LATE_SECONDS
        if self.free:
            self.free.pop().send(meant)
        else:
            self.waiting.append(meant)

    def finish(self, connection: "_Connection", status: str) -> None:
        self.latencies.append(time.perf_counter() - connection.meant)
        self.statuses[status] += 1
        if self.waiting:
            connection.send(self.waiting.popleft())
        else:
            self.free.append(connection)
        if len(self.latencies) == len(self.times):
            self.over.set()


class _Connection(asyncio.Protocol):
    def __init__(self, run: _Run) -> None:
        self._run, self._content, self.meant = run, b"", 0.0
        self.transport: Any = None

    def connection_made(self, transport: Any) -> None:
        self.transport = transport

    def send(self, meant: float) -> None:
        self.meant = meant
        self.transport.write(self._run.message)

    def data_received(self, data: bytes) -> None:
        self._content += data
        head, _, content = self._content.partition(b"\r\n\r\n")
        found = _LENGTH.search(head)
        if found is not None and len(content) >= int(found[1]):
            self._content = b""
            self._run.finish(self, head.split(b" ", 2)[1].decode())
