"""Recomputation: which blocks are run again in the backward pass, what they keep until then, what that takes.

"selective" runs calls of torch's attention again, of which queries, keys and values stay (Korthikanti et al., arXiv
2205.05198, section 5). "full" runs whole modules again, of which only the output stays, where the next block starts:
the transformer blocks, of a model without any the blocks that are a module of several layers.
"""

import numpy as np

from trainwright.plan.mesh import RECOMPUTE, Floats, Mesh
from trainwright.plan.modules import runs_of
from trainwright.plan.work import Work

__all__ = ["choices_of", "forward_again", "kept_bytes", "modules_of"]


def choices_of(work: Work) -> tuple[str, ...]:
    """Return those of `RECOMPUTE` that mean something for a model."""
    there = {"none": True, "selective": bool(work.rerun.any()), "full": bool(work.again.any())}
    return tuple(name for name in RECOMPUTE if there[name])


def modules_of(work: Work) -> tuple[str, ...]:
    """Return the paths of the modules that a full recomputation runs again, () where the profile does not say them."""
    return runs_of(work.blocks, work.again.tolist()) if work.profile.origin != "described" else ()


def kept_bytes(work: Work, mesh: Mesh, kept: Floats, recompute: str) -> Floats:
    """Return (ways, blocks): bytes that a run of each block keeps, where its layers keep `kept` if nothing is rerun."""
    whole = work.per_block(kept)
    if recompute == "none":
        return whole
    if recompute == "selective":
        return work.per_block(kept * (1 - work.rerun))
    parts = mesh.axis("context") * mesh.axis("spatial") * np.where(mesh.sequence, mesh.axis("tensor"), 1)
    outputs = mesh.micro[:, None] * np.array([work.scaled(block.output_bytes) for block in work.blocks])
    return np.where(work.again, np.minimum(whole, outputs / parts[:, None]), whole)


def forward_again(work: Work, forward: Floats, exchange: Floats, recompute: str) -> Floats:
    """Return (ways, blocks): seconds of what a run of each block does again; full with its exchanges."""
    if recompute == "none":
        return np.zeros_like(exchange)
    if recompute == "selective":
        return work.per_block(np.where(work.rerun > 0, forward, 0.0))
    return np.where(work.again, work.per_block(forward) + exchange, 0.0)
