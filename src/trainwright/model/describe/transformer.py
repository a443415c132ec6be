"""A transformer's profile from its shape alone: what published tables give, no module and no torch needed.

Sizes of kept activations follow Korthikanti et al., "Reducing Activation Recomputation in Large Transformer Models"
(arXiv 2205.05198), section 4; floating-point operations its appendix A.
"""

from dataclasses import dataclass, replace

from trainwright.errors import InputError
from trainwright.model.layer import ELEMENT_BYTES, Block, Layer, Transformer
from trainwright.model.profile import Profile
from trainwright.validators import check, integer, one_of

__all__ = ["describe_transformer"]

_LOSS_FORWARD, _LOSS_BACKWARD, _LOSS_STEPS = 38, 22, 7
"""Bytes an element of the logits that an unfused cross-entropy moves, and its operations. Forward, in fp32: cast (2
read, 4 written), maximum (4), difference, exponential and quotient (8 each), sum (4); backward: difference, product (8
each) and cast (6)."""


def describe_transformer(
    *,
    hidden: int,
    layers: int,
    heads: int,
    sequence: int,
    vocabulary: int,
    kv_heads: int = 0,
    head_size: int = 0,
    feedforward: int = 0,
    gated: bool = False,
    dropout: bool = True,
    fused_attention: bool = False,
    tied: bool = True,
    biases: bool = True,
    positions: bool | int = True,
    experts: int = 0,
    top_k: int = 1,
    shared_feedforward: int = 0,
    dense_layers: int = 0,
    dense_feedforward: int = 0,
    latent_size: int = 0,
    query_latent_size: int = 0,
    rotary_size: int = 0,
    value_size: int = 0,
    precision: str = "amp-bf16",
    name: str = "transformer",
) -> Profile:
    """Return the profile of one sample (a sequence) of a transformer: embedding, `layers` equal blocks, head.

    `kv_heads` 0 means as many as heads, `head_size` 0 hidden / heads, `feedforward` 0 4 * hidden. A `gated`
    feed-forward part has two inner matrices (SwiGLU). `fused_attention` keeps queries, keys, values and output in
    place of the scores. With `tied` the head has the embedding's weights. `positions` learns one vector a position, or
    so many. With `vocabulary` 0 there are the blocks alone, which is what published tables of activation memory count.
    Of a block without these choices autograd keeps s * h * (34 + 5 * a * s / h) bytes a sample in half precision;
    weights are 12 h^2 + 13 h.

    `experts` > 0 replaces every feed-forward part by so many, of which each token visits `top_k`, and beside them one
    of `shared_feedforward` that all tokens visit; the first `dense_layers` blocks have one of `dense_feedforward`
    instead. `latent_size` > 0 makes the attention a latent one (DeepSeek-V2, arXiv 2405.04434, section 2.1): keys and
    values come from a vector of so many features, queries from one of `query_latent_size` (0: from the hidden vector);
    `rotary_size` of a head's features carry the position, one vector for the keys of all heads; values have
    `value_size` features (0: `head_size`).

    Raises `InputError` for sizes below 1, heads that do not divide hidden, or an unknown precision.
    """
    sizes = {"hidden": hidden, "layers": layers, "heads": heads, "sequence": sequence, "vocabulary": vocabulary}
    for what, value in sizes.items():
        check(value, integer(minimum=0 if what == "vocabulary" else 1), f"describe_transformer: {what}")
    if (hidden % heads and not head_size) or heads % (kv_heads or heads):
        raise InputError(
            f"describe_transformer: heads: got {heads} heads and {kv_heads or heads} of keys for hidden {hidden}; "
            "allowed: heads that divide hidden, kv_heads that divide heads"
        )
    check(precision, one_of(*ELEMENT_BYTES), "describe_transformer: precision")
    shape = Transformer(
        hidden=hidden,
        heads=heads,
        sequence=sequence,
        kv_heads=kv_heads or heads,
        head_size=head_size or hidden // heads,
        feedforward=feedforward or 4 * hidden,
        experts=experts,
        top_k=top_k,
    )
    # Layers of one block, repeated `layers` times by the block's count.
    latent = _Latent(keys=latent_size, queries=query_latent_size, rotary=rotary_size, values=value_size)
    kinds = [("block", shape, layers - dense_layers, shared_feedforward)]
    if dense_layers:
        check(dense_layers, integer(minimum=0, maximum=layers), "describe_transformer: dense_layers")
        dense = replace(shape, experts=0, top_k=1, feedforward=dense_feedforward or 4 * hidden)
        kinds = [("dense", dense, dense_layers, 0), *(kind for kind in kinds if kind[2])]
    blocks: tuple[Block, ...] = ()
    for title, kind, count, shared in kinds:
        maker = _Layers(kind, ELEMENT_BYTES[precision], dropout=dropout, bias=int(biases), latent=latent)
        block = _block_layers(maker, gated=gated, fused=fused_attention, shared=shared)
        blocks += (replace(_make_block(title, block, maker), count=count, transformer=kind),)
    # Without a vocabulary the blocks alone, which is what published tables of activation memory count.
    if vocabulary:
        blocks = (
            _make_block("embedding", maker.embedding(vocabulary, positions=positions), maker),
            *blocks,
            _make_block("head", maker.head(vocabulary, tied=tied), maker, output=4),
        )
    # All parameters are trained and kept in float32.
    elements = sum(block.count * layer.weight_elements for block in blocks for layer in block.layers)
    return Profile(
        name=name,
        batch=1,
        blocks=blocks,
        precision=precision,
        parameters=elements,
        parameter_bytes=4 * elements,
        trainable_elements=elements,
        # Indices are whole numbers of 64 bits.
        input_bytes=8 * sequence,
        origin="described",
    )


@dataclass(frozen=True, kw_only=True, slots=True)
class _Latent:
    """Sizes of latent attention; `keys` 0: of none."""

    keys: int
    queries: int
    rotary: int
    values: int


class _Layers:
    """Makes the layers of one sample of s positions; `size` bytes an element of an activation."""

    def __init__(self, shape: Transformer, size: int, *, dropout: bool, bias: int, latent: _Latent) -> None:
        self.shape, self.size, self.dropout, self.bias, self.latent = shape, size, dropout, bias, latent
        self.value_size = latent.values or shape.head_size
        self.stream = shape.sequence * shape.hidden

    def linear(self, name: str, inputs: int, outputs: int, *, saved: int | None = None, weights: bool = True) -> Layer:
        """Return a matrix product; autograd keeps its input, unless something before it has kept that (`kept` 0)."""
        positions = self.shape.sequence
        x, y, w = positions * inputs, positions * outputs, inputs * outputs
        flops = 2.0 * positions * inputs * outputs
        traffic = self.size * (x + y + w)
        return Layer(
            name=name,
            kind="linear",
            input_elements=x,
            output_elements=y,
            weight_elements=(w + self.bias * outputs) if weights else 0,
            forward_flops=flops,
            backward_flops=2 * flops,
            forward_bytes=traffic,
            backward_bytes=2 * traffic,
            saved_bytes=self.size * x if saved is None else saved,
            channels=inputs,
            filters=outputs,
        )

    def moved(self, name: str, kind: str, elements: int, *, saved: int, weights: int = 0, outputs: int = 0) -> Layer:
        """Return an operation whose time is that of its traffic: in and out forward, twice that backward."""
        outputs = outputs or elements
        traffic = self.size * (elements + outputs)
        return Layer(
            name=name,
            kind=kind,  # type: ignore[arg-type]
            input_elements=elements,
            output_elements=outputs,
            weight_elements=weights,
            forward_bytes=traffic,
            backward_bytes=2 * traffic,
            saved_bytes=saved,
        )

    def norm(self, name: str) -> Layer:
        """Return a layer norm, which keeps its input."""
        weights = (1 + self.bias) * self.shape.hidden
        return self.moved(name, "norm", self.stream, saved=self.size * self.stream, weights=weights)

    def residual(self, name: str) -> Layer:
        """Return dropout, of which a byte an element is kept, and the sum with the residual stream."""
        return self.moved(name, "pointwise", self.stream, saved=self.stream if self.dropout else 0)

    def attention(self, *, fused: bool) -> Layer:
        """Return softmax(Q K^T) V with its dropout: 2 s^2 h multiply-adds."""
        shape = self.shape
        # Queries are as wide as all heads together, keys and values each as wide as their own heads.
        queries = shape.sequence * shape.heads * shape.head_size
        results = shape.sequence * shape.heads * self.value_size
        inputs = queries + shape.sequence * (shape.head_size + self.value_size) * shape.kv_heads
        # Scores grow with the square of the sequence: what fused attention avoids.
        scores = shape.heads * shape.sequence**2
        # The paper keeps softmax and dropout outputs at the size of an element, and a mask of a byte: 5 a s^2.
        saved_scores = self.size * scores + ((self.size + 1) * scores if self.dropout else 0)
        # The output of a fused kernel is what the projection keeps as its input: only the row sums come on top.
        saved = self.size * inputs + (4 * shape.heads * shape.sequence if fused else saved_scores)
        # Scores go to memory and back three times: between product, softmax, dropout and product.
        traffic = self.size * (inputs + results) + (0 if fused else 6 * self.size * scores)
        flops = 2.0 * shape.sequence * (queries + results)
        return Layer(
            name="attention",
            kind="attention",
            input_elements=inputs,
            output_elements=results,
            forward_flops=flops,
            # A fused kernel computes the scores again: five products for the two of forward.
            backward_flops=flops * (2.5 if fused else 2),
            forward_bytes=traffic,
            backward_bytes=2 * traffic,
            saved_bytes=saved,
            rerun_bytes=saved - self.size * inputs,
            launches=1 if fused else 5,
        )

    def projections(self) -> list[Layer]:
        """Return the products that make queries, keys and values of all heads."""
        shape, latent = self.shape, self.latent
        queries = shape.heads * shape.head_size
        if not latent.keys:
            # Grouped-query attention: fewer heads of keys and values than of queries.
            return [self.linear("attention.in", shape.hidden, queries + 2 * shape.head_size * shape.kv_heads)]
        # Down to the small vectors, whose norms have a weight a feature, and up from them to all heads.
        down = self.linear("attention.down", shape.hidden, latent.queries + latent.keys + latent.rotary)
        down = replace(down, weight_elements=down.weight_elements + latent.queries + latent.keys)
        ahead = shape.heads * (shape.head_size - latent.rotary + self.value_size)
        return [
            down,
            self.linear("attention.queries", latent.queries or shape.hidden, queries),
            self.linear("attention.keys_values", latent.keys, ahead),
        ]

    def embedding(self, vocabulary: int, *, positions: bool | int) -> list[Layer]:
        """Return the word and position vectors, and their dropout."""
        learnt = self.shape.sequence if positions is True else int(positions)
        weights = (vocabulary + learnt) * self.shape.hidden
        indices = 8 * self.shape.sequence
        found = self.moved("embedding", "embedding", self.shape.sequence, saved=indices, outputs=self.stream)
        return [replace(found, weight_elements=weights), self.residual("embedding.dropout")]

    def head(self, vocabulary: int, *, tied: bool) -> list[Layer]:
        """Return the last norm, the matrix to the vocabulary, and the loss, which keeps its input in fp32."""
        # A tied head reads the embedding's weights and has no bias of its own.
        logits = replace(self.linear("head", self.shape.hidden, vocabulary, weights=not tied))
        bias = 0 if tied else self.bias * vocabulary
        logits = replace(logits, weight_elements=logits.weight_elements - bias)
        elements = self.shape.sequence * vocabulary
        loss = self.moved("loss", "loss", elements, saved=4 * elements, outputs=1)
        loss = replace(
            loss, forward_bytes=_LOSS_FORWARD * elements, backward_bytes=_LOSS_BACKWARD * elements, launches=_LOSS_STEPS
        )
        return [self.norm("head.norm"), logits, loss]


def _feedforward(maker: _Layers, name: str, inner: int, *, gated: bool) -> list[Layer]:
    """Return both products of a feed-forward part and the non-linearity between them."""
    wide = maker.shape.sequence * inner
    # The paper keeps the input of the non-linearity; its output is the input that the second matrix keeps.
    middle = maker.moved(
        f"{name}.activation", "pointwise", (1 + gated) * wide, saved=maker.size * (1 + gated) * wide, outputs=wide
    )
    first = maker.linear(f"{name}.in", maker.shape.hidden, (1 + gated) * inner)
    return [first, middle, maker.linear(f"{name}.out", inner, maker.shape.hidden)]


def _block_layers(maker: _Layers, *, gated: bool, fused: bool, shared: int) -> list[Layer]:
    shape = maker.shape
    feedforward = _feedforward(maker, "feedforward", shape.feedforward, gated=gated)
    # The router keeps nothing of its own: its input is the norm's output, which the experts save.
    if shape.experts:
        router = maker.linear("feedforward.router", shape.hidden, shape.experts, saved=0)
        feedforward = [router, *(_per_expert(layer, shape) for layer in feedforward)]
        feedforward += _feedforward(maker, "feedforward.shared", shared, gated=gated) if shared else []
    return [
        maker.norm("attention.norm"),
        *maker.projections(),
        maker.attention(fused=fused),
        maker.linear("attention.out", shape.heads * maker.value_size, shape.hidden),
        maker.residual("attention.residual"),
        maker.norm("feedforward.norm"),
        *feedforward,
        maker.residual("feedforward.residual"),
    ]


def _per_expert(layer: Layer, shape: Transformer) -> Layer:
    """Return a layer that exists once an expert, and at which every token is seen `top_k` times."""
    return replace(
        layer,
        input_elements=layer.input_elements * shape.top_k,
        output_elements=layer.output_elements * shape.top_k,
        weight_elements=layer.weight_elements * shape.experts,
        forward_flops=layer.forward_flops * shape.top_k,
        backward_flops=layer.backward_flops * shape.top_k,
        forward_bytes=layer.forward_bytes * shape.top_k,
        backward_bytes=layer.backward_bytes * shape.top_k,
        saved_bytes=layer.saved_bytes * shape.top_k,
        experts=shape.experts,
    )


def _make_block(name: str, layers: list[Layer], maker: _Layers, *, output: int = 0) -> Block:
    handed_on = output or maker.size * maker.stream
    # Backward needs the gradient of the widest layer in addition to those at the block's ends.
    widest = max(layer.output_elements for layer in layers)
    return Block(
        name=name,
        layers=tuple(layers),
        output_bytes=handed_on,
        saved_bytes=sum(layer.saved_bytes for layer in layers),
        backward_temporary_bytes=maker.size * widest,
        gradient_bytes=handed_on,
    )
