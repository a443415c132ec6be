"""Oracle: which strategy, how fast, how much memory, what limits it, for a model on a cluster."""

import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Any

from trainwright.cluster import Cluster
from trainwright.cluster.placement import EqualPart, equal_parts
from trainwright.errors import InputError
from trainwright.plan.fit.fit_runs import fit_runs
from trainwright.plan.fit.measured_run import MeasuredRun
from trainwright.plan.forecast import Forecast, Ranking, Rejection, ScalingCurve
from trainwright.plan.layout import Degrees, Layout
from trainwright.plan.parallel import paradl
from trainwright.plan.parallel.assembly import assemble, mark_within_error
from trainwright.plan.parallel.candidates import CHUNKS, MODES, shapes
from trainwright.plan.parallel.model_arrays import ModelArrays
from trainwright.plan.parallel.precision import Profiles, profile_in
from trainwright.plan.parallel.pricing import Pricer
from trainwright.plan.parallel.search import FamilyBest, NoPlan, beyond_memory, no_plan, search
from trainwright.plan.parallel.single_plan import make_layout, mesh_of_layout
from trainwright.plan.plan_query import Input, PlanQuery, Saving
from trainwright.settings import Settings
from trainwright.validators import number, one_of

__all__ = ["NoPlan", "Oracle"]


@dataclass(frozen=True)
class Oracle(Settings, error=InputError):
    """Predicts plans on a cluster.

    `expert_imbalance`: tokens of the rank whose experts get most of them, over the mean, where experts are divided.
    With `formulas` "paradl" plans are priced as that paper does, without overlap (`plan.parallel.paradl`).
    """

    cluster: Cluster
    expert_imbalance: Annotated[float, number(minimum=1)] = 1.0
    formulas: Annotated[str, one_of("", "paradl")] = ""

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
        degrees: Mapping[str, int] | None = None,
        recompute: str | None = None,
        also: Sequence[str] = (),
        input: Input | None = None,  # noqa: A002 (the option's word)
        saving: Saving | None = None,
        dry_run: Callable[[Layout], str] | None = None,
    ) -> Ranking:
        """Return the best plan of every strategy for `batch` samples an iteration on at most `devices` devices.

        `degrees` fixes some of them ({"tensor": 8}), `recompute` the recomputation ("none", "selective", "full").
        `profile` is one traced in `precision`, or `Traces` of a model, from which that one is taken; a profile of
        another precision is converted, and the plans say in `caveat` what that may cost.

        `also` names what our training does not carry out and the search tries besides: "ring" and "ulysses" (context
        parallelism of the whole model), "sequence" (tensor ranks divide the sequence between their layers),
        "zero-bubble" (pipelines), "offload" (of activations); such plans say so.

        `dry_run` says of a layout why training does not set this model up so, as `train.parallel.dry_run.DryRun` does
        for a module; its answer is the plan's `refusal`.

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
            degrees=degrees or {},
            recompute=recompute,
            also=tuple(also),
            input=input,
            saving=saving,
        )
        parts = equal_parts(self.cluster)
        around = tuple(name for name in ("", "ring", "ulysses") if name in {"", *also})
        if parts or len(around) > 1:
            ranking = self._rank_choices(parts, around, profile, query)
        else:
            ranking = self._rank_equal(profile, query)
        if dry_run is None:
            return ranking
        plans = tuple(replace(plan, model_refusal=plan.refusal or dry_run(plan)) for plan in ranking)
        return replace(ranking, plans=plans)

    def _rank_choices(
        self, parts: Sequence[EqualPart], around: Sequence[str], profile: Profiles, query: PlanQuery
    ) -> Ranking:
        """Return the best plan of every strategy over the choices of nodes that differ, and of context parallelism."""
        best: dict[str, Forecast] = {}
        rejected: dict[str, Rejection] = {}
        failure: InputError | None = None
        for part, name in itertools.product(parts or (None,), around):
            cluster = part.cluster if part else self.cluster
            oracle = replace(self, cluster=cluster)
            try:
                smaller = replace(query, cluster=cluster, devices=min(query.devices, cluster.devices))
                ranking = oracle._rank_equal(profile, smaller, context_by=name)  # noqa: SLF001 -- of this class
            except InputError as error:  # this part is too small
                failure = failure or error
                continue
            rejected = {each.strategy: each for each in ranking.rejected} | rejected
            for plan in ranking:
                placed = _place(plan, part) if part else plan
                known = best.get(plan.strategy)
                if known is None or placed.goal_value(query.goal) < known.goal_value(query.goal):
                    best[plan.strategy] = placed
        if not best:
            assert failure is not None  # noqa: S101 -- each part has plans, or none for a reason
            raise failure
        plans = sorted(best.values(), key=lambda plan: (plan.goal_value(query.goal), plan.devices, plan.strategy))
        return Ranking(
            plans=mark_within_error([replace(plan, within_error_of_best=False) for plan in plans]),
            rejected=tuple(each for name, each in rejected.items() if name not in best),
        )

    def _rank_equal(self, profile: Profiles, query: PlanQuery, *, context_by: str = "") -> Ranking:
        arrays = self._arrays(profile, query, context_by=context_by)
        possible = shapes(arrays, query)
        # The chain is cut into at most so many parts: stages times chunks.
        parts = min(arrays.parts, query.devices * max(CHUNKS))
        pricer = Pricer(arrays, self.cluster, query.plan_optimizer, most_parts=parts)
        if self.formulas:
            return paradl.rank_published(pricer, possible, query)
        # The search keeps one candidate a strategy; only these become forecasts.
        found = search(pricer, possible, query)
        rejected = (
            *possible.rejected,
            *(beyond_memory(_name(each), each.least_bytes, query) for each in found if each.prices is None),
        )
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
            raise no_plan(least.least_bytes, _name(least), query, rejected)
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
        for count in numbers:
            try:
                best.append(self.rank(profile, batch=batch, devices=count, **choices)[0])
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
        context_by: str = "",
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
        `context_by` "ring" or "ulysses" context ranks divide embedding, head and loss too, and pass keys and values
        round, or exchange heads: our training does not.

        Raises `InputError` for degrees beyond the cluster, a model that cannot be divided so, or a batch that does not
        fall into micro-batches.
        """
        layout = make_layout(
            batch=batch,
            degrees=degrees,
            micro=micro,
            zero=zero,
            shard=shard,
            sequence=sequence,
            recompute=recompute,
            schedule=schedule,
            chunks=chunks,
            precision=precision,
        )
        return self.forecast(profile, layout, optimizer=optimizer, context_by=context_by, input=input, saving=saving)

    def forecast(
        self,
        profile: Profiles,
        layout: Layout,
        *,
        optimizer: str = "adamw",
        context_by: str = "",
        input: Input | None = None,  # noqa: A002 (the option's word)
        saving: Saving | None = None,
    ) -> Forecast:
        """Return what a layout comes to, of nodes that differ on those where it fits and is fastest.

        Raises `InputError` as `estimate` does.
        """
        enough = [part for part in equal_parts(self.cluster) if part.cluster.devices >= layout.devices]
        if enough:
            choices: dict[str, Any] = {
                "optimizer": optimizer,
                "context_by": context_by,
                "input": input,
                "saving": saving,
            }
            plans: list[tuple[float, float, int, Forecast]] = []
            for part in enough:
                plan = replace(self, cluster=part.cluster).forecast(profile, layout, **choices)
                beyond = max(0, plan.peak_bytes - (part.cluster.device.memory_bytes or plan.peak_bytes))
                plans.append((beyond, plan.seconds_per_iteration, len(plans), _place(plan, part)))
            return min(plans)[-1]
        query = PlanQuery(
            cluster=self.cluster,
            batch=layout.batch,
            devices=layout.devices,
            precision=layout.precision,
            optimizer=optimizer,
            input=input,
            saving=saving,
        )
        arrays = self._arrays(profile, query, context_by=context_by)
        mesh = mesh_of_layout(arrays, layout)
        parts = layout.degrees.pipeline * layout.chunks
        pricer = Pricer(arrays, self.cluster, query.plan_optimizer, most_parts=parts)
        if self.formulas:
            return paradl.project(pricer, query, layout)
        prices = pricer.price(mesh)
        return assemble(pricer, prices, 0, exposed=pricer.exposed(prices, 0), mode=MODES[layout.zero], query=query)

    def fit(self, runs: Sequence[MeasuredRun]) -> "Oracle":
        """Return the oracle of a cluster whose constants were fitted to measured training steps; see `fit_runs`.

        `oracle.cluster.save(path)` keeps them. Raises `InputError` where the runs cannot be fitted.
        """
        return replace(self, cluster=fit_runs(self.cluster, runs).cluster)

    def _arrays(self, profile: Profiles, query: PlanQuery, *, context_by: str = "") -> ModelArrays:
        return ModelArrays(
            profile_in(profile, query.precision), query.plan_precision, context_by, self.expert_imbalance
        )


def _place(plan: Forecast, part: EqualPart) -> Forecast:
    return replace(plan, nodes=part.nodes(plan.devices), bound_by=part.bound_by)


def _name(found: FamilyBest) -> str:
    return "+".join([*([found.mode] if found.mode else []), *found.axes]) or "serial"
