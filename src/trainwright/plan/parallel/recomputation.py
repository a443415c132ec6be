"""Prices recomputation: which blocks are run again in the backward pass, what they keep until then, what that takes.

"selective" runs calls of torch's attention again, of which queries, keys and values stay (Korthikanti et al., arXiv
2205.05198, section 5). "full" runs whole modules again, of which only the output stays, where the next block starts:
the transformer blocks, of a model without any the blocks that are a module of several layers. "operators" keeps the
outputs of attention and of every second product of such a module, as torch's selective checkpointing by operator can;
it is for plans that are asked for, a search does not try it. "offload" runs nothing again: what these modules save goes
to the host beside their forward pass, and comes back one module ahead of the backward pass.
"""

from collections.abc import Sequence

import numpy as np

from trainwright.plan.parallel.mesh import Bools, Floats, Mesh
from trainwright.plan.parallel.model_arrays import ModelArrays, paths_run_again
from trainwright.plan.parallel.strategies.strategy import Exchange

__all__ = ["choices_of", "exchanges_again", "layers_again", "modules_of", "saved_bytes"]


def choices_of(arrays: ModelArrays) -> tuple[str, ...]:
    """Return those of `RECOMPUTE` that mean something for a model, and that a search tries."""
    possible = {"none": True, "selective": bool(arrays.rerun.any()), "full": bool(arrays.again.any())}
    return tuple(name for name, some in possible.items() if some)


def modules_of(arrays: ModelArrays) -> tuple[str, ...]:
    """Return the paths of the modules that a full recomputation runs again, () where the profile does not say them."""
    return paths_run_again(arrays.blocks, arrays.again.tolist()) if arrays.profile.origin != "described" else ()


def saved_bytes(arrays: ModelArrays, mesh: Mesh, saved: Floats, recompute: str, *, share: Floats) -> Floats:
    """Return (ways, blocks): bytes that a run of each block keeps, where its layers keep `kept` if nothing is rerun.

    `share` of a layer's output is made by one device.
    """
    whole = arrays.per_block(saved)
    if recompute == "none":
        return whole
    if recompute == "selective":
        return arrays.per_block(saved * (1 - arrays.rerun))
    if recompute == "offload":
        return np.where(arrays.again, 0.0, whole)
    # Of a block that is run again only its output is saved, divided as activations are.
    parts = mesh.axis("context") * mesh.axis("spatial") * np.where(mesh.sequence, mesh.axis("tensor"), 1)
    outputs = mesh.micro[:, None] * np.array([arrays.scaled(block.output_bytes) for block in arrays.blocks])
    ends = outputs / parts[:, None]
    if recompute == "operators":
        products = np.where(_kept_products(arrays), arrays.outputs * arrays.precision.element_bytes, 0.0)
        ends = ends + arrays.per_block(mesh.micro[:, None] * share * products)
    return np.where(arrays.again, np.minimum(whole, ends), whole)


def layers_again(arrays: ModelArrays, recompute: str) -> Bools:
    """Return which layers run a second time.

    Of a block that is run again not its end, of which nothing is kept: the last product's output is only handed on,
    unless what follows (dropout) keeps something. Torch stops before it.
    """
    if recompute in {"none", "offload"}:
        return np.zeros(len(arrays.layers), dtype=np.bool_)
    if recompute == "selective":
        return arrays.rerun > 0
    found = arrays.again[arrays.block] & ~_ends(arrays)
    return found & ~_kept_products(arrays) if recompute == "operators" else found


def exchanges_again(arrays: ModelArrays, exchanges: Sequence[Exchange], recompute: str) -> list[int]:
    """Return the places of the exchanges of a forward pass that are made a second time.

    By operators what was reduced is kept, what was gathered is not.
    """
    if recompute in {"none", "selective", "offload"}:
        return []
    ends = {(int(arrays.block[place]), arrays.layers[place].name) for place in np.flatnonzero(_ends(arrays))}
    return [
        place
        for place, exchange in enumerate(exchanges)
        if exchange.block is not None
        and arrays.again[exchange.block]
        and (exchange.block, exchange.layer) not in ends
        and (recompute == "full" or exchange.operation == "all_gather")
    ]


def _ends(arrays: ModelArrays) -> Bools:
    """Return which layers are the last product of their block, or after it, and keep nothing of its output."""
    found = np.zeros(len(arrays.layers), dtype=np.bool_)
    for block in range(len(arrays.blocks)):
        for place in np.flatnonzero(arrays.block == block)[::-1]:
            layer = arrays.layers[place]
            if layer.kind != "pointwise" or arrays.saved[place]:
                found[place:][arrays.block[place:] == block] = layer.kind in {"linear", "conv"}
                break
    return found


def _kept_products(arrays: ModelArrays) -> Bools:
    """Return which layers' outputs stay with recomputation by operators: attention, and every second product."""
    found, before = [], 0
    for layer, block, previous in zip(arrays.layers, arrays.block, [-1, *arrays.block[:-1]], strict=True):
        before = before if block == previous else 0
        product = layer.kind in {"linear", "conv"}
        found.append(layer.kind == "attention" or (product and before % 2 == 0))
        before += product
    return np.array(found, dtype=np.bool_)
