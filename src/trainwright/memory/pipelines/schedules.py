"""What a step takes under a pipeline schedule: every forward and backward placed in time, device by device.

GPipe runs all forwards, then all backwards; 1F1B alternates after a warm-up; interleaved gives each device several
chunks (Megatron-LM's order); zero-bubble splits the backward in the part that others wait for and the weights' part,
which fills the gaps (the H1 schedule of Qi et al., arXiv 2401.10241, made greedily).
"""

from collections.abc import Sequence
from dataclasses import dataclass

from trainwright.errors import PipelineError
from trainwright.memory.pipelines.memory import check_schedule

__all__ = ["Run", "Timeline", "simulate_orders", "simulate_schedule"]


@dataclass(frozen=True, slots=True)
class Run:
    """One piece of work: kind "F", "B" or "W" of a micro-batch on a chunk of layers; chunk c is on device c mod P."""

    kind: str
    chunk: int
    microbatch: int
    start_seconds: float
    end_seconds: float


@dataclass(frozen=True, kw_only=True, slots=True)
class Timeline:
    """A step: its runs by device, its time, and the most chunks' worth of saved values that each device held."""

    runs: tuple[tuple[Run, ...], ...]
    seconds: float
    held: tuple[int, ...]

    @property
    def busy_share(self) -> float:
        """Share of the devices' time in which they compute."""
        done = sum(run.end_seconds - run.start_seconds for lane in self.runs for run in lane)
        return done / (self.seconds * len(self.runs)) if self.seconds else 1.0


def simulate_schedule(
    schedule: str,
    forward_seconds: Sequence[float],
    backward_seconds: Sequence[float],
    *,
    microbatches: int,
    link_seconds: Sequence[float] | None = None,
    devices: int | None = None,
    weight_share: float = 0.5,
) -> Timeline:
    """Place a step in time. Sequences are per chunk; `link_seconds[c]` is one way between chunks c and c + 1.

    Chunks are as many as devices, or (interleaved) a multiple, with micro-batches a multiple of the devices.
    `weight_share` is the part of a backward that zero-bubble defers.
    """
    check_schedule(schedule)
    chunks = len(forward_seconds)
    count = devices or chunks
    if microbatches < 1:
        raise PipelineError(f"microbatches: got {microbatches}; allowed: a whole number >= 1")
    if chunks % count or (schedule != "interleaved" and chunks != count):
        raise PipelineError(f"devices: got {count} for {chunks} chunks; allowed: {chunks}, or a divisor if interleaved")
    if schedule == "interleaved" and microbatches % count:
        raise PipelineError(
            f"microbatches: got {microbatches}; allowed: a multiple of the {count} devices for interleaved"
        )
    links = list(link_seconds) if link_seconds is not None else [0.0] * chunks
    zero = schedule == "zero-bubble"
    durations = {
        "F": list(forward_seconds),
        "B": [each * (1 - weight_share if zero else 1.0) for each in backward_seconds],
        "W": [each * weight_share for each in backward_seconds],
    }
    orders = [_order(schedule, device, count, chunks // count, microbatches) for device in range(count)]
    return _place(orders, durations, links, defer=zero)


def simulate_orders(
    orders: Sequence[Sequence[tuple[str, int, int]]],
    forward_seconds: Sequence[float],
    backward_seconds: Sequence[float],
    link_seconds: Sequence[float],
) -> Timeline:
    """Place a step in time in which each device runs its own order of (kind, chunk, micro-batch), as soon as it can."""
    durations = {"F": list(forward_seconds), "B": list(backward_seconds)}
    return _place([list(order) for order in orders], durations, [*link_seconds, 0.0], defer=False)


_Work = tuple[str, int, int]


def _order(schedule: str, device: int, devices: int, chunks: int, microbatches: int) -> list[_Work]:
    """Return forwards and backwards of a device in their order."""
    total = microbatches * chunks

    def forward(number: int) -> _Work:
        group, place = divmod(number, devices * chunks)
        return "F", device + devices * (place // devices), group * devices + place % devices

    def backward(number: int) -> _Work:
        group, place = divmod(number, devices * chunks)
        return "B", device + devices * (chunks - 1 - place // devices), group * devices + place % devices

    if chunks == 1:
        forwards: list[_Work] = [("F", device, each) for each in range(microbatches)]
        backwards: list[_Work] = [("B", device, each) for each in range(microbatches)]
    else:
        forwards, backwards = [forward(each) for each in range(total)], [backward(each) for each in range(total)]
    if schedule == "gpipe":
        return forwards + backwards
    ahead = devices - device - 1
    warm = min(total, ahead if chunks == 1 else 2 * ahead + (chunks - 1) * devices)
    order = forwards[:warm]
    for each in range(total - warm):
        order += [forwards[warm + each], backwards[each]]
    return order + backwards[total - warm :]


def _place(
    orders: list[list[_Work]], durations: dict[str, list[float]], links: list[float], *, defer: bool
) -> Timeline:
    devices, chunks = len(orders), len(links)
    free, place = [0.0] * devices, [0] * devices
    ends: dict[_Work, float] = {}
    waiting: list[list[_Work]] = [[] for _ in orders]  # weights' parts
    lanes: list[list[Run]] = [[] for _ in orders]

    def ready(work: _Work) -> float | None:
        kind, chunk, batch = work
        if kind == "F":
            needs = [(("F", chunk - 1, batch), links[chunk - 1])] if chunk else []
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
        lanes[device].append(Run(*work, start, end))

    while any(place[device] < len(orders[device]) or waiting[device] for device in range(devices)):
        moved = False
        for device in sorted(range(devices), key=lambda each: free[each]):
            head = orders[device][place[device]] if place[device] < len(orders[device]) else None
            at = ready(head) if head is not None else None
            if waiting[device] and (at is None or at > free[device]):
                run(device, waiting[device].pop(0), free[device])
            elif head is not None and at is not None:
                run(device, head, max(at, free[device]))
                place[device] += 1
                if defer and head[0] == "B":
                    waiting[device].append(("W", head[1], head[2]))
            else:
                continue
            moved = True
            break
        if not moved:
            raise PipelineError("schedule: got orders in which every device waits for another")
    last = "W" if defer else "B"
    held = []
    for lane in lanes:
        now = most = 0
        for each in lane:
            now += (each.kind == "F") - (each.kind == last)
            most = max(most, now)
        held.append(most)
    return Timeline(runs=tuple(map(tuple, lanes)), seconds=max(free), held=tuple(held))
