"""The constants of the cost model that runs are fitted to: where each is in a cluster, its range and its prior."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from trainwright.cluster import Cluster
from trainwright.cluster.device import MOST_EFFICIENT
from trainwright.plan.assumptions import Assumptions

__all__ = ["CostConstant", "constants_of", "with_constants"]


@dataclass(frozen=True, kw_only=True, slots=True)
class CostConstant:
    """One constant: `start` is what is believed before any run, `spread` the standard deviation of its logarithm."""

    name: str
    start: float
    low: float
    high: float
    spread: float
    change: Callable[[Cluster, float], Cluster]


_EFFICIENCIES = {"linear": 0.25, "attention": 0.5, "conv": 0.4, "fp8": 0.25, "memory": 0.35, "loss": 0.7}
"""Kinds of layer, and "memory" for the bandwidth: shares of the device's peak, with the spread of their logarithm."""
_REACHED = 0.7  # of a link's bandwidth, where nobody has measured it
_DEVICE_FIELDS = {
    "host_seconds": ("seconds an operation on the host", 3e-5, 1e-7, 1e-3, 0.6),
    "product_flops": ("flops of a half-efficient product", 3e9, 1e6, 1e12, 0.5),
}
_CLUSTER_FIELDS = {
    "exchange_seconds": ("seconds an exchange on the host", 5e-5, 1e-7, 1e-2, 1.0),
    "overhead_seconds": ("overhead seconds", 5e-3, 1e-6, 10.0, 1.5),
    "overlap": ("overlap", 0.5, 1e-2, 1.0, 1.0),
}


def constants_of(cluster: Cluster, assumptions: Assumptions) -> list[CostConstant]:
    """Return the constants of a cluster; each starts at what the cluster, or else the assumptions, say."""
    found = []
    for kind, spread in _EFFICIENCIES.items():
        otherwise = assumptions.bandwidth if kind in {"memory", "loss"} else assumptions.efficiency.get(kind, 0.5)
        found.append(
            CostConstant(
                name=f"efficiency {kind}",
                start=cluster.device.efficiency.get(kind, otherwise),
                low=0.02,
                high=MOST_EFFICIENT.get(kind, 1.0),
                spread=spread,
                change=_change_efficiency(kind),
            )
        )
    for name, (words, typical, low, high, spread) in {**_DEVICE_FIELDS, **_CLUSTER_FIELDS}.items():
        place = _change_device(name) if name in _DEVICE_FIELDS else _change_cluster(name)
        known = getattr(cluster.device if name in _DEVICE_FIELDS else cluster, name)
        # What nobody has measured starts at a usual value: an overlap of 1 is only what a data sheet would say.
        usual = typical
        if name == "product_flops":
            # What fills a device grows with its speed; the usual value is that of an A100.
            usual *= max(cluster.device.flops.get("fp16", 0.0), 50e12) / 312e12
        origin = known if known and (name != "overlap" or known < 1) else usual
        found.append(
            CostConstant(name=words, start=min(max(origin, low), high), low=low, high=high, spread=spread, change=place)
        )
    for number, level in enumerate(cluster.tiers):
        found += [
            CostConstant(
                name=f"bandwidth {level.name}",
                start=level.reached if level.reached < 1 else _REACHED,
                low=0.02,
                high=1.0,
                spread=0.5,
                change=_change_level(number, "reached"),
            ),
            CostConstant(
                name=f"latency {level.name}",
                start=level.alpha or 1e-5,
                low=1e-7,
                high=1e-2,
                spread=1.0,
                change=_change_level(number, "alpha"),
            ),
        ]
    return found


def with_constants(cluster: Cluster, constants: list[CostConstant], values: Mapping[str, float]) -> Cluster:
    """Return the cluster with these values of some of its constants."""
    for constant in constants:
        if constant.name in values:
            cluster = constant.change(cluster, values[constant.name])
    return cluster


def _change_efficiency(kind: str) -> Callable[[Cluster, float], Cluster]:
    def change(cluster: Cluster, value: float) -> Cluster:
        efficiency = {**cluster.device.efficiency, kind: value}
        return replace(cluster, device=replace(cluster.device, efficiency=efficiency))

    return change


def _change_device(name: str) -> Callable[[Cluster, float], Cluster]:
    return lambda cluster, value: replace(cluster, device=_with_field(cluster.device, name, value))


def _change_cluster(name: str) -> Callable[[Cluster, float], Cluster]:
    return lambda cluster, value: _with_field(cluster, name, value)


def _change_level(number: int, name: str) -> Callable[[Cluster, float], Cluster]:
    def change(cluster: Cluster, value: float) -> Cluster:
        levels = list(cluster.tiers)
        levels[number] = _with_field(levels[number], name, value)
        return replace(cluster, tiers=tuple(levels))

    return change


def _with_field(record: Any, name: str, value: float) -> Any:
    return replace(record, **{name: value})
