"""A pipeline of a chain: the best partition for each way to train its stages, and what a step takes by schedule."""

import csv
import io
from dataclasses import dataclass, field, replace
from typing import Any

from trainwright.errors import InfeasibleBudget, PipelineError
from trainwright.memory.chain import Chain, Option, Stage
from trainwright.memory.pipelines.memory import PATTERNS, PLANNED, SCHEDULES, Weights, check_schedule, stage_bytes
from trainwright.memory.pipelines.partition import Cost, Part, Partition, Way, cut, ways
from trainwright.memory.pipelines.schedules import Timeline, simulate_orders, simulate_schedule
from trainwright.memory.pipelines.special import Placement, Search, contiguous, madpipe

__all__ = ["PipelinePlan", "plan_pipeline"]


@dataclass(frozen=True, kw_only=True)
class PipelinePlan:
    """The partition of least step, those of least load for each way to train, and steps under the schedules allowed."""

    partition: Partition
    """That of the schedule: under MadPipe several stages may be on one device."""
    alternatives: dict[Way, Partition | None] = field(repr=False)
    timelines: dict[str, Timeline] = field(repr=False)
    """By schedule; to compare: GPipe's holds more micro-batches than the partition was made for, interleaved cuts two
    chunks a device, recomputes nothing and asks for no memory (absent where micro-batches or layers do not allow it).
    """
    schedule: str
    microbatches: int
    memory_bytes: int
    plain_bytes: tuple[int, ...]
    """What each stage would hold if nothing were recomputed."""
    chain: Chain = field(repr=False)
    """As it was cut: gradients of parameters are part of the weights."""
    weights: Weights
    placements: dict[str, Placement] = field(default_factory=dict, repr=False)
    """By pattern (1f1b-star, madpipe), where the schedule is one: stages on devices, the period, a bound on it."""

    @property
    def devices(self) -> tuple[int, ...]:
        """The device of each stage, from 0."""
        if self.schedule in self.placements:
            return tuple(each.device for each in self.placements[self.schedule].stages)
        return tuple(range(len(self.partition.parts)))

    @property
    def step_seconds(self) -> float:
        """Of one step under the schedule."""
        return self.timelines[self.schedule].seconds

    def to_csv(self) -> str:
        """Return the schedule, a row per device: stage, F, B (I and W if split), micro-batch, as in "0F3"."""
        names = {"F": "F", "B": "I" if self.schedule == "zero-bubble" else "B", "W": "W"}
        text = io.StringIO()
        rows = csv.writer(text, lineterminator="\n")
        for lane in self.timelines[self.schedule].runs:
            rows.writerow([f"{run.chunk}{names[run.kind]}{run.microbatch}" for run in lane])
        return text.getvalue()


def plan_pipeline(
    chain: Chain,
    *,
    stages: int,
    microbatches: int,
    memory_bytes: int,
    bandwidth: float = float("inf"),
    schedule: str = "1f1b",
    weights: Weights | None = None,
) -> PipelinePlan:
    """Cut a chain into `stages` on devices of `memory_bytes` each, over links of `bandwidth` bytes per second.

    Stages may recompute what they cannot hold. `schedule` is "1f1b" or "zero-bubble", with a stage a device, or a
    pattern of the least period: "1f1b-star", or "madpipe", under which one device may have several stages, which
    recompute nothing, apart from each other. Raises InfeasibleBudget if nothing fits.
    """
    check_schedule(schedule, PLANNED)
    if chain.skips:
        raise PipelineError(
            f"chain: got values that skip stages ({chain.skips[0].name or 'the first'} from stage "
            f"{chain.skips[0].maker}); allowed: a chain whose stages hand everything on, as "
            "tw.memory.pipeline makes of a model"
        )
    chain = _without_gradients(chain)
    costs = ways(chain, memory_bytes, weights=weights or Weights(), microbatches=microbatches)
    found = {
        way: cut(chain, stages, cost, way=way, bandwidth=bandwidth, microbatches=microbatches)
        for way, cost in costs.items()
    }
    if found["planned"] is None:
        least = _least(chain, stages, microbatches, weights or Weights(), memory_bytes)
        raise InfeasibleBudget(
            f"memory: got {memory_bytes} bytes a device; allowed: about {least} bytes or more for {stages} stages of "
            "this chain; take more stages, smaller micro-batches or devices with more memory",
            minimal_bytes=least,
            owners={},
        )
    # A step also fills and empties the pipeline: the least load is not always the least time.
    flush = "1f1b" if schedule in PATTERNS else schedule
    fitting = [found[way] for way in ("planned", "none", "full")]
    best = min(
        (each for each in fitting if each is not None),
        key=lambda each: _timeline(each.parts, flush, microbatches).seconds,
    )
    placements: dict[str, Placement] = {}
    if schedule in PATTERNS:
        placements = _placements(
            chain, costs["planned"], stages=stages, microbatches=microbatches, memory_bytes=memory_bytes,
            bandwidth=bandwidth, weights=weights or Weights(), special=schedule == "madpipe",
        )  # fmt: skip
    partition = _partition(placements[schedule]) if placements else best
    plain = tuple(
        stage_bytes(chain, part.first, part.last, flying=part.flying, weights=weights or Weights())
        for part in partition.parts
    )
    return PipelinePlan(
        partition=partition,
        alternatives=found,
        timelines={name: _timeline(best.parts, name, microbatches) for name in SCHEDULES if name != "interleaved"}
        | _interleaved(chain, stages, microbatches, bandwidth)
        | {name: _replayed(each, microbatches) for name, each in placements.items()},
        placements=placements,
        schedule=schedule,
        microbatches=microbatches,
        memory_bytes=memory_bytes,
        plain_bytes=plain,
        chain=chain,
        weights=weights or Weights(),
    )


def _placements(chain: Chain, cost: Cost, *, stages: int, special: bool, **settings: Any) -> dict[str, Placement]:
    """Return the best patterns; there is one wherever a partition for 1F1B fits, which holds as much or more."""
    search = Search(chain, cost, devices=stages, **settings)
    known = contiguous(search)
    found = {"1f1b-star": known, "madpipe": madpipe(search, known) if special else None}
    return {name: each for name, each in found.items() if each is not None}


def _partition(placement: Placement) -> Partition:
    pattern = placement.pattern
    parts = tuple(
        Part(
            first=stage.first,
            last=stage.last,
            seconds=stage.seconds,
            forward_seconds=work.forward_seconds,
            flying=stage.flying,
            link_seconds=2 * link,
        )
        for stage, work, link in zip(placement.stages, pattern.works, (*pattern.links, 0.0), strict=True)
    )
    return Partition(parts=parts, load_seconds=pattern.period_seconds, way="planned")


def _replayed(placement: Placement, microbatches: int) -> Timeline:
    """Place a step in a pattern's order in time."""
    pattern = placement.pattern
    return simulate_orders(
        pattern.orders(microbatches),
        [work.forward_seconds for work in pattern.works],
        [work.backward_seconds for work in pattern.works],
        pattern.links,
    )


def _without_gradients(chain: Chain) -> Chain:
    """Return the chain as `Weights` counts: sums of gradients are always there, a micro-batch's own come on top."""

    def on_top(kind: Stage | Option, stage: Stage) -> int:
        return max(0, kind.backward_temporary_bytes + stage.parameter_gradient_bytes)

    stages = tuple(
        replace(
            stage,
            parameter_gradient_bytes=0,
            backward_temporary_bytes=on_top(stage, stage),
            options=tuple(replace(each, backward_temporary_bytes=on_top(each, stage)) for each in stage.options),
        )
        for stage in chain.stages
    )
    return replace(chain, stages=stages)


def _timeline(parts: tuple[Part, ...], schedule: str, microbatches: int) -> Timeline:
    """Place a step in time; recomputation is part of the backward."""
    return simulate_schedule(
        schedule,
        [part.forward_seconds for part in parts],
        [part.seconds - part.forward_seconds for part in parts],
        microbatches=microbatches,
        link_seconds=[part.link_seconds / 2 for part in parts],
    )


def _interleaved(chain: Chain, stages: int, microbatches: int, bandwidth: float) -> dict[str, Timeline]:
    """Place a step of two chunks a device in time, cut for the least load of a chunk whatever its memory."""
    layers = len(chain.stages)
    if microbatches % stages or 2 * stages > layers or stages == 1:
        return {}

    def seconds(first: int, last: int, _: int) -> float:
        end = len(chain.steps) if last == layers else last
        return sum(each.forward_seconds + each.backward_seconds for each in chain.steps[first - 1 : end])

    found = cut(chain, 2 * stages, seconds, way="none", bandwidth=bandwidth, microbatches=microbatches)
    if found is None:
        return {}
    timeline = simulate_schedule(
        "interleaved",
        [part.forward_seconds for part in found.parts],
        [part.seconds - part.forward_seconds for part in found.parts],
        microbatches=microbatches,
        link_seconds=[part.link_seconds / 2 for part in found.parts],
        devices=stages,
    )
    return {"interleaved": timeline}


def _least(chain: Chain, stages: int, microbatches: int, weights: Weights, memory_bytes: int) -> int:
    """Return the least memory with a partition, to a percent, by doubling and bisection."""
    low, high = memory_bytes, 2 * memory_bytes

    def fits(size: int) -> bool:
        cost = ways(chain, size, weights=weights, microbatches=microbatches)["planned"]
        return cut(chain, stages, cost, way="planned", bandwidth=float("inf"), microbatches=microbatches) is not None

    while not fits(high):
        low, high = high, 2 * high
    while high - low > high // 100 + 1:
        middle = (low + high) // 2
        low, high = (low, middle) if fits(middle) else (middle, high)
    return high
