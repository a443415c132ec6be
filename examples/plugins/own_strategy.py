"""Sequence parallelism by all-to-alls: the sequence is divided everywhere but in attention, where heads are.

Jacobs et al., "DeepSpeed Ulysses" (arXiv 2309.14509), section 3: queries, keys, values and the output of attention
are exchanged, each in one all-to-all of a part's elements, and once more in the backward pass.
"""

import numpy as np

from trainwright.plan.parallel.mesh import Bools, Floats, Ints, Mesh, ParallelAxis
from trainwright.plan.parallel.model_arrays import ModelArrays
from trainwright.plan.parallel.strategies.strategy import Exchange, Limit, ParallelStrategy, StageLoad

__all__ = ["Ulysses"]


class Ulysses(ParallelStrategy):
    """Divide the sequence of every sample, and inside of attention its heads, into `ring` parts."""

    axis = ParallelAxis(name="ring", order=25, copies_weights=True)

    def limit(self, arrays: ModelArrays, batch: int) -> Limit:  # noqa: ARG002
        """Return the number of heads, keys' and values' too."""
        shapes = [block.transformer for block in arrays.blocks if block.transformer]
        if not shapes:
            return Limit(most=1, by="no transformer block was recognised")
        return Limit(most=min(shape.kv_heads or shape.heads for shape in shapes), by="the attention heads")

    def applies(self, arrays: ModelArrays, degrees: Ints) -> Bools:
        """Accept degrees that divide the heads and the sequence."""
        fits = np.ones(len(degrees), dtype=np.bool_)
        for shape in (block.transformer for block in arrays.blocks):
            if shape is not None:
                heads = shape.kv_heads or shape.heads
                fits &= (heads % degrees == 0) & (shape.sequence % degrees == 0)
        return fits

    def compute(self, arrays: ModelArrays, mesh: Mesh) -> Floats:
        """Divide all arrays."""
        return np.ones((mesh.rows, len(arrays.layers))) / mesh.axis("ring")[:, None]

    def memory(self, arrays: ModelArrays, mesh: Mesh) -> tuple[Floats, Floats]:
        """Divide all that is kept, but no weights."""
        return np.ones((mesh.rows, len(arrays.layers))), self.compute(arrays, mesh)

    def communication(self, arrays: ModelArrays, mesh: Mesh, load: StageLoad | None) -> list[Exchange]:
        """Return the all-to-alls around attention: what each rank holds of queries, output, keys and values."""
        if load is not None:
            return []
        ranks, stride = mesh.group(("ring",))
        once = np.where(ranks > 1, 1.0, 0.0)
        found = []
        for place, layer in enumerate(arrays.layers):
            where = int(arrays.block[place])
            shape = arrays.blocks[where].transformer
            if layer.kind != "attention" or shape is None:
                continue
            elements = shape.sequence * shape.hidden * (2 + 2 * (shape.kv_heads or shape.heads) / shape.heads)
            size = mesh.micro * elements * arrays.precision.element_bytes / ranks
            found += [
                Exchange("all_to_all", "ring", ranks, stride, size, once, phase, where, layer.name)
                for phase in ("forward", "backward")
            ]
        return found
