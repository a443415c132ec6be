"""Oracle: which strategy, how fast, how much memory, what limits it, for a model on a cluster."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import overload

import numpy as np

from trainwright.cluster import Cluster
from trainwright.errors import InputError
from trainwright.plan.assumptions import Assumptions
from trainwright.plan.candidates import CHUNKS, EXCLUSIVE, family_name, shapes
from trainwright.plan.collective import Collective
from trainwright.plan.exposure import exposed_seconds
from trainwright.plan.footprint import reserved_bytes
from trainwright.plan.mesh import AXES, RECOMPUTE, SCHEDULES, Mesh
from trainwright.plan.parallel_plan import Breakdown, Degrees, ParallelPlan, Rejection
from trainwright.plan.pricing import Pricer, Prices
from trainwright.plan.request import Request
from trainwright.plan.search import search
from trainwright.plan.strategies import STRATEGIES
from trainwright.plan.work import Work
from trainwright.profile import Profile

__all__ = ["Oracle", "Ranking"]


@dataclass(frozen=True, kw_only=True)
class Ranking(Sequence[ParallelPlan]):
    """The best plan of every strategy, best first, and the strategies that are left out with their reasons."""

    plans: tuple[ParallelPlan, ...]
    rejected: tuple[Rejection, ...]
    priced: int = 0
    """Candidates whose times were computed."""

    @overload
    def __getitem__(self, place: int) -> ParallelPlan: ...
    @overload
    def __getitem__(self, place: slice) -> tuple[ParallelPlan, ...]: ...
    def __getitem__(self, place: int | slice) -> ParallelPlan | tuple[ParallelPlan, ...]:
        return self.plans[place]

    def __len__(self) -> int:
        return len(self.plans)

    def __iter__(self) -> Iterator[ParallelPlan]:
        return iter(self.plans)


@dataclass(frozen=True)
class Oracle:
    """Predicts plans on a cluster."""

    cluster: Cluster
    assumptions: Assumptions = field(default_factory=Assumptions, kw_only=True)

    def rank(
        self,
        profile: Profile,
        *,
        batch: int,
        devices: int | None = None,
        precision: str = "fp32",
        optimizer: str = "adamw",
        strategies: Sequence[str] | None = None,
        micro: int | None = None,
        max_memory_bytes: float | None = None,
        goal: str = "time",
    ) -> Ranking:
        """Return the best plan of every strategy for `batch` samples an iteration on at most `devices` devices.

        Raises `InputError` for values out of range.
        """
        request = Request(
            cluster=self.cluster,
            batch=batch,
            devices=self.cluster.devices if devices is None else devices,
            precision=precision,
            optimizer=optimizer,
            strategies=None if strategies is None else tuple(strategies),
            micro=micro,
            max_memory_bytes=max_memory_bytes,
            goal=goal,
        )
        work = Work(profile, request.plan_precision)
        possible = shapes(work, request)
        parts = min(work.runs, request.devices * max(CHUNKS))
        pricer = Pricer(work, self.cluster, self.assumptions, request.plan_optimizer, most_parts=parts)
        found = search(pricer, possible, request)
        plans, rejected = [], list(possible.rejected)
        for each in found:
            name = "+".join([*([each.mode] if each.mode else []), *each.axes]) or "serial"
            if each.prices is None:
                rejected.append(
                    Rejection(
                        strategy=name,
                        reason="memory: the least that a device would need",
                        value=f"{each.least_bytes / 1e9:.1f} GB",
                        allowed=f"{request.memory_bytes / 1e9:.1f} GB",
                    )
                )
                continue
            plans.append(
                (
                    each.score,
                    self._plan(
                        pricer, each.prices, each.row, exposed=each.exposed, mode=each.mode or "data", request=request
                    ),
                )
            )
        plans.sort(key=lambda pair: (pair[0], pair[1].devices, pair[1].strategy))
        return Ranking(
            plans=tuple(plan for _, plan in plans),
            rejected=tuple(rejected),
            priced=sum(each.priced for each in found),
        )

    def estimate(
        self,
        profile: Profile,
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
        precision: str = "fp32",
        optimizer: str = "adamw",
    ) -> ParallelPlan:
        """Return what one given plan comes to, whether or not it fits into memory.

        `micro` samples are what one replica (data or expert rank) works on at a time, by default all of its own.
        `schedule` is by default "1f1b" for a pipeline, "interleaved" with chunks. `shard` is by default all data ranks.

        Raises `InputError` for degrees beyond the cluster, a model that cannot be divided so, or a batch that does not
        fall into micro-batches.
        """
        request = Request(
            cluster=self.cluster, batch=batch, devices=degrees.devices, precision=precision, optimizer=optimizer
        )
        work = Work(profile, request.plan_precision)
        _check(work, degrees, batch)
        _check_choices(work, degrees, recompute=recompute, schedule=schedule, chunks=chunks)
        replicas = degrees.data * degrees.expert
        own = batch // replicas
        micro = own if micro is None else micro
        if batch % replicas or micro < 1 or own % micro:
            near = max(1, batch // (replicas * max(1, micro))) * replicas * max(1, micro)
            raise InputError(
                f"batch: got {batch} for {replicas} replicas with micro-batches of {micro}; allowed: a multiple of "
                f"{replicas * max(1, micro)}, such as {near} or {near + replicas * max(1, micro)}"
            )
        chosen = schedule or ("" if degrees.pipeline == 1 else "interleaved" if chunks > 1 else "1f1b")
        mesh = Mesh.of(
            batch,
            np.array([[getattr(degrees, name) for name in AXES]], dtype=np.int64),
            micro=np.array([micro], dtype=np.int64),
            zero=zero,
            shard=(degrees.data if shard is None else shard) if zero else 1,
            sequence=sequence,
            recompute=RECOMPUTE.index(recompute),
            schedule=SCHEDULES.index(chosen),
            chunks=chunks,
        )
        pricer = Pricer(
            work, self.cluster, self.assumptions, request.plan_optimizer, most_parts=degrees.pipeline * chunks
        )
        prices = pricer.price(mesh)
        exposed = max(float(prices.exposed[0]), exposed_seconds(prices.stage_times(0), self.assumptions.slowdown))
        mode = ("data", "zero1", "zero2", "fsdp")[zero]
        return self._plan(pricer, prices, 0, exposed=exposed, mode=mode, request=request)

    def _plan(
        self, pricer: Pricer, prices: Prices, row: int, *, exposed: float, mode: str, request: Request
    ) -> ParallelPlan:
        mesh, memory = prices.mesh, prices.memory
        degrees = Degrees(**{name: int(mesh.axis(name)[row]) for name in AXES})
        peak = float(memory.peak[row])
        stages = pricer.stages(degrees.pipeline, int(mesh.chunks[row]))
        return ParallelPlan(
            strategy=family_name(degrees, mode),
            degrees=degrees,
            batch=request.batch,
            micro_batch=int(mesh.micro[row]),
            microbatches=int(mesh.microbatches[row]),
            zero=int(mesh.zero[row]),
            shard=int(mesh.shard[row]),
            sequence=bool(mesh.sequence[row]),
            recompute=RECOMPUTE[int(mesh.recompute[row])],
            schedule=SCHEDULES[int(mesh.schedule[row])],
            chunks=int(mesh.chunks[row]),
            stages=stages.lengths if degrees.pipeline > 1 else (),
            precision=request.precision,
            optimizer=request.optimizer,
            breakdown=Breakdown(
                compute=float(prices.compute[row]),
                communication=float(prices.exchange[row] + prices.transfer[row]) + exposed,
                bubble=float(prices.bubble[row]),
                update=float(prices.update[row]),
                framework=self.cluster.overhead_seconds + pricer.work.profile.framework_seconds,
            ),
            peak_bytes=round(peak),
            reserved_bytes=round(float(reserved_bytes(np.array([peak]), self.assumptions.fragmentation)[0])),
            state_bytes=round(float(memory.state[row])),
            activation_bytes=round(float(memory.activations[row])),
            collectives=_collectives(prices, row),
        )


def _check(work: Work, degrees: Degrees, batch: int) -> None:
    for strategy in STRATEGIES:
        degree = getattr(degrees, strategy.axis)
        limit = strategy.limit(work, batch)
        if degree > limit.most:
            raise InputError(f"{strategy.axis}: got {degree}; allowed: at most {limit.most}: {limit.by}")
        if not strategy.applies(work, np.array([degree]))[0]:
            raise InputError(f"{strategy.axis}: got {degree}; allowed: a number that divides {limit.by}")


def _check_choices(work: Work, degrees: Degrees, *, recompute: str, schedule: str, chunks: int) -> None:
    together = [name for name in EXCLUSIVE if getattr(degrees, name) > 1]
    if len(together) > 1:
        raise InputError(f"degrees: got {' and '.join(together)} above 1; allowed: one of {', '.join(EXCLUSIVE)}")
    if recompute not in RECOMPUTE:
        raise InputError(f"recompute: got {recompute!r}; allowed: {', '.join(RECOMPUTE)}")
    if schedule not in SCHEDULES:
        raise InputError(f"schedule: got {schedule!r}; allowed: {', '.join(SCHEDULES[1:])}")
    most = max(1, work.runs // degrees.pipeline) if degrees.pipeline > 1 else 1
    if not 1 <= chunks <= most:
        raise InputError(f"chunks: got {chunks} with {degrees.pipeline} stages; allowed: 1 to {most} for this model")


def _collectives(prices: Prices, row: int) -> tuple[Collective, ...]:
    """Return every exchange of an iteration that a device of the heaviest stage takes part in."""
    found = []
    for exchange, at, times in prices.all_exchanges(row):
        count = round(float(exchange.count[at]) * times)
        if count and exchange.ranks[at] > 1:
            found.append(
                Collective(
                    operation=exchange.operation,
                    axis=exchange.axis,
                    bytes=round(float(exchange.bytes[at])),
                    count=count,
                    phase=exchange.phase,
                    layer=exchange.layer,
                    overlaps=exchange.overlaps,
                )
            )
    return tuple(found)
