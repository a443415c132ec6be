"""The constants of the cost model that runs are fitted to: where each is in a cluster, its range and its prior."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from functools import reduce
from typing import Any, cast

from trainwright.cluster import Cluster
from trainwright.cluster.device import MOST_EFFICIENT

__all__ = ["CostConstant", "constants_of", "with_constants"]


@dataclass(frozen=True, kw_only=True, slots=True)
class CostConstant:
    """One constant: `start` is what is believed before any run, `spread` the standard deviation of its logarithm."""

    name: str
    place: tuple[str | int, ...]
    """Fields, keys and places in lists that lead to it from the cluster."""
    start: float
    low: float
    high: float
    spread: float


_EFFICIENCIES = {"linear": 0.25, "attention": 0.5, "conv": 0.4, "fp8": 0.25, "memory": 0.35, "loss": 0.7}
"""Kinds of layer, and "memory" for the bandwidth: shares of the device's peak, with the spread of their logarithm."""
_REACHED = 0.7  # of a link's bandwidth, where nobody has measured it
_SECONDS = (
    ("seconds an operation on the host", ("device", "host_seconds"), 3e-5, 1e-7, 1e-3, 0.6),
    ("flops of a half-efficient product", ("device", "product_flops"), 3e9, 1e6, 1e12, 0.5),
    ("seconds an exchange on the host", ("exchange_seconds",), 5e-5, 1e-7, 1e-2, 1.0),
    ("overhead seconds", ("overhead_seconds",), 5e-3, 1e-6, 10.0, 1.5),
    ("overlap", ("overlap",), 0.5, 1e-2, 1.0, 1.0),
)
"""Name, place, usual value, range and spread of the other constants of a device and a cluster."""


def constants_of(cluster: Cluster) -> list[CostConstant]:
    """Return the constants of a cluster; each starts at what the cluster says, or else at a usual value."""
    device = cluster.device
    table: list[tuple[str, tuple[str | int, ...], float, float, float, float]] = []
    for kind, spread in _EFFICIENCIES.items():
        place = ("device", "efficiency", kind)
        table.append((f"efficiency {kind}", place, device.reached(kind), 0.02, MOST_EFFICIENT.get(kind, 1.0), spread))
    for name, path, usual, low, high, spread in _SECONDS:
        known: float = reduce(getattr, path, cast("Any", cluster))
        # What nobody has measured starts at a usual value: an overlap of 1 is only what a data sheet would say.
        if not known or (name == "overlap" and known == 1):
            known = usual
            if path[-1] == "product_flops":
                # What fills a device grows with its speed; the usual value is that of an A100.
                known *= max(device.flops.get("fp16", 0.0), 50e12) / 312e12
        table.append((name, path, known, low, high, spread))
    for number, level in enumerate(cluster.tiers):
        reached = level.reached if level.reached < 1 else _REACHED
        table.append((f"bandwidth {level.name}", ("tiers", number, "reached"), reached, 0.02, 1.0, 0.5))
        table.append((f"latency {level.name}", ("tiers", number, "alpha"), level.alpha or 1e-5, 1e-7, 1e-2, 0.3))
    return [
        CostConstant(name=name, place=place, start=min(max(start, low), high), low=low, high=high, spread=spread)
        for name, place, start, low, high, spread in table
    ]


def with_constants(cluster: Cluster, constants: Iterable[CostConstant], values: Mapping[str, float]) -> Cluster:
    """Return the cluster with these values of some of its constants."""
    for constant in constants:
        if constant.name in values:
            cluster = _replace_at(cluster, constant.place, values[constant.name])
    return cluster


def _replace_at(record: Any, place: tuple[str | int, ...], value: float) -> Any:
    """Return a record, mapping or tuple with another value at a place inside it."""
    if not place:
        return value
    first, rest = place[0], place[1:]
    if isinstance(record, Mapping):
        return {**record, first: _replace_at(record.get(first), rest, value)}
    if isinstance(record, tuple):
        return tuple(_replace_at(each, rest, value) if i == first else each for i, each in enumerate(record))
    return replace(record, **{str(first): _replace_at(getattr(record, str(first)), rest, value)})
