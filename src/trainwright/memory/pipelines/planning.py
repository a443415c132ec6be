"""A pipeline of a chain: the best partition for each way to train its stages, and what a step takes by schedule."""

import csv
import io
from dataclasses import dataclass, field, replace

from trainwright.errors import InfeasibleBudget, PipelineError
from trainwright.memory.chain import Chain, Option, Stage
from trainwright.memory.pipelines.contiguous import groups
from trainwright.memory.pipelines.memory import SCHEDULES, Weights, check_schedule, stage_bytes
from trainwright.memory.pipelines.partition import Part, Partition, Way, cut, ways
from trainwright.memory.pipelines.schedules import Timeline, simulate_schedule

__all__ = ["PipelinePlan", "plan_pipeline"]


@dataclass(frozen=True, kw_only=True)
class PipelinePlan:
    """The partition of least load, those of other ways to train, and steps under the schedules that it allows."""

    partition: Partition
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

    @property
    def step_seconds(self) -> float:
        """Of one step under the schedule."""
        return self.timelines[self.schedule].seconds

    @property
    def flying_at_load(self) -> list[int] | None:
        """Micro-batches that a pattern without flush (1F1B*) holds per stage at the least possible period."""
        parts = self.partition.parts
        loads, links = [part.seconds for part in parts], [part.link_seconds for part in parts[:-1]]
        return groups(loads, links, self.partition.load_seconds)

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

    Stages may recompute what they cannot hold. Raises InfeasibleBudget if even then nothing fits.
    """
    check_schedule(schedule)
    if schedule in {"gpipe", "interleaved"}:
        raise PipelineError(f"schedule: got {schedule!r}; allowed for a plan: 1f1b, zero-bubble")
    chain = _without_gradients(chain)
    costs = ways(chain, memory_bytes, weights=weights or Weights(), microbatches=microbatches)
    found = {
        way: cut(chain, stages, cost, way=way, bandwidth=bandwidth, microbatches=microbatches)
        for way, cost in costs.items()
    }
    best = found["planned"]
    if best is None:
        least = _least(chain, stages, microbatches, weights or Weights(), memory_bytes)
        raise InfeasibleBudget(
            f"memory: got {memory_bytes} bytes a device; allowed: about {least} bytes or more for {stages} stages of "
            "this chain; take more stages, smaller micro-batches or devices with more memory",
            minimal_bytes=least,
            owners={},
        )
    plain = tuple(
        stage_bytes(chain, part.first, part.last, flying=part.flying, weights=weights or Weights())
        for part in best.parts
    )
    return PipelinePlan(
        partition=best,
        alternatives=found,
        timelines={name: _timeline(best.parts, name, microbatches) for name in SCHEDULES if name != "interleaved"}
        | _interleaved(chain, stages, microbatches, bandwidth),
        schedule=schedule,
        microbatches=microbatches,
        memory_bytes=memory_bytes,
        plain_bytes=plain,
        chain=chain,
        weights=weights or Weights(),
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
