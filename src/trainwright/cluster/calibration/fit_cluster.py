"""Fits a cluster to measured times: rates, latencies and links with the least relative error (non-negative)."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from trainwright.cluster.calibration.timing import check_times
from trainwright.cluster.device import Device
from trainwright.cluster.network import ExchangeTimes, NetworkLevel
from trainwright.errors import InputError

__all__ = ["MeasuredLevel", "fit_fields", "fit_least_relative", "fit_link"]

Floats = NDArray[np.float64]
Row = tuple[float, float]
"""Work (operations or bytes) and the seconds that it took."""

_ROUNDING = 1e-12
_RINGS = {"all_reduce": 2, "all_gather": 1, "reduce_scatter": 1}


class RelativeFit(NamedTuple):
    """Coefficients, all >= 0, and the root mean square of what they leave: (predicted - measured) / measured."""

    values: Floats
    error: float


@dataclass(frozen=True, kw_only=True, slots=True)
class MeasuredLevel:
    """The exchanges measured on one level of the network, and the relative difference of two halves of the repeats."""

    name: str
    devices: int
    exchanges: tuple[ExchangeTimes, ...]
    spreads: tuple[float, ...] = ()
    flows: float = 1.0
    """How much longer an exchange between nodes takes when every rank of a node is in one of its own."""
    only_these_sizes: bool = False
    """Whether the ranks share processors, so that the times hold for no other size of group."""


def fit_fields(
    *,
    kind: str,
    products: Mapping[str, Sequence[Row]],
    copies: Sequence[Row],
    launch_seconds: float,
    memory_bytes: int = 0,
    convolutions: Sequence[Row] = (),
    host_copies: Sequence[Row] = (),
    devices_per_node: int = 1,
    levels: Sequence[MeasuredLevel] = (),
    errors: Mapping[str, float] = MappingProxyType({}),
    **others: Any,
) -> dict[str, Any]:
    """Return the fields of the `Cluster` with these measurements; `others` are fields of it that need no fit.

    `products` are operations and seconds of matrix products by precision, `convolutions` are in single precision,
    `copies` bytes read and written within a device's memory; `errors` are those of what is not fitted here. A device's
    peak is the best rate seen; what a kind of layer reaches of it comes from a fit of its whole sweep, seconds =
    latency + work / rate; copies are large, and fitted by their rate alone. Latency and bandwidth of a link come from
    all rings and messages on it together: `ranks` enters as in `hockney`. Raises `InputError` for times that are none
    or do not grow with the work.
    """
    # Single precision sets the peak; the efficiency of each kind of layer is its fitted rate relative to it.
    single = [_fit_rate("matrix products", products["fp32"])]
    single += [_fit_rate("convolutions", convolutions)] if convolutions else []
    # The best rate seen, not the fitted one: a peak is an upper bound.
    peak = max(work / seconds for work, seconds in (*products["fp32"], *convolutions))
    copied = _fit_large(copies)
    device = Device(
        kind=kind,
        memory_bytes=memory_bytes,
        flops={
            **{precision: max(work / seconds for work, seconds in rows) for precision, rows in products.items()},
            "fp32": peak,
        },
        memory_bandwidth=_rate_of(copied),
        launch_seconds=launch_seconds,
        host_bandwidth=_rate_of(_fit_large(host_copies)) if host_copies else 0.0,
        efficiency={
            layer: min(1.0, _rate_of(fit) / peak) for layer, fit in zip(("linear", "conv"), single, strict=False)
        },
    )
    errors = {**errors, "compute": _root_mean_square(fit.error for fit in single), "copies": copied.error}
    tiers = []
    for level in levels:
        # One alpha and one bandwidth a level, from all rings and messages on it together.
        link = fit_link(level)
        tiers.append(
            NetworkLevel(
                name=level.name,
                devices=level.devices,
                alpha=float(link.values[0]),
                bandwidth=_rate_of(link),
                # As many flows as devices, divided by how much slower they are together: with a link for each no flow
                # waits, with a single one a flow takes as long as all of them in turn.
                links_per_node=max(1, round(devices_per_node / level.flows)) if level.devices > devices_per_node else 1,
                worlds=tuple(sorted({each.ranks for each in level.exchanges})) if level.only_these_sizes else (),
            )
        )
        # Where only measured exchanges will be asked for, their times count and not the fit: how well they repeat.
        repeated = level.only_these_sizes and level.spreads
        errors[level.name] = _root_mean_square(level.spreads) if repeated else link.error
    return {
        **others,
        "devices_per_node": devices_per_node,
        "verified": True,
        "device": device,
        "tiers": tuple(tiers),
        "measured": tuple(each for level in levels for each in level.exchanges),
        "errors": errors,
    }


def fit_least_relative(columns: ArrayLike, seconds: ArrayLike) -> RelativeFit:
    """Fit seconds = columns @ values with values >= 0 so that the squared relative errors are least.

    `columns` is (rows, coefficients). Raises `InputError` for times that are NaN, infinite, zero or negative.
    """
    # Loaded here, for presets that were never measured need no scipy.
    from scipy.optimize import nnls

    times = check_times(np.asarray(seconds, dtype=np.float64))
    # Divided by the measured times, the right side becomes 1 and residuals become relative errors.
    weighted = np.asarray(columns, dtype=np.float64) / times[:, None]
    # Columns of very different size (seconds and seconds a byte) would make the system ill-conditioned.
    scale = np.maximum(np.abs(weighted).max(axis=0), np.finfo(float).tiny)
    shares, left = nnls(weighted / scale, np.ones(len(times)))
    # What explains no more of any time than rounding does is nothing.
    shares[shares < _ROUNDING] = 0.0
    return RelativeFit(shares / scale, float(left) / math.sqrt(len(times)))


def _fit_rate(what: str, rows: Sequence[Row]) -> RelativeFit:
    """Fit seconds = latency + work / rate; the values are latency and 1 / rate."""
    fit = fit_least_relative([[1.0, work] for work, _ in rows], [seconds for _, seconds in rows])
    if fit.values[1] <= 0:
        raise InputError(f"{what}: got times that do not grow with the work; measure again, on a quiet machine")
    return fit


def fit_link(level: MeasuredLevel) -> RelativeFit:
    """Fit alpha and beta to the rings and messages of a level, of groups that it alone joins.

    Groups that have several ranks on each of several nodes are left out: a library may send over all links of a node
    at once for them, which a ring does not tell.
    """
    # Each row is (messages, bytes per link) of one exchange: seconds = alpha * messages + bytes / bandwidth.
    columns, seconds = [], []
    for each in level.exchanges:
        # Mixed groups cross two levels at once: their times say nothing about one link.
        if 1 < each.on_node < each.ranks:
            continue
        for size, time in zip(each.bytes, each.seconds, strict=True):
            # A message crosses its link once, as a whole.
            if each.operation == "send":
                columns.append((1.0, float(size)))
            elif each.operation in _RINGS:
                # A ring passes size / ranks bytes in each of its ranks - 1 steps.
                steps = _RINGS[each.operation] * (each.ranks - 1)
                columns.append((float(steps), steps * size / each.ranks))
            else:
                continue
            seconds.append(time)
    fit = fit_least_relative(columns, seconds)
    if fit.values[1] <= 0:
        raise InputError(f"tier {level.name}: got times that do not grow with the bytes; measure again")
    return fit


def _fit_large(rows: Sequence[Row]) -> RelativeFit:
    """Fit seconds = work / rate, of work so much that no latency shows."""
    return fit_least_relative([[work] for work, _ in rows], [seconds for _, seconds in rows])


def _rate_of(fit: RelativeFit) -> float:
    return float(1.0 / fit.values[-1])


def _root_mean_square(values: Iterable[float]) -> float:
    return float(np.sqrt(np.mean(np.square(list(values)))))
