"""Presets: machines by name, from their vendors' data sheets; none was measured but the laptop.

Peaks are of dense operations (a sheet's figure with sparsity halved). Bandwidths are of one direction: inside
a node the sum of a device's links, outside one adapter. Latencies are those that ParaDL used on ABCI, for want of any
for the others. All are to be replaced by a calibration before they are relied on.
"""

from collections.abc import Callable, Mapping
from dataclasses import replace
from types import MappingProxyType

from trainwright.cluster.cluster import Cluster
from trainwright.cluster.device import Device
from trainwright.cluster.laptop import laptop
from trainwright.cluster.network import Tier
from trainwright.errors import InputError, closest

__all__ = ["PRESETS", "preset"]

_V100 = Device(
    kind="V100-16GB",
    memory_bytes=16 * 10**9,
    flops={"fp32": 15.7e12, "fp16": 125e12},
    memory_bandwidth=900e9,
    launch_seconds=5e-6,
    host_bandwidth=16e9,
)
_A100_40 = Device(
    kind="A100-40GB",
    memory_bytes=40 * 10**9,
    flops={"fp32": 19.5e12, "tf32": 156e12, "fp16": 312e12, "bf16": 312e12},
    memory_bandwidth=1555e9,
    launch_seconds=5e-6,
    host_bandwidth=32e9,
)
_A100_80 = replace(_A100_40, kind="A100-80GB", memory_bytes=80 * 10**9, memory_bandwidth=2039e9)
_H100 = Device(
    kind="H100-80GB",
    memory_bytes=80 * 10**9,
    flops={"fp32": 67e12, "tf32": 495e12, "fp16": 989e12, "bf16": 989e12, "fp8": 1979e12},
    memory_bandwidth=3350e9,
    launch_seconds=5e-6,
    host_bandwidth=64e9,
)
_H200 = replace(_H100, kind="H200-141GB", memory_bytes=141 * 10**9, memory_bandwidth=4800e9)

_INSIDE, _OUTSIDE = 9e-6, 40e-6
_SHEETS = "vendors' data sheets"


def _inside(devices: int, bandwidth: float) -> Tier:
    return Tier(name="nvlink", devices=devices, alpha=_INSIDE, bandwidth=bandwidth)


def _abci(nodes: int) -> Cluster:
    levels = (("leaf", 68, 40.31e-6, 1.0), ("rack", 136, 40.49e-6, 1.0), ("spine", 4352, 40.98e-6, 3.0))
    outer = (
        Tier(name=name, devices=size, alpha=alpha, bandwidth=12.5e9, links_per_node=2, oversubscription=share)
        for name, size, alpha, share in levels
    )
    source = "links and latencies as ParaDL used them (arXiv 2104.09075 and its code)"
    return Cluster(nodes, 4, name="abci-v100", source=source, device=_V100, tiers=(_inside(4, 50e9), *outer))


def _flat(name: str, device: Device, *, inside: Tier, links: int, bandwidth: float) -> Callable[[int], Cluster]:
    """Return a builder of nodes with NVLink inside, under one network that nothing narrows."""

    def build(nodes: int) -> Cluster:
        size = nodes * inside.devices
        network = Tier(name="network", devices=size, alpha=_OUTSIDE, bandwidth=bandwidth, links_per_node=links)
        tiers = (inside, network) if nodes > 1 else (inside,)
        return Cluster(nodes, inside.devices, name=name, source=_SHEETS, device=device, tiers=tiers)

    return build


def _dgx(name: str, device: Device, inside: float, outside: float) -> Callable[[int], Cluster]:
    return _flat(name, device, inside=_inside(8, inside), links=8, bandwidth=outside)


# Builder by name, how many nodes by default and at most: a DGX is a node, of which there may be any number.
_MACHINES: Mapping[str, tuple[Callable[[int], Cluster], int, int]] = MappingProxyType({
    "abci-v100": (_abci, 1088, 1088),
    "dgx-a100": (_dgx("dgx-a100", _A100_80, 300e9, 25e9), 1, 100_000),
    "dgx-h100": (_dgx("dgx-h100", _H100, 450e9, 50e9), 1, 100_000),
    "dgx-h200": (_dgx("dgx-h200", _H200, 450e9, 50e9), 1, 100_000),
    "juwels-booster": (_flat("juwels-booster", _A100_40, inside=_inside(4, 300e9), links=4, bandwidth=25e9), 936, 936),
    "polaris": (_flat("polaris", _A100_40, inside=_inside(4, 300e9), links=2, bandwidth=25e9), 560, 560),
    "h200": (lambda _nodes: Cluster(name="h200", source=_SHEETS, device=_H200), 1, 1),
    "laptop": (lambda _nodes: laptop(), 1, 1),
})  # fmt: skip
PRESETS = tuple(_MACHINES)


def preset(name: str, *, nodes: int | None = None) -> Cluster:
    """Return a preset; see `Cluster.preset`."""
    if name not in _MACHINES:
        raise InputError(f"cluster: got {name!r}; allowed: {', '.join(PRESETS)}, or a file{closest(name, PRESETS)}")
    build, default, most = _MACHINES[name]
    wanted = default if nodes is None else nodes
    if isinstance(wanted, bool) or not isinstance(wanted, int) or not 1 <= wanted <= most:
        raise InputError(f"nodes of {name}: got {nodes!r}; allowed: a whole number from 1 to {most}")
    return build(wanted)
