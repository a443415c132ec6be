"""Cluster: so many nodes of so many devices, the network between them, and what is known of its speed."""

import itertools
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from trainwright.cluster._checks import at_least, one_of, refuse, whole
from trainwright.cluster.device import Device, Failure, Storage
from trainwright.cluster.network import ExchangeTimes, Tier

__all__ = ["RUNTIMES", "Cluster"]

RUNTIMES = ("step", "gpipe", "1f1b")
"""What has code of its own that takes time: an iteration on several devices, a micro-batch in a stage by schedule."""


@dataclass(frozen=True, slots=True)
class Cluster:
    """`nodes` equal nodes with `devices_per_node` devices each; rank = node * devices_per_node + place in the node.

    `tiers` are the levels of the network, the smallest first: the first joins the devices of a node (if a node has
    more than one), each next one whole groups of the one before, the last all devices. A cluster without tiers or
    without a device's speed can be counted and simulated on, but no time can be predicted for it.
    """

    nodes: int = 1
    devices_per_node: int = 1
    name: str = field(default="unnamed", kw_only=True)
    source: str = field(default="", kw_only=True)
    verified: bool = field(default=False, kw_only=True)
    """Whether the figures were measured on this cluster; if not, every table says "uncalibrated"."""
    device: Device = field(default_factory=Device, kw_only=True)
    tiers: tuple[Tier, ...] = field(default=(), kw_only=True)
    measured: tuple[ExchangeTimes, ...] = field(default=(), kw_only=True)
    """Exchanges that were timed: they are taken as they are, before what the tiers' figures give."""
    storage: Storage = field(default_factory=Storage, kw_only=True)
    failure: Failure = field(default_factory=Failure, kw_only=True)
    overhead_seconds: float = field(default=0.0, kw_only=True)
    """Framework seconds of an iteration that no layer explains."""
    overlap: float = field(default=1.0, kw_only=True)
    """Speed of computation while a collective is under way, as a share of its speed alone, 0 to 1.

    1: exchanges hide behind computation; 0: one waits for the other, as where the same cores do both.
    """
    pass_seconds: tuple[float, ...] = field(default=(), kw_only=True)
    """What passes and back of several models took by themselves where a training's runtime was measured, rising; () on
    devices that work beside their host."""
    runtime_seconds: Mapping[str, tuple[float, ...]] = field(default_factory=dict, kw_only=True)
    """How much longer each of these took in a training than the pass and its exchanges: as the only one of a "step" on
    several devices, and as a micro-batch of a pipeline, by schedule. That is torch's own code, the mean of the loss,
    ranks that wait for each other's delays, and micro-batches that take each other's place in caches."""
    errors: Mapping[str, float] = field(default_factory=dict, kw_only=True)
    """Relative error of the calibration by what was fitted ("compute", tier names, "storage"), for intervals."""
    residuals: Mapping[str, tuple[float, ...]] = field(default_factory=dict, kw_only=True)
    """What each of these fits left, (predicted - measured) / measured of every measurement."""
    conditions: Mapping[str, str] = field(default_factory=dict, kw_only=True)
    """Under which the figures were measured: date, versions, load."""

    def __post_init__(self) -> None:
        whole("Cluster.nodes", self.nodes)
        whole("Cluster.devices_per_node", self.devices_per_node)
        at_least("Cluster.overhead_seconds", self.overhead_seconds)
        if not 0 <= self.overlap <= 1:
            raise refuse("Cluster.overlap", self.overlap, "a number from 0 to 1")
        if any(one >= other for one, other in itertools.pairwise((0.0, *self.pass_seconds))):
            raise refuse("Cluster.pass_seconds", list(self.pass_seconds), "rising seconds > 0")
        for name, times in self.runtime_seconds.items():
            one_of(f"Cluster.runtime_seconds.{name}", name, RUNTIMES)
            if not times or len(times) != len(self.pass_seconds):
                raise refuse(f"Cluster.runtime_seconds.{name}", list(times), "one for each of pass_seconds")
            for each in times:
                at_least(f"Cluster.runtime_seconds.{name}", each)
        for name, error in self.errors.items():
            at_least(f"Cluster.errors.{name}", error)
        self._check_tiers()

    def _check_tiers(self) -> None:
        names: list[str] = []
        parts = [(self.devices_per_node, "a node")]
        for place, tier in enumerate(self.tiers):
            where = f"Cluster.tiers[{place}]"
            if tier.name in names:
                raise refuse(f"{where}.name", tier.name, "a name that no other tier has")
            if place and tier.devices <= self.tiers[place - 1].devices:
                raise refuse(f"{where}.devices", tier.devices, f"more than the {parts[-1][0]} of the tier before")
            # The last level joins everything, so that it need not fall into equal parts.
            for part, what in parts if place < len(self.tiers) - 1 else ():
                if max(part, tier.devices) % min(part, tier.devices):
                    raise refuse(f"{where}.devices", tier.devices, f"a multiple or part of the {part} of {what}")
            names.append(tier.name)
            parts.append((tier.devices, "the tier before"))
        if self.tiers and self.tiers[-1].devices < self.devices:
            raise refuse(
                f"Cluster.tiers[{len(names) - 1}].devices",
                self.tiers[-1].devices,
                f"at least the {self.devices} devices of the cluster, or one tier more: a link is missing",
            )
        for place, times in enumerate(self.measured):
            one_of(f"Cluster.measured[{place}].tier", times.tier, names)

    @property
    def devices(self) -> int:
        """All devices."""
        return self.nodes * self.devices_per_node

    @classmethod
    def preset(cls, name: str, *, nodes: int | None = None) -> "Cluster":
        """Return a known machine, with `nodes` nodes if given; `trainwright.cluster.PRESETS` lists the names.

        "laptop" is this machine: it is measured when it is first asked for, which takes a few seconds, and remembered
        in the user's cache. Raises `InputError` for an unknown name or more nodes than the machine has.
        """
        from trainwright.cluster.presets import preset

        return preset(name, nodes=nodes)

    @classmethod
    def load(cls, path: Path | str, *, force_units: bool = False) -> "Cluster":
        """Read a TOML file, or YAML if it ends in .yaml or .yml and PyYAML is installed.

        Raises `InputError` with the key, its line, the value and what is allowed; also for figures that look as if
        they were in other units than bytes and seconds, unless `force_units`.
        """
        from trainwright.cluster.files import load

        return load(Path(path), force_units=force_units)

    def save(self, path: Path | str) -> None:
        """Write the file that `load` reads, TOML or YAML by its ending; an existing file is replaced."""
        from trainwright.cluster.files import save

        save(self, Path(path))
