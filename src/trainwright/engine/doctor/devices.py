"""Examine the devices and limits of this machine: processors, memory, GPUs, shared memory, open files."""

import math
from collections.abc import Iterator, Mapping
from typing import Any

from trainwright.cluster.cgroup_limits import cgroup_cores, cgroup_memory_bytes
from trainwright.engine.doctor.finding import Area, Finding, Grade
from trainwright.engine.doctor.machine import Machine

__all__ = ["amount", "examine_devices"]

_SHARED_BYTES = 512 << 20  # a container's default is 64 MiB, which a few batches of images fill
_FILES = 1024
_MANY_CORES = 8


def examine_devices(host: Machine, torch: Mapping[str, Any]) -> Iterator[Finding]:
    """Yield what is found; `torch` is what its import told, empty where it is not installed."""
    yield _examine_cores(host)
    yield _examine_memory(host)
    yield _examine_gpus(host, torch)
    yield from _examine_shared_memory(host)
    yield from _examine_open_files(host)


def _make_finding(name: str, state: Grade, says: str, mend: str = "") -> Finding:
    return Finding(area=Area.DEVICES, name=name, state=state, says=says, mend=mend)


def _examine_cores(host: Machine) -> Finding:
    bound, whole = host.processors()
    granted = cgroup_cores(host.root)
    says = f"{bound} of {whole}" + (", the rest is not for this process" if bound < whole else "")
    if granted is not None and granted < bound:
        says += f"; a control group grants the time of {granted:g}, and as many workers run"
        if granted < 1:
            return _make_finding("cores", Grade.POOR, says, "ask for at least one whole processor")
    if bound == 1 < _MANY_CORES <= whole:
        mend = "if that is not wanted, ask the launcher for more: srun --cpus-per-task=N, mpirun --bind-to none"
        return _make_finding("cores", Grade.POOR, says, mend)
    return _make_finding("cores", Grade.FINE, says)


def _examine_memory(host: Machine) -> Finding:
    lines = (line.partition(":") for line in host.text("proc/meminfo").splitlines())
    known = {name: int(rest.split()[0]) * 1024 for name, _, rest in lines if rest.split()[:1] and "kB" in rest}
    if "MemTotal" not in known:
        return _make_finding("memory", Grade.ABSENT, "this system does not say how much there is")
    total, available = known["MemTotal"], known.get("MemAvailable", known["MemTotal"])
    granted = cgroup_memory_bytes(host.root)
    says = f"{amount(total)}, of which {amount(available)} are free"
    if granted is not None and granted < total:
        says += f"; a control group ends whoever takes more than {amount(granted)}"
    return _make_finding("memory", Grade.FINE, says)


def _examine_gpus(host: Machine, torch: Mapping[str, Any]) -> Finding:
    nvidia = len(list((host.root / "proc/driver/nvidia/gpus").glob("*")))
    amd = (host.root / "dev/kfd").exists()
    seen = torch.get("gpus", [])
    if seen:
        names = [str(each["name"]) for each in seen]
        kinds = [f"{names.count(name)} x {name}" for name in dict.fromkeys(names)]
        return _make_finding(
            "gpus", Grade.FINE, f"{', '.join(kinds)} with {amount(min(each['bytes'] for each in seen))}"
        )
    hidden = host.environment.get("CUDA_VISIBLE_DEVICES")
    if nvidia and hidden is not None and not hidden.strip(" ,-1"):
        says = f"{nvidia}, all hidden by CUDA_VISIBLE_DEVICES={hidden!r}"
        return _make_finding("gpus", Grade.POOR, says, "unset CUDA_VISIBLE_DEVICES, or ask the batch system for GPUs")
    if (nvidia or amd) and not torch:
        return _make_finding("gpus", Grade.POOR, f"{nvidia or 'some'} are there, PyTorch is not installed", _TORCH)
    if nvidia or amd:
        why = "cannot reach them" if torch.get("cuda") else "is built for processors alone"
        return _make_finding("gpus", Grade.POOR, f"{nvidia or 'some'} are there, but PyTorch {why}", _TORCH)
    return _make_finding("gpus", Grade.ABSENT, "none: trials run on processors")


_TORCH = "install PyTorch for the driver's version: https://pytorch.org/get-started/locally"


def _examine_shared_memory(host: Machine) -> Iterator[Finding]:
    room = host.room(host.root / "dev/shm")
    if room is None:
        return
    says = f"{amount(room.total_bytes)} in /dev/shm, for loaders with workers and for served tensors"
    if room.total_bytes < _SHARED_BYTES:
        yield _make_finding(
            "shared memory", Grade.POOR, says, "in a container: --shm-size=8g; else loaders without workers"
        )
    else:
        yield _make_finding("shared memory", Grade.FINE, says)


def _examine_open_files(host: Machine) -> Iterator[Finding]:
    found = host.open_files()
    if found is None:
        return
    soft, hard = (math.inf if limit < 0 else limit for limit in found)
    says = f"{'any number of' if soft == math.inf else soft} open files a process"
    if soft < _FILES:
        most = min(_FILES, hard)
        yield _make_finding("ulimit -n", Grade.POOR, says, f"ulimit -n {most} before the run")
    else:
        yield _make_finding("ulimit -n", Grade.FINE, says)


def amount(count: float) -> str:
    """Return bytes in binary units, as memory is sold: 512.0 MiB, 23.5 GiB."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if count < 1024:
            return f"{count:.0f} B" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1024
    return f"{count:.1f} TiB"
