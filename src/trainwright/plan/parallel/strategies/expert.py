"""Expert parallelism (mixture of experts): every rank holds some experts, tokens travel by all-to-all.

Lepikhin et al., "GShard" (arXiv 2006.16668), section 3.3: two all-to-alls forward and two backward of every token's
hidden vector, `top_k` times. The ranks work on different samples, as those of data parallelism do. With sequence
parallelism experts are spread over the tensor ranks too instead of being cut by them (Liu et al., "MoE Parallel
Folding", arXiv 2504.14960): each has a part of the tokens anyway. Without, each tensor rank sends the visits to the
experts on its like of other ranks.
"""

import numpy as np

from trainwright.plan.parallel.mesh import Bools, Floats, Ints, Mesh, ParallelAxis
from trainwright.plan.parallel.model_arrays import ModelArrays
from trainwright.plan.parallel.strategies.strategy import Exchange, Limit, ParallelStrategy, Phase, StageLoad, undivided

__all__ = ["ExpertStrategy", "whole_experts"]


class ExpertStrategy(ParallelStrategy):
    """Divide the experts of every block into `expert` parts; tokens are taken to be spread evenly."""

    axis = ParallelAxis(name="expert", order=60, divides_samples=True, copies_weights=True)

    def limit(self, arrays: ModelArrays, batch: int) -> Limit:  # noqa: ARG002 -- of the samples the data axis takes care
        """Return the number of experts."""
        experts = [layer.experts for layer in arrays.layers if layer.experts]
        if not experts:
            return Limit(most=1, by="the model has no experts")
        return Limit(most=min(experts), by="the experts of a block")

    def applies(self, arrays: ModelArrays, degrees: Ints) -> Bools:
        """Accept degrees by which every rank has equally many experts."""
        fits = np.ones(len(degrees), dtype=np.bool_)
        for layer in arrays.layers:
            if layer.experts:
                fits &= layer.experts % degrees == 0
        return fits

    def memory(self, arrays: ModelArrays, mesh: Mesh) -> tuple[Floats, Floats]:
        """Divide the weights of experts."""
        experts = np.array([layer.experts > 0 for layer in arrays.layers])
        return np.where(experts, 1.0 / mesh.axis("expert")[:, None], 1.0), undivided(arrays, mesh)

    def communication(self, arrays: ModelArrays, mesh: Mesh, load: StageLoad | None) -> list[Exchange]:
        """Return the two all-to-alls of each direction of a block with experts."""
        if load is not None:
            return []
        ranks, stride = mesh.group(("expert",))
        # Experts that are spread over tensor ranks too: tokens travel among the ranks of both axes.
        whole = whole_experts(arrays, mesh)
        folded = whole & mesh.sequence
        ranks, stride = np.where(folded, ranks * mesh.axis("tensor"), ranks), np.where(folded, 1, stride)
        found = []
        for where, block in enumerate(arrays.blocks):
            experts = [place for place in np.flatnonzero(arrays.block == where) if arrays.layers[place].experts]
            if not experts:
                continue
            tokens = (
                float(arrays.inputs[experts[0]]) * arrays.precision.element_bytes
            )  # each as often as it has experts
            divided = mesh.axis("context") * np.where(mesh.sequence | whole, mesh.axis("tensor"), 1)
            size = mesh.micro * tokens / divided * np.ones(mesh.rows)
            count = np.where(ranks > 1, 2.0, 0.0)
            phases: tuple[Phase, Phase] = ("forward", "backward")
            found += [
                Exchange("all_to_all", "expert", ranks, stride, size, count, phase, where, block.name)
                for phase in phases
            ]
        return found


def whole_experts(arrays: ModelArrays, mesh: Mesh) -> Bools:
    """Return for which candidates whole experts lie on the tensor ranks too: where there are enough of them."""
    experts = min((layer.experts for layer in arrays.layers if layer.experts), default=0)
    ranks = mesh.axis("expert") * mesh.axis("tensor")
    found: Bools = (mesh.axis("expert") > 1) & (experts > 0) & (experts % ranks == 0)
    return found
