"""Measures network latency and bandwidth: seconds of each collective by size and group, in a node and across nodes."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.distributed as dist

from trainwright.cluster.calibration.fit_cluster import MeasuredLevel
from trainwright.cluster.calibration.ranks import RankPlace
from trainwright.cluster.calibration.timing import median_time, synchronized_clock
from trainwright.cluster.network import OPERATIONS, ExchangeTimes

__all__ = ["group_sizes", "measure_links", "message_sizes"]

_FLOAT = 4
_LEAST_BYTES = 256
_RUNS, _TOGETHER = 8, 32 * 2**20  # exchanges that are timed together, and their bytes


@dataclass(frozen=True, slots=True)
class _Group:
    """Ranks that exchange, and whether this process is one of them."""

    ranks: tuple[int, ...]
    handle: dist.ProcessGroup
    here: bool
    device: torch.device


def message_sizes(largest: int) -> list[int]:
    """Return the sizes to measure in bytes: from 256 to `largest` in powers of 4."""
    sizes = [_LEAST_BYTES]
    while sizes[-1] * 4 <= largest:
        sizes.append(sizes[-1] * 4)
    return sizes


def group_sizes(most: int) -> list[int]:
    """Return 2, 4, 8, ... up to `most`, and its divisors, for into such groups the ranks of a plan fall."""
    # A number with a single bit set is a power of two.
    return [ranks for ranks in range(2, most + 1) if most % ranks == 0 or ranks.bit_count() == 1]


def measure_links(here: RankPlace, device: torch.device, *, repeats: int, largest: int) -> tuple[MeasuredLevel, ...]:
    """Measure the level inside a node, and the one between nodes with one and with all ranks of each.

    All ranks must call it.

    Every size of message is timed in turn, `repeats` times, so that a disturbance does not fall on one size. The median
    on the slowest rank counts: how ranks meet changes from one exchange to the next, and the shortest time is luck that
    a training does not have. A time is that of several exchanges in a row, each of its own memory, as in a training: a
    single one would find its message in the caches.
    """
    levels = []
    inside = [(ranks, 1) for ranks in group_sizes(here.on_node)]
    across = [(nodes, here.on_node) for nodes in group_sizes(here.nodes)]
    # Groups of one rank a node measure the link between nodes, those of all ranks how nodes use it together.
    if here.on_node > 1:
        across += [(nodes * here.on_node, 1) for nodes in group_sizes(here.nodes)]
    # Two halves of the repeats are compared: how well a time repeats is its error.
    halves = slice(repeats // 2), slice(repeats // 2, None)
    for name, listed in (("node", inside), ("network", across)):
        exchanges, spreads = [], []
        for ranks, stride in listed:
            # Of the ranks of a node only every `stride`-th one is in the group.
            on_node = min(ranks, here.on_node // stride)
            members = tuple(range(0, ranks * stride, stride))
            handle = dist.new_group(list(members))  # every rank takes part in making every group
            group = _Group(members, handle, here.rank in members, device)
            # A message must divide among the ranks, as its parts are what they exchange.
            # -(-a // b) rounds up, to whole float32 values for every rank.
            sizes = [-(-size // (_FLOAT * ranks)) * _FLOAT * ranks for size in message_sizes(largest)]
            for operation in OPERATIONS:
                series = _gather_times(_time_sizes(group, operation, sizes, repeats) if group.here else None)
                exchanges.append(
                    ExchangeTimes(
                        operation=operation,
                        tier=name,
                        ranks=ranks,
                        on_node=on_node,
                        bytes=tuple(sizes),
                        seconds=_slowest_medians(series),
                    )
                )
                parts = (_slowest_medians([[each[part] for each in rank] for rank in series]) for part in halves)
                # The difference of the two halves, relative to their mean.
                spreads += [2 * (one - other) / (one + other) for one, other in zip(*parts, strict=True)]
            if group.here:
                dist.destroy_process_group(handle)
        if exchanges:
            levels.append(
                MeasuredLevel(
                    name=name,
                    devices=here.on_node if name == "node" else here.world,
                    exchanges=tuple(exchanges),
                    spreads=tuple(spreads),
                    only_these_sizes=device.type == "cpu",
                    flows=_measure_shared_link(here, device, exchanges, repeats) if name == "network" else 1.0,
                )
            )
    return tuple(levels)


def _measure_shared_link(here: RankPlace, device: torch.device, exchanges: list[ExchangeTimes], repeats: int) -> float:
    """Return how much longer the largest all-reduce takes when one group for every rank of a node is active at once."""
    alone = next(
        each for each in exchanges if (each.operation, each.on_node) == ("all_reduce", 1) and each.ranks == here.nodes
    )
    # One group for each device of a node, each across all nodes: together they share the node's links.
    handles = [dist.new_group(list(range(each, here.world, here.on_node))) for each in range(here.on_node)]
    members = tuple(range(here.local_rank, here.world, here.on_node))
    group = _Group(members, handles[here.local_rank], True, device)
    together = _slowest_medians(
        _gather_times(_time_sizes(group, "all_reduce", [alone.bytes[-1]], repeats, among=dist.group.WORLD))
    )
    dist.destroy_process_group(group.handle)
    # A ratio below 1 is noise: sharing a link makes nothing faster.
    return max(1.0, together[0] / alone.seconds[-1])


def _time_sizes(
    group: _Group, operation: str, sizes: list[int], repeats: int, *, among: dist.ProcessGroup | None = None
) -> list[list[float]]:
    """Return this rank's seconds of every repeat, by size; all ranks `among` which it is done start together."""
    works = [_Exchanges(group, operation, size) for size in sizes]
    # Untimed first calls: connections and buffers are made at first use.
    for work in works:
        work()
    clock = synchronized_clock(group.device)
    times: list[list[float]] = [[] for _ in works]
    # Sizes take turns, so that a disturbance falls on all sizes and not on one.
    for _ in range(repeats):
        for series, work in zip(times, works, strict=True):
            dist.barrier(
                among or group.handle, device_ids=[group.device.index] if group.device.type == "cuda" else None
            )
            series.append(clock(work) / work.runs)
    return times


def _gather_times(times: list[list[float]] | None) -> list[list[list[float]]]:
    """Return the times of all ranks that took part."""
    everyone: list[list[list[float]] | None] = [None] * dist.get_world_size()
    dist.all_gather_object(everyone, times)
    return [each for each in everyone if each is not None]


def _slowest_medians(series: list[list[list[float]]]) -> tuple[float, ...]:
    """Return for each size the median repeat of the rank that takes longest."""
    return tuple(max(median_time(each) for each in ranks) for ranks in zip(*series, strict=True))


class _Exchanges:
    """`runs` exchanges of `size` bytes, one after the other."""

    def __init__(self, group: _Group, operation: str, size: int) -> None:
        self.runs = max(1, min(_RUNS, _TOGETHER // size))
        self._works = [_make_exchange(group, operation, size) for _ in range(self.runs)]

    def __call__(self) -> None:
        for work in self._works:
            work()


def _make_exchange(group: _Group, operation: str, size: int) -> Callable[[], object]:
    handle = group.handle
    whole = torch.zeros(size // _FLOAT, device=group.device)
    part = torch.zeros(whole.numel() // len(group.ranks), device=group.device)
    other = torch.empty_like(whole)
    # A message goes from the first rank to the second; the others take no part.
    first, second = group.ranks[:2]

    def send() -> None:
        if dist.get_rank() == first:
            dist.send(whole, second, group=handle)
        elif dist.get_rank() == second:
            dist.recv(whole, first, group=handle)

    # Newer names of reduce_scatter_tensor and all_gather_into_tensor, which warn where these are there.
    reduce_scatter = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor
    all_gather = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
    works: dict[str, Callable[[], object]] = {
        "all_reduce": lambda: dist.all_reduce(whole, group=handle),
        "reduce_scatter": lambda: reduce_scatter(part, whole, group=handle),
        "all_gather": lambda: all_gather(whole, part, group=handle),
        "all_to_all": lambda: dist.all_to_all_single(other, whole, group=handle),
        "broadcast": lambda: dist.broadcast(whole, first, group=handle),
        "send": send,
    }
    return works[operation]
