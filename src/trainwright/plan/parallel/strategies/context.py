"""Context parallelism: blocks have a part of the sequence on each rank; keys and values are gathered for attention.

Dubey et al., "The Llama 3 Herd of Models" (arXiv 2407.21783), section 3.3.2: keys and values of all positions by an
all-gather. What a rank keeps are those of its own; in the backward pass they are gathered once more, attention is done
once more, and the gradients of keys and values are summed by a reduce-scatter. A ring (arXiv 2310.01889) moves as much.
Embedding and head are done by every rank, so that after the last block the sequence is gathered.

That is what our training does. Others divide all of the model. By a "ring", as torchtitan and Megatron-LM, which give
each rank an early and a late part of the sequence, so that a causal mask leaves all as much to do: c - 1 transfers of
the keys and values of s / c positions beside attention, and twice that backward (arXiv 2310.01889, section 3). By
"ulysses", each rank attends over all positions with a part of the heads: an all-to-all of queries, keys, values and
outputs each way (Jacobs et al., "DeepSpeed-Ulysses", arXiv 2309.14509, section 3); keys of fewer heads are repeated.
"""

import numpy as np

from trainwright.plan.parallel.mesh import Bools, Floats, Ints, Mesh, ParallelAxis
from trainwright.plan.parallel.model_arrays import ModelArrays
from trainwright.plan.parallel.strategies.strategy import (
    Exchange,
    Limit,
    Operation,
    ParallelStrategy,
    Phase,
    StageLoad,
    undivided,
)

__all__ = ["ContextStrategy", "gathered_bytes"]

_COPIES = 3
"""Of gathered keys and values at the same time: these, their gradients, and these side by side for the exchange."""

_BOTH_WAYS: tuple[tuple[Operation, Phase], ...] = (("all_gather", "forward"), ("reduce_scatter", "backward"))
_AGAIN: tuple[Operation, Phase] = ("all_gather", "backward")


class ContextStrategy(ParallelStrategy):
    """Divide the sequence of every sample into `context` parts."""

    axis = ParallelAxis(name="context", order=20, copies_weights=True)

    def limit(self, arrays: ModelArrays, batch: int) -> Limit:  # noqa: ARG002 -- the samples stay together
        """Return the length of the sequence."""
        if not arrays.transformers:
            return Limit(most=1, by="no transformer block was recognised")
        return Limit(most=min(shape.sequence for shape in arrays.transformers), by="the length of the sequence")

    def applies(self, arrays: ModelArrays, degrees: Ints) -> Bools:
        """Accept equal parts."""
        fits = np.ones(len(degrees), dtype=np.bool_)
        for shape in arrays.transformers:
            fits &= shape.sequence % degrees == 0
        return fits

    def compute(self, arrays: ModelArrays, mesh: Mesh) -> Floats:
        """Divide the blocks; attention goes forward twice, with its backward pass it counts as one; a ring all."""
        if arrays.context_by:
            return undivided(arrays, mesh) / mesh.axis("context")[:, None]
        attention = np.array([layer.kind == "attention" for layer in arrays.layers])
        forward, backward = arrays.forward_flops, arrays.backward_flops
        twice = np.where(attention, 1 + forward / np.maximum(1.0, forward + backward), 1.0)
        degree = mesh.axis("context")[:, None]
        return np.where(degree > 1, self._share(arrays, mesh) * np.where(arrays.inside, twice, 1.0), 1.0)

    def memory(self, arrays: ModelArrays, mesh: Mesh) -> tuple[Floats, Floats]:
        """Divide what blocks keep, but no weights."""
        return undivided(arrays, mesh), self._share(arrays, mesh)

    def _share(self, arrays: ModelArrays, mesh: Mesh) -> Floats:
        return np.where(arrays.inside | bool(arrays.context_by), 1.0 / mesh.axis("context")[:, None], 1.0)

    def communication(self, arrays: ModelArrays, mesh: Mesh, load: StageLoad | None) -> list[Exchange]:
        """Return the exchanges of keys and values in every block, and those of the sequence after the last."""
        if load is not None:
            return []
        if arrays.context_by:
            return _exchange_around(arrays, mesh)
        ranks, stride = mesh.group(("context",))
        several = (ranks > 1).astype(np.float64)
        moved: list[tuple[int, str, Floats, float, tuple[tuple[Operation, Phase], ...]]] = []
        for place, layer in enumerate(arrays.layers):
            if layer.kind == "attention" and arrays.inside[place]:
                number = int(arrays.block[place])
                moved.append((number, layer.name, _keys_and_values(arrays, mesh, number), 1.0, (*_BOTH_WAYS, _AGAIN)))
        last = max((number for number, block in enumerate(arrays.blocks) if block.transformer), default=None)
        if last is not None:
            size = mesh.micro * np.float64(arrays.scaled(arrays.blocks[last].output_bytes))
            # Once a micro-batch: before what follows the blocks, or after as many runs as there are.
            number = min(last + 1, len(arrays.blocks) - 1)
            once = 1.0 if number > last else 1.0 / int(arrays.counts[last])
            moved.append((number, arrays.blocks[last].name, size, once, _BOTH_WAYS))
        return [
            Exchange(operation, "context", ranks, stride, size, times * several, phase, number, name)
            for number, name, size, times, exchanges in moved
            for operation, phase in exchanges
        ]


def _exchange_around(arrays: ModelArrays, mesh: Mesh) -> list[Exchange]:
    """Return what each attention exchanges if all of the model is divided."""
    ranks, stride = mesh.group(("context",))
    directions: tuple[tuple[Phase, int], ...] = (("forward", 1), ("backward", 2))
    found = []
    for place, layer in enumerate(arrays.layers):
        if layer.kind != "attention" or not arrays.inside[place]:
            continue
        number = int(arrays.block[place])
        keys, where = _keys_and_values(arrays, mesh, number) / ranks, (number, layer.name)
        shape = arrays.blocks[number].transformer
        assert shape is not None  # noqa: S101 -- what is inside is a block of one
        # Keys and values, as queries and outputs, are two tensors of one size; a rank needs a head of each.
        heads = shape.kv_heads or shape.heads
        repeated = keys / 2 * np.maximum(1.0, ranks * mesh.axis("tensor") / heads)
        for phase, times in directions:
            if arrays.context_by == "ring":
                count = (times * (ranks - 1)).astype(np.float64)
                found.append(Exchange("send", "context", ranks, stride, keys, count, phase, *where, overlaps=True))
                continue
            both = np.where(ranks > 1, 2.0, 0.0)
            found += [
                Exchange("all_to_all", "context", ranks, stride, size, both, phase, *where)
                for size in (keys / 2 * shape.heads / heads, repeated)
            ]
    return found


def gathered_bytes(arrays: ModelArrays, mesh: Mesh) -> Floats:
    """Return (ways, blocks): bytes that gathered keys and values take while a block's attention is at work.

    With them a mask of s / c by s, as a number and as a byte.
    """
    found = np.zeros((mesh.rows, len(arrays.blocks)))
    degree = mesh.axis("context")
    for number, block in enumerate(arrays.blocks) if (degree > 1).any() and not arrays.context_by else ():
        if block.transformer is not None:
            mask = block.transformer.sequence**2 / degree * (1 + arrays.precision.element_bytes)
            found[:, number] = np.where(degree > 1, _COPIES * _keys_and_values(arrays, mesh, number) + mask, 0.0)
    return found


def _keys_and_values(arrays: ModelArrays, mesh: Mesh, block: int) -> Floats:
    """Return the bytes of keys and values of all positions of a micro-batch, those of a tensor rank's heads."""
    shape = arrays.blocks[block].transformer
    assert shape is not None  # noqa: S101 -- those that ask have looked
    width = shape.head_size or shape.hidden / shape.heads
    elements = 2 * shape.sequence * width * (shape.kv_heads or shape.heads)
    found: Floats = mesh.micro / mesh.axis("tensor") * (elements * arrays.precision.element_bytes)
    return found
