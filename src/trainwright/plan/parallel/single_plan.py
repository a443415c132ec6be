"""A single plan: its layout with the usual choices, and the layout as a mesh of one row, checked for a model."""

from typing import Any

import numpy as np

from trainwright.errors import InputError
from trainwright.plan.layout import Degrees, Layout
from trainwright.plan.parallel.candidates import MODES, exclusive_axes, family_name
from trainwright.plan.parallel.mesh import RECOMPUTE, SCHEDULES, Mesh
from trainwright.plan.parallel.model_arrays import ModelArrays
from trainwright.plan.parallel.recomputation import choices_of
from trainwright.plan.parallel.strategies.registry import AXES, STRATEGIES
from trainwright.plan.parallel.strategies.tensor import falls_evenly
from trainwright.validators import check, integer

__all__ = ["make_layout", "mesh_of_layout"]


def make_layout(
    *,
    batch: int,
    degrees: Degrees,
    micro: int | None = None,
    zero: int = 0,
    shard: int | None = None,
    schedule: str = "",
    chunks: int = 1,
    **choices: Any,
) -> Layout:
    """Return a layout; what is not given is as `Oracle.estimate` says. Raises `InputError` as `Layout` does."""
    # Data and expert ranks work on different samples.
    replicas = degrees.data * degrees.expert
    micro = max(1, batch // replicas) if micro is None else micro
    if degrees.pipeline > 1:
        schedule = schedule or ("interleaved" if chunks > 1 else "1f1b")
    return Layout(
        strategy=family_name(degrees, MODES[zero] if zero in range(4) else ""),
        degrees=degrees,
        batch=batch,
        micro_batch=micro,
        microbatches=max(1, batch // max(1, replicas * micro)),
        zero=zero,
        shard=degrees.data if shard is None else shard,
        schedule=schedule,
        chunks=chunks,
        **choices,
    )


def mesh_of_layout(arrays: ModelArrays, layout: Layout) -> Mesh:
    """Return a layout as candidates of one row.

    Raises `InputError` for degrees that the model does not allow, and a batch that does not fall into micro-batches.
    """
    batch, degrees, micro = layout.batch, layout.degrees, layout.micro_batch
    _check_degrees(arrays, degrees, batch)
    _check_choices(arrays, layout)
    replicas = degrees.data * degrees.expert
    if batch % (replicas * micro):
        near = max(1, batch // (replicas * micro)) * replicas * micro
        raise InputError(
            f"batch: got {batch} for {replicas} replicas with micro-batches of {micro}; allowed: a multiple of "
            f"{replicas * micro}, such as {near} or {near + replicas * micro}"
        )
    mesh = Mesh.of(
        batch,
        np.array([[getattr(degrees, axis.name) for axis in AXES]], dtype=np.int64),
        axes=AXES,
        micro=np.array([micro], dtype=np.int64),
        zero=layout.zero,
        shard=_shard_ranks(degrees, layout.shard) if layout.zero else 1,
        sequence=layout.sequence,
        recompute=RECOMPUTE.index(layout.recompute),
        schedule=SCHEDULES.index(layout.schedule),
        chunks=layout.chunks,
    )
    if layout.sequence and not falls_evenly(arrays, mesh)[0]:
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


def _check_choices(arrays: ModelArrays, layout: Layout) -> None:
    degrees, recompute = layout.degrees, layout.recompute
    for places in exclusive_axes():
        names = [AXES[place].name for place in places]
        together = [name for name in names if getattr(degrees, name) > 1]
        if len(together) > 1:
            raise InputError(f"degrees: got {' and '.join(together)} above 1; allowed: one of {', '.join(names)}")
    if ("full" if recompute in {"operators", "offload"} else recompute) not in (allowed := choices_of(arrays)):
        what = (
            "call of scaled_dot_product_attention"
            if recompute == "selective"
            else "block that is a module of several layers"
        )
        raise InputError(f"recompute: got {recompute!r}; allowed: {', '.join(allowed)}: this model has no {what}")
    most = max(1, arrays.parts // degrees.pipeline) if degrees.pipeline > 1 else 1
    check(layout.chunks, integer(minimum=1, maximum=most), f"chunks, with {degrees.pipeline} stages of this model")
