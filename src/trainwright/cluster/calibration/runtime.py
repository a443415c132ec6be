"""What a training has beside its layers and exchanges: how far one hides behind the other, and torch's own code."""

import itertools
import math
import statistics
import time
from collections.abc import Callable, Iterable, Sequence

import numpy as np
import torch
import torch.distributed as dist
from scipy.optimize import nnls
from torch import nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.pipelining import PipelineStage, Schedule1F1B, ScheduleGPipe
from torch.nn.parallel import DistributedDataParallel

from trainwright.cluster.calibration.least_squares import median, middle, spread
from trainwright.cluster.calibration.timing import fastest
from trainwright.cluster.network import FSDP_UNIT, ExchangeTimes

__all__ = ["fit_rising", "measure_overlap", "measure_runtime", "measure_units"]

Work = Callable[[], object]
Timer = Callable[[], float]

_SIDE = 128  # of the matrices whose products are computed beside an exchange
_MESSAGE = 4 * 2**20
_UNITS, _WIDTHS = 4, (64, 256, 512, 1024, 2048)  # linear layers of a model, and their widths
_MICRO = 4  # samples where nothing is to compute
_PASSES = ((_WIDTHS[0], _MICRO), (256, 32), (512, 32), (1024, 32), (1024, 96))  # widths of layers, and samples
_WARM, _IN_A_MOMENT, _LEAST_MOMENTS = 2, 2, 3  # repeats before those that count, those of a moment, moments at least
_SCHEDULES = {"gpipe": ScheduleGPipe, "1f1b": Schedule1F1B}
_MICROBATCHES = 8


def measure_overlap(device: torch.device, *, repeats: int) -> tuple[float, float]:
    """Return the speed of computation beside a sum over all ranks, 0 to 1, and how far several moments lay apart.

    Twice as long as the sum alone takes, products of matrices are computed: alone and beside it. Every rank takes part.
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
    return whole, spread(moments)


def measure_units(tier: str, *, largest: int, repeats: int) -> tuple[ExchangeTimes, float]:
    """Return what FSDP takes for a unit of weights in a micro-batch, by their bytes, and how far moments lay apart.

    That is two gathers, a scatter, copies of the weights and gradients in and out of what travels, and torch's own
    code: what a step of linear layers takes more under FSDP. They are measured as one, for collectives timed alone,
    one after the other, meet the processors in another state than those between which there is something to do.
    """
    # Each width is timed plain and under FSDP; the difference, divided by the number of layers, is one group's cost.
    ranks, device = dist.get_world_size(), torch.device("cpu")
    mesh = init_device_mesh("cpu", (ranks,))
    widths = [width for width in _WIDTHS if 4 * width**2 <= max(largest, 4 * _WIDTHS[0] ** 2)]

    def timers() -> list[Timer]:
        samples = [torch.rand(_MICRO, width) for width in widths]
        return [
            _time_together(_make_step(model, sample), device)
            for width, sample in zip(widths, samples, strict=True)
            for model in (_make_layers(width), _make_sharded(width, mesh))
        ]

    every = [
        # Plain and sharded models alternate in the list of timers.
        [max(1e-9, (divided - plain) / _UNITS) for plain, divided in zip(part[::2], part[1::2], strict=True)]
        for part in _measure_moments(timers, device, repeats)
    ]
    # float32 weights and bias of one linear layer.
    sizes = tuple(4 * (width + 1) * width for width in widths)
    units = ExchangeTimes(operation=FSDP_UNIT, tier=tier, ranks=ranks, bytes=sizes, seconds=tuple(every[0]))
    # How far moments lie apart, relative to their size, as a root mean square over all widths.
    apart = [spread(times) / middle(times) for times in zip(*every[1:], strict=True)]
    return units, math.sqrt(statistics.fmean(each**2 for each in apart))


def measure_runtime(
    exchanges: Iterable[ExchangeTimes], *, repeats: int
) -> tuple[tuple[float, ...], dict[str, tuple[float, ...]], float]:
    """Return a cluster's `pass_seconds` and `runtime_seconds`, and how far several moments lay apart.

    Of models of several sizes: what a step under DDP, with the mean of its loss, takes more than the pass by itself
    and the sum of its gradients; and, as stages of a pipeline with one on every rank, what a micro-batch takes more
    than that and two messages. The pass by itself is timed as profiles are, to which a plan adds what is found: the
    least of several one after the other, which nothing but other processes disturbs. Those of a training wait for
    other ranks each time, and take longer for it. All sizes together tell how it rises with the pass.
    """

    def seconds(operation: str, size: int) -> float:
        known = [each for each in exchanges if each.operation == operation]
        return float(max(known, key=lambda each: each.ranks).at(size))

    device = torch.device("cpu")
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))

    def timers() -> list[Timer]:
        found = []
        for width, samples in _PASSES:
            sample = torch.rand(samples, width)
            copied = DistributedDataParallel(_make_layers(width), gradient_as_bucket_view=True)
            works = [_make_step(copied, sample, mean=True)]
            works += [_make_pipeline(mesh, name, width, samples) for name in _SCHEDULES]
            found += [_time_alone(_make_step(_make_layers(width), sample, again=True))]
            found += [_time_together(work, device) for work in works]
        return found

    # What the exchanges of each model take by themselves: the sum of all gradients, and two messages a micro-batch.
    summed = [seconds("all_reduce", 4 * _UNITS * (width + 1) * width) for width, _ in _PASSES]
    sends = [2 * seconds("send", 4 * width * samples) for width, samples in _PASSES]
    # A pipeline of p ranks takes p - 1 slots more than it has micro-batches.
    slots = _MICROBATCHES + dist.get_world_size() - 1
    found = []
    for times in _measure_moments(timers, device, repeats):
        # The timers come in groups: the pass alone, under DDP, then under each schedule.
        own, *together = (times[place :: 2 + len(_SCHEDULES)] for place in range(2 + len(_SCHEDULES)))
        ways = zip(together, (1, *[slots] * len(_SCHEDULES)), (summed, *[sends] * len(_SCHEDULES)), strict=True)
        # What a slot takes longer than the pass and its exchange is the runtime's own time.
        longer = [
            [
                max(0.0, whole / passes - alone - exchange)
                for whole, alone, exchange in zip(wholes, own, exchanged, strict=True)
            ]
            for wholes, passes, exchanged in ways
        ]
        found.append((own, longer))
    # The first entry is over all moments; the others tell how far they lie apart.
    (own, longer), *moments = found
    every = [list(itertools.chain(*each)) for _, each in moments]
    apart = math.hypot(*(spread(times) for times in zip(*every, strict=True)))
    mean = math.hypot(*(statistics.fmean(times) for times in zip(*every, strict=True)))
    # A cluster's `pass_seconds` must rise.
    order = sorted(range(len(own)), key=own.__getitem__)
    names = ("step", *_SCHEDULES)
    smooth = (fit_rising(own, times) for times in longer)
    runtimes = {name: tuple(times[place] for place in order) for name, times in zip(names, smooth, strict=True)}
    return tuple(own[place] for place in order), runtimes, apart / mean if mean else 0.0


def fit_rising(own: Sequence[float], longer: Sequence[float]) -> list[float]:
    """Return the a + b sqrt(own), a and b >= 0, that are closest to `longer` in parts of the whole.

    Torch's own code takes as long for any pass; what holds up the one rank or the other comes by chance, the more often
    the longer a pass is, and what they wait for each other grows as the deviation of such a sum does, with its root.
    """
    passes, seconds = np.asarray(own), np.asarray(longer)
    # Divided by the whole time, so that least squares makes relative errors small.
    columns = np.stack([np.ones_like(passes), np.sqrt(passes)], axis=1)
    parts = 1 / (passes + seconds)
    found: list[float] = (columns @ nnls(columns * parts[:, None], seconds * parts)[0]).tolist()
    return found


def _measure_moments(make: Callable[[], list[Timer]], device: torch.device, repeats: int) -> list[list[float]]:
    """Return what each of these timers says on the rank where it is most: of all moments their middle, and in each.

    For each moment all is made anew: what memory it gets and how the ranks' threads find each other lasts.
    """
    moments = [[timer() for timer in make()] for _ in range(max(_LEAST_MOMENTS, repeats // _IN_A_MOMENT))]
    # All ranks wait for the slowest, so its time counts.
    slowest = torch.tensor(moments, dtype=torch.float64, device=device)
    dist.all_reduce(slowest, op=dist.ReduceOp.MAX)
    found: list[list[float]] = slowest.tolist()
    return [[middle(each) for each in zip(*found, strict=True)], *found]


def _time_alone(work: Work) -> Timer:
    """Time work of which no part waits for another rank: the least of several, one after the other."""
    return lambda: fastest(work)


def _time_together(work: Work, device: torch.device) -> Timer:
    """Time work that all ranks start together: the median of several, one after the other as in a training."""

    def timed() -> float:
        series = []
        # A barrier before each repeat: ranks that start apart would wait inside the exchange.
        for _ in range(_WARM + _IN_A_MOMENT):
            dist.barrier(device_ids=[device.index] if device.type == "cuda" else None)
            _synchronize(device)
            begun = time.perf_counter_ns()
            work()
            _synchronize(device)
            series.append((time.perf_counter_ns() - begun) / 1e9)
        return median(series[_WARM:])

    return timed


def _synchronize(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def _make_layers(width: int) -> nn.Sequential:
    return nn.Sequential(*(nn.Linear(width, width) for _ in range(_UNITS)))


def _make_sharded(width: int, mesh: DeviceMesh) -> nn.Module:
    from torch.distributed.fsdp import fully_shard

    model = _make_layers(width)
    for layer in model:
        fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    return model


def _make_pipeline(mesh: DeviceMesh, schedule: str, width: int, micro: int) -> Work:
    """Return an iteration of a pipeline with `_make_layers` on every rank, which all are told its loss."""
    rank, ranks = dist.get_rank(), dist.get_world_size()
    stage = PipelineStage(_make_layers(width), rank, ranks, torch.device("cpu"), group=mesh.get_group())
    iteration = _SCHEDULES[schedule](stage, n_microbatches=_MICROBATCHES, loss_fn=lambda output, _: output.mean())
    whole, target, loss = torch.rand(_MICROBATCHES * micro, width), torch.zeros(_MICROBATCHES), torch.zeros(())

    def once() -> None:
        # As in a training step: gradients start empty, the last rank's loss reaches everyone.
        stage.submod.zero_grad()
        given = (whole,) if rank == 0 else ()
        iteration.step(*given, target=target if rank == ranks - 1 else None, return_outputs=False)
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
