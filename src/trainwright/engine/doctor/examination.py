"""The examination of `trainwright doctor`: packages, devices, engines, and the folder of studies.

Each check gives rows of a name, a state, a sentence, and what would mend it.
"""

import os
import shutil
import statistics
import tempfile
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trainwright.cluster.visible_devices import cgroup_cores, host_memory_bytes, visible_gpus
from trainwright.engine.doctor.packages import check_extras, check_packages, import_torch, version_of
from trainwright.errors import InputError
from trainwright.plan.byte_sizes import format_bytes

__all__ = ["Finding", "check_devices", "check_engines", "check_folder", "examine", "find_file_system"]

_MANY_CORES = 8
_SHARED_BYTES = 512 << 20  # a container's default is 64 MiB, which a few batches of images fill
_ROOM_BYTES = 1 << 30
_SYNCS, _SLOW_SECONDS = 20, 0.05
_SHARED_DISKS = "9p afs beegfs ceph cifs fuse gpfs lustre nfs panfs smb3 wekafs"
_FLEETING = {"tmpfs": "in memory: gone when the machine or the job ends", "overlay": "of a container"}
_LAUNCHERS = {  # name: program, the variable of a job, what it gives
    "Slurm": ("sbatch", "SLURM_JOB_ID", "srun trainwright worker DIR"),
    "PBS": ("qsub", "PBS_JOBID", "a worker a task: trainwright worker DIR"),
    "MPI": ("mpirun", "OMPI_COMM_WORLD_RANK", "mpirun -n N trainwright worker DIR; no MPI library is used"),
    "PyCOMPSs": ("runcompss", "COMPSS_HOME", "tw.PyCOMPSs, on a COMPSs installation"),
    "Redis": ("redis-server", "", "a ledger for hundreds of workers; one host of the job runs it"),
}


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that was looked at, by the area where it belongs; `mend` is a command or an advice, or empty.

    States: "fine"; "absent", when nothing but what it would give is missing; "poor", which will trouble some people;
    "broken", when something essential does not work.
    """

    area: str  # installed, extras, devices, engines or folder
    name: str
    state: str
    says: str
    mend: str = ""


def examine(folder: str | Path = ".") -> tuple[Finding, ...]:
    """Look at this machine and at a folder for studies; return what was found, in the order to tell it.

    It takes seconds, most of them importing torch.
    """
    if not Path(folder).is_dir():
        raise InputError(f"doctor: got {str(folder)!r}; allowed: an existing directory; create it, or name another")
    torch = import_torch()
    areas = {
        "installed": check_packages(torch),
        "extras": check_extras(),
        "devices": check_devices(torch),
        "engines": check_engines(),
        "folder": check_folder(Path(folder)),
    }
    return tuple(Finding(area, *row) for area, rows in areas.items() for row in rows)


def check_devices(torch: Mapping[str, Any]) -> Iterator[tuple[str, ...]]:
    """Yield processors, memory, GPUs and shared memory; `torch` is what its import told."""
    whole = os.cpu_count() or 1
    bound, granted = len(os.sched_getaffinity(0)), cgroup_cores()
    says = f"{bound} of {whole}"
    if granted is not None and granted < bound:
        says += f"; a control group grants the time of {granted:g}, and as many workers run"
    few = bound == 1 and whole >= _MANY_CORES
    mend = "ask the launcher for more: srun --cpus-per-task=N, mpirun --bind-to none"
    yield "cores", *(("poor", says, mend) if few else ("fine", says))
    yield "memory", "fine", f"{format_bytes(host_memory_bytes())} for this process"
    yield "gpus", *_check_gpus(torch)
    shared = Path("/dev/shm")  # noqa: S108 -- its size is looked at
    if shared.is_dir():
        size = shutil.disk_usage(shared).total
        says = f"{format_bytes(size)} in /dev/shm, for loaders with workers and for served tensors"
        mend = "in a container: --shm-size=8g; else loaders without workers"
        yield "shared memory", *(("poor", says, mend) if size < _SHARED_BYTES else ("fine", says))


def _check_gpus(torch: Mapping[str, Any]) -> tuple[str, ...]:
    if seen := torch.get("gpus", []):
        names = [str(each["name"]) for each in seen]
        kinds = ", ".join(f"{names.count(name)} x {name}" for name in dict.fromkeys(names))
        return "fine", f"{kinds} with {format_bytes(min(each['bytes'] for each in seen))}"
    # PyTorch sees none: the driver's own files say whether any are there.
    if visible_gpus():
        mend = "install PyTorch for the driver's version: https://pytorch.org/get-started/locally"
        return "poor", f"{len(visible_gpus())} are there, but PyTorch does not reach them", mend
    hidden = os.environ.get("CUDA_VISIBLE_DEVICES")
    return "absent", "none: trials run on processors" + ("" if hidden is None else f" (CUDA_VISIBLE_DEVICES={hidden})")


def check_engines() -> Iterator[tuple[str, ...]]:
    """Yield Ray and each launcher."""
    version, address = version_of("ray"), os.environ.get("RAY_ADDRESS")
    if version is None:
        yield "Ray", "absent", "tw.Ray, trials on several nodes", 'pip install ".[ray]"'
    else:
        where = f"RAY_ADDRESS names {address}" if address else "no RAY_ADDRESS: tw.Ray() starts it on this machine"
        yield "Ray", "fine", f"{version}; {where}"
    for name, (program, variable, gives) in _LAUNCHERS.items():
        if job := os.environ.get(variable):
            yield name, "fine", f"inside ({variable}={job}): {gives}"
        elif shutil.which(program) is not None:
            yield name, "fine", f"{program} is there: {gives}"
        else:
            yield name, "absent", f"{gives}: no {program} on the path"


def check_folder(folder: Path) -> Iterator[tuple[str, ...]]:
    """Yield what is found; a file or two are written in the folder and removed again."""
    kind, mount = find_file_system(folder, Path("/proc/self/mountinfo"))
    says = f"{folder.absolute()} on {kind} ({mount})"
    if kind in _FLEETING:
        yield "file system", "poor", f"{says}, {_FLEETING[kind]}", "keep studies that must last elsewhere"
    elif kind.startswith(tuple(_SHARED_DISKS.split())):
        yield "file system", "fine", f"{says}, shared by hosts: workers on any of them may join"
    else:
        yield "file system", "fine", f"{says}, of this host alone"
    room = shutil.disk_usage(folder)
    says = f"{format_bytes(room.free)} of {format_bytes(room.total)} are free; a quota may leave less"
    mend = "make room, or give --directory a larger disk"
    yield "room", *(("poor", says, mend) if room.free < _ROOM_BYTES else ("fine", says))
    try:
        with tempfile.TemporaryDirectory(prefix=".trainwright-doctor-", dir=folder) as name:
            yield "claims", *_check_links(Path(name))
            yield "syncs", *_check_syncs(Path(name))
    except OSError as error:
        says = f"{folder} cannot be written: {(error.strerror or str(error)).lower()}"
        yield "writing", "broken", says, "use a directory of yours: trainwright doctor DIR"


def find_file_system(folder: Path, mounts: Path) -> tuple[str, str]:
    """Return the kind of file system that holds a folder and where it is mounted; ("unknown", "") if nothing tells."""
    best, found = -1, ("unknown", "")
    for line in mounts.read_text(encoding="utf-8").splitlines() if mounts.exists() else ():
        before, _, after = line.partition(" - ")
        mount = before.split()[4].encode().decode("unicode_escape")
        # The last of two mounts at one place hides the first.
        if folder.resolve().is_relative_to(mount) and len(Path(mount).parts) >= best:
            best, found = len(Path(mount).parts), (after.split()[0], mount)
    return found


def _check_links(folder: Path) -> tuple[str, ...]:
    """Link a file twice to one name: the second must be refused, for claims rest on it."""
    token, claim = folder / "token", folder / "claim"
    # The very operation by which a directory ledger lets exactly one of many writers win.
    token.write_bytes(b"")
    mend = "use another file system, or a Redis ledger"
    try:
        os.link(token, claim)
    except OSError as error:
        says = f"hard links are refused ({(error.strerror or str(error)).lower()}), and claims on trials rest on them"
        return "broken", says, mend
    try:
        os.link(token, claim)
    except FileExistsError:
        return "fine", "a name can be linked once only, so no trial is run twice"
    return "broken", "a name could be linked twice, so two workers may run one trial", mend


def _check_syncs(folder: Path) -> tuple[str, ...]:
    seconds = []
    with (folder / "journal").open("ab", buffering=0) as file:
        for _ in range(_SYNCS):
            file.write(b"a record of some length" * 10)
            begun = time.perf_counter()
            os.fsync(file.fileno())
            seconds.append(time.perf_counter() - begun)
    median = statistics.median(seconds)
    took = f"{1000 * median:.1f} ms (median of {_SYNCS}, most {1000 * max(seconds):.1f})"
    says = f"a sync takes {took}; a trial waits for one when it starts and when it ends"
    if median > _SLOW_SECONDS:
        return "poor", says, "fine for trials of minutes; for trials of seconds use a local disk or a Redis ledger"
    return "fine", says
