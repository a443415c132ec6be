"""A cluster: nodes with devices, the network between them, and its measured or published speed."""

import itertools
import tomllib
from collections.abc import Mapping
from dataclasses import KW_ONLY, dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any, NoReturn

from trainwright.cluster.device import Device, DeviceFailures, NodeShape, Storage
from trainwright.cluster.files import read_cluster, write_cluster
from trainwright.cluster.network import ExchangeTimes, NetworkLevel
from trainwright.cluster.presets.laptop import load_or_measure_laptop
from trainwright.errors import InputError, closest
from trainwright.settings import Settings
from trainwright.validators import check, each, integer, number, one_of

__all__ = ["PRESETS", "RUNTIMES", "Cluster"]

RUNTIMES = ("step", "fsdp", "gpipe", "1f1b")
"""What the runtime adds time to: a step on several devices, and a micro-batch of FSDP or a pipeline, by schedule."""


_COUNTS = each(integer(minimum=1), words="a list of whole numbers >= 1")
_SHARES = each(number(above=0), words="a list of numbers > 0")


@dataclass(frozen=True, slots=True)
class Cluster(Settings):
    """`nodes` nodes with `devices_per_node` devices each; rank = node * devices_per_node + place in the node.

    Nodes that differ are listed: `node_devices` has the devices of each, `devices_per_node` being the most, and
    `node_speeds` how fast these are, relative to `device`. Schedulers and simulations use both; the oracle, which knows
    their memory and links too, plans for those of them that go together best.

    `tiers` are the levels of the network, the smallest first: the first joins the devices of a node (if a node has
    more than one), each next one whole groups of the one before, the last all devices. A cluster without tiers or
    without a device's speed can be counted and simulated on, but no time can be predicted for it.
    """

    nodes: Annotated[int, integer(minimum=1)] = 1
    devices_per_node: Annotated[int, integer(minimum=1)] = 1
    _: KW_ONLY
    name: str = "unnamed"
    source: str = ""
    verified: bool = False
    """Whether the figures were measured on this cluster; if not, every table says "uncalibrated"."""
    device: Device = field(default_factory=Device)
    tiers: tuple[NetworkLevel, ...] = ()
    measured: tuple[ExchangeTimes, ...] = ()
    """Measured times of exchanges; they take precedence over the formulas of the tiers."""
    storage: Storage = field(default_factory=Storage)
    failure: DeviceFailures = field(default_factory=DeviceFailures)
    node_devices: Annotated[tuple[int, ...], _COUNTS] = ()
    """Devices of each node; () where all have `devices_per_node`."""
    node_speeds: Annotated[tuple[float, ...], _SHARES] = ()
    """Speed of each node's devices, relative to `device`; () where all are as fast."""
    node_memory_bytes: Annotated[tuple[int, ...], _COUNTS] = ()
    """Memory of each node's devices; () where all have that of `device`."""
    node_links: Annotated[tuple[float, ...], _SHARES] = ()
    """Bandwidth of each node's links to others, relative to that of the tiers; () where all are as fast."""
    overhead_seconds: Annotated[float, number(minimum=0)] = 0.0
    """Framework seconds of an iteration that no layer explains."""
    exchange_seconds: Annotated[float, number(minimum=0)] = 0.0
    """Seconds that the host takes to start one exchange: the device waits for them before a transfer between stages."""
    overlap: Annotated[float, number(minimum=0, maximum=1)] = 1.0
    """Speed of computation while a collective is under way, as a share of its speed alone, 0 to 1.

    1: exchanges are hidden completely; 0: each waits for the other, as where the same cores do both.
    """
    pass_seconds: tuple[float, ...] = ()
    """Seconds of forward and backward of several models alone, rising, where a training's runtime was measured; () on
    devices that work independently of their host."""
    runtime_seconds: Mapping[str, tuple[float, ...]] = field(default_factory=dict)
    """How much longer each of these took in a training than the pass and its exchanges: as a "step" on several devices,
    and as a micro-batch of FSDP or of a pipeline, by schedule. That is torch's own code, the mean of the loss, waiting
    for delayed ranks, and micro-batches that evict each other from caches."""
    errors: Mapping[str, float] = field(default_factory=dict)
    """Relative error of the calibration by what was fitted ("compute", tier names, "storage"), for intervals."""
    seen: Mapping[str, tuple[float, float]] = field(default_factory=dict)
    """Least and largest of what the runs covered that the figures were fitted to ("devices", "parameters"); further
    away predictions err by more."""
    conditions: Mapping[str, str] = field(default_factory=dict)
    """Conditions of the measurement: date, versions, load."""

    def check_together(self) -> None:
        """Check the runtime's times against their passes, and the levels of the network against each other."""
        if any(one >= other for one, other in itertools.pairwise((0.0, *self.pass_seconds))):
            _raise_refusal("Cluster.pass_seconds", list(self.pass_seconds), "rising seconds > 0")
        for name, times in self.runtime_seconds.items():
            where = f"Cluster.runtime_seconds.{name}"
            check(name, one_of(*RUNTIMES), where)
            if not times or len(times) != len(self.pass_seconds):
                _raise_refusal(where, list(times), "one for each of pass_seconds")
            for seconds in times:
                check(seconds, number(minimum=0), where)
        for name, error in self.errors.items():
            check(error, number(minimum=0), f"Cluster.errors.{name}")
        for name in ("node_devices", "node_speeds", "node_memory_bytes", "node_links"):
            object.__setattr__(self, name, tuple(getattr(self, name)))  # lists of a file; frozen and hashable
            if getattr(self, name) and len(getattr(self, name)) != self.nodes:
                _raise_refusal(f"Cluster.{name}", list(getattr(self, name)), f"one for each of the {self.nodes} nodes")
        if self.node_devices and max(self.node_devices) != self.devices_per_node:
            allowed = f"numbers of which the largest is devices_per_node={self.devices_per_node}"
            _raise_refusal("Cluster.node_devices", list(self.node_devices), allowed)
        self._check_levels()

    def _check_levels(self) -> None:
        # Levels must nest: each is a multiple or a part of those before it, or groups would cross its borders.
        names: list[str] = []
        parts = [(self.devices_per_node, "a node")]
        for place, level in enumerate(self.tiers):
            where = f"Cluster.tiers[{place}]"
            if level.name in names:
                _raise_refusal(f"{where}.name", level.name, "a name that no other tier has")
            if place and level.devices <= self.tiers[place - 1].devices:
                _raise_refusal(f"{where}.devices", level.devices, f"more than the {parts[-1][0]} of the tier before")
            # The last level joins everything, so that it need not fall into equal parts.
            for part, what in parts if place < len(self.tiers) - 1 else ():
                if max(part, level.devices) % min(part, level.devices):
                    _raise_refusal(f"{where}.devices", level.devices, f"a multiple or part of the {part} of {what}")
            names.append(level.name)
            parts.append((level.devices, "the tier before"))
        if self.tiers and self.tiers[-1].devices < self.devices:
            _raise_refusal(
                f"Cluster.tiers[{len(names) - 1}].devices",
                self.tiers[-1].devices,
                f"at least the {self.devices} devices of the cluster, or one tier more: a link is missing",
            )
        for place, times in enumerate(self.measured):
            check(times.tier, one_of(*names), f"Cluster.measured[{place}].tier")

    @property
    def devices(self) -> int:
        """All devices."""
        return sum(self.node_devices) or self.nodes * self.devices_per_node

    @property
    def node_shapes(self) -> tuple[NodeShape, ...]:
        """The devices and the speed of each node."""
        sizes = self.node_devices or (self.devices_per_node,) * self.nodes
        return tuple(map(NodeShape, sizes, self.node_speeds or (1.0,) * self.nodes))

    @classmethod
    def preset(cls, name: str, *, nodes: int | None = None, typical: bool = True) -> "Cluster":
        """Return a known machine, with `nodes` nodes if given; `trainwright.cluster.PRESETS` lists the names.

        Without `typical` it is the data sheet alone, without the shares of it that public runs reached.

        "laptop" is this machine: it is measured when it is first asked for, which takes a few seconds, and remembered
        in the user's cache. Raises `InputError` for an unknown name or more nodes than the machine has.
        """
        if name not in PRESETS:
            raise InputError(f"cluster: got {name!r}; allowed: {', '.join(PRESETS)}, or a file{closest(name, PRESETS)}")
        # The laptop is a single node and has no sheet.
        content = {"nodes": 1, "most_nodes": 1}
        if name != _LAPTOP:
            content = tomllib.loads(_FILES[name].read_text(encoding="utf-8"))
        wanted = content["nodes"] if nodes is None else nodes
        check(wanted, integer(minimum=1, maximum=content.pop("most_nodes")), f"nodes of {name}")
        if name == _LAPTOP:
            return load_or_measure_laptop(cls)
        fields = _fields_of(content, wanted)
        return cls(**(_add_typical(fields) if typical and name not in _AS_PUBLISHED else fields))

    @classmethod
    def load(cls, path: Path | str) -> "Cluster":
        """Read a TOML file.

        Raises `InputError` with the key, the value and what is allowed; also for figures that look as if they were in
        other units than bytes and seconds.
        """
        return read_cluster(cls, Path(path))

    def save(self, path: Path | str) -> None:
        """Write the file that `load` reads; an existing file is replaced."""
        write_cluster(self, Path(path))


def _raise_refusal(where: str, value: object, allowed: str) -> NoReturn:
    raise InputError(f"{where}: got {value!r}; allowed: {allowed}")


_FILES = {path.stem: path for path in sorted((Path(__file__).parent / "presets").glob("*.toml"))}
_LAPTOP = "laptop"
PRESETS = tuple(sorted((*_FILES, _LAPTOP)))

# What data sheets do not say: the share of their figures that training reaches, and what the host adds. One set for all
# machines, as public runs of A100, H100, H200, B200, GB200 and GB300 had it; `benchmarks/plan` fits it, and says how
# far presets err on machines and frameworks that it was not fitted to.
_AS_PUBLISHED = frozenset({"abci-v100"})
"""Presets that stay as their publication used them."""
_EFFICIENCY = {"linear": 0.84, "attention": 0.54, "fp8": 0.93, "memory": 0.94, "loss": 0.3}
_HOST_SECONDS, _EXCHANGE_SECONDS, _OVERHEAD_SECONDS, _OVERLAP = 6e-6, 4e-5, 6e-3, 0.48
_PRODUCT_SECONDS = 1.4e-5
"""A product is half as efficient when it has as many operations as the device's peak does in that time."""
_REACHED = {"network": 0.83}
_REACHED_INSIDE = 0.59
"""Shares of the bandwidth between nodes, and inside one."""


def _fields_of(content: dict[str, Any], nodes: int) -> dict[str, Any]:
    """Return the fields of a cluster of so many nodes."""
    levels = [
        NetworkLevel(**{"devices": nodes * content["devices_per_node"], **level})
        for level in content.pop("tier", ())
        # A single node needs no level that joins all nodes.
        if "devices" in level or nodes > 1
    ]
    return {**content, "nodes": nodes, "device": Device(**content["device"]), "tiers": tuple(levels)}


def _add_typical(content: dict[str, Any]) -> dict[str, Any]:
    """Return a cluster's fields with these constants."""
    device = content["device"]
    peak = device.flops.get("fp16", device.flops.get("fp32", 0.0))
    return {
        **content,
        "device": replace(
            device, efficiency=_EFFICIENCY, host_seconds=_HOST_SECONDS, product_flops=_PRODUCT_SECONDS * peak
        ),
        "tiers": tuple(replace(each, reached=_REACHED.get(each.name, _REACHED_INSIDE)) for each in content["tiers"]),
        "exchange_seconds": _EXCHANGE_SECONDS,
        "overhead_seconds": _OVERHEAD_SECONDS,
        "overlap": _OVERLAP,
    }
