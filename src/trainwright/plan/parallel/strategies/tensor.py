"""Tensor parallelism, with or without sequence parallelism: every matrix of a transformer block is divided in two ways.

Shoeybi et al., "Megatron-LM" (arXiv 1909.08053), section 3; Korthikanti et al. (arXiv 2205.05198), section 4.2: a
column-parallel matrix divides its output, a row-parallel one its input, and what lies between stays divided; one
all-reduce after each row forward, one before each column backward. Sequence parallelism divides the rest along the
sequence, and each all-reduce becomes a reduce-scatter and an all-gather of the same bytes.
"""

from collections.abc import Iterator

import numpy as np

from trainwright.plan.parallel.mesh import Bools, Floats, Ints, Mesh, ParallelAxis
from trainwright.plan.parallel.model_arrays import ModelArrays
from trainwright.plan.parallel.strategies.expert import whole_experts
from trainwright.plan.parallel.strategies.strategy import Exchange, Limit, Operation, ParallelStrategy, Phase, StageLoad

__all__ = ["TensorStrategy", "falls_evenly"]


class TensorStrategy(ParallelStrategy):
    """Divide matrices, attention heads and vocabulary into `tensor` parts."""

    axis = ParallelAxis(name="tensor", order=10)

    def limit(self, arrays: ModelArrays, batch: int) -> Limit:  # noqa: ARG002 -- the samples stay together
        """Return the number of key-value heads or of heads, whatever is divided."""
        if not arrays.transformers:
            return Limit(most=1, by="no transformer block was recognised")
        return Limit(most=min(shape.heads for shape in arrays.transformers), by="the attention heads")

    def applies(self, arrays: ModelArrays, degrees: Ints) -> Bools:
        """Accept degrees that divide heads and feed-forward width, and keys, unless each of these is repeated."""
        fits = np.ones(len(degrees), dtype=np.bool_)
        for shape in arrays.transformers:
            keys, inner = shape.kv_heads or shape.heads, shape.feedforward or 4 * shape.hidden
            fits &= (shape.heads % degrees == 0) & (inner % degrees == 0)
            fits &= (keys % degrees == 0) | (degrees % keys == 0)
        return fits

    def compute(self, arrays: ModelArrays, mesh: Mesh) -> Floats:
        """Divide matrices and what lies between; the rest only along the sequence."""
        return self._share(arrays, mesh, saved=False)

    def memory(self, arrays: ModelArrays, mesh: Mesh) -> tuple[Floats, Floats]:
        """Divide as the work is; a column keeps its whole input unless that is divided along the sequence."""
        degree = mesh.axis("tensor")[:, None]
        divided = np.array([role != "" for role in arrays.roles])
        return np.where(divided, 1.0 / degree, 1.0), self._share(arrays, mesh, saved=True)

    def _share(self, arrays: ModelArrays, mesh: Mesh, *, saved: bool) -> Floats:
        degree = mesh.axis("tensor")[:, None]
        # The embedding is a row, whose input (indices) is not divided.
        inside = np.array(
            [
                role in ({"inside", "row"} if saved else {"inside", "row", "column"}) and layer.kind != "embedding"
                for role, layer in zip(arrays.roles, arrays.layers, strict=True)
            ]
        )
        return np.where(inside | mesh.sequence[:, None], 1.0 / degree, 1.0)

    def communication(self, arrays: ModelArrays, mesh: Mesh, load: StageLoad | None) -> list[Exchange]:
        """Return one exchange of batch * sequence * hidden elements an end of each divided stretch, and direction."""
        if load is not None:
            return []
        ranks, stride = mesh.group(("tensor",))
        folded = whole_experts(arrays, mesh) & mesh.sequence
        found = []
        for place, role in enumerate(arrays.roles):
            if role not in {"column", "row"}:
                continue
            layer = arrays.layers[place]
            elements = arrays.outputs[place] if role == "row" else arrays.inputs[place]
            positions = mesh.axis("context") if arrays.inside[place] else 1
            size = mesh.micro / positions * elements * arrays.precision.element_bytes
            # Folded experts are not cut, so that nothing of them is summed.
            cut = ~folded if layer.experts else np.ones(mesh.rows, dtype=np.bool_)
            if layer.experts:
                # Outputs of the experts of a token are summed before they are exchanged.
                size = size * (arrays.hidden * arrays.sequence_of(place)) / max(1.0, elements)
            for operation, phase, on in _at(role, mesh.sequence):
                count = (on & cut & (ranks > 1)).astype(np.float64)
                if count.any():
                    block = int(arrays.block[place])
                    found.append(Exchange(operation, "tensor", ranks, stride, size, count, phase, block, layer.name))
        return found


def falls_evenly(arrays: ModelArrays, mesh: Mesh) -> Bools:
    """Return for which candidates the sequence falls into equal parts, as sequence parallelism wants it."""
    parts = mesh.axis("tensor") * mesh.axis("context")
    lengths = {shape.sequence for shape in arrays.transformers}
    return np.all([length % parts == 0 for length in lengths], axis=0) if lengths else parts >= 1


def _at(role: str, sequence: Bools) -> Iterator[tuple[Operation, Phase, Bools]]:
    """Yield the exchanges at one end of a divided stretch: (operation, phase, for which candidates)."""
    first: tuple[Phase, Phase] = ("forward", "backward") if role == "column" else ("backward", "forward")
    gathered, reduced = first
    yield "all_reduce", reduced, ~sequence
    yield "all_gather", gathered, sequence
    yield "reduce_scatter", reduced, sequence
