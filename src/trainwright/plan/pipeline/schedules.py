"""Pipeline schedules (GPipe, 1F1B, interleaved): every forward and backward placed in time, device by device.

GPipe runs all forwards, then all backwards; 1F1B alternates after a warm-up; interleaved gives each device several
chunks (Megatron-LM's order); zero-bubble splits the backward in the part that others wait for and the weights' part,
which fills the gaps (the H1 schedule of Qi et al., arXiv 2401.10241, made greedily).

1F1B* is 1F1B with more in flight (Beaumont et al., Euro-Par 2021): for a period T consecutive stages and links, from
the last on, go into one group while their loads add up to at most T, and a stage in the g-th group holds g
micro-batches; no schedule that repeats itself every T holds fewer. Where a device has several stages, the work of one
micro-batch is placed so that it can repeat itself in every period.
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
    "candidate_periods",
    "deep_orders",
    "group_row",
    "group_stages",
    "orders_of",
    "repeating_orders",
    "simulate_orders",
    "stage_row",
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


def group_stages(loads: Sequence[float], links: Sequence[float], period: float) -> list[int] | None:
    """Return the micro-batches that each stage holds under 1F1B*, or None if a stage or link is longer than the period.

    `links[i]` is the load of the link between stages i and i + 1, both ways together.
    """
    found = group_row(loads, links, period)
    return None if found is None else found[::2]


def group_row(loads: Sequence[float], links: Sequence[float], period: float) -> list[int] | None:
    """Return the group of 1F1B*, counted from the end, of each stage and of each link between them, in turn."""
    # A period that is a sum of loads must hold them in whatever order they are added.
    slack = period * (1 + 1e-12)
    group, total = 1, 0.0
    found = []
    for load in reversed(stage_row(loads, links)):
        if load > slack:
            return None
        if total + load > slack:
            group, total = group + 1, 0.0
        total += load
        found.append(group)
    return found[::-1]


def candidate_periods(loads: Sequence[float], links: Sequence[float]) -> list[float]:
    """Return the periods at which groups change, ascending: sums of consecutive loads and links."""
    row = stage_row(loads, links)
    return sorted({sum(row[begin:end]) for begin in range(len(row)) for end in range(begin + 1, len(row) + 1)})


def stage_row(stages: Sequence[float], links: Sequence[float]) -> list[float]:
    """Return stages and the links between them in turn."""
    row = [stages[0]]
    for link, stage in zip(links, stages[1:], strict=True):
        row += [link, stage]
    return row


def deep_orders(flying: Sequence[int], microbatches: int) -> Orders:
    """Return the orders of 1F1B with so many micro-batches in flight on each device, no more than on the one before."""
    batches = range(microbatches)
    return [
        _alternating([("F", device, each) for each in batches], [("B", device, each) for each in batches], held - 1)
        for device, held in enumerate(flying)
    ]


def repeating_orders(
    devices: Sequence[int],
    forward_seconds: Sequence[float],
    backward_seconds: Sequence[float],
    link_seconds: Sequence[float],
    *,
    microbatches: int,
    period: float,
    packed: bool,
) -> Orders | None:
    """Return orders in which micro-batch i does everything i periods after the first; None if that was not placed.

    A device may have several stages. Work of the first micro-batch is placed one after the other: as early as its
    device is free in every period, or, `packed`, right behind other work of the device, which leaves no gaps: so a
    period as long as the busiest device's work is always enough.
    """
    count = len(devices)
    path = [("F", stage) for stage in range(count)] + [("B", stage) for stage in reversed(range(count))]
    # Of each device, what is taken of every period: begin in it, and seconds.
    taken: list[list[tuple[float, float]]] = [[] for _ in range(1 + max(devices))]
    lanes: list[list[tuple[float, float, int, int, _Work]]] = [[] for _ in taken]
    end, before = 0.0, 0
    for place, (kind, stage) in enumerate(path):
        # Messages take their time; nothing waits for another's.
        ready = end + (link_seconds[min(before, stage)] if stage != before else 0.0)
        seconds = (forward_seconds if kind == "F" else backward_seconds)[stage]
        own = taken[devices[stage]]
        behind = [ready + (begin + length - ready) % period for begin, length in own]
        starts = sorted(behind if packed and own else [ready, *behind])
        free = (start for start in starts if all(_apart(start, seconds, *other, period) for other in own))
        begin = next(free, None)
        if begin is None:
            return None
        own.append((begin % period, seconds))
        end, before = begin + seconds, stage
        for batch in range(microbatches):
            at = batch * period
            lanes[devices[stage]].append((begin + at, end + at, place, batch, (kind, stage, batch)))
    # What begins and ends at one time is in the order in which a micro-batch needs it.
    return [[work for *_, work in sorted(lane)] for lane in lanes]


def _apart(start: float, seconds: float, other: float, length: float, period: float) -> bool:
    """Return whether two pieces of work that are done in every period do not overlap."""
    slack = 1e-9 * period
    gap = (other - start) % period
    return min(seconds, length) <= slack or (gap >= seconds - slack and period - gap >= length - slack)


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
