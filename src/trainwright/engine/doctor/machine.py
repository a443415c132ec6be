"""The machine that `doctor` examines: its processors, memory, devices and packages, each replaceable by a test."""

import importlib.metadata
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from trainwright.cluster.cgroup_limits import cgroup_cores, cgroup_memory_bytes

__all__ = ["Machine", "amount", "examine_devices"]


def _find_version(package: str) -> str | None:
    """Return the version of an installed package, None if it is not there."""
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def _read_requirements() -> tuple[str, ...]:
    """Return what Trainwright requires, as PEP 508 writes it."""
    try:
        return tuple(importlib.metadata.requires("trainwright") or ())
    except importlib.metadata.PackageNotFoundError:
        return ()


def _run_command(command: Sequence[str], seconds: float) -> tuple[int | None, str]:
    """Run a command for at most so many seconds; return its status, None if it did not end, and its output."""
    try:
        done = subprocess.run(
            list(command), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False, timeout=seconds
        )
    except (OSError, subprocess.SubprocessError) as error:
        return None, str(error)
    return done.returncode, done.stdout


def _measure_space(path: Path) -> tuple[int, int] | None:
    """Return the bytes of a path's file system and how many of them are free, None if it cannot be told."""
    try:
        found = shutil.disk_usage(path)
    except OSError:
        return None
    return found.total, found.free


def _count_processors() -> tuple[int, int]:
    """Return how many processors this process is bound to, and how many there are."""
    whole = os.cpu_count() or 1
    return (len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else whole), whole


def _limit_open_files() -> int | None:
    """Return the soft limit of open files, None where there is none."""
    try:
        import resource
    except ImportError:  # not a POSIX system
        return None
    soft = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    return None if soft == resource.RLIM_INFINITY else soft


@dataclass(frozen=True, kw_only=True)
class Machine:
    """A machine and its Python; `root` is where /proc and /sys are found."""

    root: Path = Path("/")
    environment: Mapping[str, str] = field(default_factory=lambda: dict(os.environ))
    python: tuple[int, int, int] = sys.version_info[:3]
    version: Callable[[str], str | None] = _find_version  # of an installed package
    requirements: Callable[[], tuple[str, ...]] = _read_requirements  # of Trainwright, as PEP 508 writes them
    which: Callable[[str], str | None] = shutil.which
    run: Callable[[Sequence[str], float], tuple[int | None, str]] = _run_command  # a command and its seconds
    room: Callable[[Path], tuple[int, int] | None] = _measure_space  # bytes, and free ones
    processors: Callable[[], tuple[int, int]] = _count_processors  # bound to, and there
    open_files: Callable[[], int | None] = _limit_open_files

    def text(self, path: str) -> str:
        """Return a file below `root`, or "" where it cannot be read."""
        try:
            return (self.root / path).read_text(encoding="utf-8", errors="replace")
        except OSError:
            return ""


_SHARED_BYTES = 512 << 20  # a container's default is 64 MiB, which a few batches of images fill
_FILES = 1024
_MANY_CORES = 8
_TORCH = "install PyTorch for the driver's version: https://pytorch.org/get-started/locally"


def examine_devices(host: Machine, torch: Mapping[str, Any]) -> Iterator[tuple[str, ...]]:
    """Yield what is found; `torch` is what its import told, empty where it is not installed."""
    yield "cores", *_examine_cores(host)
    yield "memory", *_examine_memory(host)
    yield "gpus", *_examine_gpus(host, torch)
    if (room := host.room(host.root / "dev/shm")) is not None:
        says = f"{amount(room[0])} in /dev/shm, for loaders with workers and for served tensors"
        mend = "in a container: --shm-size=8g; else loaders without workers"
        yield "shared memory", *(("poor", says, mend) if room[0] < _SHARED_BYTES else ("fine", says))
    if (limit := host.open_files()) is not None:
        says, mend = f"{limit} open files a process", f"ulimit -n {_FILES} before the run"
        yield "ulimit -n", *(("poor", says, mend) if limit < _FILES else ("fine", says))


def _examine_cores(host: Machine) -> tuple[str, ...]:
    bound, whole = host.processors()
    # A container shows all processors of its host, but may run on a part of them only.
    granted = cgroup_cores(host.root)
    says = f"{bound} of {whole}" + (", the rest is not for this process" if bound < whole else "")
    if granted is not None and granted < bound:
        says += f"; a control group grants the time of {granted:g}, and as many workers run"
        if granted < 1:
            return "poor", says, "ask for at least one whole processor"
    if bound == 1 < _MANY_CORES <= whole:
        return "poor", says, "ask the launcher for more: srun --cpus-per-task=N, mpirun --bind-to none"
    return "fine", says


def _examine_memory(host: Machine) -> tuple[str, ...]:
    lines = (line.partition(":") for line in host.text("proc/meminfo").splitlines())
    known = {name: int(rest.split()[0]) * 1024 for name, _, rest in lines if rest.split()[:1] and "kB" in rest}
    if "MemTotal" not in known:
        return "absent", "this system does not say how much there is"
    total, granted = known["MemTotal"], cgroup_memory_bytes(host.root)
    says = f"{amount(total)}, of which {amount(known.get('MemAvailable', total))} are free"
    if granted is not None and granted < total:
        says += f"; a control group ends whoever takes more than {amount(granted)}"
    return "fine", says


def _examine_gpus(host: Machine, torch: Mapping[str, Any]) -> tuple[str, ...]:
    if seen := torch.get("gpus", []):
        names = [str(each["name"]) for each in seen]
        kinds = ", ".join(f"{names.count(name)} x {name}" for name in dict.fromkeys(names))
        return "fine", f"{kinds} with {amount(min(each['bytes'] for each in seen))}"
    # PyTorch sees none: the driver's own files say whether any are there.
    count = len(list((host.root / "proc/driver/nvidia/gpus").glob("*")))
    hidden = host.environment.get("CUDA_VISIBLE_DEVICES")
    if count and hidden is not None and not hidden.strip(" ,-1"):
        says = f"{count}, all hidden by CUDA_VISIBLE_DEVICES={hidden!r}"
        return "poor", says, "unset CUDA_VISIBLE_DEVICES, or ask the batch system for GPUs"
    # An AMD driver shows that it is there, but not how many GPUs.
    if count or (host.root / "dev/kfd").exists():
        why = "cannot reach them" if torch.get("cuda") else "is built for processors alone"
        why = why if torch else "is not installed"
        return "poor", f"{count or 'some'} are there, but PyTorch {why}", _TORCH
    return "absent", "none: trials run on processors"


def amount(count: float) -> str:
    """Return bytes in binary units, as memory is sold: 512.0 MiB, 23.5 GiB."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if count < 1024:
            return f"{count:.0f} B" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1024
    return f"{count:.1f} TiB"
