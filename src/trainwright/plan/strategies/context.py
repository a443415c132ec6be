"""Context parallelism: the sequence is divided everywhere; keys and values go round in a ring during attention.

Liu et al., "Ring Attention with Blockwise Transformers" (arXiv 2310.01889), section 3: c - 1 transfers forward of the
keys and values of s / c positions, and twice that backward, beside the attention of what is there.
"""

import numpy as np

from trainwright.plan.collective import Phase
from trainwright.plan.mesh import Bools, Floats, Ints, Mesh
from trainwright.plan.strategies._strategy import Exchange, Limit, Load, undivided
from trainwright.plan.work import Work

__all__ = ["Context"]


class Context:
    """Divide the sequence of every sample into `context` parts."""

    axis = "context"

    def limit(self, work: Work, batch: int) -> Limit:  # noqa: ARG002 -- the samples stay together
        """Return the length of the sequence."""
        shapes = [block.transformer for block in work.blocks if block.transformer]
        if not shapes:
            return Limit(most=1, by="no transformer block was recognised")
        return Limit(most=min(shape.sequence for shape in shapes), by="the length of the sequence")

    def applies(self, work: Work, degrees: Ints) -> Bools:
        """Accept parts of twice a whole number of positions, so that causal attention can be balanced."""
        fits = np.ones(len(degrees), dtype=np.bool_)
        for block in work.blocks:
            if block.transformer is not None:
                fits &= (degrees == 1) | (block.transformer.sequence % (2 * degrees) == 0)
        return fits

    def compute(self, work: Work, mesh: Mesh) -> Floats:
        """Divide all work."""
        return undivided(work, mesh) / mesh.axis("context")[:, None]

    def memory(self, work: Work, mesh: Mesh) -> tuple[Floats, Floats]:
        """Divide all that is kept, but no weights."""
        return undivided(work, mesh), undivided(work, mesh) / mesh.axis("context")[:, None]

    def communication(self, work: Work, mesh: Mesh, load: Load | None) -> list[Exchange]:
        """Return the transfers of keys and values, which attention may hide."""
        if load is not None:
            return []
        ranks, stride = mesh.group(("context",))
        found = []
        for place, layer in enumerate(work.layers):
            block = work.blocks[int(work.block[place])]
            if layer.kind != "attention" or block.transformer is None:
                continue
            shape = block.transformer
            keys = 2 * shape.sequence * shape.hidden * (shape.kv_heads or shape.heads) / shape.heads
            positions = mesh.micro.astype(np.float64) / ranks / mesh.axis("tensor")
            size = positions * (keys * work.precision.element_bytes)
            directions: tuple[tuple[Phase, int], ...] = (("forward", 1), ("backward", 2))
            for phase, times in directions:
                count = (times * (ranks - 1)).astype(np.float64)
                where = int(work.block[place])
                found.append(
                    Exchange("send", "context", ranks, stride, size, count, phase, where, layer.name, overlaps=True)
                )
        return found
