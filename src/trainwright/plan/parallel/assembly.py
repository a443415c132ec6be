"""Assembly: a priced candidate becomes a `ParallelPlan`, with what surrounds its steps and what limits it."""

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from trainwright.plan.collective import Collective
from trainwright.plan.parallel.bottlenecks import Case, bottlenecks_of
from trainwright.plan.parallel.candidates import family_name
from trainwright.plan.parallel.footprint import reserved_bytes
from trainwright.plan.parallel.intervals import interval_of
from trainwright.plan.parallel.mesh import AXES, RECOMPUTE, SCHEDULES
from trainwright.plan.parallel.pricing import Pricer, Prices
from trainwright.plan.parallel.recomputation import modules_of
from trainwright.plan.parallel.strategies.registry import STRATEGIES, Exchange
from trainwright.plan.parallel_plan import Breakdown, Degrees, ParallelPlan
from trainwright.plan.plan_query import Request
from trainwright.plan.precisions import conversion

__all__ = ["assemble"]


def assemble(pricer: Pricer, prices: Prices, row: int, *, exposed: float, mode: str, request: Request) -> ParallelPlan:
    """Return the plan of one candidate, whose exposed seconds of gradients and weights are given."""
    mesh, memory = prices.mesh, prices.memory
    degrees = Degrees(**{name: int(mesh.axis(name)[row]) for name in AXES})
    peak, recompute = float(memory.peak[row]), RECOMPUTE[int(mesh.recompute[row])]
    stages = pricer.stages(degrees.pipeline, int(mesh.chunks[row]))
    breakdown = Breakdown(
        compute=float(prices.compute[row]),
        communication=float(prices.exchange[row] + prices.transfer[row] + prices.alone[row]) + exposed,
        bubble=float(prices.bubble[row]),
        update=float(prices.update[row]),
        framework=float(prices.framework[row]),
    )
    listed = prices.all_exchanges(row)
    waited, saved, factor = request.around(mesh.take(np.array([row])), np.array([breakdown.total]))
    breakdown = replace(breakdown, input=float(waited[0]), checkpoint=float(saved[0]))
    plan = ParallelPlan(
        strategy=family_name(degrees, mode),
        degrees=degrees,
        batch=request.batch,
        micro_batch=int(mesh.micro[row]),
        microbatches=mesh.microbatches_of(row),
        zero=int(mesh.zero[row]),
        shard=int(mesh.shard[row]),
        sequence=bool(mesh.sequence[row]),
        recompute=recompute,
        recomputed=modules_of(pricer.work) if recompute == "full" else (),
        schedule=SCHEDULES[int(mesh.schedule[row])],
        chunks=int(mesh.chunks[row]),
        stages=stages.lengths if degrees.pipeline > 1 else (),
        cuts=stages.begins if degrees.pipeline > 1 else (),
        precision=request.precision,
        optimizer=request.optimizer,
        breakdown=breakdown,
        interval=interval_of(breakdown, pricer.cluster),
        peak_bytes=math.ceil(peak),
        reserved_bytes=math.ceil(float(reserved_bytes(np.array([peak]), pricer.assumptions.fragmentation)[0])),
        state_bytes=round(float(memory.state[row])),
        activation_bytes=round(float(memory.activations[row])),
        most_devices=_most(pricer, degrees, request),
        inflation=float(factor[0]),
        rough=_rough(pricer, request),
        collectives=_collectives(listed),
    )
    return replace(
        plan,
        bottlenecks=bottlenecks_of(
            Case(plan=plan, prices=prices, row=row, listed=listed, pricer=pricer, request=request)
        ),
    )


def _rough(pricer: Pricer, request: Request) -> str:
    """Return why figures may err: profiles of another precision, and operations whose work nobody knows."""
    found = [conversion(pricer.work.profile, request.precision)]
    if unknown := pricer.work.profile.uncounted:
        names = ", ".join(unknown[:5]) + (f" and {len(unknown) - 5} more" if len(unknown) > 5 else "")
        found.append(f"the work of {names} is not known and counts as none")
    return "; ".join(each for each in found if each)


def _most(pricer: Pricer, degrees: Degrees, request: Request) -> int:
    """Return the product of the limits of all that is divided."""
    limits = [
        strategy.limit(pricer.work, request.batch).most
        for strategy in STRATEGIES
        if getattr(degrees, strategy.axis) > 1
    ]
    return math.prod(limits)


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
