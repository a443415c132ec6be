"""Bottlenecks: what limits a plan, found from its own numbers, said in one sentence with the two that prove it."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from trainwright.cluster import contention
from trainwright.plan.byte_sizes import distinct_sizes, size
from trainwright.plan.forecast import Bottleneck, Forecast
from trainwright.plan.parallel.collective_seconds import all_seconds
from trainwright.plan.parallel.pricing import Pricer, Prices
from trainwright.plan.parallel.roofline import launch_seconds, layer_seconds
from trainwright.plan.parallel.strategies.strategy import Exchange
from trainwright.plan.plan_query import PlanQuery

__all__ = ["RULES", "BottleneckCase", "ExchangeTime", "bottlenecks_of"]

_SHARE = 0.15  # of an iteration, from which a part is worth a sentence
_CONGESTED, _REDUNDANT, _FRAGMENTED, _FULL = 1.5, 0.5, 0.1, 0.95
_UNEVEN, _INEFFICIENT, _LAUNCHES, _SAVES = 1.1, 0.7, 0.3, 0.05
_LAYER_AXES = ("tensor", "filter", "channel", "expert")


@dataclass(frozen=True, eq=False, slots=True)
class ExchangeTime:
    """An exchange of one plan: its seconds in an iteration, hidden or not, and what empty messages of sends take."""

    exchange: Exchange
    seconds: float
    latency: float


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
    moved: tuple[ExchangeTime, ...] = field(init=False)

    def __post_init__(self) -> None:
        exchanges = [exchange for exchange, _ in self.listed]
        sends = [replace(item, bytes=np.zeros(1)) for item in exchanges if item.operation == "send"]
        seconds = all_seconds(self.pricer.cluster, [*exchanges, *sends])
        empty = iter(seconds[len(exchanges) :])
        moved = tuple(
            ExchangeTime(
                each, times * float(took[0]), times * float(next(empty)[0]) if each.operation == "send" else 0.0
            )
            for (each, times), took in zip(self.listed, seconds, strict=False)
        )
        object.__setattr__(self, "moved", moved)

    def layers(self, samples: float) -> float:
        """Return the seconds of the whole chain's layers, undivided, on so many samples."""
        arrays = self.pricer.arrays
        one = np.ones((1, len(arrays.layers)))
        ahead, back = layer_seconds(
            arrays, self.pricer.cluster, self.pricer.assumptions, samples=np.array([samples]), share=one, weights=one
        )
        return float(arrays.per_block(ahead + back)[0] @ arrays.counts)

    @property
    def total(self) -> float:
        """Seconds of an iteration."""
        return max(self.plan.seconds_per_iteration, 1e-300)

    def found(self, id_: str, seconds: float, what: str, advice: str, *, least: float = _SHARE) -> Bottleneck | None:
        """Return a bottleneck if so many seconds are at least that share of an iteration."""
        share = seconds / self.total
        if share < least:
            return None
        sentence = f"{what} {_time(seconds)} of the {_time(self.total)} of an iteration ({100 * share:.0f} %)"
        return Bottleneck(id=id_, sentence=sentence, share=share, advice=advice)


def bottlenecks_of(case: BottleneckCase) -> tuple[Bottleneck, ...]:
    """Return all that the rules find, the largest share first."""
    found = [item for rule in RULES for item in [rule(case)] if item is not None]
    return tuple(sorted(found, key=lambda each: (-each.share, each.id)))


def _gradient_exchange(case: BottleneckCase) -> Bottleneck | None:
    inside = float(case.prices.exchange[case.row] + case.prices.transfer[case.row])
    return case.found(
        "gradient-exchange",
        case.plan.breakdown.communication - inside,
        "gradients and divided weights are waited for",
        "larger batches a device, fewer replicas, or ZeRO inside a node (hsdp)",
    )


def _layer_collectives(case: BottleneckCase) -> Bottleneck | None:
    along = sum(item.seconds for item in case.moved if item.exchange.axis in _LAYER_AXES)
    return case.found(
        "layer-collectives",
        min(along, float(case.prices.exchange[case.row])),
        "exchanges inside layers take",
        "a smaller degree that stays inside a node, or data or pipeline parallelism in its place",
    )


def _point_to_point(case: BottleneckCase) -> Bottleneck | None:
    sends = [item for item in case.moved if item.exchange.operation == "send"]
    seconds, latency = sum(send.seconds for send in sends), sum(entry.latency for entry in sends)
    what = "transfers between neighbours take"
    if latency > seconds / 2:
        what = f"transfers between neighbours, {100 * latency / seconds:.0f} % of it latency, take"
    exposed = min(seconds, case.plan.breakdown.communication)
    return case.found("point-to-point", exposed, what, "larger micro-batches, fewer stages or parts")


def _congestion(case: BottleneckCase) -> Bottleneck | None:
    dominant = max(case.moved, key=lambda each: each.seconds, default=None)
    if dominant is None:
        return None
    exchange, cluster = dominant.exchange, case.query.cluster
    flows = contention(cluster, ranks=int(exchange.ranks[0]), stride=int(exchange.stride[0]))
    if flows <= _CONGESTED:
        return None
    sentence = (
        f"{flows:.3g} groups share a link in the largest exchange ({exchange.operation} along {exchange.axis}), "
        f"which takes {_time(dominant.seconds)}"
    )
    return Bottleneck(
        id="congestion",
        sentence=sentence,
        share=dominant.seconds / case.total,
        advice="more links a node, or degrees that leave the node in fewer groups",
    )


def _input(case: BottleneckCase) -> Bottleneck | None:
    if not case.plan.breakdown.input:
        return None
    return case.found(
        "input",
        case.plan.breakdown.input,
        "samples are waited for",
        "more decoding workers, a staged or cached data set, smaller files",
        least=0.0,
    )


def _memory_redundancy(case: BottleneckCase) -> Bottleneck | None:
    copied = float(case.prices.memory.replicated[case.row])
    peak = max(1, case.plan.peak_bytes)
    if copied <= _REDUNDANT * peak:
        return None
    sentence = f"{size(copied)} of the {size(peak)} of a device are copies of what others hold"
    return Bottleneck(id="memory-redundancy", sentence=sentence, share=copied / peak, advice="zero1, zero2 or fsdp")


def _fragmentation(case: BottleneckCase) -> Bottleneck | None:
    allocated, reserved = case.plan.peak_bytes, case.plan.reserved_bytes
    room = case.query.memory_bytes
    tight = allocated <= room < reserved / _FULL
    if reserved == allocated or (reserved - allocated <= _FRAGMENTED * allocated and not tight):
        return None
    sentence = "{} are reserved for {}".format(*distinct_sizes(reserved, allocated))
    if tight:
        sentence += f", of {size(room)}"
    return Bottleneck(
        id="fragmentation",
        sentence=sentence,
        share=(reserved - allocated) / max(1, reserved),
        advice="expandable segments of the allocator, equal micro-batches, or recomputation",
    )


def _weight_update(case: BottleneckCase) -> Bottleneck | None:
    return case.found(
        "weight-update",
        case.plan.breakdown.update,
        "the optimizer takes",
        "divide its state (zero1, fsdp), a fused optimizer, or larger batches",
    )


def _imbalance(case: BottleneckCase) -> Bottleneck | None:
    if case.plan.degrees.pipeline == 1:
        return None
    slowest, mean = case.prices.balance(case.row, case.pricer.arrays.counts)
    if slowest <= _UNEVEN * mean:
        return None
    sentence = f"the slowest stage takes {_time(slowest)}, the mean {_time(mean)}"
    return Bottleneck(
        id="imbalance",
        sentence=sentence,
        share=1 - mean / slowest,
        advice="another number of stages, or smaller blocks",
    )


def _redundant_compute(case: BottleneckCase) -> Bottleneck | None:
    degrees = case.plan.degrees
    parts = degrees.tensor * degrees.context * degrees.filter * degrees.channel * degrees.spatial
    if parts == 1:
        return None
    whole = case.layers(case.plan.micro_batch) * case.plan.batch / case.plan.micro_batch
    in_parts = case.plan.breakdown.compute * parts * degrees.data * degrees.expert * degrees.pipeline
    efficiency = whole / in_parts if in_parts else 1.0
    if efficiency >= _INEFFICIENT:
        return None
    sentence = f"parts of layers compute {_time(in_parts)} in all, whole layers {_time(whole)}"
    return Bottleneck(
        id="redundant-compute",
        sentence=sentence,
        share=1 - efficiency,
        advice="a smaller degree, or larger micro-batches",
    )


def _bubble(case: BottleneckCase) -> Bottleneck | None:
    return case.found(
        "bubble",
        case.plan.breakdown.bubble,
        "pipeline stages wait",
        "more micro-batches, interleaved chunks, fewer stages",
    )


def _small_batch(case: BottleneckCase) -> Bottleneck | None:
    if case.plan.degrees.data == 1:
        return None
    samples = case.plan.micro_batch
    now = case.layers(samples)
    fixed = max(0.0, 2 * now - case.layers(2 * samples))  # what twice the samples would not take twice
    if fixed <= _LAUNCHES * now:
        return None
    sentence = f"of the {_time(now)} of {samples} samples a device, {_time(fixed)} would be the same for more"
    return Bottleneck(
        id="small-batch", sentence=sentence, share=fixed / now, advice="larger micro-batches, fewer replicas"
    )


def _checkpoint(case: BottleneckCase) -> Bottleneck | None:
    lost = 1 - 1 / case.plan.inflation
    if lost < _SAVES:
        return None
    sentence = f"saves and failures make a job {case.plan.inflation:.2f} times as long, {100 * lost:.0f} % of it"
    return Bottleneck(
        id="checkpoint",
        sentence=sentence,
        share=lost,
        advice="cheaper saves (asynchronous, fewer bytes), faster restarts",
    )


def _launch_bound(case: BottleneckCase) -> Bottleneck | None:
    arrays = case.pricer.arrays
    ahead = arrays.per_block(launch_seconds(arrays, case.query.cluster))
    launches = 3 * float(ahead @ case.prices.slowest[case.row]) * case.plan.microbatches
    compute = max(case.plan.breakdown.compute, 1e-300)
    if launches <= _LAUNCHES * compute:
        return None
    sentence = f"launches take {_time(launches)} of {_time(compute)} of computation"
    return Bottleneck(
        id="launch-bound",
        sentence=sentence,
        share=launches / compute,
        advice="larger micro-batches, compiled or fused layers",
    )


def _time(seconds: float) -> str:
    for unit, scale in (("s", 1.0), ("ms", 1e-3)):
        if seconds >= scale:
            return f"{seconds / scale:.3g} {unit}"
    return f"{seconds / 1e-6:.3g} us"


RULES: tuple[Callable[[BottleneckCase], Bottleneck | None], ...] = (
    _gradient_exchange,
    _layer_collectives,
    _point_to_point,
    _congestion,
    _input,
    _memory_redundancy,
    _fragmentation,
    _weight_update,
    _imbalance,
    _redundant_compute,
    _bubble,
    _small_batch,
    _checkpoint,
    _launch_bound,
)
"""One a bottleneck; that a strategy has no more devices is its limit, and a rejection."""
