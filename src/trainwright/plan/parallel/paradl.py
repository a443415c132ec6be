"""ParaDL's formulas, as published: what an iteration takes without overlap, recomputation or divided state.

Kahira et al., "An Oracle for Guiding Large-Scale Model/Hybrid Parallel Training of Convolutional Neural Networks" (HPDC
2021, arXiv 2104.09075), table 3. B samples are divided among p1 data groups of p2 devices; a layer has x inputs, y
outputs and w weights of delta bytes, f forward and g backward seconds a sample; alpha and beta are those of the
cluster's level that joins a group, and phi counts the groups that share a link. What took a constant of ABCI's in the
paper's script is here the cluster's.
"""

from collections.abc import Iterator

import numpy as np

from trainwright.cluster import Cluster, contention
from trainwright.cluster.placement import group_tier
from trainwright.errors import InputError
from trainwright.plan.byte_sizes import reserved_bytes
from trainwright.plan.forecast import Breakdown, Forecast, Ranking, interval_of
from trainwright.plan.layout import Degrees, Layout
from trainwright.plan.parallel.assembly import mark_within_error
from trainwright.plan.parallel.candidates import Shapes
from trainwright.plan.parallel.mesh import Bools, Mesh
from trainwright.plan.parallel.pricing import Pricer
from trainwright.plan.parallel.roofline import layer_seconds
from trainwright.plan.parallel.search import beyond_memory, no_plan
from trainwright.plan.parallel.single_plan import make_layout
from trainwright.plan.parallel.strategies.registry import AXES, STRATEGIES
from trainwright.plan.parallel.strategies.spatial import halo_elements
from trainwright.plan.plan_query import PlanQuery

__all__ = ["project", "rank_published"]

_DIVIDING = ("filter", "channel", "spatial")
_PAPER = "serial, data, filter, channel, spatial, data with one of these three, and pipeline"


def rank_published(pricer: Pricer, possible: Shapes, query: PlanQuery) -> Ranking:
    """Return the best plan of every strategy by the published formulas: there are few, and each is priced."""
    best: dict[str, Forecast] = {}
    least: dict[str, int] = {}
    for layout in _candidate_layouts(possible.mesh, query):
        plan = project(pricer, query, layout)
        known = best.get(plan.strategy)
        if plan.peak_bytes > query.memory_bytes:
            least[plan.strategy] = min(plan.peak_bytes, least.get(plan.strategy, plan.peak_bytes))
        elif known is None or plan.seconds_per_iteration < known.seconds_per_iteration:
            best[plan.strategy] = plan
    refused = [beyond_memory(name, size, query) for name, size in least.items() if name not in best]
    if not best:
        name = min(least, key=least.__getitem__)
        raise no_plan(least[name], name, query, (*possible.rejected, *refused))
    plans = sorted(best.values(), key=lambda plan: (plan.seconds_per_iteration, plan.devices, plan.strategy))
    return Ranking(plans=mark_within_error(plans), rejected=(*possible.rejected, *refused))


def _candidate_layouts(mesh: Mesh, query: PlanQuery) -> Iterator[Layout]:
    """Yield what the paper has formulas for: whole batches at once, in a pipeline by GPipe in micro-batches."""
    for row in np.flatnonzero(mesh.chunks == 1):
        degrees = Degrees(**{axis.name: int(mesh.axis(axis.name)[row]) for axis in mesh.axes})
        if _has_formulas(degrees) and (degrees.pipeline > 1 or mesh.microbatches_of(int(row)) == 1):
            yield _layout(query, degrees, int(mesh.micro[row]))


def _has_formulas(degrees: Degrees) -> bool:
    divided = [axis.name for axis in AXES if axis.name != "data" and getattr(degrees, axis.name) > 1]
    return (
        not divided
        or (divided[0] in _DIVIDING and len(divided) == 1)
        or (divided == ["pipeline"] and degrees.data == 1)
    )


def _layout(query: PlanQuery, degrees: Degrees, micro: int) -> Layout:
    schedule = "gpipe" if degrees.pipeline > 1 else ""
    return make_layout(
        batch=query.batch, degrees=degrees, micro=micro, schedule=schedule, precision=query.precision, recompute="none",
        sequence=False,
    )  # fmt: skip


def project(pricer: Pricer, query: PlanQuery, layout: Layout) -> Forecast:
    """Return what the formulas make of a layout; raises `InputError` for one that the paper has none for."""
    degrees, arrays, cluster = layout.degrees, pricer.arrays, pricer.cluster
    wanted = _layout(query, degrees, layout.micro_batch)
    plain = (layout.zero, layout.recompute, layout.chunks, layout.sequence) == (0, "none", 1, False)
    if not (_has_formulas(degrees) and plain) or (degrees.pipeline == 1 and layout.microbatches > 1):
        raise InputError(f"formulas paradl: got {layout.strategy!r}; allowed: {_PAPER}, of whole batches, nothing else")
    axis = next((name for name in _DIVIDING if getattr(degrees, name) > 1), "data")
    parts = getattr(degrees, axis) if axis in _DIVIDING else 1
    samples = query.batch / degrees.data
    # Layers that the axis divides; all others are done whole by each of the p2 devices.
    row = Mesh.of(
        query.batch, np.array([[getattr(degrees, each.name) for each in AXES]]), axes=AXES, micro=np.ones(1, int)
    )
    strategy = next(each for each in STRATEGIES if each.axis.name == axis)
    divided = (strategy.compute(arrays, row)[0] < 1) & (parts > 1)
    share = np.where(divided, 1 / parts, 1.0)
    weights = arrays.weights * (1.0 if axis == "spatial" else share)
    whole = np.ones((1, len(arrays.layers)))
    batch = np.array([float(arrays.profile.batch)])
    forward, backward = (
        each[0] * share / batch for each in layer_seconds(arrays, cluster, samples=batch, share=whole, weights=whole)
    )
    # Sums over the layers of each pipeline stage; of one that is none, over all.
    stages = pricer.stages(degrees.pipeline, 1)
    by_stage = stages.runs @ np.stack([arrays.per_block(each) for each in (forward, backward, weights)], axis=1)
    bandwidth = cluster.device.reached_bandwidth
    moved = pricer.optimizer.moved_bytes(arrays.precision)
    slot = samples * (by_stage[:, 0].max() + by_stage[:, 1].max())
    waits = degrees.pipeline - 1
    breakdown = Breakdown(
        compute=float(slot),
        bubble=float(slot * waits / layout.microbatches),
        communication=_communication(pricer, layout, axis=axis, parts=parts, divided=divided),
        update=float(by_stage[:, 2].max() * moved / bandwidth) if bandwidth else 0.0,
    )
    # x and y of all layers, divided where places are, and the weights with their gradients.
    kept = (arrays.inputs + arrays.outputs) * (share if axis == "spatial" else 1.0)
    held = stages.runs @ arrays.per_block(samples * kept + weights)
    peak = round(2 * arrays.precision.element_bytes * float(held.max()))
    return Forecast(
        **{name: getattr(wanted, name) for name in ("strategy", "degrees", "batch", "micro_batch", "microbatches")},
        schedule=wanted.schedule,
        stages=stages.lengths if waits else (),
        cuts=stages.begins if waits else (),
        precision=query.precision,
        optimizer=query.optimizer,
        breakdown=breakdown,
        interval=interval_of(breakdown, cluster, arrays.profile, degrees, unknown_seconds=0.0),
        peak_bytes=peak,
        reserved_bytes=reserved_bytes(peak),
    )


def _communication(pricer: Pricer, layout: Layout, *, axis: str, parts: int, divided: Bools) -> float:
    """Return the seconds of all exchanges of an iteration, one after the other."""
    arrays, cluster, degrees = pricer.arrays, pricer.cluster, layout.degrees
    element, groups = arrays.precision.element_bytes, degrees.data
    samples = layout.batch / groups
    runs = arrays.counts[arrays.block]
    # All weights, as published, also those that each group divides.
    gradients = element * float(runs @ arrays.weights)
    found = 0.0
    if degrees.pipeline > 1:
        alpha, beta = _link(cluster, degrees.pipeline, 1, layout.devices)
        handed = layout.micro_batch * arrays.scaled(pricer.stages(degrees.pipeline, 1).cut_bytes)
        found += 2 * (degrees.pipeline + layout.microbatches - 2) * (alpha + handed * beta)
    if axis in {"filter", "channel"}:
        # An all-gather of outputs one way, an all-reduce of gradients the other, of all layers but the last.
        alpha, beta = _link(cluster, parts, 1, layout.devices)
        last = np.arange(len(divided)) < len(divided) - 1
        passed = runs * (divided & last)
        outputs = element * samples * float(passed @ arrays.outputs)
        found += 3 * (parts - 1) * (alpha * float(passed.sum()) + outputs * beta / parts)
    if axis == "spatial":
        alpha, beta = _link(cluster, parts, 1, layout.devices)
        for place in np.flatnonzero(divided):
            # Rows of the neighbours, of the input forward and of its gradient backward.
            halo = max(halo_elements(arrays, arrays.layers[place], parts))
            found += int(runs[place]) * 4 * (alpha + samples * halo * element * beta) * (halo > 0)
        found += 2 * _ring(cluster, parts, 1, gradients, layout.devices)
        if groups > 1 and divided.any():
            gathered = element * samples * float(arrays.outputs[np.flatnonzero(divided)[-1]])
            found += 2 * _ring(cluster, parts, 1, gathered, layout.devices)
    return found + 2 * _ring(cluster, groups, parts, gradients, layout.devices)


def _link(cluster: Cluster, ranks: int, stride: int, devices: int) -> tuple[float, float]:
    """Return alpha, and beta times phi."""
    level = group_tier(cluster, ranks=ranks, stride=stride, devices=devices)
    return level.alpha, level.beta * contention(cluster, ranks=ranks, stride=stride, devices=devices)


def _ring(cluster: Cluster, ranks: int, stride: int, size: float, devices: int) -> float:
    """Return the seconds of one pass round a ring: an all-gather, or half of an all-reduce."""
    if ranks == 1:
        return 0.0
    alpha, beta = _link(cluster, ranks, stride, devices)
    return (ranks - 1) * (alpha + size * beta / ranks)
