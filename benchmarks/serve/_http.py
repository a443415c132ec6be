"""The service over HTTP beside plain FastAPI and a Ray Serve composition: throughput and latency at 1 to 64 clients.

The same ensemble, rows, client and protocol for all: closed loops of C clients over kept connections, each server in
processes of its own, in turn within a round. `fastapi` is an application of a few lines that calls the members one
after the other in the event loop's thread pool, as a first server is written; `ray-serve` an ingress that asks one
deployment per member at once and combines. The ratios `throughput_over_...` are of requests a second, the geometric
mean over the numbers of clients, binary tensors everywhere; JSON is ours alone and given apart. `http_long_*` is
`--seconds` of open loop at 80 % of what one run of closed loop achieved, and memory before and after.
"""

import argparse
import contextlib
import importlib.util
import math
import os
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from benchmarks._report import progress, table
from benchmarks.serve._ensembles import INPUTS, ensemble
from benchmarks.serve._load import LoadTest
from benchmarks.serve._processes import processor_seconds, resident_bytes

__all__ = ["run"]

_ROOT = Path(__file__).resolve().parents[2]
_SERVERS = Path(__file__).with_name("_http_servers.py")
_CLIENTS = (1, 2, 4, 8, 16, 32, 64)
_ROWS = 8
_START_SECONDS = 240.0
_WARM_UP = 0.25  # of the time that is measured
CONTESTANTS = ("trainwright", "fastapi", "ray-serve")


def run(options: argparse.Namespace) -> dict[str, Any]:
    """Measure."""
    clients = (1, 4) if options.quick else _CLIENTS
    seconds = 2.0 if options.quick else min(options.seconds, 4.0)
    repeats = 1 if options.quick else options.repeats
    chosen = [one for one in CONTESTANTS if one != "ray-serve" or importlib.util.find_spec("ray") is not None]
    missing = {one for one in CONTESTANTS if one not in chosen}
    rows: list[dict[str, Any]] = []
    wrong = 0
    with tempfile.TemporaryDirectory() as place:
        width = 64 if options.quick else 512
        found = ensemble(Path(place) / "members", [{"width": width, "depth": 2}] * 4)
        folder = found.save(Path(place) / "out")
        for repeat in range(repeats):
            for name in chosen if repeat % 2 == 0 else reversed(chosen):
                try:
                    with _server(name, folder) as (url, pid):
                        for count in clients:
                            for binary in (True, False) if name == "trainwright" else (True,):
                                before = processor_seconds(pid)
                                told = _load(url, count, seconds, options.seed, found, binary=binary)
                                used = (processor_seconds(pid) - before) / seconds / (1 + _WARM_UP)
                                wrong += told.wrong if name == "trainwright" else 0
                                rows.append(_row(name if binary else f"{name} json", count, repeat, told, used))
                except _NoServerError as error:
                    if name == "trainwright":
                        raise
                    progress(f"skipped: {error}")
                    missing.add(name)
        long = _long(options, folder)
    medians = {
        (name, count): {
            key: statistics.median(row[key] for row in rows if (row["name"], row["clients"]) == (name, count))
            for key in ("rate", "p50_ms", "p99_ms", "processor_ms")
        }
        for name in dict.fromkeys(row["name"] for row in rows)
        for count in clients
    }
    lines = [
        [
            f"{name}, {count}",
            *(f"{each[key]:.1f}" for key in ("rate", "p50_ms", "p99_ms")),
            f"{each['processor_ms']:.2f}",
        ]
        for (name, count), each in medians.items()
    ]
    header = ["server, clients", "requests/s", "p50 ms", "p99 ms", "processor ms"]
    print(table(header, lines))
    over = {
        f"throughput_over_{name.replace('-', '_')}": _ratio(medians, name, clients)
        for name in chosen
        if name != "trainwright" and name not in missing
    }
    return {
        "summary": {**over, **long, "wrong_answers": wrong},
        "rows": rows,
        "table": {"header": header, "rows": lines},
        "lines": _by_clients(medians, chosen, clients),
        "settings": {"clients": clients, "rows": _ROWS, "width": width, "members": 4, "seconds": seconds},
        "missing": sorted(missing),
    }


class _NoServerError(Exception):
    """A server that does not start here."""


def _load(url: str, clients: int, seconds: float, seed: int, found: Any, *, binary: bool) -> Any:
    load = LoadTest(
        kind="closed",
        clients=clients,
        rows=(_ROWS, _ROWS),
        seconds=seconds,
        warm_up_seconds=seconds * _WARM_UP,
        seed=seed,
        binary=binary,
    )
    return load.run(url, reference=found.predict)


def _row(name: str, clients: int, repeat: int, told: Any, used: float) -> dict[str, Any]:
    """Return what is kept; `used` is the processor time of the server's processes in a second, busy or not."""
    latency = told.latency_ms
    if set(told.statuses) != {"200"}:
        progress(f"{name}, {clients} clients: {told.statuses}")
    return {
        "name": name,
        "clients": clients,
        "repeat": repeat,
        "rate": told.achieved_rate,
        "p50_ms": math.nan if latency["p50"] is None else latency["p50"],
        "p99_ms": math.nan if latency["p99"] is None else latency["p99"],
        "processor_ms": 1e3 * used / told.achieved_rate if told.achieved_rate else math.nan,
        "statuses": dict(told.statuses),
    }


def _ratio(medians: dict[tuple[str, int], dict[str, float]], name: str, clients: tuple[int, ...]) -> float:
    logs = [math.log(medians["trainwright", one]["rate"] / medians[name, one]["rate"]) for one in clients]
    return round(math.exp(statistics.fmean(logs)), 3)


def _by_clients(
    medians: dict[tuple[str, int], dict[str, float]], chosen: list[str], clients: tuple[int, ...]
) -> list[list[str]]:
    """Return what the page's table says of each number of clients, contestants in their order."""
    there = [name for name in chosen if (name, clients[0]) in medians]
    found = []
    for key, words in (("rate", "requests a second"), ("p50_ms", "p50, ms"), ("p99_ms", "p99, ms")):
        for count in clients:
            told = " / ".join(f"{medians[name, count][key]:,.0f}" for name in there)
            found.append([f"{words}, {count} client{'s' * (count > 1)}: {', '.join(there)}", told])
    return found


def _long(options: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """Run the open loop at 80 % of what a closed loop achieves, and look at the server's memory."""
    seconds = 2.0 if options.quick else options.seconds
    with _server("trainwright", folder) as (url, pid):
        most = (
            LoadTest(kind="closed", clients=16, rows=(_ROWS, _ROWS), seconds=min(5.0, seconds)).run(url).achieved_rate
        )
        load = LoadTest(
            rate=0.8 * most, rows=(_ROWS, _ROWS), seconds=seconds, warm_up_seconds=seconds / 10, seed=options.seed
        )
        before = resident_bytes(pid)
        told = load.run(url)
        after = resident_bytes(pid)
    progress(f"{seconds:g} s at {0.8 * most:.0f} requests/s: {dict(told.statuses)}, {told.why or 'valid'}")
    return {
        "http_long_seconds": seconds,
        "http_long_rate": round(0.8 * most, 1),
        "http_long_valid": told.valid,
        "http_long_p99_ms": told.latency_ms["p99"],
        "http_long_memory_growth_percent": round(100 * (after / before - 1), 2),
        "lost_requests": int(told.requests - told.statuses.get("200", 0) - told.statuses.get("429", 0)),
    }


@contextlib.contextmanager
def _server(name: str, folder: Path) -> Iterator[tuple[str, int]]:
    """Start a server in a process of its own and yield its address and pid."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    url = f"http://127.0.0.1:{port}"
    paths = os.pathsep.join([str(_ROOT / "src"), str(_ROOT)])
    environment = {**os.environ, "PYTHONPATH": paths, "OMP_NUM_THREADS": "1", "RAY_raylet_start_wait_time_s": "150"}
    command = [sys.executable, str(_SERVERS), name, str(folder), str(port)]
    with subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        try:
            _wait(url, name, process)
            yield url, process.pid
        finally:
            process.terminate()
            try:
                process.wait(60)
            except subprocess.TimeoutExpired:
                process.kill()


def _wait(url: str, name: str, process: subprocess.Popen[bytes]) -> None:
    from trainwright.serve import Client

    until = time.monotonic() + _START_SECONDS
    with Client(url) as client:
        while not client.ready():
            if process.poll() is not None or time.monotonic() > until:
                raise _NoServerError(f"{name} did not start; {_SERVERS.name} {name} FOLDER PORT says why")
            time.sleep(0.1)
        client.predict(np.zeros((_ROWS, INPUTS), dtype=np.float32))
