"""Bottlenecks: what limits a plan, found from its own numbers, said in one sentence with the two that prove it."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from trainwright.cluster import contention
from trainwright.plan.byte_sizes import size
from trainwright.plan.forecast import Bottleneck, Forecast
from trainwright.plan.parallel.pricing import Pricer, Prices
from trainwright.plan.parallel.roofline import launch_counts, layer_seconds
from trainwright.plan.parallel.strategies.strategy import Exchange, all_seconds
from trainwright.plan.plan_query import PlanQuery

__all__ = ["BottleneckCase", "bottlenecks_of"]

_SHARE = 0.15  # of an iteration, from which a part is worth a sentence
_CONGESTED, _REDUNDANT = 1.5, 0.5
_UNEVEN, _INEFFICIENT, _LAUNCHES, _SAVES = 1.1, 0.7, 0.3, 0.05
_LAYER_AXES = ("tensor", "filter", "channel", "expert")

_Finding = tuple[float, str] | None
"""The share that a bottleneck has, and the sentence that says so; None where it is none."""


@dataclass(frozen=True, eq=False, kw_only=True, slots=True)
class BottleneckCase:
    """A plan with the prices that it was made of."""

    plan: Forecast
    prices: Prices
    row: int
    listed: Sequence[tuple[Exchange, float]]
    """Its exchanges, each with how often an iteration has it."""
    pricer: Pricer
    query: PlanQuery
    moved: list[tuple[Exchange, float]] = field(init=False)
    """Its exchanges, each with the seconds that it takes in an iteration, hidden or not."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "moved", self.time_exchanges(self.listed))

    def time_exchanges(self, listed: Sequence[tuple[Exchange, float]]) -> list[tuple[Exchange, float]]:
        """Return exchanges with the seconds that they take in an iteration."""
        seconds = all_seconds(self.pricer.cluster, [exchange for exchange, _ in listed])
        return [(each, times * float(took[0])) for (each, times), took in zip(listed, seconds, strict=True)]

    def layers(self, samples: float) -> float:
        """Return the seconds of the whole chain's layers, undivided, on so many samples."""
        arrays = self.pricer.arrays
        one = np.ones((1, len(arrays.layers)))
        ahead, back = layer_seconds(arrays, self.pricer.cluster, samples=np.array([samples]), share=one, weights=one)
        return float(arrays.per_block(ahead + back)[0] @ arrays.counts)

    @property
    def total(self) -> float:
        """Seconds of an iteration."""
        return max(self.plan.seconds_per_iteration, 1e-300)

    def part(self, seconds: float, what: str, *, least: float = _SHARE) -> _Finding:
        """Return what takes so many seconds, if that is at least a share of an iteration."""
        share = seconds / self.total
        if share < least:
            return None
        return share, f"{what} {_time(seconds)} of the {_time(self.total)} of an iteration ({100 * share:.0f} %)"


def bottlenecks_of(case: BottleneckCase) -> tuple[Bottleneck, ...]:
    """Return all that the rules find, the largest share first."""
    found = [(name, rule(case), advice) for name, rule, advice in _RULES]
    bottlenecks = [
        Bottleneck(id=name, share=finding[0], sentence=finding[1], advice=advice)
        for name, finding, advice in found
        if finding is not None
    ]
    return tuple(sorted(bottlenecks, key=lambda each: (-each.share, each.id)))


def _point_to_point(case: BottleneckCase) -> _Finding:
    seconds = sum(took for each, took in case.moved if each.operation == "send")
    # What messages without a byte take is latency.
    empty = [(replace(each, bytes=np.zeros(1)), times) for each, times in case.listed if each.operation == "send"]
    latency = sum(took for _, took in case.time_exchanges(empty))
    what = "transfers between neighbours take"
    if latency > seconds / 2:
        what = f"transfers between neighbours, {100 * latency / seconds:.0f} % of it latency, take"
    return case.part(min(seconds, case.plan.breakdown.communication), what)


def _congestion(case: BottleneckCase) -> _Finding:
    if not case.moved:
        return None
    exchange, seconds = max(case.moved, key=lambda each: each[1])
    flows = contention(case.query.cluster, ranks=int(exchange.ranks[0]), stride=int(exchange.stride[0]))
    if flows <= _CONGESTED:
        return None
    return seconds / case.total, (
        f"{flows:.3g} groups share a link in the largest exchange ({exchange.operation} along {exchange.axis}), "
        f"which takes {_time(seconds)}"
    )


def _memory_redundancy(case: BottleneckCase) -> _Finding:
    copied = float(case.prices.memory.replicated[case.row])
    peak = max(1, case.plan.peak_bytes)
    if copied <= _REDUNDANT * peak:
        return None
    return copied / peak, f"{size(copied)} of the {size(peak)} of a device are copies of what others hold"


def _imbalance(case: BottleneckCase) -> _Finding:
    if case.plan.degrees.pipeline == 1:
        return None
    slowest, mean = case.prices.balance(case.row, case.pricer.arrays.counts)
    if slowest <= _UNEVEN * mean:
        return None
    return 1 - mean / slowest, f"the slowest stage takes {_time(slowest)}, the mean {_time(mean)}"


def _redundant_compute(case: BottleneckCase) -> _Finding:
    degrees = case.plan.degrees
    parts = degrees.tensor * degrees.context * degrees.filter * degrees.channel * degrees.spatial
    if parts == 1:
        return None
    # What all parts of a layer take together, beside the whole layer on one device.
    whole = case.layers(case.plan.micro_batch) * case.plan.batch / case.plan.micro_batch
    in_parts = case.plan.breakdown.compute * parts * degrees.data * degrees.expert * degrees.pipeline
    efficiency = whole / in_parts if in_parts else 1.0
    if efficiency >= _INEFFICIENT:
        return None
    return 1 - efficiency, f"parts of layers compute {_time(in_parts)} in all, whole layers {_time(whole)}"


def _small_batch(case: BottleneckCase) -> _Finding:
    if case.plan.degrees.data == 1:
        return None
    samples = case.plan.micro_batch
    now = case.layers(samples)
    fixed = max(0.0, 2 * now - case.layers(2 * samples))  # what twice the samples would not take twice
    if fixed <= _LAUNCHES * now:
        return None
    return fixed / now, f"of the {_time(now)} of {samples} samples a device, {_time(fixed)} would be the same for more"


def _checkpoint(case: BottleneckCase) -> _Finding:
    lost = 1 - 1 / case.plan.inflation
    if lost < _SAVES:
        return None
    return lost, f"saves and failures make a job {case.plan.inflation:.2f} times as long, {100 * lost:.0f} % of it"


def _launch_bound(case: BottleneckCase) -> _Finding:
    arrays = case.pricer.arrays
    ahead = arrays.per_block(launch_counts(arrays)) * case.query.cluster.device.launch_seconds
    # A backward pass launches twice as many kernels as its forward pass.
    launches = 3 * float(ahead @ case.prices.slowest[case.row]) * case.plan.microbatches
    compute = max(case.plan.breakdown.compute, 1e-300)
    if launches <= _LAUNCHES * compute:
        return None
    return launches / compute, f"launches take {_time(launches)} of {_time(compute)} of computation"


def _time(seconds: float) -> str:
    for unit, scale in (("s", 1.0), ("ms", 1e-3)):
        if seconds >= scale:
            return f"{seconds / scale:.3g} {unit}"
    return f"{seconds / 1e-6:.3g} us"


def _part(seconds: Callable[[BottleneckCase], float], what: str, *, least: float = _SHARE) -> "_Rule":
    """Return the rule of a part of an iteration."""
    return lambda case: case.part(seconds(case), what, least=least)


def _gradient_seconds(case: BottleneckCase) -> float:
    return case.plan.breakdown.communication - float(case.prices.exchange[case.row] + case.prices.transfer[case.row])


def _layer_exchange_seconds(case: BottleneckCase) -> float:
    along = sum(seconds for exchange, seconds in case.moved if exchange.axis in _LAYER_AXES)
    return min(along, float(case.prices.exchange[case.row]))


_Rule = Callable[[BottleneckCase], _Finding]
_SMALLER_DEGREE = "a smaller degree that stays inside a node, or data or pipeline parallelism in its place"
_RULES: tuple[tuple[str, _Rule, str], ...] = (
    (
        "gradient-exchange",
        _part(_gradient_seconds, "gradients and divided weights are waited for"),
        "larger batches a device, fewer replicas, or ZeRO inside a node (hsdp)",
    ),
    ("layer-collectives", _part(_layer_exchange_seconds, "exchanges inside layers take"), _SMALLER_DEGREE),
    ("point-to-point", _point_to_point, "larger micro-batches, fewer stages or parts"),
    ("congestion", _congestion, "more links a node, or degrees that leave the node in fewer groups"),
    (
        "input",
        _part(lambda case: case.plan.breakdown.input, "samples are waited for", least=1e-9),
        "more decoding workers, a staged or cached data set, smaller files",
    ),
    ("memory-redundancy", _memory_redundancy, "zero1, zero2 or fsdp"),
    (
        "weight-update",
        _part(lambda case: case.plan.breakdown.update, "the optimizer takes"),
        "divide its state (zero1, fsdp), a fused optimizer, or larger batches",
    ),
    ("imbalance", _imbalance, "another number of stages, or smaller blocks"),
    ("redundant-compute", _redundant_compute, "a smaller degree, or larger micro-batches"),
    (
        "bubble",
        _part(lambda case: case.plan.breakdown.bubble, "pipeline stages wait"),
        "more micro-batches, interleaved chunks, fewer stages",
    ),
    ("small-batch", _small_batch, "larger micro-batches, fewer replicas"),
    ("checkpoint", _checkpoint, "cheaper saves (asynchronous, fewer bytes), faster restarts"),
    ("launch-bound", _launch_bound, "larger micro-batches, compiled or fused layers"),
)
"""One a bottleneck, with what to try; that a strategy has no more devices is its limit, and a rejection."""
