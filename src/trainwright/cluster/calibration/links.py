"""Measures links: exchanges between ranks, their overlap with computation, and what torch's own code adds to a step."""

import itertools
import math
import statistics
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
import torch
import torch.distributed as dist
from scipy.optimize import nnls
from torch import nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.pipelining import PipelineStage, Schedule1F1B, ScheduleGPipe
from torch.nn.parallel import DistributedDataParallel

from trainwright.cluster.calibration.fit_cluster import MeasuredLevel
from trainwright.cluster.calibration.ranks import RankPlace
from trainwright.cluster.calibration.timing import (
    fastest,
    mean_of_middle,
    median_time,
    spread_of_middle,
    synchronized_clock,
)
from trainwright.cluster.network import OPERATIONS, ExchangeTimes

__all__ = ["fit_rising", "group_sizes", "measure_links", "measure_overlap", "measure_runtime", "message_sizes"]

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


Work = Callable[[], object]
Timer = Callable[[], float]

_SIDE = 128  # of the matrices that are multiplied during an exchange
_MESSAGE = 4 * 2**20
_LAYERS = 4  # linear ones of a model
_PASSES = ((64, 4), (256, 32), (512, 32), (1024, 32), (1024, 96))  # widths of layers, and samples
_WARM, _IN_A_MOMENT, _LEAST_MOMENTS = 2, 2, 3  # repeats before those that count, those of a moment, moments at least
_SCHEDULES = {"gpipe": ScheduleGPipe, "1f1b": Schedule1F1B}
_MICROBATCHES = 8


def measure_overlap(device: torch.device, *, repeats: int) -> tuple[float, float]:
    """Return the relative speed of computation during an all-reduce, 0 to 1, and the spread over several moments.

    Matrix products that take twice as long as the all-reduce are timed alone and during it. Every rank takes part.
    """
    left, right = (torch.rand(_SIDE, _SIDE, device=device) for _ in range(2))
    message = torch.zeros(_MESSAGE // 4, device=device)

    def exchange() -> None:
        dist.all_reduce(message)

    def products(number: int) -> None:
        for _ in range(number):
            torch.mm(left, right)

    def timers(*works: Work) -> list[Timer]:
        return [_time_together(work, device) for work in works]

    # First how long 16 products and one sum take alone: this sets how many products fill twice the sum's time.
    one, alone = _measure_moments(lambda: timers(lambda: products(16), exchange), device, repeats)[0]
    number = max(1, round(2 * 16 * alone / one))

    def both() -> None:
        pending = dist.all_reduce(message, async_op=True)
        products(number)
        assert pending is not None  # noqa: S101 -- asked for
        pending.wait()

    # Overlap = (computation + exchange - both together) / exchange: 1 if the sum is hidden completely, 0 if each waits
    # for the other. The first value is over all moments, the rest one a moment.
    whole, *moments = (
        min(1.0, max(0.0, (computed + exchanged - together) / exchanged))
        for computed, exchanged, together in _measure_moments(
            lambda: timers(lambda: products(number), exchange, both), device, repeats
        )
    )
    return whole, spread_of_middle(moments)


def measure_runtime(
    exchanges: Iterable[ExchangeTimes], *, repeats: int
) -> tuple[tuple[float, ...], dict[str, tuple[float, ...]], float]:
    """Return a cluster's `pass_seconds` and `runtime_seconds`, and the relative spread over several moments.

    For models of several sizes: how much longer a step under DDP, with the mean of its loss, takes than the pass alone
    and the all-reduce of its gradients; one under FSDP than the pass, two gathers and a scatter of each layer; and a
    micro-batch of a pipeline with one stage a rank than the pass and two messages. The pass alone is timed as in
    profiles (the least of several), because a plan adds the result to a profile. A fit over all sizes says how the
    difference grows with the pass.
    """

    def seconds(operation: str, size: int) -> float:
        known = [each for each in exchanges if each.operation == operation]
        # A training exchanges among all ranks, so the widest group counts.
        return float(max(known, key=lambda each: each.ranks).at(size))

    device = torch.device("cpu")
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))

    def timers() -> list[Timer]:
        found: list[Timer] = []
        for width, samples in _PASSES:
            sample = torch.rand(samples, width)
            copied = DistributedDataParallel(_make_layers(width), gradient_as_bucket_view=True)
            works = [_make_step(copied, sample, mean=True), _make_step(_make_sharded(width, mesh), sample, mean=True)]
            works += [_make_pipeline(mesh, name, width, samples) for name in _SCHEDULES]
            # No part of the pass alone waits for another rank: the least of several, one after the other.
            found += [partial(fastest, _make_step(_make_layers(width), sample, again=True))]
            found += [_time_together(work, device) for work in works]
        return found

    # What the exchanges of each model take by themselves: the sum of all gradients, gathers and scatters of the layers,
    # and two messages a micro-batch.
    sizes = [4 * (width + 1) * width for width, _ in _PASSES]  # of a layer's weights and bias in float32
    summed = [seconds("all_reduce", _LAYERS * size) for size in sizes]
    sharded = [_LAYERS * (2 * seconds("all_gather", size) + seconds("reduce_scatter", size)) for size in sizes]
    sends = [2 * seconds("send", 4 * width * samples) for width, samples in _PASSES]
    # A pipeline of p ranks takes p - 1 slots more than it has micro-batches.
    slots = _MICROBATCHES + dist.get_world_size() - 1
    found = []
    for times in _measure_moments(timers, device, repeats):
        # The timers come in groups: the pass alone, under DDP, under FSDP, then under each schedule.
        own, *together = (times[place :: 3 + len(_SCHEDULES)] for place in range(3 + len(_SCHEDULES)))
        ways = zip(together, (1, 1, slots, slots), (summed, sharded, sends, sends), strict=True)
        # What a slot takes longer than the pass and its exchange is the runtime's own time.
        longer = [
            [
                max(0.0, whole / passes - alone - exchange)
                for whole, alone, exchange in zip(wholes, own, exchanged, strict=True)
            ]
            for wholes, passes, exchanged in ways
        ]
        found.append((own, longer))
    # The first entry is over all moments, the others are single moments, for the spread.
    (own, longer), *moments = found
    every = [list(itertools.chain(*each)) for _, each in moments]
    # One relative spread for all passes and schedules; as roots of sums of squares, long times weigh most.
    deviation = math.hypot(*(spread_of_middle(times) for times in zip(*every, strict=True)))
    mean = math.hypot(*(statistics.fmean(times) for times in zip(*every, strict=True)))
    # A cluster's `pass_seconds` must rise.
    order = sorted(range(len(own)), key=own.__getitem__)
    names = ("step", "fsdp", *_SCHEDULES)
    smooth = (fit_rising(own, times) for times in longer)
    runtimes = {name: tuple(times[place] for place in order) for name, times in zip(names, smooth, strict=True)}
    return tuple(own[place] for place in order), runtimes, deviation / mean if mean else 0.0


def fit_rising(own: Sequence[float], longer: Sequence[float]) -> list[float]:
    """Return the a + b sqrt(own), a and b >= 0, with the least relative error to `longer`.

    Torch's own code takes the same time for any pass (a). Random delays of single ranks add up over a pass, and the
    wait for the slowest rank grows like the standard deviation of that sum, with its square root (b).
    """
    passes, seconds = np.asarray(own), np.asarray(longer)
    # Divided by the whole time, so that least squares makes relative errors small.
    columns = np.stack([np.ones_like(passes), np.sqrt(passes)], axis=1)
    parts = 1 / (passes + seconds)
    found: list[float] = (columns @ nnls(columns * parts[:, None], seconds * parts)[0]).tolist()
    return found


def _measure_moments(make: Callable[[], list[Timer]], device: torch.device, repeats: int) -> list[list[float]]:
    """Return the time of each timer on its slowest rank: the mean of the middle half of all moments, then each moment.

    Everything is made again for each moment, because the placement of memory and threads persists within one.
    """
    moments = [[timer() for timer in make()] for _ in range(max(_LEAST_MOMENTS, repeats // _IN_A_MOMENT))]
    # All ranks wait for the slowest, so its time counts.
    slowest = torch.tensor(moments, dtype=torch.float64, device=device)
    dist.all_reduce(slowest, op=dist.ReduceOp.MAX)
    found: list[list[float]] = slowest.tolist()
    return [[mean_of_middle(each) for each in zip(*found, strict=True)], *found]


def _time_together(work: Work, device: torch.device) -> Timer:
    """Time work that all ranks start together: the median of several, one after the other as in a training."""
    clock = synchronized_clock(device)

    def timed() -> float:
        series = []
        # A barrier before each repeat: ranks that start apart would wait inside the exchange.
        for _ in range(_WARM + _IN_A_MOMENT):
            dist.barrier(device_ids=[device.index] if device.type == "cuda" else None)
            series.append(clock(work))
        return median_time(series[_WARM:])

    return timed


def _make_layers(width: int) -> nn.Sequential:
    return nn.Sequential(*(nn.Linear(width, width) for _ in range(_LAYERS)))


def _make_sharded(width: int, mesh: DeviceMesh) -> nn.Module:
    from torch.distributed.fsdp import fully_shard

    model = _make_layers(width)
    for layer in model:
        fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    return model


def _make_pipeline(mesh: DeviceMesh, schedule: str, width: int, micro: int) -> Work:
    """Return an iteration of a pipeline with one stage of layers on every rank, whose loss is sent to all ranks."""
    rank, ranks = dist.get_rank(), dist.get_world_size()
    stage = PipelineStage(_make_layers(width), rank, ranks, torch.device("cpu"), group=mesh.get_group())
    iteration = _SCHEDULES[schedule](stage, n_microbatches=_MICROBATCHES, loss_fn=lambda output, _: output.mean())
    whole, target, loss = torch.rand(_MICROBATCHES * micro, width), torch.zeros(_MICROBATCHES), torch.zeros(())

    def once() -> None:
        # As in a training step: gradients start empty, the last rank's loss reaches everyone.
        stage.submod.zero_grad()
        arguments = (whole,) if rank == 0 else ()
        iteration.step(*arguments, target=target if rank == ranks - 1 else None, return_outputs=False)
        dist.broadcast(loss, ranks - 1)
        dist.all_reduce(loss)

    return once


def _make_step(model: nn.Module, sample: torch.Tensor, *, mean: bool = False, again: bool = False) -> Work:
    """Return a pass and back, which may end with the mean of the loss over all ranks; `again` adds to gradients."""

    def once() -> None:
        if not again:
            model.zero_grad()
        loss = model(sample).mean()
        loss.backward()
        if mean:
            dist.all_reduce(loss.detach())

    return once
