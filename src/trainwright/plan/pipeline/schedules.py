"""What a step takes under a pipeline schedule: every forward and backward placed in time, device by device.

GPipe runs all forwards, then all backwards; 1F1B alternates after a warm-up; interleaved gives each device several
chunks (Megatron-LM's order); zero-bubble splits the backward in the part that others wait for and the weights' part,
which fills the gaps (the H1 schedule of Qi et al., arXiv 2401.10241, made greedily).
"""

from collections.abc import Sequence
from dataclasses import dataclass

from trainwright.errors import PipelineError
from trainwright.plan.pipeline.partition import check_schedule, in_flight
from trainwright.validators import check, integer

__all__ = [
    "Orders",
    "PipelineTimeline",
    "PipelineTrace",
    "deep_orders",
    "orders_of",
    "simulate_orders",
]

_Work = tuple[str, int, int]
"""Kind "F", "B" or "W", chunk, micro-batch."""
Orders = list[list[_Work]]
"""What each device does, one after the other."""


@dataclass(frozen=True, slots=True)
class PipelineTrace:
    """One piece of work: kind "F", "B" or "W" of a micro-batch on a chunk of layers; chunk c is on device c mod P."""

    kind: str
    chunk: int
    microbatch: int
    start_seconds: float
    end_seconds: float


@dataclass(frozen=True, kw_only=True, slots=True)
class PipelineTimeline:
    """A step: its runs by device, and its time."""

    runs: tuple[tuple[PipelineTrace, ...], ...]
    seconds: float

    @property
    def busy_share(self) -> float:
        """Share of the devices' time in which they compute."""
        done = sum(run.end_seconds - run.start_seconds for lane in self.runs for run in lane)
        return done / (self.seconds * len(self.runs)) if self.seconds else 1.0


def orders_of(
    schedule: str,
    forward_seconds: Sequence[float],
    backward_seconds: Sequence[float],
    *,
    microbatches: int,
    link_seconds: Sequence[float],
    devices: int,
    weight_seconds: Sequence[float],
) -> list[Orders]:
    """Return the orders that a schedule may have, by device; their times matter to zero-bubble alone.

    Zero-bubble has two: 1F1B with the weights' part right behind its backward, and one in which it waits until its
    device is idle, or has as many micro-batches in flight as 1F1B.
    """
    check_schedule(schedule)
    chunks = len(forward_seconds)
    check(microbatches, integer(minimum=1), "microbatches", PipelineError)
    if chunks % devices or (schedule != "interleaved" and chunks != devices):
        raise PipelineError(
            f"devices: got {devices} for {chunks} chunks; allowed: {chunks}, or a divisor if interleaved"
        )
    if schedule == "interleaved" and microbatches % devices:
        raise PipelineError(
            f"microbatches: got {microbatches}; allowed: a multiple of the {devices} devices for interleaved"
        )
    orders = [_order(schedule, device, devices, chunks // devices, microbatches) for device in range(devices)]
    if schedule != "zero-bubble":
        return [orders]
    # Zero-bubble: place 1F1B in time once, to see where devices are idle.
    durations = _durations(forward_seconds, backward_seconds, weight_seconds)
    most = [in_flight("1f1b", stage=device, stages=devices, microbatches=microbatches) for device in range(devices)]
    deferred = _place_run(orders, durations, [*link_seconds, 0.0], most=most)
    behind = [
        [each for work in order for each in ([work] if work[0] == "F" else [work, ("W", *work[1:])])]
        for order in orders
    ]
    return [[[(run.kind, run.chunk, run.microbatch) for run in lane] for lane in deferred.runs], behind]


def simulate_orders(
    orders: Sequence[Sequence[tuple[str, int, int]]],
    forward_seconds: Sequence[float],
    backward_seconds: Sequence[float],
    link_seconds: Sequence[float],
    *,
    weight_seconds: Sequence[float] | None = None,
) -> PipelineTimeline:
    """Place a step in time in which each device runs its own order of (kind, chunk, micro-batch), as soon as it can.

    Where an order has the weights' parts ("W"), these take `weight_seconds` of the backwards.
    """
    split = any(work[0] == "W" for order in orders for work in order)
    weights = weight_seconds if split and weight_seconds is not None else [0.0] * len(forward_seconds)
    durations = _durations(forward_seconds, backward_seconds, weights)
    return _place_run([list(order) for order in orders], durations, [*link_seconds, 0.0])


def _durations(
    forward_seconds: Sequence[float], backward_seconds: Sequence[float], weight_seconds: Sequence[float]
) -> dict[str, list[float]]:
    return {
        "F": list(forward_seconds),
        "B": [back - weights for back, weights in zip(backward_seconds, weight_seconds, strict=True)],
        "W": list(weight_seconds),
    }


def _order(schedule: str, device: int, devices: int, chunks: int, microbatches: int) -> list[_Work]:
    """Return forwards and backwards of a device in their order."""
    total = microbatches * chunks

    def forward(number: int) -> _Work:
        group, place = divmod(number, devices * chunks)
        return "F", device + devices * (place // devices), group * devices + place % devices

    def backward(number: int) -> _Work:
        group, place = divmod(number, devices * chunks)
        return "B", device + devices * (chunks - 1 - place // devices), group * devices + place % devices

    # Megatron-LM's order of interleaved chunks: groups of as many micro-batches as devices.
    if chunks == 1:
        forwards: list[_Work] = [("F", device, each) for each in range(microbatches)]
        backwards: list[_Work] = [("B", device, each) for each in range(microbatches)]
    else:
        forwards, backwards = [forward(each) for each in range(total)], [backward(each) for each in range(total)]
    if schedule == "gpipe":
        return forwards + backwards
    ahead = devices - device - 1
    return _alternating(forwards, backwards, ahead if chunks == 1 else 2 * ahead + (chunks - 1) * devices)


def deep_orders(flying: Sequence[int], microbatches: int) -> Orders:
    """Return the orders of 1F1B with so many micro-batches in flight on each device, no more than on the one before."""
    batches = range(microbatches)
    return [
        _alternating([("F", device, each) for each in batches], [("B", device, each) for each in batches], held - 1)
        for device, held in enumerate(flying)
    ]


def _alternating(forwards: list[_Work], backwards: list[_Work], ahead: int) -> list[_Work]:
    """Return forwards up to so many ahead of their backwards, then both in turn."""
    warm = min(len(forwards), ahead)
    pairs = zip(forwards[warm:], backwards, strict=False)
    return [*forwards[:warm], *(work for pair in pairs for work in pair), *backwards[len(forwards) - warm :]]


def _place_run(
    orders: Orders, durations: dict[str, list[float]], links: list[float], *, most: list[int] | None = None
) -> PipelineTimeline:
    """Place orders in time; with `most`, put the weights' part of each backward where its device is idle.

    No device then has more than `most` micro-batches whose weights' part is still to come.
    """
    devices, chunks = len(orders), len(links)
    free, place, flying = [0.0] * devices, [0] * devices, [0] * devices
    ends: dict[_Work, float] = {}
    waiting: list[list[_Work]] = [[] for _ in orders]  # weights' parts
    lanes: list[list[PipelineTrace]] = [[] for _ in orders]

    # When what a piece of work reads has arrived; None if that is not placed yet.
    def ready(work: _Work) -> float | None:
        kind, chunk, batch = work
        if kind == "F":
            needs = [(("F", chunk - 1, batch), links[chunk - 1])] if chunk else []
        elif kind == "W":
            needs = [(("B", chunk, batch), 0.0)]
        else:
            needs = [(("F", chunk, batch), 0.0)]
            if chunk + 1 < chunks:
                needs.append((("B", chunk + 1, batch), links[chunk]))
        if any(need not in ends for need, _ in needs):
            return None
        return max((ends[need] + link for need, link in needs), default=0.0)

    def run(device: int, work: _Work, start: float) -> None:
        end = start + durations[work[0]][work[1]]
        ends[work] = free[device] = end
        flying[device] += (work[0] == "F") - (work[0] == "W")
        lanes[device].append(PipelineTrace(*work, start, end))

    # Always place work of the device that is free first, so that no later choice could have come earlier.
    while any(place[device] < len(orders[device]) or waiting[device] for device in range(devices)):
        moved = False
        for device in sorted(range(devices), key=lambda each: free[each]):
            head = orders[device][place[device]] if place[device] < len(orders[device]) else None
            at = ready(head) if head is not None else None
            # The weights' part of a backward fills idle time, or makes room where too many are in flight.
            full = most is not None and head is not None and head[0] == "F" and flying[device] >= most[device]
            if waiting[device] and (full or at is None or at > free[device]):
                run(device, waiting[device].pop(0), free[device])
            elif head is not None and at is not None:
                run(device, head, max(at, free[device]))
                place[device] += 1
                if most is not None and head[0] == "B":
                    waiting[device].append(("W", head[1], head[2]))
            else:
                continue
            moved = True
            break
        if not moved:
            raise PipelineError("schedule: got orders in which every device waits for another")
    return PipelineTimeline(runs=tuple(map(tuple, lanes)), seconds=max(free))
