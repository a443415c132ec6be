"""Pipeline parallelism: consecutive blocks form stages, micro-batches flow through them.

GPipe: Huang et al. (arXiv 1811.06965); 1F1B and interleaved stages: Narayanan et al. (arXiv 2104.04473), section 2.2:
the bubble is (p - 1) / S of the ideal time, (p - 1) / (v S) with v chunks a stage, for v times the transfers.
"""

import numpy as np

from trainwright.plan.parallel.collective import Phase
from trainwright.plan.parallel.mesh import SCHEDULES, Floats, Ints, Mesh, ParallelAxis
from trainwright.plan.parallel.model_arrays import ModelArrays
from trainwright.plan.parallel.strategies.strategy import Exchange, Limit, ParallelStrategy, StageLoad

__all__ = ["PipelineStrategy", "bubble_slots", "in_flight", "most_in_flight"]

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
        parts = mesh.axis("context") * mesh.axis("spatial") * np.where(mesh.sequence, mesh.axis("tensor"), 1)
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
    return waits
