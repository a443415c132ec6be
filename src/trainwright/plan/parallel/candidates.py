"""Candidates: every way to divide a model among at most so many devices, in columns."""

from dataclasses import dataclass

import numpy as np

from trainwright.plan.parallel.mesh import AXES, Bools, Ints, Mesh
from trainwright.plan.parallel.model_arrays import Work
from trainwright.plan.parallel.strategies.registry import STRATEGIES
from trainwright.plan.parallel_plan import Degrees, Rejection
from trainwright.plan.plan_query import Request

__all__ = ["CHUNKS", "EXCLUSIVE", "LEVELS", "MODES", "Shapes", "choices_of", "family_name", "shapes"]

CHUNKS = (1, 2, 4, 8)
"""Model chunks of a pipeline stage that are tried."""
LEVELS = {"data": 0, "zero1": 1, "zero2": 2, "fsdp": 3, "hsdp": 3}
"""ZeRO level by what the ranks of the data axis divide besides samples."""
MODES = tuple(LEVELS)

EXCLUSIVE = ("filter", "channel", "spatial")
"""Ways to divide the same layers, of which a plan has one at most."""

_DATA = AXES.index("data")


@dataclass(frozen=True, eq=False, kw_only=True, slots=True)
class Shapes:
    """Degrees, micro-batches and chunks: what is left to choose of each is `MODES`, sequence and recomputation."""

    mesh: Mesh
    most: dict[str, tuple[int, str]]
    """By axis: the most devices that it can use, and what says so."""
    rejected: tuple[Rejection, ...]


def shapes(work: Work, request: Request) -> Shapes:
    """Return every product of degrees within the limits, the batch and the devices."""
    most: dict[str, tuple[int, str]] = {}
    rejected = []
    rows = np.ones((1, len(AXES)), dtype=np.int64)
    for strategy in STRATEGIES:
        limit = strategy.limit(work, request.batch)
        most[strategy.axis] = (limit.most, limit.by)
        wanted = bool(request.allowed & set(MODES)) if strategy.axis == "data" else strategy.axis in request.allowed
        degrees = np.arange(1, min(limit.most, request.devices) + 1 if wanted else 2, dtype=np.int64)
        if strategy.axis == "data":
            degrees = degrees[request.batch % degrees == 0]
        degrees = degrees[strategy.applies(work, degrees)]
        if wanted and limit.most == 1 < request.devices and strategy.axis != "data":
            rejected.append(
                Rejection(strategy=strategy.axis, reason=limit.by, value=f"{request.devices} devices", allowed="1")
            )
        rows = _times(rows, AXES.index(strategy.axis), degrees, request.devices)
    exclusive = rows[:, [AXES.index(name) for name in EXCLUSIVE]] > 1
    rows = rows[exclusive.sum(axis=1) <= 1]
    rows = rows[request.batch % (rows[:, _DATA] * rows[:, AXES.index("expert")]) == 0]
    return Shapes(mesh=_with_microbatches(rows, work, request), most=most, rejected=tuple(rejected))


def _times(rows: Ints, axis: int, degrees: Ints, devices: int) -> Ints:
    """Return every row with every degree of an axis, whose product the devices allow."""
    room = devices // rows.prod(axis=1)
    fitting = np.searchsorted(degrees, room, side="right")
    found = np.repeat(rows, fitting, axis=0)
    starts = np.repeat(np.cumsum(fitting) - fitting, fitting)
    found[:, axis] = degrees[np.arange(len(found)) - starts]
    return found


def _with_microbatches(rows: Ints, work: Work, request: Request) -> Mesh:
    divisors = np.array([each for each in range(1, request.batch + 1) if request.batch % each == 0])
    if request.micro is not None:
        divisors = np.array([request.micro])
    own = request.batch // (rows[:, _DATA] * rows[:, AXES.index("expert")])
    pairs = np.argwhere((own[:, None] % divisors[None, :] == 0) & (own[:, None] >= divisors[None, :]))
    degrees, micro = rows[pairs[:, 0]], divisors[pairs[:, 1]]
    stages, slots = degrees[:, AXES.index("pipeline")], own[pairs[:, 0]] // micro
    chosen = []
    for chunks in CHUNKS:
        # Interleaved schedules need micro-batches in whole rounds of the stages.
        woven = (stages > 1) & (stages * chunks <= work.parts) & (slots % stages == 0)
        chosen.append(np.flatnonzero(woven) if chunks > 1 else np.arange(len(degrees)))
    places = np.concatenate(chosen)
    chunks_of = np.repeat(CHUNKS, [len(each) for each in chosen])
    schedule = np.where(stages[places] == 1, 0, np.where(chunks_of > 1, 3, 2))
    return Mesh.of(request.batch, degrees[places], micro=micro[places], chunks=chunks_of, schedule=schedule)


def choices_of(mesh: Mesh, mode: str, per_node: int) -> tuple[Mesh, Bools]:
    """Return shapes in one of `MODES`, and for which of them it means something that the others do not."""
    data = mesh.axis("data")
    level = LEVELS[mode]
    shard = data if level else np.ones_like(data)
    fits = data > 1 if level else np.ones(mesh.rows, dtype=np.bool_)
    if mode == "hsdp":
        inside = np.maximum(1, per_node // mesh.group(("data",))[1])
        shard = np.gcd(data, inside)
        fits = (shard > 1) & (shard < data)
    zero = np.where(data > 1, level, 0)
    made = Mesh(
        batch=mesh.batch, degrees=mesh.degrees, micro=mesh.micro, zero=zero, shard=shard, sequence=mesh.sequence,
        recompute=mesh.recompute, schedule=mesh.schedule, chunks=mesh.chunks,
    )  # fmt: skip
    return made, fits


def family_name(degrees: Degrees, mode: str) -> str:
    """Return the name of a strategy: what divides something, joined by "+", or "serial"."""
    parts = [mode] if degrees.data > 1 else []
    parts += [name for name in AXES if name != "data" and getattr(degrees, name) > 1]
    return "+".join(parts) or "serial"
