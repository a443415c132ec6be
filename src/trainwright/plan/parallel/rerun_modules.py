"""Which blocks of a profile are modules of the model: those that can be run again, by their paths."""

from collections.abc import Sequence

from trainwright.model.layer import Block

__all__ = ["blocks_run_again", "paths_run_again"]


def blocks_run_again(blocks: Sequence[Block]) -> tuple[bool, ...]:
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
