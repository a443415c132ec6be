"""Recognises transformer blocks, by their attention and their products with weights."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from trainwright.model.layer import Block, Layer, Transformer
from trainwright.model.trace.recorder import TensorShape, TracedOperation

__all__ = ["Attention", "find_attention", "recognise_transformers"]


@dataclass(frozen=True, slots=True)
class Attention:
    """Heads, positions that ask, and features of a head, as an attention's operations show them."""

    heads: int
    sequence: int
    width: int


def find_attention(operations: Sequence[TracedOperation], batch: int) -> Attention | None:
    """Return the first attention among operations: a fused one, or a softmax over the result of a batched product."""
    width = 0
    for operation in operations:
        name = str(operation.func)
        shapes = [argument.shape for argument in operation.arguments if isinstance(argument, TensorShape)]
        if "scaled_dot_product" in name and len(shapes[0]) == 4:
            return Attention(shapes[0][1], shapes[0][2], shapes[0][3])
        # The first batched product is queries times keys; its inner size is the width of a head.
        if "bmm" in name:
            width = width or shapes[-2][-1]
        if "_softmax" in name and width and len(shapes[0]) in {3, 4}:
            shape = shapes[0]
            # Scores of three dimensions have batch and heads in one.
            heads = shape[1] if len(shape) == 4 else max(1, shape[0] // batch)
            return Attention(heads, shape[-2], width)
    return None


def recognise_transformers(blocks: Sequence[Block], attentions: Sequence[Attention | None]) -> tuple[Block, ...]:
    """Return the blocks, those with an attention and products with weights with their shape.

    `attentions` says of each stage of the chain, repeated ones included, what attention it has.
    """
    found, stage = [], 0
    for i, block in enumerate(blocks):
        in_block = [attention for attention in attentions[stage : stage + len(block.stages)] if attention is not None]
        stage += len(block.stages) * block.count
        following = blocks[i + 1].layers if i + 1 < len(blocks) else ()
        shape = _block_shape(in_block[0], block.layers, following) if in_block else None
        found.append(replace(block, transformer=shape))
    return tuple(found)


def _block_shape(attention: Attention, layers: Sequence[Layer], following: Sequence[Layer]) -> Transformer | None:
    kinds = [layer.kind for layer in layers]
    if "attention" not in kinds:
        return None
    middle = kinds.index("attention")
    before = [layer for layer in layers[:middle] if layer.kind == "linear"]
    after = [layer for layer in layers[middle + 1 :] if layer.kind == "linear"]
    if not before or not after:
        return None
    hidden, first = after[0].filters, before[0].channels
    # query, key and value are (heads + 2 kv_heads) heads wide together; products before them read other widths
    together = sum(layer.filters for layer in before if layer.channels == first)
    kv_heads, rest = divmod(together - attention.heads * attention.width, 2 * attention.width)
    # The last product that leads back to the hidden size ends the feed-forward part.
    back = [layer.channels for layer in after[1:] if layer.filters == hidden]
    if not back:  # the feed-forward part may be the next block
        back = [layer.channels for layer in following if layer.kind == "linear" and layer.filters == hidden]
    return Transformer(
        hidden=hidden,
        heads=attention.heads,
        sequence=attention.sequence,
        kv_heads=kv_heads if not rest and 0 < kv_heads < attention.heads else 0,
        feedforward=back[-1] if back else 0,
    )
