"""Recomputation: which blocks are run again in the backward pass, what they keep until then, what that takes.

"selective" runs calls of torch's attention again, of which queries, keys and values stay (Korthikanti et al., arXiv
2205.05198, section 5). "full" runs whole modules again, of which only the output stays, where the next block starts:
the transformer blocks, of a model without any the blocks that are a module of several layers. "operators" keeps the
outputs of attention and of every second product of such a module, as torch's selective checkpointing by operator can;
it is for plans that are asked for, a search does not try it.
"""

from collections.abc import Sequence

import numpy as np

from trainwright.plan.parallel.mesh import Bools, Floats, Mesh
from trainwright.plan.parallel.model_arrays import Work
from trainwright.plan.parallel.rerun_modules import runs_of
from trainwright.plan.parallel.strategies.registry import Exchange

__all__ = ["choices_of", "exchanges_again", "kept_bytes", "layers_again", "modules_of"]


def choices_of(work: Work) -> tuple[str, ...]:
    """Return those of `RECOMPUTE` that mean something for a model, and that a search tries."""
    there = {"none": True, "selective": bool(work.rerun.any()), "full": bool(work.again.any())}
    return tuple(name for name, means in there.items() if means)


def modules_of(work: Work) -> tuple[str, ...]:
    """Return the paths of the modules that a full recomputation runs again, () where the profile does not say them."""
    return runs_of(work.blocks, work.again.tolist()) if work.profile.origin != "described" else ()


def kept_bytes(work: Work, mesh: Mesh, kept: Floats, recompute: str, *, share: Floats) -> Floats:
    """Return (ways, blocks): bytes that a run of each block keeps, where its layers keep `kept` if nothing is rerun.

    `share` of a layer's output is made by one device.
    """
    whole = work.per_block(kept)
    if recompute == "none":
        return whole
    if recompute == "selective":
        return work.per_block(kept * (1 - work.rerun))
    parts = mesh.axis("context") * mesh.axis("spatial") * np.where(mesh.sequence, mesh.axis("tensor"), 1)
    outputs = mesh.micro[:, None] * np.array([work.scaled(block.output_bytes) for block in work.blocks])
    ends = outputs / parts[:, None]
    if recompute == "operators":
        made = np.where(_kept_products(work), work.outputs * work.precision.element_bytes, 0.0)
        ends = ends + work.per_block(mesh.micro[:, None] * share * made)
    return np.where(work.again, np.minimum(whole, ends), whole)


def layers_again(work: Work, recompute: str) -> Bools:
    """Return which layers run a second time.

    Of a block that is run again not its end, of which nothing is kept: the last product's output is only handed on,
    unless what follows (dropout) keeps something. Torch stops before it.
    """
    if recompute == "none":
        return np.zeros(len(work.layers), dtype=np.bool_)
    if recompute == "selective":
        return work.rerun > 0
    found = work.again[work.block] & ~_ends(work)
    return found & ~_kept_products(work) if recompute == "operators" else found


def exchanges_again(work: Work, exchanges: Sequence[Exchange], recompute: str) -> list[int]:
    """Return the places of the exchanges of a forward pass that are made a second time.

    By operators what was reduced is kept, what was gathered is not.
    """
    if recompute in {"none", "selective"}:
        return []
    ends = {(int(work.block[place]), work.layers[place].name) for place in np.flatnonzero(_ends(work))}
    return [
        place
        for place, exchange in enumerate(exchanges)
        if exchange.block is not None
        and work.again[exchange.block]
        and (exchange.block, exchange.layer) not in ends
        and (recompute == "full" or exchange.operation == "all_gather")
    ]


def _ends(work: Work) -> Bools:
    """Return which layers are the last product of their block, or after it, and keep nothing of its output."""
    found = np.zeros(len(work.layers), dtype=np.bool_)
    for block in range(len(work.blocks)):
        for place in np.flatnonzero(work.block == block)[::-1]:
            layer = work.layers[place]
            if layer.kind != "pointwise" or work.saved[place]:
                found[place:][work.block[place:] == block] = layer.kind in {"linear", "conv"}
                break
    return found


def _kept_products(work: Work) -> Bools:
    """Return which layers' outputs stay with recomputation by operators: attention, and every second product."""
    found, before = [], 0
    for layer, block, previous in zip(work.layers, work.block, [-1, *work.block[:-1]], strict=True):
        before = before if block == previous else 0
        product = layer.kind in {"linear", "conv"}
        found.append(layer.kind == "attention" or (product and before % 2 == 0))
        before += product
    return np.array(found, dtype=np.bool_)
