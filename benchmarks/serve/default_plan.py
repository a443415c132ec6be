"""The plan that `serve run` takes by default beside a plain loop over the members: idle, and beside a busy process.

Four ensembles of three networks. `allocate` chooses a plan on the idle machine, which is measured there and then with
another process that keeps a core busy; and chooses another one beside that process. Closed loops of 1 to 64 clients on
an event loop, as the HTTP server asks, send 1 or 128 rows each. The loop calls the members' modules on one client's
rows after the other, in one process, on the same event loop, with as many threads as the plan computes with. Both take
turns; a ratio is the median over the turns of the plan's rows a second over the loop's.
"""

import argparse
import asyncio
import contextlib
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import numpy as np
import torch
from benchmarks._report import progress, table
from benchmarks.serve._ensembles import INPUTS, ensemble

from trainwright.ensemble import Ensemble
from trainwright.serve import Deployment, DeploymentPlan, DeploymentSettings, allocate

__all__ = ["run"]

_SMALL, _WIDE, _CONV = ({"width": 64, "depth": 2}, {"width": 1024, "depth": 3}, {"channels": 16})
_ENSEMBLES = {
    "small": [{"width": width, "depth": 2} for width in (64, 128, 256)],
    "wide": [_WIDE] * 3,
    "convolutional": [_CONV] * 3,
    "mixed": [_SMALL, _WIDE, _CONV],
}
_CLIENTS = (1, 4, 16, 64)
_ROWS = (1, 128)
_TURNS, _WINDOW_SECONDS = 8, 0.1
_LEAST = 0.9


def run(options: argparse.Namespace) -> dict[str, Any]:
    """Measure."""
    turns, seconds = (1, 0.05) if options.quick else (_TURNS, _WINDOW_SECONDS)
    clients = (1, 4) if options.quick else _CLIENTS
    cells = []
    for name, params in _ENSEMBLES.items():
        with tempfile.TemporaryDirectory() as folder:
            found = ensemble(Path(folder), params)
            began = time.monotonic()
            idle = allocate(found, "cpu")
            progress(f"{name}: allocated in {time.monotonic() - began:.0f} s")
            plans = [("idle", idle, False), ("busy since", idle, True)]
            with _busy():
                plans.append(("busy", allocate(found, "cpu"), True))
            for when, plan, busy in plans:
                with _busy() if busy else contextlib.nullcontext():
                    for one in _compare(found, plan, clients, turns, seconds):
                        cells.append({"ensemble": name, "when": when, **one})
                        progress(str(cells[-1]))
    lines = [
        [
            f"default plan over a plain loop, 1 to 64 clients, {rows} row{'s' * (rows > 1)}: {name}, {when}",
            _tell(cells, name, when, rows),
        ]
        for name in _ENSEMBLES
        for when in dict.fromkeys(cell["when"] for cell in cells)
        for rows in _ROWS
    ]
    print(table(["default plan", "x"], lines))
    return {
        "summary": {
            "least_over_loop": round(min(cell["ratio"] for cell in cells), 3),
            "cells_over_loop": len(cells),
            "cells_below_loop": sum(cell["ratio"] < _LEAST for cell in cells),
        },
        "cells": cells,
        "lines": lines,
        "settings": {"ensembles": _ENSEMBLES, "clients": clients, "turns": turns, "window_seconds": seconds},
    }


def _tell(cells: list[dict[str, Any]], name: str, when: str, rows: int) -> str:
    chosen = [cell for cell in cells if (cell["ensemble"], cell["when"], cell["rows"]) == (name, when, rows)]
    return " / ".join(f"{cell['ratio']:.2f}" for cell in chosen)


@contextlib.contextmanager
def _busy() -> Iterator[None]:
    """Run a process that computes all the time."""
    with subprocess.Popen([sys.executable, "-c", "while True: pass"]) as process:
        try:
            yield
        finally:
            process.kill()


def _compare(
    found: Ensemble, plan: DeploymentPlan, clients: tuple[int, ...], turns: int, seconds: float
) -> Iterator[dict[str, Any]]:
    with Deployment(found, plan, settings=DeploymentSettings(queue_rows=1_000_000)) as service:
        threads = sum(one["threads"] for one in service.state()["instances"])
        for rows in _ROWS:
            x = np.random.default_rng(0).normal(size=(rows, INPUTS)).astype("f4")
            loops: list[float] = []
            served: dict[int, list[float]] = {count: [] for count in clients}
            for turn in range(turns + 1):
                torch.set_num_threads(threads)
                loops.append(_rate(_PlainLoop(found), x, 1, seconds))
                for count in clients if turn % 2 else reversed(clients):
                    served[count].append(_rate(service, x, count, seconds))
            for count in clients:
                # The first turn warms up.
                ratios = [one / other for one, other in zip(served[count], loops, strict=True)][1:]
                yield {
                    "rows": rows,
                    "clients": count,
                    "processes": 0 if plan.in_process else len(plan.instances),
                    "threads": threads,
                    "rate": statistics.median(served[count][1:]),
                    "loop_rate": statistics.median(loops[1:]),
                    "ratio": statistics.median(ratios),
                }


class _PlainLoop:
    """What `Deployment.submit` does, by a loop over the members' modules."""

    def __init__(self, found: Ensemble) -> None:
        self._pairs = list(zip(found.networks, found.weights, strict=True))

    def submit(self, x: Any) -> "Future[Any]":
        rows, future = torch.from_numpy(x), Future[Any]()
        with torch.inference_mode():
            future.set_result(
                sum(weight * network(rows).softmax(1).double().numpy() for network, weight in self._pairs)
            )
        return future


def _rate(service: Any, x: Any, clients: int, seconds: float) -> float:
    """Return the rows a second of closed loops on an event loop."""
    return asyncio.run(_ClosedLoops(service, x, seconds).rate(clients))


class _ClosedLoops:
    def __init__(self, service: Any, x: Any, seconds: float) -> None:
        self._service, self._x, self._seconds = service, x, seconds
        self._open = self._done = 0

    async def rate(self, clients: int) -> float:
        self._loop, self._over = asyncio.get_running_loop(), asyncio.Event()
        self._thread = threading.get_ident()
        began = time.perf_counter()
        self._until = began + self._seconds
        for _ in range(clients):
            self._open += 1
            self._send()
        await self._over.wait()
        return self._done * len(self._x) / (time.perf_counter() - began)

    def _send(self) -> None:
        future = self._service.submit(self._x)
        future.add_done_callback(self._hear)

    def _hear(self, future: Any) -> None:
        # An answer that this thread computed needs no other one to be woken.
        here = threading.get_ident() == self._thread
        (self._loop.call_soon if here else self._loop.call_soon_threadsafe)(self._finish, future)

    def _finish(self, future: Any) -> None:
        future.result()
        self._done += 1
        if time.perf_counter() < self._until:
            self._send()
            return
        self._open -= 1
        if not self._open:
            self._over.set()
