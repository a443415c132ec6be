"""A pipeline of a chain: the best partition for each way to train its stages, and what a step takes by schedule."""

import csv
import io
from dataclasses import dataclass, field, replace

from trainwright.errors import InfeasibleBudget, PipelineError
from trainwright.model.chain import Chain, Option, Stage
from trainwright.plan.layout import Degrees, Layout
from trainwright.plan.pipeline.partition import (
    PATTERNS,
    PLANNED,
    ChainPartition,
    WeightBytes,
    check_schedule,
    stage_bytes,
)
from trainwright.plan.pipeline.schedules import PipelineTimeline

__all__ = ["PipelinePlan", "plan_pipeline"]


@dataclass(frozen=True, kw_only=True)
class PipelinePlan:
    """Stages and schedule of a pipeline's step, and what the step takes under the others."""

    partition: ChainPartition
    """That of the schedule: interleaved has two stages a device, under MadPipe one device may have several."""
    timelines: dict[str, PipelineTimeline] = field(repr=False)
    """By schedule, the least step found in the memory; those that do not fit are absent."""
    schedule: str
    microbatches: int
    memory_bytes: int
    plain_bytes: tuple[int, ...]
    """What each stage would hold if nothing were recomputed."""
    chain: Chain = field(repr=False)
    """As it was cut: gradients of parameters are part of the weights."""
    weights: WeightBytes
    devices: tuple[int, ...]
    """The device of each stage, from 0."""

    @property
    def step_seconds(self) -> float:
        """Of one step under the schedule."""
        return self.timelines[self.schedule].seconds

    def layout(self, batch: int) -> Layout:
        """Return what ranks run of the plan, for steps of `batch` samples; zero-bubble is run as 1F1B."""
        stages = self.chain.stages
        ranks = max(self.devices) + 1
        own_order = self.schedule in PATTERNS
        schedules = {"zero-bubble": "1f1b", **dict.fromkeys(PATTERNS, "")}
        return Layout(
            strategy="pipeline",
            degrees=Degrees(pipeline=ranks),
            batch=batch,
            micro_batch=batch // self.microbatches,
            microbatches=self.microbatches,
            memory=None if self.partition.way == "none" else self.memory_bytes,
            schedule=schedules.get(self.schedule, self.schedule),
            chunks=2 if self.schedule == "interleaved" else 1,
            cuts=tuple(stages[part.first - 1].name for part in self.partition.parts[1:]),
            placement=self.devices,
            order=tuple(self.to_csv().splitlines()) if own_order else (),
        )

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
    schedule: str = "auto",
    weights: WeightBytes | None = None,
) -> PipelinePlan:
    """Cut a chain into `stages` on devices of `memory_bytes` each, over links of `bandwidth` bytes per second.

    Stages may recompute what they cannot hold. `schedule` is "gpipe", "1f1b" or "zero-bubble", with a stage a device;
    "interleaved", with two; a pattern that repeats itself: "1f1b-star", or "madpipe", under which one device may have
    several stages, which recompute nothing, apart from each other; or "auto", the one of least step. Partition,
    schedule and recomputation are judged together by the seconds of a step, and more memory never makes it longer.
    Raises InfeasibleBudget if nothing fits.
    """
    # Late: its kernels are compiled.
    from trainwright.plan.pipeline.pipeline_search import PipelineProblem

    check_schedule(schedule, PLANNED)
    chain, weights = _without_gradients(chain), weights or WeightBytes()
    problem = PipelineProblem(chain, stages=stages, microbatches=microbatches, bandwidth=bandwidth, weights=weights)
    patterns = {"auto": PATTERNS, "madpipe": PATTERNS, "1f1b-star": PATTERNS[:1]}.get(schedule, ())
    found = problem.best(memory_bytes, patterns)
    if not found:
        least = problem.least_bytes
        raise InfeasibleBudget(
            f"memory: got {memory_bytes} bytes a device; allowed: about {least} bytes or more for {stages} stages of "
            "this chain; take more stages, smaller micro-batches or devices with more memory",
            minimal_bytes=least,
            owners={},
        )
    chosen = min(found, key=lambda name: found[name].timeline.seconds) if schedule == "auto" else schedule
    if chosen not in found:
        raise PipelineError(
            f"schedule: got {schedule!r}, which does not fit into {memory_bytes} bytes a device with {microbatches} "
            f"micro-batches and {len(chain.stages)} layers on {stages} devices; allowed: auto, {', '.join(found)}"
        )
    partition = found[chosen].partition
    parts = partition.parts
    return PipelinePlan(
        partition=partition,
        timelines={name: each.timeline for name, each in found.items()},
        devices=found[chosen].devices,
        schedule=chosen,
        microbatches=microbatches,
        memory_bytes=memory_bytes,
        plain_bytes=tuple(stage_bytes(chain, p.first, p.last, flying=p.flying, weights=weights) for p in parts),
        chain=chain,
        weights=weights,
    )


def _without_gradients(chain: Chain) -> Chain:
    """Return the chain as `WeightBytes` counts: sums of gradients are always there, a micro-batch's own come on top."""

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
