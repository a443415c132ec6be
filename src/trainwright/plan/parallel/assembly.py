"""Assembly: a priced candidate becomes a `Forecast`, with what surrounds its steps and what limits it."""

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from trainwright.plan.byte_sizes import reserved_bytes
from trainwright.plan.forecast import (
    SLOW_HOST_SECONDS,
    SLOW_INPUT_SECONDS,
    Breakdown,
    Collective,
    Forecast,
    interval_of,
)
from trainwright.plan.layout import Degrees
from trainwright.plan.parallel.bottlenecks import BottleneckCase, bottlenecks_of
from trainwright.plan.parallel.candidates import family_name
from trainwright.plan.parallel.mesh import RECOMPUTE, SCHEDULES
from trainwright.plan.parallel.precision import conversion
from trainwright.plan.parallel.pricing import Pricer, Prices
from trainwright.plan.parallel.recomputation import modules_of
from trainwright.plan.parallel.roofline import launch_counts
from trainwright.plan.parallel.strategies.strategy import Exchange
from trainwright.plan.plan_query import PlanQuery

__all__ = ["assemble", "mark_within_error"]


def assemble(pricer: Pricer, prices: Prices, row: int, *, exposed: float, mode: str, query: PlanQuery) -> Forecast:
    """Return the plan of one candidate, whose exposed seconds of gradients and weights are given."""
    mesh, memory = prices.mesh, prices.memory
    degrees = Degrees(**{name: int(mesh.axis(name)[row]) for name in (axis.name for axis in mesh.axes)})
    peak, recompute = math.ceil(memory.peak[row]), RECOMPUTE[int(mesh.recompute[row])]
    stages = pricer.stages(degrees.pipeline, int(mesh.chunks[row]))
    breakdown = Breakdown(
        compute=float(prices.compute[row]),
        communication=float(prices.exchange[row] + prices.transfer[row] + prices.alone[row]) + exposed,
        bubble=float(prices.bubble[row]),
        update=float(prices.update[row]),
        framework=float(prices.framework[row]),
    )
    listed = prices.all_exchanges(row)
    # Reading and saving depend on the step's length, so that they come last.
    waited, saved, factor = query.overheads(mesh.take(np.array([row])), np.array([breakdown.total]))
    breakdown = replace(breakdown, input=float(waited[0]), checkpoint=float(saved[0]))
    plan = Forecast(
        strategy=family_name(degrees, mode),
        degrees=degrees,
        batch=query.batch,
        micro_batch=int(mesh.micro[row]),
        microbatches=mesh.microbatches_of(row),
        zero=int(mesh.zero[row]),
        shard=int(mesh.shard[row]),
        sequence=bool(mesh.sequence[row]),
        recompute=recompute,
        recomputed=modules_of(pricer.arrays) if recompute == "full" else (),
        schedule=SCHEDULES[int(mesh.schedule[row])],
        chunks=int(mesh.chunks[row]),
        stages=stages.lengths if degrees.pipeline > 1 else (),
        cuts=stages.begins if degrees.pipeline > 1 else (),
        precision=query.precision,
        optimizer=query.optimizer,
        breakdown=breakdown,
        interval=interval_of(
            breakdown,
            pricer.cluster,
            pricer.arrays.profile,
            degrees,
            unknown_seconds=_unknown_seconds(prices, row, pricer, query),
        ),
        peak_bytes=peak,
        reserved_bytes=reserved_bytes(peak),
        state_bytes=round(float(memory.state[row])),
        activation_bytes=round(float(memory.activations[row])),
        inflation=float(factor[0]),
        caveat=_caveat(pricer, query),
        model_refusal=_refuse_model(pricer, degrees),
        context_by=pricer.arrays.context_by if degrees.context > 1 else "",
        collectives=_collectives(listed),
    )
    return replace(
        plan,
        bottlenecks=bottlenecks_of(
            BottleneckCase(plan=plan, prices=prices, row=row, listed=listed, pricer=pricer, query=query)
        ),
    )


def _unknown_seconds(prices: Prices, row: int, pricer: Pricer, query: PlanQuery) -> float:
    """Return what an iteration takes where the host or the input is slow, which neither preset nor profile tells."""
    slots, arrays = prices.mesh.microbatches_of(row), pricer.arrays
    # A backward pass launches twice as many kernels as its forward pass.
    launches = 3 * slots * float((arrays.per_block(launch_counts(arrays)) @ prices.slowest[row]).item())
    samples = 0 if query.input is not None else slots * int(prices.mesh.micro[row])
    return max(SLOW_HOST_SECONDS * launches, SLOW_INPUT_SECONDS * samples)


def _caveat(pricer: Pricer, query: PlanQuery) -> str:
    """Return why figures may err: profiles of another precision, and operations whose work nobody knows."""
    found = [conversion(pricer.arrays.profile, query.precision)]
    if unknown := pricer.arrays.profile.uncounted:
        names = ", ".join(unknown[:5]) + (f" and {len(unknown) - 5} more" if len(unknown) > 5 else "")
        found.append(f"the work of {names} is not known and counts as none")
    return "; ".join(item for item in found if item)


def _refuse_model(pricer: Pricer, degrees: Degrees) -> str:
    """Return what of a model training does not divide: experts are divided whole, also over tensor ranks."""
    if degrees.context > 1 and pricer.arrays.context_by:
        return f"context parallelism by {pricer.arrays.context_by}; allowed: by gathering keys and values"
    ranks = degrees.tensor * degrees.expert
    if uneven := next((layer.experts for layer in pricer.arrays.layers if layer.experts % ranks), 0):
        return f"{uneven} experts on {ranks} ranks (tensor x expert); allowed: a divisor"
    return ""


def _collectives(listed: Sequence[tuple[Exchange, float]]) -> tuple[Collective, ...]:
    """Return every exchange of an iteration that a device of the heaviest stage takes part in."""
    return tuple(
        Collective(
            operation=exchange.operation,
            axis=exchange.axis,
            bytes=round(float(exchange.bytes[0])),
            count=max(1, round(times)),
            phase=exchange.phase,
            layer=exchange.layer,
            overlaps=exchange.overlaps,
        )
        for exchange, times in listed
    )


def mark_within_error(plans: Sequence[Forecast]) -> tuple[Forecast, ...]:
    """Return plans, best first, marked where more than half of an interval is shared with the best's."""
    if not plans:
        return ()
    best = plans[0].interval
    found = [plans[0]]
    for plan in plans[1:]:
        low, high = plan.interval
        shared = min(high, best[1]) - max(low, best[0])
        width = min(high - low, best[1] - best[0])
        found.append(replace(plan, within_error_of_best=width > 0 and shared > 0.5 * width))
    return tuple(found)
