"""Enumerates candidate plans: every way to divide a model among at most so many devices, in columns."""

from dataclasses import dataclass, replace

import numpy as np

from trainwright.errors import InputError
from trainwright.plan.forecast import Rejection
from trainwright.plan.layout import Degrees
from trainwright.plan.parallel.mesh import SCHEDULES, Bools, Ints, Mesh
from trainwright.plan.parallel.model_arrays import ModelArrays
from trainwright.plan.parallel.strategies.registry import AXES, STRATEGIES
from trainwright.plan.plan_query import PlanQuery

__all__ = ["CHUNKS", "LEVELS", "MODES", "Shapes", "choices_of", "exclusive_axes", "family_name", "shapes"]

CHUNKS = (1, 2, 4, 8)
"""Model chunks of a pipeline stage that are tried."""
LEVELS = {"data": 0, "zero1": 1, "zero2": 2, "fsdp": 3, "hsdp": 3}
"""ZeRO level by what the ranks of the data axis divide besides samples."""
MODES = tuple(LEVELS)

_REPLICAS = [axis.divides_samples for axis in AXES]


@dataclass(frozen=True, eq=False, kw_only=True, slots=True)
class Shapes:
    """Degrees, micro-batches and chunks: what is left to choose of each is `MODES`, sequence and recomputation."""

    mesh: Mesh
    rejected: tuple[Rejection, ...]


def shapes(arrays: ModelArrays, query: PlanQuery) -> Shapes:
    """Return every product of degrees within the limits, the batch and the devices."""
    rejected = []
    # The table of degrees grows axis by axis, so that products beyond the devices never appear.
    rows = np.ones((1, len(AXES)), dtype=np.int64)
    for column, strategy in enumerate(STRATEGIES):
        name = strategy.axis.name
        limit = strategy.limit(arrays, query.batch)
        wanted = bool(query.allowed & set(MODES)) if name == "data" else name in query.allowed
        degrees = np.arange(1, min(limit.most, query.devices) + 1 if wanted else 2, dtype=np.int64)
        if name == "data":
            degrees = degrees[query.batch % degrees == 0]
        degrees = degrees[strategy.applies(arrays, degrees)]
        if name in query.degrees:
            if query.degrees[name] not in degrees:
                raise InputError(
                    f"degrees: {name}: got {query.degrees[name]}; allowed: {', '.join(map(str, degrees[:20]))} "
                    f"({limit.by})"
                )
            degrees = np.array([query.degrees[name]])
        if wanted and limit.most == 1 < query.devices and name != "data":
            rejected.append(Rejection(strategy=name, reason=limit.by, value=f"{query.devices} devices", allowed="1"))
        rows = _times(rows, column, degrees, query.devices)
    # Filter, channel and spatial parallelism divide the same layers: one of them at most.
    for columns in exclusive_axes():
        rows = rows[(rows[:, columns] > 1).sum(axis=1) <= 1]
    rows = rows[query.batch % rows[:, _REPLICAS].prod(axis=1) == 0]
    if arrays.context_by == "ulysses":
        names = [axis.name for axis in AXES]
        parts = rows[:, names.index("context")] * rows[:, names.index("tensor")]
        rows = rows[parts <= min((shape.heads for shape in arrays.transformers), default=1)]
    return Shapes(mesh=_with_microbatches(rows, arrays, query), rejected=tuple(rejected))


def exclusive_axes() -> list[list[int]]:
    """Return the places of axes of which a plan has one at most, group after group."""
    words = dict.fromkeys(axis.exclusive for axis in AXES if axis.exclusive)
    return [[place for place, axis in enumerate(AXES) if axis.exclusive == word] for word in words]


def _times(rows: Ints, axis: int, degrees: Ints, devices: int) -> Ints:
    """Return every row with every degree of an axis, whose product the devices allow."""
    room = devices // rows.prod(axis=1)
    # Degrees rise, so the ones that fit a row are the first ones.
    fitting = np.searchsorted(degrees, room, side="right")
    found = np.repeat(rows, fitting, axis=0)
    starts = np.repeat(np.cumsum(fitting) - fitting, fitting)
    found[:, axis] = degrees[np.arange(len(found)) - starts]
    return found


def _with_microbatches(rows: Ints, arrays: ModelArrays, query: PlanQuery) -> Mesh:
    divisors = np.array([item for item in range(1, query.batch + 1) if query.batch % item == 0])
    if query.micro is not None:
        divisors = np.array([query.micro])
    replica_batch = query.batch // rows[:, _REPLICAS].prod(axis=1)
    pairs = np.argwhere(
        (replica_batch[:, None] % divisors[None, :] == 0) & (replica_batch[:, None] >= divisors[None, :])
    )
    degrees, micro = rows[pairs[:, 0]], divisors[pairs[:, 1]]
    stages, slots = degrees[:, [axis.name for axis in AXES].index("pipeline")], replica_batch[pairs[:, 0]] // micro
    chosen = []
    for chunks in CHUNKS:
        # Interleaved schedules need micro-batches in whole rounds of the stages.
        woven = (stages > 1) & (stages * chunks <= arrays.parts) & (slots % stages == 0)
        chosen.append(np.flatnonzero(woven) if chunks > 1 else np.arange(len(degrees)))
    split = (stages > 1) & (slots >= stages) & ("zero-bubble" in query.also)
    chosen.append(np.flatnonzero(split))
    places = np.concatenate(chosen)
    chunks_of = np.repeat((*CHUNKS, 1), [len(entry) for entry in chosen])
    schedule = np.where(stages[places] == 1, 0, np.where(chunks_of > 1, 3, 2))
    schedule[len(places) - len(chosen[-1]) :] = SCHEDULES.index("zero-bubble")
    return Mesh.of(query.batch, degrees[places], axes=AXES, micro=micro[places], chunks=chunks_of, schedule=schedule)


def choices_of(mesh: Mesh, mode: str, per_node: int) -> tuple[Mesh, Bools]:
    """Return shapes in one of `MODES`, and for which of them it means something that the others do not."""
    data = mesh.axis("data")
    level = LEVELS[mode]
    shard = data if level else np.ones_like(data)
    fits = data > 1 if level else np.ones(mesh.rows, dtype=np.bool_)
    if mode == "hsdp":
        # State is divided inside a node and replicated between nodes.
        inside = np.maximum(1, per_node // mesh.group(("data",))[1])
        shard = np.gcd(data, inside)
        fits = (shard > 1) & (shard < data)
    zero = np.where(data > 1, level, 0)
    return replace(mesh, zero=zero, shard=shard), fits


def family_name(degrees: Degrees, mode: str) -> str:
    """Return the name of a strategy: what divides something, joined by "+", or "serial"."""
    parts = [mode] if degrees.data > 1 else []
    parts += [name for name in (axis.name for axis in AXES) if name != "data" and getattr(degrees, name) > 1]
    return "+".join(parts) or "serial"
