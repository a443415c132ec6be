"""Devices that members run on: accelerators by number, and groups of a processor's cores with fixed threads.

Threads that spin while they wait take the cores from threads with work: two processes of spinning threads on one group
of cores do a hundredth of the work of one. So worker processes wait passively, unless the environment says otherwise.
"""

import itertools
import math
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal

from trainwright.cluster import Cluster
from trainwright.cluster.visible_devices import cgroup_cores, host_memory_bytes
from trainwright.errors import DeviceError

__all__ = [
    "Device",
    "found_devices",
    "parse_devices",
    "room_of",
    "share_devices",
    "simulated_devices",
    "thread_environment",
]

_CPU = re.compile(r"cpu(?::(\d+)(?:-(\d+))?)?")
_CUDA = re.compile(r"cuda(?::(\d+))?")
_THREAD_NUMBERS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "NUMBA_NUM_THREADS")
_PASSIVE = {"OMP_WAIT_POLICY": "PASSIVE", "GOMP_SPINCOUNT": "0", "KMP_BLOCKTIME": "0"}


@dataclass(frozen=True, kw_only=True, slots=True)
class Device:
    """One place for instances; a group of cores has its share of the host's memory and of what a quota leaves.

    `threads` are those of one process at most: a group's `cpus`, or OMP_NUM_THREADS if that is less.
    """

    name: str  # "cuda:0", "cpu:0-7"; of a simulated one "CLUSTER/NUMBER"
    kind: Literal["cpu", "cuda"]
    model: str = "cpu"  # what the hardware is called; time tables are kept by it
    cores: tuple[int, ...] = ()  # processors of a group; () of an accelerator
    cpus: int = 0  # threads of a group that may run at once: its cores, or less by a quota; 0: its cores
    threads: int = 1  # of one operation on the processor
    capacity_bytes: int = 0
    simulated: bool = False  # no such device is here: what is said of it is computed

    def to_json(self) -> dict[str, Any]:
        """Return the device as a JSON object."""
        return {**asdict(self), "cores": list(self.cores)}

    @property
    def room(self) -> int | None:
        """How many instances may compute here at once, a thread each; None if no cores limit them."""
        return None if self.simulated or not self.cores else self.cpus or len(self.cores)

    def threads_of(self, count: int) -> tuple[int, ...]:
        """Return the threads of each of `count` instances here: together as many as have room, but one at least."""
        if self.room is None:
            return (self.threads,) * count
        # The first ones get what cannot be divided evenly.
        each, over = divmod(self.room, max(1, count))
        return tuple(max(1, min(self.threads, each + (place < over))) for place in range(count))

    def parts(self, count: int) -> "tuple[Device, ...]":
        """Return a processor's cores as so many groups, as equal as can be, or as many as have room; else itself."""
        count = min(count, self.room or 0)
        if count < 2:
            return (self,)
        size = len(self.cores)
        # Cores and threads are divided as equally as integers allow.
        bounds = [place * size // count for place in range(count + 1)]
        shares = [place * (self.room or size) // count for place in range(count + 1)]
        return tuple(
            replace(
                self,
                name=_group_name(self.cores[start:stop]),
                model=_model_name(stop - start),
                cores=self.cores[start:stop],
                cpus=most - least,
                threads=min(self.threads, most - least),
                capacity_bytes=self.capacity_bytes * (stop - start) // size,
            )
            for (start, stop), (least, most) in zip(itertools.pairwise(bounds), itertools.pairwise(shares), strict=True)
        )

    @classmethod
    def from_json(cls, content: Mapping[str, Any]) -> "Device":
        """Return the device that `to_json` wrote."""
        return cls(**{**content, "cores": tuple(content["cores"])})


def parse_devices(given: str | Iterable[str | Device]) -> tuple[Device, ...]:
    """Return the devices that names mean: "cuda:0", "cuda" (the first one), "cpu:0-7", "cpu:3", "cpu" (all cores).

    A text may name several, with commas between. Raises DeviceError for a name that is unknown or given twice, for a
    device that is not here, and for groups that share cores; the sentence lists what was found.
    """
    wanted = [part.strip() for part in given.split(",")] if isinstance(given, str) else list(given)
    if not wanted:
        raise DeviceError(f"devices: got none; allowed: {_list_found()}")
    devices = tuple(one if isinstance(one, Device) else _parse_device(one) for one in wanted)
    # Names and cores that are taken: processes on shared cores would disturb each other's times.
    holders: dict[str | int, str] = {}
    for device in devices:
        if device.name in holders:
            raise DeviceError(f"devices: got {device.name!r} twice; allowed: each once; here are {_list_found()}")
        holders[device.name] = device.name
        for core in device.cores if not device.simulated else ():
            if core in holders:
                raise DeviceError(
                    f"devices: {holders[core]!r} and {device.name!r} share core {core}; allowed: groups of cores apart "
                    f"from each other; here are {_list_found()}"
                )
            holders[core] = device.name
    return devices


def found_devices() -> tuple[Device, ...]:
    """Return what this machine has: its accelerators, and all cores that this process may use as one group."""
    return (*(_cuda_device(number) for number in range(_cuda_count())), *map(_cpu_group, _core_runs(_usable_cores())))


def room_of(devices: Sequence[Device]) -> int | None:
    """Return how many instances may compute at once on all of them; None if no cores limit them."""
    rooms = [device.room for device in devices]
    return None if None in rooms else sum(room or 0 for room in rooms)


def share_devices(devices: Sequence[Device], count: int) -> tuple[Device, ...]:
    """Return what each of `count` models has of devices: a share of their bytes and threads, of these one at least."""
    shared = []
    for device in devices:
        cpus = max(1, device.room // count) if device.room else device.cpus
        threads = min(device.threads, cpus) if device.room else device.threads
        shared.append(replace(device, capacity_bytes=device.capacity_bytes // count, cpus=cpus, threads=threads))
    return tuple(shared)


def simulated_devices(clusters: Cluster | Sequence[Cluster]) -> tuple[Device, ...]:
    """Return every device of the clusters as simulated ones; several clusters make a heterogeneous set."""
    listed = [clusters] if isinstance(clusters, Cluster) else list(clusters)
    names = [cluster.name for cluster in listed]
    if not names or len(set(names)) < len(names):
        raise DeviceError(f"clusters: got {', '.join(names) or 'none'}; allowed: at least one, each with its own name")
    for cluster in listed:
        if not cluster.device.memory_bytes:
            raise DeviceError(
                f"cluster {cluster.name!r}: the memory of its device {cluster.device.kind!r} is not known, so nothing "
                "can be placed on it; give device.memory_bytes in its file"
            )
    return tuple(
        Device(
            name=f"{cluster.name}/{number}",
            kind="cuda" if cluster.device.host_bandwidth else "cpu",  # what shares the host's memory is a processor
            model=cluster.device.kind,
            capacity_bytes=cluster.device.memory_bytes,
            simulated=True,
        )
        for cluster in listed
        for number in range(cluster.devices)
    )


def thread_environment(threads: int) -> dict[str, str]:
    """Return the environment of a process that computes with so many threads; to be set before it loads torch."""
    return {**_PASSIVE, **os.environ, **dict.fromkeys(_THREAD_NUMBERS, str(threads))}


def _parse_device(name: str) -> Device:
    if found := _CUDA.fullmatch(name):
        number = int(found[1] or 0)
        if number >= _cuda_count():
            raise DeviceError(f"devices: there is no {name!r}; allowed: {_list_found()}")
        return _cuda_device(number)
    if found := _CPU.fullmatch(name):
        known = _usable_cores()
        first, last = found[1], found[2] or found[1]
        cores = known if first is None else tuple(range(int(first), int(last) + 1))
        missing = sorted(set(cores) - set(known))
        if missing or not cores:
            why = f"core {missing[0]} is not here" if missing else "its last core is below its first"
            raise DeviceError(f"devices: got {name!r}, but {why}; allowed: {_list_found()}, or parts of their cores")
        return _cpu_group(cores)
    raise DeviceError(f"devices: got {name!r}; allowed: {_list_found()}; name one as cuda:0, cpu:0-7 or cpu")


def _cpu_group(cores: tuple[int, ...]) -> Device:
    # Memory is shared by cores too, since one group cannot know what the others take.
    whole, granted = os.cpu_count() or len(cores), cgroup_cores()
    # A container's quota is shared among the groups by their cores.
    share = math.inf if granted is None else granted * len(cores) / max(len(cores), len(_usable_cores()))
    cpus = max(1, min(len(cores), math.floor(share) if math.isfinite(share) else len(cores)))
    return Device(
        name=_group_name(cores),
        kind="cpu",
        cores=cores,
        model=_model_name(len(cores)),
        cpus=cpus,
        threads=min(cpus, _asked_threads() or cpus),
        capacity_bytes=host_memory_bytes() * len(cores) // max(whole, len(cores)),
    )


def _asked_threads() -> int | None:
    """Return the threads of one process that OMP_NUM_THREADS allows; None if it says nothing."""
    # A list is by depth of nesting.
    first = os.environ.get("OMP_NUM_THREADS", "").partition(",")[0].strip()
    return int(first) if first.isdigit() and int(first) else None


def _model_name(cores: int) -> str:
    return "cpu" if cores == 1 else f"cpu x {cores}"


def _group_name(cores: Sequence[int]) -> str:
    return f"cpu:{cores[0]}" if len(cores) == 1 else f"cpu:{cores[0]}-{cores[-1]}"


def _usable_cores() -> tuple[int, ...]:
    if hasattr(os, "sched_getaffinity"):
        return tuple(sorted(os.sched_getaffinity(0)))
    return tuple(range(os.cpu_count() or 1))


def _core_runs(cores: tuple[int, ...]) -> list[tuple[int, ...]]:
    """Split cores into runs without gaps, which is what a name can say."""
    starts = [place for place, core in enumerate(cores) if not place or core != cores[place - 1] + 1]
    return [cores[start:stop] for start, stop in zip(starts, [*starts[1:], len(cores)], strict=True)]


def _cuda_count() -> int:
    try:
        import torch
    except ImportError:
        return 0
    # Asks the driver, and sets up nothing on the devices.
    return torch.cuda.device_count()


def _cuda_device(number: int) -> Device:
    import torch

    properties = torch.cuda.get_device_properties(number)
    return Device(name=f"cuda:{number}", kind="cuda", model=properties.name, capacity_bytes=properties.total_memory)


def _list_found() -> str:
    return ", ".join(device.name for device in found_devices())
