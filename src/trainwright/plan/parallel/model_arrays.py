"""A profile as arrays over its different layers, per sample and at the precision of a plan."""

from collections.abc import Sequence

import numpy as np

from trainwright.model.layer import ELEMENT_BYTES, Block, Layer, Transformer
from trainwright.model.profile import Profile
from trainwright.plan.parallel.mesh import Floats, Ints
from trainwright.plan.parallel.precision import Precision

__all__ = ["ModelArrays", "paths_run_again"]


class ModelArrays:
    """Layers of the chain, those of repeated blocks once; `block` says of which block each is.

    Arrays are per sample; `roles` say what tensor parallelism makes of a layer: "column" (its output is divided),
    "row" (its input is), "inside" (between the two) or "" (every rank does all of it). With `context_by` "ring" or
    "ulysses" context ranks divide all of the model, and pass keys and values round or exchange heads.
    `expert_imbalance`: tokens of the rank whose experts get most of them over the mean, where experts are divided.
    """

    def __init__(
        self, profile: Profile, precision: Precision, context_by: str = "", expert_imbalance: float = 1.0
    ) -> None:
        self.profile, self.precision, self.context_by = profile, precision, context_by
        self.expert_imbalance = expert_imbalance
        blocks, batch = profile.blocks, profile.batch
        self.blocks = blocks
        layers = self.layers = tuple(layer for block in blocks for layer in block.layers)
        traced = ELEMENT_BYTES[profile.precision]
        scale = precision.element_bytes / traced

        def column(name: str, factor: float = 1.0) -> Floats:
            return np.array([getattr(layer, name) * factor for layer in layers], dtype=np.float64)

        # Blocks that repeat are there once, with a count.
        sizes = [len(block.layers) for block in blocks]
        self._starts = np.cumsum([0, *sizes[:-1]])
        self.block = np.repeat(np.arange(len(blocks)), sizes)
        self.counts = np.array([block.count for block in blocks], dtype=np.int64)
        self.roles = tuple(_roles(blocks, self.hidden))
        # Of each block, whether a full recomputation runs it again.
        self.again = np.array(_blocks_run_again(blocks), dtype=np.bool_)
        # Whether a layer is one of a transformer block.
        self.inside = np.repeat([block.transformer is not None for block in blocks], sizes)
        # The runs that a pipeline's stage may begin with, 0 the first.
        self.part_starts = _part_starts(blocks)
        # Per sample and at the plan's precision: bytes scale with the size of an element.
        self.forward_flops, self.backward_flops = (
            column("forward_flops", 1 / batch),
            column("backward_flops", 1 / batch),
        )
        # Of the weights, those that are trained get gradients, and have state of the optimizer.
        weights = self.weights = column("weight_elements")
        self.trained = weights - column("frozen_elements")
        # Weights are read once a micro-batch, however many samples it has.
        self.forward_bytes = np.maximum(0.0, column("forward_bytes") - weights * traced) * scale / batch
        self.backward_bytes = np.maximum(0.0, column("backward_bytes") - 2 * weights * traced) * scale / batch
        self.inputs, self.outputs = column("input_elements", 1 / batch), column("output_elements", 1 / batch)
        known = any(layer.saved_bytes for layer in layers)
        saved = np.concatenate([_kept(block, known=known) for block in blocks]) if layers else np.zeros(0)
        self.saved = saved * scale / batch
        # Share of `saved` that a selective recomputation makes anew.
        self.rerun = column("rerun_bytes") / np.maximum(1.0, column("saved_bytes"))
        self.launches = column("launches")

    @property
    def hidden(self) -> int:
        """Width of the transformer blocks, 0 if there are none."""
        return max((shape.hidden for shape in self.transformers), default=0)

    @property
    def transformers(self) -> list[Transformer]:
        """Shapes of the transformer blocks."""
        return [block.transformer for block in self.profile.blocks if block.transformer is not None]

    def sequence_of(self, layer: int) -> int:
        """Return the positions of a sample in the transformer block of a layer, 0 elsewhere."""
        shape = self.profile.blocks[int(self.block[layer])].transformer
        return shape.sequence if shape else 0

    @property
    def runs(self) -> int:
        """Blocks, repeated ones as often as they run."""
        return int(self.counts.sum())

    @property
    def parts(self) -> int:
        """Parts of the chain that stages are made of: runs, each with those behind it that no stage begins with."""
        return len(self.part_starts)

    def per_block(self, values: Floats) -> Floats:
        """Return sums over the layers of each block: (..., layers) becomes (..., blocks)."""
        found: Floats = np.add.reduceat(values, self._starts, axis=-1)
        return found

    def scaled(self, traced_bytes: float) -> float:
        """Return the bytes per sample at this precision of activations that were traced as so many."""
        return float(
            traced_bytes * self.precision.element_bytes / ELEMENT_BYTES[self.profile.precision] / self.profile.batch
        )


def _kept(block: Block, *, known: bool) -> Floats:
    """Return what each layer keeps: what autograd was seen to keep, if that is `known`, else shares of the block's.

    Copies of weights that autocast made are left out: the state's bytes a parameter have them.
    """
    if known:
        return np.array([layer.saved_bytes - layer.copied_bytes for layer in block.layers], dtype=np.float64)
    spread = np.array([layer.output_elements for layer in block.layers], dtype=np.float64)
    found: Floats = spread * (block.saved_bytes / (spread.sum() or 1.0) if block.saved_bytes else 1.0)
    return found


def _part_starts(blocks: tuple[Block, ...]) -> Ints:
    """Return where stages may begin: at the first run, at modules of the model, and anywhere in a described one."""
    begins = [begin for block in blocks for begin in block.begins or ("any",) * block.count]
    return np.array([place for place, begin in enumerate(begins) if begin or not place], dtype=np.int64)


def _roles(blocks: tuple[Block, ...], hidden: int) -> list[str]:
    """Return the part of each layer in tensor parallelism (Shoeybi et al., arXiv 1909.08053, section 3)."""
    if not hidden:
        return ["" for block in blocks for _ in block.layers]
    roles: list[str] = []
    outer: list[Layer] = []  # of neighbouring blocks that are no transformers: head and loss may be several
    for block in blocks:
        if block.transformer is None:
            outer += block.layers
        else:
            roles += _outer_roles(outer, hidden) + _inner_roles(block, hidden)
            outer = []
    return roles + _outer_roles(outer, hidden)


def _inner_roles(block: Block, hidden: int) -> list[str]:
    roles: list[str] = []
    divided, worked = False, False  # between a column and its row; and something but a matrix came since
    for place, layer in enumerate(block.layers):
        if layer.kind == "norm":
            divided = False
        if layer.kind != "linear":
            worked = worked or layer.kind in {"attention", "pointwise"}
            roles.append("inside" if divided else "")
        elif divided and layer.filters == hidden and worked and not _attention_follows(block.layers[place:]):
            divided = False
            roles.append("row")
        elif divided or layer.channels == hidden:
            roles.append("inside" if divided else "column")
            worked = worked and divided
            divided = True
        else:
            roles.append("")
    return roles


def _attention_follows(layers: tuple[Layer, ...]) -> bool:
    """Return whether attention comes before the next norm."""
    kinds = [layer.kind for layer in layers]
    until = kinds.index("norm") if "norm" in kinds else len(kinds)
    return "attention" in kinds[:until]


def _outer_roles(layers: list[Layer], hidden: int) -> list[str]:
    """Return those of embedding and head: both divide the vocabulary, and the loss works on its part of the logits."""
    roles = []
    divided = False
    for layer in layers:
        if layer.kind == "embedding" and layer.filters in {0, hidden}:
            roles.append("row")
        elif layer.kind == "linear" and layer.channels == hidden and layer.filters > hidden:
            divided = True
            roles.append("column")
        else:
            roles.append("inside" if divided and layer.kind in {"loss", "pointwise"} else "")
    return roles


def _blocks_run_again(blocks: Sequence[Block]) -> tuple[bool, ...]:
    """Return which blocks a full recomputation runs again.

    They are the transformer blocks; in a model without any, those that are a module of several layers.
    """
    if any(block.transformer for block in blocks):
        return tuple(block.transformer is not None for block in blocks)
    paths = [tuple(layer.name.split(".")) for block in blocks for layer in block.layers]
    return tuple(len(block.layers) > 1 and _whole(block, paths) for block in blocks)


def paths_run_again(blocks: Sequence[Block], again: Sequence[bool]) -> tuple[str, ...]:
    """Return the paths of the modules that are run again, () where some block is none."""
    paths = [tuple(layer.name.split(".")) for block in blocks for layer in block.layers]
    chosen = [block for block, runs in zip(blocks, again, strict=True) if runs]
    if not all(_whole(block, paths) for block in chosen):
        return ()
    return tuple(name for block in chosen for name in _names(block))


def _whole(block: Block, paths: Sequence[tuple[str, ...]]) -> bool:
    """Whether each run of a block is a module: its layers, and no other's, are below the run's path.

    `paths` are those of all layers, of repeated blocks those of the first run.
    """
    block_paths = [tuple(layer.name.split(".")) for layer in block.layers]
    first, *others = [tuple(name.split(".")) for name in _names(block)]
    inside = sum(path[: len(first)] == first for path in block_paths)
    return (
        inside == len(block_paths) == sum(path[: len(first)] == first for path in paths)
        and not any(path[: len(other)] == other for other in others for path in paths)
    )  # fmt: skip


def _names(block: Block) -> tuple[str, ...]:
    return block.members or (block.name,)
