"""Pipeline parallelism: consecutive blocks form stages, micro-batches flow through them; its bubble and its memory.

GPipe: Huang et al. (arXiv 1811.06965); 1F1B and interleaved stages: Narayanan et al. (arXiv 2104.04473), section 2.2:
the bubble is (p - 1) / S of the ideal time, (p - 1) / (v S) with v chunks a stage, for v times the transfers.
Zero-bubble: Qi et al. (arXiv 2401.10241), table 1, ZB-H1: in the memory of 1F1B stages wait p - 1 times forward plus
backward less two gradients of weights. Each of the three parts of a slot takes about as long, a forward pass that is
run again too.
"""

from dataclasses import dataclass

import numpy as np

from trainwright.plan.parallel.mesh import RECOMPUTE, SCHEDULES, Floats, Ints, Mesh, ParallelAxis
from trainwright.plan.parallel.model_arrays import ModelArrays
from trainwright.plan.parallel.strategies.strategy import Exchange, Limit, ParallelStrategy, Phase, StageLoad

__all__ = ["PipelineStages", "PipelineStrategy", "bubble_slots", "in_flight", "most_in_flight", "stages_of"]

_GPIPE, _INTERLEAVED = SCHEDULES.index("gpipe"), SCHEDULES.index("interleaved")


class PipelineStrategy(ParallelStrategy):
    """Divide the chain of blocks into `pipeline` stages (times `Mesh.chunks`)."""

    axis = ParallelAxis(name="pipeline", order=80, inside_stage=False)

    def limit(self, arrays: ModelArrays, batch: int) -> Limit:  # noqa: ARG002 -- any batch; small ones have bubbles
        """Return the number of blocks."""
        return Limit(most=max(1, arrays.parts), by="the blocks of the model's chain")

    def communication(self, arrays: ModelArrays, mesh: Mesh, load: StageLoad | None) -> list[Exchange]:
        """Return what a stage in the middle sends in an iteration: outputs on, gradients back."""
        if load is None or arrays.parts < 2:
            return []
        ranks, stride = mesh.group(("pipeline",))
        # Each tensor rank sends its part of the sequence; elsewhere than here of the whole (arXiv 2104.04473, 4.1).
        scattered = mesh.sequence | bool(arrays.context_by)
        parts = mesh.axis("context") * mesh.axis("spatial") * np.where(scattered, mesh.axis("tensor"), 1)
        size = mesh.micro / parts * load.cut_bytes
        count = np.where(ranks > 1, mesh.microbatches * mesh.chunks, 0).astype(np.float64)
        phases: tuple[Phase, Phase] = ("forward", "backward")
        return [Exchange("send", "pipeline", ranks, stride, size, count, phase) for phase in phases]


def in_flight(mesh: Mesh, stage: Ints) -> Floats:
    """Return of how many micro-batches a stage (from 0) keeps activations at most: (candidates, stages)."""
    found: Floats = np.minimum(mesh.microbatches[:, None], most_in_flight(mesh, stage))
    return found


def most_in_flight(mesh: Mesh, stage: Ints) -> Floats:
    """Return of how many a stage would keep activations if there were no end of micro-batches; GPipe keeps all."""
    ranks, chunks, kind = (item[:, None] for item in (mesh.axis("pipeline"), mesh.chunks, mesh.schedule))
    # 1F1B: stage s has p - s micro-batches in flight; interleaving weaves those of its chunks.
    ahead = ranks - stage[None, :]
    woven = (2 * (ahead - 1) + (chunks - 1) * ranks + 1) / chunks
    found: Floats = np.where(kind == _INTERLEAVED, woven, ahead).astype(np.float64)
    return np.where(kind == _GPIPE, mesh.microbatches[:, None], found)


def bubble_slots(mesh: Mesh) -> Floats:
    """Return how many micro-batches' time a stage waits in an iteration."""
    waits: Floats = (mesh.axis("pipeline") - 1) / mesh.chunks
    left = np.where(mesh.recompute == RECOMPUTE.index("full"), 1 / 2, 1 / 3)
    return np.where(mesh.schedule == SCHEDULES.index("zero-bubble"), waits * left, waits)


@dataclass(frozen=True, eq=False, slots=True)
class PipelineStages:
    """The different stages of a pipeline: `runs` (stages, blocks), and the first place at which each stands.

    Equal stages are one; the first of them is that with most micro-batches in flight.
    """

    runs: Floats
    first: Ints
    cut_bytes: float
    """The most that a sample hands on between two stages, traced."""
    lengths: tuple[int, ...]
    """Blocks of each stage, of chunk after chunk."""
    begins: tuple[str, ...]
    """Paths of the modules that all but the first of these begin with, () if they are not known."""


def stages_of(arrays: ModelArrays, ends: Ints, chunks: int) -> PipelineStages:
    """Return the stages of a chain cut at `ends`: with chunks, stage i has parts i, i + p, i + 2p, ..."""
    of_run = np.repeat(np.arange(len(arrays.counts)), arrays.counts)
    starts = np.concatenate([[0], ends[:-1]])
    edges = np.cumsum(arrays.counts)
    # How many runs of each repeated block lie before every cut.
    before = np.clip(np.concatenate([starts, ends[-1:]])[:, None], edges - arrays.counts, edges)
    parts = np.diff(before, axis=0)
    stages = len(ends) // chunks
    blocks_of_stage = parts.reshape(chunks, stages, -1).sum(axis=0)
    # Stages with equal runs cost the same: one of them is priced, the first, which has most in flight.
    runs, first = np.unique(blocks_of_stage, axis=0, return_index=True)
    handed = max((arrays.blocks[of_run[end - 1]].output_bytes for end in ends[:-1]), default=0)
    paths = [begin for block in arrays.blocks for begin in block.begins]
    return PipelineStages(
        begins=tuple(paths[start] for start in starts[1:]) if paths else (),
        runs=runs.astype(np.float64),
        first=first.astype(np.int64),
        cut_bytes=float(handed),
        lengths=tuple(int(length) for length in ends - starts),
    )
