"""This machine as a cluster, one device a core: measured when it is first asked for, and remembered in a cache."""

import hashlib
import json
import os
import platform
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from trainwright.cluster.calibration_fit import Figures, Level, fitted
from trainwright.cluster.cgroup_limits import granted_memory_bytes
from trainwright.cluster.cluster import Cluster
from trainwright.cluster.network import ExchangeTimes
from trainwright.errors import InputError, TrainwrightError

__all__ = ["cache_path", "host_memory_bytes", "laptop"]

_THREADS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "VECLIB_MAXIMUM_THREADS")
_SECONDS = 120


def laptop() -> Cluster:
    """Return this machine from the cache, or measure it with one thread (seconds) and write it there if possible.

    Compute is numpy's matrix product, memory a copy, the link a connection between two processes. What more than two
    processes do to each other is not measured: `trainwright plan calibrate` does.
    """
    path = cache_path()
    if path.exists():
        try:
            return Cluster.load(path)
        except InputError:  # of another version, or half written: measured anew
            pass
    found = _cluster(_figures())
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        found.save(path)
    except (OSError, InputError):  # no cache, then: it is measured again next time
        pass
    return found


def cache_path() -> Path:
    """Return the file that remembers this machine: the platform's folder for caches, a name by processor and cores."""
    if sys.platform == "win32":
        base = Path(os.environ.get("LOCALAPPDATA") or Path.home() / "AppData" / "Local")
    elif sys.platform == "darwin":
        base = Path.home() / "Library" / "Caches"
    else:
        base = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    machine = f"{platform.machine()} {platform.processor()} {_model()} {_cores()} {host_memory_bytes()}"
    return base / "trainwright" / f"laptop-{hashlib.sha256(machine.encode()).hexdigest()[:12]}.toml"


def _figures() -> dict[str, Any]:
    environment = {**os.environ, **dict.fromkeys(_THREADS, "1")}
    package = str(Path(__file__).resolve().parents[2])
    environment["PYTHONPATH"] = os.pathsep.join(filter(None, [package, os.environ.get("PYTHONPATH", "")]))
    command = [sys.executable, "-m", "trainwright.cluster._laptop_figures"]
    try:
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True, timeout=_SECONDS)
    except (OSError, subprocess.SubprocessError) as error:
        said = getattr(error, "stderr", None) or str(error)
        raise TrainwrightError(f"laptop: this machine could not be measured ({str(said).strip()[-300:]})") from None
    figures: dict[str, Any] = json.loads(done.stdout)
    return figures


def _cluster(figures: Mapping[str, Any]) -> Cluster:
    cores = _cores()
    sizes, seconds = zip(*figures["messages"], strict=True)
    messages = ExchangeTimes(operation="send", tier="memory", ranks=2, bytes=sizes, seconds=seconds)
    return fitted(
        Figures(
            name="laptop",
            source="measured on this machine with numpy and a local connection",
            kind=f"core of {_model()}",
            devices_per_node=cores,
            memory_bytes=host_memory_bytes() // cores,
            products={"fp32": figures["products"]},
            copies=figures["copies"],
            launch_seconds=figures["launch_seconds"],
            levels=(Level(name="memory", devices=cores, exchanges=(messages,)),) if cores > 1 else (),
        )
    )


def _cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def host_memory_bytes() -> int:
    """Return the bytes of memory, those that a container may use if it is limited; 0 if nothing tells."""
    try:
        found = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, OSError, ValueError):
        return 0
    limit = granted_memory_bytes()
    return found if limit is None else min(found, limit)


def _model() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(names, platform.machine())
