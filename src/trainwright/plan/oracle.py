"""Oracle: which strategy, how fast, how much memory, what limits it, for a model on a cluster."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from trainwright.cluster import Cluster
from trainwright.errors import InputError
from trainwright.plan.assumptions import Assumptions
from trainwright.plan.byte_sizes import apart
from trainwright.plan.parallel.assembly import assemble
from trainwright.plan.parallel.candidates import CHUNKS, EXCLUSIVE, shapes
from trainwright.plan.parallel.intervals import with_ties
from trainwright.plan.parallel.mesh import AXES, RECOMPUTE, SCHEDULES, Mesh
from trainwright.plan.parallel.model_arrays import Work
from trainwright.plan.parallel.pricing import Pricer
from trainwright.plan.parallel.recomputation import choices_of
from trainwright.plan.parallel.search import Found, search
from trainwright.plan.parallel.strategies.registry import STRATEGIES
from trainwright.plan.parallel.strategies.tensor import falls_evenly
from trainwright.plan.parallel_plan import Degrees, ParallelPlan, Rejection
from trainwright.plan.plan_query import Request
from trainwright.plan.precisions import Profiles, profile_in
from trainwright.plan.ranking import Ranking
from trainwright.plan.scaling_curve import ScalingCurve
from trainwright.plan.step_overheads import Input, Saving

__all__ = ["NoPlan", "Oracle"]


class NoPlan(InputError):
    """No strategy fits; `rejected` says why of each."""

    def __init__(self, message: str, rejected: tuple[Rejection, ...] = ()) -> None:
        super().__init__(message)
        self.rejected = rejected


@dataclass(frozen=True)
class Oracle:
    """Predicts plans on a cluster."""

    cluster: Cluster
    assumptions: Assumptions = field(default_factory=Assumptions, kw_only=True)

    def rank(
        self,
        profile: Profiles,
        *,
        batch: int,
        devices: int | None = None,
        precision: str = "fp32",
        optimizer: str = "adamw",
        strategies: Sequence[str] | None = None,
        micro: int | None = None,
        max_memory_bytes: float | None = None,
        goal: str = "time",
        input: Input | None = None,  # noqa: A002 (the option's word)
        saving: Saving | None = None,
    ) -> Ranking:
        """Return the best plan of every strategy for `batch` samples an iteration on at most `devices` devices.

        `profile` is one traced in `precision`, or `Traces` of a model, from which that one is taken; a profile of
        another precision is converted, and the plans say in `rough` what that may cost.

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
            input=input,
            saving=saving,
        )
        work = Work(profile_in(profile, precision), request.plan_precision)
        possible = shapes(work, request)
        parts = min(work.parts, request.devices * max(CHUNKS))
        pricer = Pricer(work, self.cluster, self.assumptions, request.plan_optimizer, most_parts=parts)
        found = search(pricer, possible, request)
        rejected = (*possible.rejected, *(_refused(each, request) for each in found if each.prices is None))
        plans = [
            (
                each.score,
                assemble(
                    pricer, each.prices, each.row, exposed=each.exposed, mode=each.mode or "data", request=request
                ),
            )
            for each in found
            if each.prices is not None
        ]
        if not plans:
            least = min(found, key=lambda each: each.least_bytes)
            wanted, there = apart(least.least_bytes, request.memory_bytes)
            raise NoPlan(
                f"no strategy fits: each needs more than {there} a device, the least {wanted} ({_name(least)}); give "
                "more devices, more memory or a smaller batch",
                rejected,
            )
        plans.sort(key=lambda pair: (pair[0], pair[1].devices, pair[1].strategy))
        return Ranking(
            plans=with_ties([plan for _, plan in plans]),
            rejected=rejected,
            priced=sum(each.priced for each in found),
        )

    def scaling_curve(
        self, profile: Profiles, *, batch: int, devices: Sequence[int] = (1, 2, 4, 8, 16), **choices: Any
    ) -> ScalingCurve:
        """Return the seconds of an iteration of the best plan on so many devices each; `choices` are those of `rank`.

        Where nothing fits into memory the seconds are infinite.
        """
        numbers = tuple(sorted(set(devices)))
        best: list[ParallelPlan | None] = []
        for number in numbers:
            try:
                best.append(self.rank(profile, batch=batch, devices=number, **choices)[0])
            except NoPlan:
                best.append(None)
        return ScalingCurve(
            devices=numbers,
            seconds=tuple(plan.seconds_per_iteration if plan else math.inf for plan in best),
            low=tuple(plan.interval[0] if plan else math.inf for plan in best),
            high=tuple(plan.interval[1] if plan else math.inf for plan in best),
            feasible=tuple(plan is not None for plan in best),
            strategies=tuple(plan.strategy if plan else "" for plan in best),
        )

    def estimate(
        self,
        profile: Profiles,
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
        ring: bool = False,
        precision: str = "fp32",
        optimizer: str = "adamw",
        input: Input | None = None,  # noqa: A002 (the option's word)
        saving: Saving | None = None,
    ) -> ParallelPlan:
        """Return what one given plan comes to, whether or not it fits into memory.

        `micro` samples are what one replica (data or expert rank) works on at a time, by default all of its own.
        `schedule` is by default "1f1b" for a pipeline, "interleaved" with chunks. `shard` is by default all data ranks;
        data times context divides state over the context ranks too. `recompute` "operators" keeps of a block the
        outputs of attention and of every second product, as torch's selective checkpointing by operator can. With
        `ring` context ranks divide embedding, head and loss too, and pass keys and values round: our training does not.

        Raises `InputError` for degrees beyond the cluster, a model that cannot be divided so, or a batch that does not
        fall into micro-batches.
        """
        request = Request(
            cluster=self.cluster,
            batch=batch,
            devices=degrees.devices,
            precision=precision,
            optimizer=optimizer,
            input=input,
            saving=saving,
        )
        work = Work(profile_in(profile, precision), request.plan_precision, ring)
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
            shard=_shard(degrees, degrees.data if shard is None else shard) if zero else 1,
            sequence=sequence,
            recompute=RECOMPUTE.index(recompute),
            schedule=SCHEDULES.index(chosen),
            chunks=chunks,
        )
        if sequence and not falls_evenly(work, mesh)[0]:
            parts = degrees.tensor * degrees.context
            raise InputError(f"sequence: got a length that {parts} ranks do not divide; allowed: sequence=False")
        pricer = Pricer(
            work, self.cluster, self.assumptions, request.plan_optimizer, most_parts=degrees.pipeline * chunks
        )
        prices = pricer.price(mesh)
        mode = ("data", "zero1", "zero2", "fsdp")[zero]
        return assemble(pricer, prices, 0, exposed=pricer.exposed(prices, 0), mode=mode, request=request)


def _name(found: Found) -> str:
    return "+".join([*([found.mode] if found.mode else []), *found.axes]) or "serial"


def _refused(found: Found, request: Request) -> Rejection:
    wanted, there = apart(found.least_bytes, request.memory_bytes)
    return Rejection(
        strategy=_name(found),
        reason="memory: the least that a device would need",
        value=wanted,
        allowed=there,
    )


def _check(work: Work, degrees: Degrees, batch: int) -> None:
    for strategy in STRATEGIES:
        degree = getattr(degrees, strategy.axis)
        limit = strategy.limit(work, batch)
        if degree > limit.most:
            raise InputError(f"{strategy.axis}: got {degree}; allowed: at most {limit.most}: {limit.by}")
        if not strategy.applies(work, np.array([degree]))[0]:
            raise InputError(f"{strategy.axis}: got {degree}; allowed: a number that divides {limit.by}")


def _shard(degrees: Degrees, wanted: int) -> int:
    apart = degrees.spatial * degrees.expert > 1
    most = degrees.data * (1 if apart else degrees.context)
    if wanted != most and (wanted < 1 or degrees.data % wanted):
        raise InputError(f"shard: got {wanted}; allowed: {most}, or a divisor of the {degrees.data} data ranks")
    return wanted


def _check_choices(work: Work, degrees: Degrees, *, recompute: str, schedule: str, chunks: int) -> None:
    together = [name for name in EXCLUSIVE if getattr(degrees, name) > 1]
    if len(together) > 1:
        raise InputError(f"degrees: got {' and '.join(together)} above 1; allowed: one of {', '.join(EXCLUSIVE)}")
    if recompute not in RECOMPUTE:
        raise InputError(f"recompute: got {recompute!r}; allowed: {', '.join(RECOMPUTE)}")
    if ("full" if recompute == "operators" else recompute) not in (allowed := choices_of(work)):
        what = (
            "call of scaled_dot_product_attention"
            if recompute == "selective"
            else "block that is a module of several layers"
        )
        raise InputError(f"recompute: got {recompute!r}; allowed: {', '.join(allowed)}: this model has no {what}")
    if schedule not in SCHEDULES:
        raise InputError(f"schedule: got {schedule!r}; allowed: {', '.join(SCHEDULES[1:])}")
    most = max(1, work.parts // degrees.pipeline) if degrees.pipeline > 1 else 1
    if not 1 <= chunks <= most:
        raise InputError(f"chunks: got {chunks} with {degrees.pipeline} stages; allowed: 1 to {most} for this model")
