"""What a training has beside its layers and exchanges: how far one hides behind the other, and torch's own code."""

import math
import statistics
import time
from collections.abc import Callable, Iterable

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.pipelining import PipelineStage, Schedule1F1B, ScheduleGPipe
from torch.nn.parallel import DistributedDataParallel

from trainwright.cluster.fitting import median
from trainwright.cluster.operation import FSDP_UNIT
from trainwright.cluster.tier import ExchangeTimes

__all__ = ["measure_overlap", "measure_runtime", "measure_units"]

Work = Callable[[], object]

_SIDE = 128  # of the matrices whose products are computed beside an exchange
_MESSAGE = 4 * 2**20
_UNITS, _WIDTHS = 4, (64, 256, 512, 1024, 2048)  # linear layers of a model, and their widths
_MICRO = 4  # samples where nothing is to compute
_STAGES = ((_WIDTHS[0], _MICRO), (512, 32), (1024, 32))  # widths of a stage's layers, and samples of a micro-batch
_SCHEDULES = {"gpipe": ScheduleGPipe, "1f1b": Schedule1F1B}
_MICROBATCHES = 8


def measure_overlap(device: torch.device, *, repeats: int) -> tuple[float, float]:
    """Return the speed of computation beside a sum over all ranks, 0 to 1, and how far two halves lay apart.

    Twice as long as the sum alone takes, products of matrices are computed: alone and beside it. Every rank takes part.
    """
    left, right = (torch.rand(_SIDE, _SIDE, device=device) for _ in range(2))
    message = torch.zeros(_MESSAGE // 4, device=device)

    def exchange() -> None:
        dist.all_reduce(message)

    def products(number: int) -> None:
        for _ in range(number):
            torch.mm(left, right)

    one, alone = _medians([lambda: products(16), exchange], device, repeats)[0]
    number = max(1, round(2 * 16 * alone / one))

    def both() -> None:
        pending = dist.all_reduce(message, async_op=True)
        products(number)
        assert pending is not None  # noqa: S101 -- asked for
        pending.wait()

    whole, *halves = (
        min(1.0, max(0.0, (computed + exchanged - together) / exchanged))
        for computed, exchanged, together in _medians([lambda: products(number), exchange, both], device, repeats)
    )
    return whole, abs(halves[0] - halves[1]) / 2


def measure_units(tier: str, *, largest: int, repeats: int) -> tuple[ExchangeTimes, float]:
    """Return what FSDP takes for a unit of weights in a micro-batch, by their bytes, and how far two halves lay apart.

    That is two gathers, a scatter, copies of the weights and gradients in and out of what travels, and torch's own
    code: what a step of linear layers takes more under FSDP. They are measured as one, for collectives timed alone,
    one after the other, meet the processors in another state than those between which there is something to do.
    """
    ranks = dist.get_world_size()
    mesh = init_device_mesh("cpu", (ranks,))
    widths = [width for width in _WIDTHS if 4 * width**2 <= max(largest, 4 * _WIDTHS[0] ** 2)]
    works: list[Work] = []
    for width in widths:
        sample = torch.rand(_MICRO, width)
        works += [_step(_layers(width), sample), _step(_sharded(width, mesh), sample)]
    times = _medians(works, torch.device("cpu"), repeats)
    every = [
        [max(1e-9, (divided - plain) / _UNITS) for plain, divided in zip(part[::2], part[1::2], strict=True)]
        for part in times
    ]
    sizes = tuple(4 * (width + 1) * width for width in widths)
    units = ExchangeTimes(operation=FSDP_UNIT, tier=tier, ranks=ranks, bytes=sizes, seconds=tuple(every[0]))
    apart = [(one - other) / (one + other) for one, other in zip(*every[1:], strict=True)]
    return units, math.sqrt(statistics.fmean(each**2 for each in apart))


def measure_runtime(
    exchanges: Iterable[ExchangeTimes], *, repeats: int
) -> tuple[float, tuple[float, ...], dict[str, tuple[float, ...]], float]:
    """Return a cluster's `step_seconds`, `stage_seconds` and `pipeline_seconds`, and how far two halves lay apart.

    Of a model too small to compute: what a step under DDP, with the mean of its loss, takes more than the step and the
    sum of its gradients. Of stages of several sizes, one on every rank: what a micro-batch takes more than its layers
    by themselves and two messages.
    """

    def seconds(operation: str, size: int) -> float:
        known = [each for each in exchanges if each.operation == operation]
        return float(max(known, key=lambda each: each.ranks).at(size))

    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    sample, small = torch.rand(_MICRO, _WIDTHS[0]), _layers(_WIDTHS[0])
    copied = DistributedDataParallel(_layers(_WIDTHS[0]), gradient_as_bucket_view=True)
    works = [_step(small, sample), _step(copied, sample, mean=True)]
    for width, micro in _STAGES:
        works.append(_step(_layers(width), torch.rand(micro, width), again=True))
        works += [_pipeline(mesh, name, width, micro) for name in _SCHEDULES]
    summed = seconds("all_reduce", 4 * _UNITS * (_WIDTHS[0] + 1) * _WIDTHS[0])
    sends = [2 * seconds("send", 4 * width * micro) for width, micro in _STAGES]
    slots = _MICROBATCHES + dist.get_world_size() - 1
    found = []
    for alone, together, *staged in _medians(works, torch.device("cpu"), repeats):
        own, *schedules = (staged[place :: 1 + len(_SCHEDULES)] for place in range(1 + len(_SCHEDULES)))
        longer = [
            tuple(max(0.0, whole / slots - plain - send) for whole, plain, send in zip(times, own, sends, strict=True))
            for times in schedules
        ]
        found.append((max(0.0, together - alone - summed), own, longer))
    (step, own, longer), *halves = found
    first, second = ([half[0], *(each for times in half[2] for each in times)] for half in halves)
    every = [step, *(each for times in longer for each in times)]
    spread = math.dist(first, second) / (2 * math.hypot(*every)) if any(every) else 0.0
    order = sorted(range(len(own)), key=own.__getitem__)
    pipelines = {name: tuple(times[place] for place in order) for name, times in zip(_SCHEDULES, longer, strict=True)}
    return step, tuple(own[place] for place in order), pipelines, spread


def _medians(works: list[Work], device: torch.device, repeats: int) -> list[list[float]]:
    """Return the median seconds of each work on the rank that takes longest: of all repeats, and of the two halves.

    The works take turns, and all ranks start each of them together.
    """
    for work in works:
        work()
    times: list[list[float]] = [[] for _ in works]
    for _ in range(max(2, repeats)):
        for series, work in zip(times, works, strict=True):
            dist.barrier(device_ids=[device.index] if device.type == "cuda" else None)
            _wait(device)
            begun = time.perf_counter_ns()
            work()
            _wait(device)
            series.append((time.perf_counter_ns() - begun) / 1e9)
    half = len(times[0]) // 2
    parts = [[median(series[part]) for series in times] for part in (slice(None), slice(half), slice(half, None))]
    slowest = torch.tensor(parts, dtype=torch.float64, device=device)
    dist.all_reduce(slowest, op=dist.ReduceOp.MAX)
    found: list[list[float]] = slowest.tolist()
    return found


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def _layers(width: int) -> nn.Sequential:
    return nn.Sequential(*(nn.Linear(width, width) for _ in range(_UNITS)))


def _sharded(width: int, mesh: DeviceMesh) -> nn.Module:
    from torch.distributed.fsdp import fully_shard

    model = _layers(width)
    for layer in model:
        fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    return model


def _pipeline(mesh: DeviceMesh, schedule: str, width: int, micro: int) -> Work:
    """Return an iteration of a pipeline with `_layers` on every rank."""
    rank, ranks = dist.get_rank(), dist.get_world_size()
    stage = PipelineStage(_layers(width), rank, ranks, torch.device("cpu"), group=mesh.get_group())
    iteration = _SCHEDULES[schedule](stage, n_microbatches=_MICROBATCHES, loss_fn=lambda output, _: output.mean())
    whole, target = torch.rand(_MICROBATCHES * micro, width), torch.zeros(_MICROBATCHES)

    def once() -> None:
        given = (whole,) if rank == 0 else ()
        iteration.step(*given, target=target if rank == ranks - 1 else None, return_outputs=False)

    return once


def _step(model: nn.Module, sample: torch.Tensor, *, mean: bool = False, again: bool = False) -> Work:
    """Return a pass and back, which may end with the mean of the loss over all ranks; `again` adds to gradients."""

    def once() -> None:
        if not again:
            model.zero_grad()
        loss = model(sample).mean()
        loss.backward()
        if mean:
            dist.all_reduce(loss.detach())

    return once
