"""One-row JSON requests to three small networks, 1 to 64 clients: requests a second and processor time of each server.

`trainwright serve run FOLDER` as it comes, beside an in-process batcher on FastAPI of 25 lines (`_fastapi_batcher.py`)
and mosec (`_mosec_batcher.py`). All servers run at once and are loaded in turn, by wrk if it is installed (`apt-get
install wrk`), else by closed loops in Python. Processor time is that of all processes of a server. Latencies are at
half the requests a second that the same server answers to 16 clients, open loop. mosec is left out unless
`.peers/mosec/bin/python` has it and torch.
"""

import argparse
import contextlib
import json
import os
import re
import shutil
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import torch
from benchmarks._report import progress, table
from benchmarks.serve._ensembles import INPUTS, ensemble
from benchmarks.serve._load import LoadTest
from benchmarks.serve._open_loop import run_open_loop
from benchmarks.serve._processes import processor_seconds

__all__ = ["run"]

_ROOT = Path(__file__).resolve().parents[2]
_MOSEC = _ROOT / ".peers" / "mosec" / "bin" / "python"
_PATH = "/v2/models/ensemble/infer"
_CLIENTS = (1, 4, 16, 64)
_NETWORKS = tuple({"width": width, "depth": 2} for width in (64, 128, 256))
_START_SECONDS = 120.0
_MOST_LATE, _HALF_REPEATS = 0.01, 5  # of the sends of an open loop; its short runs at least
CONTESTANTS = ("trainwright", "batcher", "mosec")


def run(options: argparse.Namespace) -> dict[str, Any]:
    """Measure."""
    clients = (1, 4) if options.quick else _CLIENTS
    seconds = 1.0 if options.quick else min(options.seconds, 2.0)
    repeats = 1 if options.quick else options.repeats
    rows: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as place, contextlib.ExitStack() as stack:
        folder, body, expected = _make_networks(Path(place), options.seed)
        servers = {}
        for name in CONTESTANTS:
            try:
                servers[name] = stack.enter_context(_serving(name, folder, body, expected))
            except _NoServerError as error:
                progress(f"skipped: {error}")
        for repeat in range(repeats):
            for count in clients:
                turn = list(servers) if repeat % 2 == 0 else list(reversed(servers))
                rows += [
                    {"name": name, "repeat": repeat, **_load(*servers[name], body, count, seconds)} for name in turn
                ]
        medians = _find_medians(rows)
        half = _half_load(
            servers,
            medians,
            body,
            most=max(count for count in clients if count <= 16),
            seconds=seconds,
            repeats=repeats if options.quick else max(repeats, _HALF_REPEATS),
            seed=options.seed,
        )
    summary: dict[str, Any] = {f"half_load_p99_ms_{name}": one["p99_ms"] for name, one in half.items()}
    for name in list(servers)[1:]:
        pairs = [(medians["trainwright", count], medians[name, count]) for count in clients]
        summary[f"least_requests_over_{name}"] = round(min(ours["rate"] / other["rate"] for ours, other in pairs), 2)
        summary[f"most_processor_over_{name}"] = round(
            max(ours["processor_us"] / other["processor_us"] for ours, other in pairs), 2
        )
    lines = [
        [
            f"{words}, {count} client{'s' * (count > 1)}, one-row JSON: {', '.join(servers)}",
            " / ".join(f"{medians[name, count][key]:,.0f}" for name in servers),
        ]
        for key, words in (("rate", "small networks, requests a second"), ("processor_us", "- processor us a request"))
        for count in clients
    ]
    lines += [
        [
            f"small networks, {words} in ms at half load, open loop: {', '.join(servers)}",
            " / ".join(f"{half[name][key]:.1f}" if name in half else "-" for name in servers),
        ]
        for key, words in (("p50_ms", "median"), ("p99_ms", "p99"))
    ]
    print(table(["small networks", "measured"], lines))
    return {
        "summary": summary,
        "rows": rows,
        "half_load": half,
        "lines": lines,
        "settings": {"networks": _NETWORKS, "seconds": seconds, "repeats": repeats, "wrk": shutil.which("wrk") or ""},
        "missing": [name for name in CONTESTANTS if name not in servers],
    }


def _find_medians(rows: list[dict[str, Any]]) -> dict[tuple[str, int], dict[str, float]]:
    """Return the median figures of each server and number of clients."""
    return {
        pair: {
            key: statistics.median(row[key] for row in rows if (row["name"], row["clients"]) == pair)
            for key in ("rate", "processor_us")
        }
        for pair in {(row["name"], row["clients"]) for row in rows}
    }


class _NoServerError(Exception):
    """A server that does not start here."""


def _make_networks(place: Path, seed: int) -> tuple[Path, bytes, Any]:
    """Return a folder with the networks for all servers, the body of a request, and its answer."""
    found = ensemble(place / "members", _NETWORKS)
    folder = found.save(place / "out")
    weights = [
        (one["width"], one["depth"], network.state_dict())
        for one, network in zip(_NETWORKS, found.networks, strict=True)
    ]
    torch.save((weights, [one / sum(found.weights) for one in found.weights]), folder / "networks.pt")
    x = np.random.default_rng(seed).normal(size=(1, INPUTS)).astype("f4")
    tensor = {"name": "input", "datatype": "FP32", "shape": [1, INPUTS], "data": x.ravel().round(6).tolist()}
    return folder, json.dumps({"inputs": [tensor]}).encode(), found.predict(np.array([tensor["data"]], dtype="f4"))


@contextlib.contextmanager
def _serving(name: str, folder: Path, body: bytes, expected: Any) -> Iterator[tuple[str, int]]:
    """Start a server as its user would, and yield its address and pid once it answers rightly."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    environment = {name: value for name, value in os.environ.items() if name != "OMP_NUM_THREADS"}
    beside = Path(__file__).with_name
    if name == "mosec":
        if not _MOSEC.exists():
            raise _NoServerError("mosec is not installed")
        environment["FOLDER"] = str(folder)
        command = [str(_MOSEC), str(beside("_mosec_batcher.py")), "--port", str(port), "--address", "127.0.0.1"]
        command += ["--log-level", "error"]
    elif name == "batcher":
        command = [sys.executable, str(beside("_fastapi_batcher.py")), str(folder), str(port)]
    else:
        environment["PYTHONPATH"] = os.pathsep.join([str(_ROOT / "src"), str(_ROOT)])
        command = [sys.executable, "-m", "trainwright", "serve", "run", str(folder), "--port", str(port)]
    url = f"http://127.0.0.1:{port}"
    with subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL, cwd=_ROOT) as process:
        try:
            until = time.monotonic() + _START_SECONDS
            while (answer := _ask(url, body)) is None:
                if process.poll() is not None or time.monotonic() > until:
                    raise _NoServerError(f"{name} did not start")
                time.sleep(0.1)
            if not np.allclose(answer, expected, atol=1e-5):
                raise _NoServerError(f"{name} answers otherwise: {answer} instead of {expected}")
            yield url, process.pid
        finally:
            process.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(20)
            process.kill()


def _ask(url: str, body: bytes) -> Any:
    try:
        reply = httpx.post(url + _PATH, content=body, headers={"Content-Type": "application/json"}, timeout=10)
        return np.array([reply.json()["outputs"][0]["data"]]) if reply.status_code == 200 else None
    except httpx.TransportError:
        return None


def _load(url: str, pid: int, body: bytes, clients: int, seconds: float) -> dict[str, Any]:
    """Load a server by closed loops, and return requests a second and processor time of each."""
    _run_clients(url, body, clients, 0.3)
    before, begun = processor_seconds(pid), time.monotonic()
    rate = _run_clients(url, body, clients, seconds)
    taken = time.monotonic() - begun
    used = processor_seconds(pid) - before
    return {"clients": clients, "rate": rate, "processor_us": 1e6 * used / max(1.0, rate * taken)}


def _run_clients(url: str, body: bytes, clients: int, seconds: float) -> float:
    """Return the answers a second."""
    if shutil.which("wrk") is None:
        load = LoadTest(kind="closed", clients=clients, seconds=seconds, warm_up_seconds=0.0, binary=False)
        return load.run(url).achieved_rate
    with tempfile.NamedTemporaryFile("w", suffix=".lua") as script:
        text = body.decode().replace("\\", "\\\\").replace("'", "\\'")
        script.write(f"wrk.method = 'POST'\nwrk.body = '{text}'\nwrk.headers['Content-Type'] = 'application/json'\n")
        script.flush()
        command = ["wrk", "-t1", f"-c{clients}", f"-d{max(1, round(seconds))}s", "-s", script.name, url + _PATH]
        said = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    if "Non-2xx" in said or "Socket errors" in said:
        raise SystemExit(f"{url}: {said}")
    return float(re.findall(r"Requests/sec:\s+([\d.]+)", said)[0])


def _half_load(
    servers: dict[str, tuple[str, int]],
    medians: dict[tuple[str, int], dict[str, float]],
    body: bytes,
    *,
    most: int,
    seconds: float,
    repeats: int,
    seed: int,
) -> dict[str, dict[str, Any]]:
    """Return the latencies of each server at half the requests a second that it answered to `most` clients."""
    found: dict[str, list[dict[str, Any]]] = {name: [] for name in servers}
    for repeat in range(repeats):
        for name, (url, _) in servers.items():
            rate = 0.5 * medians[name, most]["rate"]
            one = run_open_loop(url, _PATH, body, rate=rate, seconds=seconds, seed=seed + repeat)
            progress(f"half load of {name}: {one}")
            if set(one["statuses"]) != {"200"}:
                raise SystemExit(f"{name}: {one['statuses']}")
            found[name].append(one)
    # Runs whose generator was late say nothing of the server; of the others the run of the median p99, as a whole.
    found = {name: [one for one in runs if one["late_share"] <= _MOST_LATE] for name, runs in found.items()}
    return {name: sorted(runs, key=lambda one: one["p99_ms"])[len(runs) // 2] for name, runs in found.items() if runs}
