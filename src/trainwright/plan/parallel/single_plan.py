"""A single plan as a mesh of one row, checked: degrees that the model allows, micro-batches that divide the batch."""

import numpy as np

from trainwright.errors import InputError
from trainwright.plan.layout import Degrees
from trainwright.plan.parallel.candidates import exclusive_axes
from trainwright.plan.parallel.mesh import RECOMPUTE, SCHEDULES, Mesh
from trainwright.plan.parallel.model_arrays import ModelArrays
from trainwright.plan.parallel.recomputation import choices_of
from trainwright.plan.parallel.strategies.registry import AXES, STRATEGIES
from trainwright.plan.parallel.strategies.tensor import falls_evenly

__all__ = ["mesh_of_plan"]


def mesh_of_plan(
    arrays: ModelArrays,
    *,
    batch: int,
    degrees: Degrees,
    micro: int | None = None,
    zero: int = 0,
    shard: int | None = None,
    sequence: bool = False,
    recompute: str = "none",
    schedule: str = "",
    chunks: int = 1,
) -> Mesh:
    """Return one plan; the choices are those of `Oracle.estimate`.

    Raises `InputError` for degrees that the model does not allow, and a batch that does not fall into micro-batches.
    """
    _check_degrees(arrays, degrees, batch)
    _check_choices(arrays, degrees, recompute=recompute, schedule=schedule, chunks=chunks)
    # Data and expert ranks work on different samples.
    replicas = degrees.data * degrees.expert
    samples = batch // replicas
    micro = samples if micro is None else micro
    if batch % replicas or micro < 1 or samples % micro:
        near = max(1, batch // (replicas * max(1, micro))) * replicas * max(1, micro)
        raise InputError(
            f"batch: got {batch} for {replicas} replicas with micro-batches of {micro}; allowed: a multiple of "
            f"{replicas * max(1, micro)}, such as {near} or {near + replicas * max(1, micro)}"
        )
    chosen = schedule or ("" if degrees.pipeline == 1 else "interleaved" if chunks > 1 else "1f1b")
    mesh = Mesh.of(
        batch,
        np.array([[getattr(degrees, axis.name) for axis in AXES]], dtype=np.int64),
        axes=AXES,
        micro=np.array([micro], dtype=np.int64),
        zero=zero,
        shard=_shard_ranks(degrees, degrees.data if shard is None else shard) if zero else 1,
        sequence=sequence,
        recompute=RECOMPUTE.index(recompute),
        schedule=SCHEDULES.index(chosen),
        chunks=chunks,
    )
    if sequence and not falls_evenly(arrays, mesh)[0]:
        parts = degrees.tensor * degrees.context
        raise InputError(f"sequence: got a length that {parts} ranks do not divide; allowed: sequence=False")
    return mesh


def _check_degrees(arrays: ModelArrays, degrees: Degrees, batch: int) -> None:
    for strategy in STRATEGIES:
        name = strategy.axis.name
        degree = getattr(degrees, name)
        limit = strategy.limit(arrays, batch)
        if degree > limit.most:
            raise InputError(f"{name}: got {degree}; allowed: at most {limit.most}: {limit.by}")
        if not strategy.applies(arrays, np.array([degree]))[0]:
            raise InputError(f"{name}: got {degree}; allowed: a number that divides {limit.by}")


def _shard_ranks(degrees: Degrees, wanted: int) -> int:
    only_data = degrees.spatial * degrees.expert > 1
    most = degrees.data * (1 if only_data else degrees.context)
    if wanted != most and (wanted < 1 or degrees.data % wanted):
        raise InputError(f"shard: got {wanted}; allowed: {most}, or a divisor of the {degrees.data} data ranks")
    return wanted


def _check_choices(arrays: ModelArrays, degrees: Degrees, *, recompute: str, schedule: str, chunks: int) -> None:
    for places in exclusive_axes():
        names = [AXES[place].name for place in places]
        together = [name for name in names if getattr(degrees, name) > 1]
        if len(together) > 1:
            raise InputError(f"degrees: got {' and '.join(together)} above 1; allowed: one of {', '.join(names)}")
    if recompute not in RECOMPUTE:
        raise InputError(f"recompute: got {recompute!r}; allowed: {', '.join(RECOMPUTE)}")
    if ("full" if recompute == "operators" else recompute) not in (allowed := choices_of(arrays)):
        what = (
            "call of scaled_dot_product_attention"
            if recompute == "selective"
            else "block that is a module of several layers"
        )
        raise InputError(f"recompute: got {recompute!r}; allowed: {', '.join(allowed)}: this model has no {what}")
    if schedule not in SCHEDULES:
        raise InputError(f"schedule: got {schedule!r}; allowed: {', '.join(SCHEDULES[1:])}")
    most = max(1, arrays.parts // degrees.pipeline) if degrees.pipeline > 1 else 1
    if not 1 <= chunks <= most:
        raise InputError(f"chunks: got {chunks} with {degrees.pipeline} stages; allowed: 1 to {most} for this model")
