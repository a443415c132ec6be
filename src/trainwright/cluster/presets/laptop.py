"""This machine as a cluster, one device a core: measured when it is first asked for, and remembered in a cache.

The figures are measured in a process of its own, `python -m trainwright.cluster.presets.laptop`, which prints one JSON
object.
"""

import hashlib
import json
import os
import platform
import subprocess
import sys
from collections.abc import Mapping
from multiprocessing import Pipe, get_context
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from trainwright.cluster.calibration.fit_cluster import MeasuredLevel, fit_fields
from trainwright.cluster.calibration.timing import fastest
from trainwright.cluster.files import read_cluster, write_cluster
from trainwright.cluster.network import ExchangeTimes
from trainwright.cluster.visible_devices import host_memory_bytes
from trainwright.errors import InputError, TrainwrightError

__all__ = ["cache_path", "load_or_measure_laptop"]

C = TypeVar("C")

_THREADS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "VECLIB_MAXIMUM_THREADS")
_SECONDS = 120
_REPEATS = 25
_SIDES = (128, 256, 384, 512)
_COPIED = (3 << 23, 1 << 25, 3 << 24)  # beyond what caches hold
_SENT = (256, 4096, 65_536, 1 << 18, 1 << 20, 1 << 21)


def load_or_measure_laptop(kind: type[C]) -> C:
    """Return this machine, of the class `kind`, from the cache, or measure it (seconds) and write it there if possible.

    Compute is numpy's matrix product on one thread, memory a copy, the link a connection between two processes. What
    more than two processes do to each other is not measured: `trainwright plan calibrate` does that.
    """
    # Measuring takes seconds, so the result is kept between processes.
    path = cache_path()
    if path.exists():
        try:
            return read_cluster(kind, path)
        except InputError:  # of another version, or half written: measure again
            pass
    found = kind(**_fields_of(_run_measurement()))
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_cluster(found, path)
    except (OSError, InputError):  # without a cache it is measured again next time
        pass
    return found


def cache_path() -> Path:
    """Return the file that remembers this machine: in the user's cache, a name by processor and cores."""
    base = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    # The name changes with the machine's processor, cores and memory, so that a copied home folder measures again.
    machine = f"{platform.machine()} {platform.processor()} {_processor_model()} {_core_count()} {host_memory_bytes()}"
    return base / "trainwright" / f"laptop-{hashlib.sha256(machine.encode()).hexdigest()[:12]}.toml"


def _run_measurement() -> dict[str, Any]:
    # One thread a library: a device of this cluster is one core.
    environment = {**os.environ, **dict.fromkeys(_THREADS, "1")}
    package = str(Path(__file__).resolve().parents[3])
    environment["PYTHONPATH"] = os.pathsep.join(filter(None, [package, os.environ.get("PYTHONPATH", "")]))
    command = [sys.executable, "-m", "trainwright.cluster.presets.laptop"]
    try:
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True, timeout=_SECONDS)
    except (OSError, subprocess.SubprocessError) as error:
        said = getattr(error, "stderr", None) or str(error)
        raise TrainwrightError(f"laptop: this machine could not be measured ({str(said).strip()[-300:]})") from None
    figures: dict[str, Any] = json.loads(done.stdout)
    return figures


def _fields_of(figures: Mapping[str, Any]) -> dict[str, Any]:
    cores = _core_count()
    sizes, seconds = zip(*figures["messages"], strict=True)
    messages = ExchangeTimes(operation="send", tier="memory", ranks=2, bytes=sizes, seconds=seconds)
    return fit_fields(
        name="laptop",
        source="measured on this machine with numpy and a local connection",
        kind=f"core of {_processor_model()}",
        devices_per_node=cores,
        memory_bytes=host_memory_bytes() // cores,
        products={"fp32": figures["products"]},
        copies=figures["copies"],
        launch_seconds=figures["launch_seconds"],
        levels=(MeasuredLevel(name="memory", devices=cores, exchanges=(messages,)),) if cores > 1 else (),
    )


def _core_count() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _processor_model() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(names, platform.machine())


def _measure_figures() -> dict[str, object]:
    one, out = np.ones(1, dtype=np.float32), np.ones(1, dtype=np.float32)
    return {
        "products": [_time_product(side) for side in _SIDES],
        "copies": [_time_copy(size) for size in _COPIED],
        "launch_seconds": fastest(lambda: np.add(one, one, out=out), warmup=1, repeats=1000),
        "messages": _time_messages(),
    }


def _time_product(side: int) -> tuple[float, float]:
    left, right = (np.full((side, side), value, dtype=np.float32) for value in (1.5, 0.5))
    out = np.empty_like(left)
    return 2.0 * side**3, fastest(lambda: np.matmul(left, right, out=out), warmup=1, repeats=_REPEATS)


def _time_copy(size: int) -> tuple[float, float]:
    source, target = np.ones(size, dtype=np.uint8), np.zeros(size, dtype=np.uint8)
    return 2.0 * size, fastest(lambda: np.copyto(target, source), warmup=1, repeats=_REPEATS)


def _time_messages() -> list[tuple[int, float]]:
    """Return the seconds of messages one way: half of what they take there and back."""
    here, there = Pipe()
    # The other end is a process of its own, as two ranks are.
    other = get_context("fork").Process(target=_echo_messages, args=(there,), daemon=True)
    other.start()
    try:
        return [(size, _time_round_trip(here, size) / 2) for size in _SENT]
    finally:
        other.terminate()


def _time_round_trip(connection: "Connection[Any, Any]", size: int) -> float:
    content = bytearray(size)

    def once() -> None:
        connection.send_bytes(content)
        connection.recv_bytes_into(content)

    return fastest(once, warmup=1, repeats=_REPEATS)


def _echo_messages(connection: "Connection[Any, Any]") -> None:
    """Send every message back until this process is ended."""
    while True:
        connection.send_bytes(connection.recv_bytes())


if __name__ == "__main__":
    print(json.dumps(_measure_figures()))  # noqa: T201 (what the process that asked reads)
