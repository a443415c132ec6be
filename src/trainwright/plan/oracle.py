"""Oracle: which strategy, how fast, how much memory, what limits it, for a model on a cluster."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from trainwright.cluster import Cluster
from trainwright.errors import InputError
from trainwright.plan.assumptions import Assumptions
from trainwright.plan.byte_sizes import distinct_sizes
from trainwright.plan.calibration import MeasuredRun, calibrate_cluster
from trainwright.plan.forecast import Forecast, Ranking, Rejection, ScalingCurve
from trainwright.plan.layout import Degrees, Layout
from trainwright.plan.parallel.assembly import assemble, mark_within_error
from trainwright.plan.parallel.candidates import CHUNKS, exclusive_axes, shapes
from trainwright.plan.parallel.mesh import RECOMPUTE, SCHEDULES, Mesh
from trainwright.plan.parallel.model_arrays import ModelArrays
from trainwright.plan.parallel.precision import Profiles, profile_in
from trainwright.plan.parallel.pricing import Pricer
from trainwright.plan.parallel.recomputation import choices_of
from trainwright.plan.parallel.search import FamilyBest, search
from trainwright.plan.parallel.strategies.registry import AXES, STRATEGIES
from trainwright.plan.parallel.strategies.tensor import falls_evenly
from trainwright.plan.plan_query import Input, PlanQuery, Saving

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
        another precision is converted, and the plans say in `caveat` what that may cost.

        Raises `InputError` for values out of range.
        """
        query = PlanQuery(
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
        arrays = ModelArrays(profile_in(profile, precision), query.plan_precision)
        possible = shapes(arrays, query)
        # The chain is cut into at most so many parts: stages times chunks.
        parts = min(arrays.parts, query.devices * max(CHUNKS))
        pricer = Pricer(arrays, self.cluster, self.assumptions, query.plan_optimizer, most_parts=parts)
        # The search keeps one candidate a strategy; only these become forecasts.
        found = search(pricer, possible, query)
        rejected = (*possible.rejected, *(_refused(entry, query) for entry in found if entry.prices is None))
        plans = [
            (
                item.score,
                assemble(pricer, item.prices, item.row, exposed=item.exposed, mode=item.mode or "data", query=query),
            )
            for item in found
            if item.prices is not None
        ]
        # Nothing fits: name the strategy that comes closest.
        if not plans:
            least = min(found, key=lambda each: each.least_bytes)
            wanted, allowed = distinct_sizes(least.least_bytes, query.memory_bytes)
            raise NoPlan(
                f"no strategy fits: each needs more than {allowed} a device, the least {wanted} ({_name(least)}); give "
                "more devices, more memory or a smaller batch",
                rejected,
            )
        plans.sort(key=lambda pair: (pair[0], pair[1].devices, pair[1].strategy))
        return Ranking(
            plans=mark_within_error([plan for _, plan in plans]),
            rejected=rejected,
            priced=sum(one.priced for one in found),
        )

    def scaling_curve(
        self, profile: Profiles, *, batch: int, devices: Sequence[int] = (1, 2, 4, 8, 16), **choices: Any
    ) -> ScalingCurve:
        """Return the seconds of an iteration of the best plan on so many devices each; `choices` are those of `rank`.

        Where nothing fits into memory the seconds are infinite.
        """
        numbers = tuple(sorted(set(devices)))
        best: list[Forecast | None] = []
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
    ) -> Forecast:
        """Return what one given plan comes to, whether or not it fits into memory.

        `micro` samples are what one replica (data or expert rank) works on at a time, by default all of its own.
        `schedule` is by default "1f1b" for a pipeline, "interleaved" with chunks. `shard` is by default all data ranks;
        data times context divides state over the context ranks too. `recompute` "operators" keeps of a block the
        outputs of attention and of every second product, as torch's selective checkpointing by operator can. With
        `ring` context ranks divide embedding, head and loss too, and pass keys and values round: our training does not.

        Raises `InputError` for degrees beyond the cluster, a model that cannot be divided so, or a batch that does not
        fall into micro-batches.
        """
        query = PlanQuery(
            cluster=self.cluster,
            batch=batch,
            devices=degrees.devices,
            precision=precision,
            optimizer=optimizer,
            input=input,
            saving=saving,
        )
        arrays = ModelArrays(profile_in(profile, precision), query.plan_precision, ring)
        _check(arrays, degrees, batch)
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
            shard=_shard(degrees, degrees.data if shard is None else shard) if zero else 1,
            sequence=sequence,
            recompute=RECOMPUTE.index(recompute),
            schedule=SCHEDULES.index(chosen),
            chunks=chunks,
        )
        if sequence and not falls_evenly(arrays, mesh)[0]:
            parts = degrees.tensor * degrees.context
            raise InputError(f"sequence: got a length that {parts} ranks do not divide; allowed: sequence=False")
        pricer = Pricer(
            arrays, self.cluster, self.assumptions, query.plan_optimizer, most_parts=degrees.pipeline * chunks
        )
        prices = pricer.price(mesh)
        mode = ("data", "zero1", "zero2", "fsdp")[zero]
        return assemble(pricer, prices, 0, exposed=pricer.exposed(prices, 0), mode=mode, query=query)

    def forecast(self, profile: Profiles, layout: Layout, *, optimizer: str = "adamw") -> Forecast:
        """Return what a layout comes to. Raises `InputError` as `estimate` does."""
        names = ("batch", "degrees", "zero", "sequence", "recompute", "schedule", "chunks", "precision")
        choices = {name: getattr(layout, name) for name in names}
        shard = layout.shard if layout.zero else None
        return self.estimate(profile, micro=layout.micro_batch, shard=shard, optimizer=optimizer, **choices)

    def fit(self, runs: Sequence[MeasuredRun]) -> "Oracle":
        """Return the oracle of a cluster whose figures were fitted to measured training steps.

        Fitted are the speed of computation, the bandwidth of each level of the network that the runs use, and the
        overhead of an iteration; `oracle.cluster.save(path)` keeps them. Raises `InputError` for too few runs.
        """

        def predict(cluster: Cluster, run: MeasuredRun) -> float:
            oracle = Oracle(cluster, assumptions=self.assumptions)
            return oracle.forecast(run.profile, run.layout, optimizer=run.optimizer).seconds_per_iteration

        return Oracle(calibrate_cluster(self.cluster, runs, predict), assumptions=self.assumptions)


def _name(found: FamilyBest) -> str:
    return "+".join([*([found.mode] if found.mode else []), *found.axes]) or "serial"


def _refused(found: FamilyBest, query: PlanQuery) -> Rejection:
    wanted, allowed = distinct_sizes(found.least_bytes, query.memory_bytes)
    return Rejection(
        strategy=_name(found),
        reason="memory: the least that a device would need",
        value=wanted,
        allowed=allowed,
    )


def _check(arrays: ModelArrays, degrees: Degrees, batch: int) -> None:
    for strategy in STRATEGIES:
        name = strategy.axis.name
        degree = getattr(degrees, name)
        limit = strategy.limit(arrays, batch)
        if degree > limit.most:
            raise InputError(f"{name}: got {degree}; allowed: at most {limit.most}: {limit.by}")
        if not strategy.applies(arrays, np.array([degree]))[0]:
            raise InputError(f"{name}: got {degree}; allowed: a number that divides {limit.by}")


def _shard(degrees: Degrees, wanted: int) -> int:
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
