"""What a training has beside its layers and exchanges: how far one hides behind the other, and torch's own code."""

import time
from collections.abc import Callable, Iterable
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from trainwright.cluster.fitting import shortest
from trainwright.cluster.tier import ExchangeTimes

__all__ = ["measure_overlap", "measure_runtime"]

Work = Callable[[], object]

_SIDE = 128  # of the matrices whose products are computed beside an exchange
_MESSAGE = 4 * 2**20
_BLOCKS, _WIDTH = 8, 64
_FEW, _MANY, _MICRO = 4, 12, 4  # micro-batches of two pipelines, and samples of each


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

    one, alone = _shortest([lambda: products(16), exchange], device, repeats)[0]
    number = max(1, round(2 * 16 * alone / one))

    def both() -> None:
        pending = dist.all_reduce(message, async_op=True)
        products(number)
        assert pending is not None  # noqa: S101 -- asked for
        pending.wait()

    whole, *halves = (
        min(1.0, max(0.0, (computed + exchanged - together) / exchanged))
        for computed, exchanged, together in _shortest([lambda: products(number), exchange, both], device, repeats)
    )
    return whole, abs(halves[0] - halves[1]) / 2


def measure_runtime(exchanges: Iterable[ExchangeTimes], *, repeats: int) -> tuple[dict[str, float], float]:
    """Return `Cluster.runtime_seconds` for processors, and how far two halves of the repeats lay apart, relatively.

    Of models too small to compute: what a layer under FSDP takes more than the layer, two gathers and a scatter; what
    a further micro-batch of a pipeline with a stage on every rank takes more than its layer and two messages.
    """
    from torch.distributed.device_mesh import init_device_mesh

    def seconds(operation: str, size: int) -> float:
        known = [each for each in exchanges if each.operation == operation]
        return float(max(known, key=lambda each: each.ranks).at(size))

    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    sample = torch.rand(_MICRO, _WIDTH)
    plain, sharded = _blocks(), _sharded(mesh)
    layer = nn.Linear(_WIDTH, _WIDTH)
    few, many = (_pipeline(mesh, number) for number in (_FEW, _MANY))
    works: list[Work] = [
        lambda: _step(plain, sample), lambda: _step(sharded, sample), lambda: _step(layer, sample), few, many
    ]  # fmt: skip
    weights = 4 * (_WIDTH + 1) * _WIDTH
    gathers = 2 * seconds("all_gather", weights) + seconds("reduce_scatter", weights)
    sends = 2 * seconds("send", 4 * _MICRO * _WIDTH)
    found = [
        {
            "fsdp": max(0.0, (divided - whole) / _BLOCKS - gathers),
            "pipeline": max(0.0, (longer - shorter) / (_MANY - _FEW) - single - sends),
        }
        for whole, divided, single, shorter, longer in _shortest(works, torch.device("cpu"), repeats)
    ]
    total, *halves = (sum(each.values()) for each in found)
    return found[0], abs(halves[0] - halves[1]) / (2 * total) if total else 0.0


def _shortest(works: list[Work], device: torch.device, repeats: int) -> list[list[float]]:
    """Return the shortest seconds of each work on the rank that takes longest: of all repeats, and of two halves.

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
    parts = [
        [shortest(series[part]) for series in times] for part in (slice(None), slice(0, None, 2), slice(1, None, 2))
    ]
    slowest = torch.tensor(parts, dtype=torch.float64, device=device)
    dist.all_reduce(slowest, op=dist.ReduceOp.MAX)
    found: list[list[float]] = slowest.tolist()
    return found


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def _blocks() -> nn.Sequential:
    return nn.Sequential(*(nn.Linear(_WIDTH, _WIDTH) for _ in range(_BLOCKS)))


def _sharded(mesh: Any) -> nn.Module:
    from torch.distributed.fsdp import fully_shard

    model = _blocks()
    for block in model:
        fully_shard(block, mesh=mesh)
    fully_shard(model, mesh=mesh)
    return model


def _pipeline(mesh: Any, number: int) -> Work:
    """Return an iteration of so many micro-batches on a pipeline of a layer a rank."""
    from torch.distributed.pipelining import PipelineStage, ScheduleGPipe

    rank, ranks = dist.get_rank(), dist.get_world_size()
    stage = PipelineStage(nn.Linear(_WIDTH, _WIDTH), rank, ranks, torch.device("cpu"), group=mesh.get_group())
    schedule = ScheduleGPipe(stage, n_microbatches=number, loss_fn=lambda output, _: output.mean())
    whole, target = torch.rand(number * _MICRO, _WIDTH), torch.zeros(number)

    def once() -> None:
        given = (whole,) if rank == 0 else ()
        schedule.step(*given, target=target if rank == ranks - 1 else None, return_outputs=False)
        stage.submod.zero_grad()

    return once


def _step(model: nn.Module, sample: torch.Tensor) -> None:
    model.zero_grad()
    model(sample).mean().backward()
