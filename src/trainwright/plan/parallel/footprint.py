"""Predicts peak memory: bytes of the fullest device, from model state and activations of micro-batches in flight."""

from collections.abc import Sequence
from dataclasses import dataclass, fields

import numpy as np

from trainwright.plan.parallel.block_costs import BlockCosts
from trainwright.plan.parallel.mesh import RECOMPUTE, Floats, Ints, Mesh
from trainwright.plan.parallel.model_arrays import ModelArrays
from trainwright.plan.parallel.precision import Optimizer
from trainwright.plan.parallel.strategies.pipeline import PipelineStages, in_flight

__all__ = ["MemoryFootprint", "peak_bytes"]

_IN_TURN = 8.0  # most bytes an element of temporaries that an optimizer makes of one parameter: two numbers in fp32


@dataclass(frozen=True, eq=False, kw_only=True, slots=True)
class MemoryFootprint:
    """One entry a candidate, of the stage that needs most."""

    peak: Floats
    state: Floats
    activations: Floats
    replicated: Floats
    updated_elements: Floats
    """Parameters that a device updates."""

    @classmethod
    def join(cls, parts: "Sequence[tuple[Ints, MemoryFootprint]]", rows: int) -> "MemoryFootprint":
        """Return those of parts of the candidates in the order of all."""
        columns = {item.name: np.zeros(rows) for item in fields(cls)}
        for places, part in parts:
            for name, column in columns.items():
                column[places] = getattr(part, name)
        return cls(**columns)


def peak_bytes(
    arrays: ModelArrays, optimizer: Optimizer, mesh: Mesh, costs: BlockCosts, *, place: Ints, stages: PipelineStages
) -> MemoryFootprint:
    """Return the bytes of every candidate.

    State: weights are divided at ZeRO level 3, gradients from 2, optimizer state and master copy from 1. Activations:
    of every micro-batch in flight what its blocks keep. On top: the widest backward pass; of FSDP two largest blocks'
    weights and one's gradients; a block that is recomputed. A model that sees one micro-batch an iteration has not yet
    gradients where it has most activations: for it the timeline is followed. The optimizer's step has its own peak.
    """
    # Everything below has a column for each different stage; the fullest is chosen at the end.
    rows = np.arange(mesh.rows)
    precision = arrays.precision
    shard, level = mesh.shard[:, None].astype(np.float64), mesh.zero[:, None]
    # State of each stage: weights, gradients and optimizer state, divided as the ZeRO level says.
    elements = costs.weights[place] @ stages.runs.T
    weights = elements * np.where(level == 3, precision.resident_bytes(3) / shard, precision.weight_bytes)
    trained = costs.trained[place] @ stages.runs.T
    gradients = trained * precision.gradient_bytes / np.where(level >= 2, shard, 1.0)
    optimizing = optimizer.optimizer_bytes(precision, elements, trained) / np.where(level >= 1, shard, 1.0)
    state = weights + gradients + optimizing
    # FSDP holds the gathered weights of two blocks, this one and the next, and the gradients of one.
    used = stages.runs > 0
    unit = 2 * precision.weight_bytes * costs.weights + precision.gradient_bytes * costs.trained
    gathered = np.where(used[None], unit[place][:, None, :], 0.0).max(axis=2)
    # Activations: what blocks save of a micro-batch, for all micro-batches that a stage has in flight.
    flying = in_flight(mesh, stages.first)
    saved = costs.saved[mesh.recompute, place]
    activations = flying * (saved @ stages.runs.T)
    # While a block is recomputed, all that it would have saved exists again.
    # One that was offloaded comes back while the one after it is at work.
    twice = np.where(mesh.recompute == RECOMPUTE.index("offload"), 2.0, 1.0)[:, None]
    standing = np.maximum(0.0, costs.whole[place] - saved) * twice
    top = np.where(used[None], (costs.temporary[place] + standing)[:, None, :], 0.0).max(axis=2)
    peak = state + activations + top + np.where(level == 3, gathered, 0.0)
    # With one micro-batch gradients appear as activations go, so that the sum of both is too much.
    single = (mesh.axis("pipeline") == 1) & (mesh.microbatches == 1) & (mesh.zero <= 1)
    if single.any():
        top = costs.temporary[place] + standing
        # Whoever calls the model holds its output until the backward pass is over; the last block keeps it anyway.
        top[:, :-1] += (mesh.micro * arrays.scaled(arrays.blocks[-1].output_bytes))[:, None]
        followed = _timeline(arrays, costs, place, saved, top)
        lean = weights[:, 0] + optimizing[:, 0] + np.maximum(followed, gradients[:, 0])
        peak[:, 0] = np.where(single, lean, peak[:, 0])
    # The optimizer's step comes after the backward pass, with temporaries of its own.
    peak = np.maximum(peak, state + _updating(arrays, trained / np.where(level >= 1, shard, 1.0)))
    # Buffers and the input exist all the time.
    fixed = arrays.profile.buffer_bytes + mesh.micro * arrays.profile.input_bytes / arrays.profile.batch
    traced = arrays.profile.peak_bytes
    same = only_data = np.zeros(mesh.rows, dtype=np.bool_)
    if traced and (arrays.profile.precision, arrays.profile.optimizer) == (precision.name, optimizer.name):
        # What was traced, step and all, is not estimated again; data parallel it is the least that a rank takes.
        same = single & (mesh.recompute == 0) & (mesh.micro == arrays.profile.batch) & (mesh.zero == 0)
        only_data = mesh.degrees.prod(axis=1) // mesh.axis("data") == 1
        least = np.where(mesh.axis("data") == 1, traced - fixed, np.maximum(peak[:, 0], traced - fixed))
        peak[:, 0] = np.where(same & only_data, least, peak[:, 0])
    # What kernels borrow comes on top: where the step was traced as it stood at the peak, elsewhere the most of any.
    scale = mesh.micro / arrays.profile.batch / (mesh.axis("spatial") * mesh.axis("context"))
    borrowed = scale * arrays.scaled(arrays.profile.largest_workspace_bytes) * arrays.profile.batch
    borrowed = np.where(same & only_data, scale * arrays.profile.workspace_bytes, borrowed)
    peak += borrowed[:, None]
    # All stages share the fullest one's fate: a plan fits if that does.
    fullest = np.argmax(peak, axis=1)
    # For the advice on redundancy: the bytes of which another device has a copy.
    divided = np.where(mesh.zero[:, None] == 3, weights, 0.0) + np.where(level >= 2, gradients, 0.0)
    divided = divided + np.where(level >= 1, optimizing, 0.0)
    copies = mesh.degrees[:, [axis.copies_weights for axis in mesh.axes]].prod(axis=1)
    # What is divided among all copies is nowhere twice; among some of them it is.
    alone = np.where((level > 0) & (mesh.shard == copies)[:, None], divided, 0.0)
    replicated = np.where((copies > 1)[:, None], state - alone, 0.0)
    return MemoryFootprint(
        peak=peak[rows, fullest] + fixed,
        state=state[rows, fullest],
        activations=activations.max(axis=1),
        replicated=replicated[rows, fullest],
        updated_elements=trained.max(axis=1) / np.where(mesh.zero >= 1, mesh.shard, 1),
    )


def _updating(arrays: ModelArrays, elements: Floats) -> Floats:
    """Return what the optimizer's step takes on top of the state, for so many updated elements of each device.

    An optimizer that goes through all parameters at once (`foreach`) takes copies of all; one that takes them in turn
    no more than for the largest, which may lie on any device whole.
    """
    profile = arrays.profile
    # Temporaries of half of all gradients or more tell that all parameters are gone through at once.
    if profile.update_bytes >= profile.gradient_bytes / 2:
        return np.asarray(elements * (profile.update_bytes / max(1, profile.trainable_elements)))
    return np.minimum(float(profile.update_bytes), elements * _IN_TURN)


def _timeline(arrays: ModelArrays, costs: BlockCosts, place: Ints, saved: Floats, top: Floats) -> Floats:
    """Return the most bytes of activations and gradients at one time, while the chain is gone through backwards.

    Within a run of equal blocks both change evenly, so that the first and the last of them are looked at.
    """
    gradients = costs.trained[place] * arrays.precision.gradient_bytes
    counts = arrays.counts
    # Saved bytes of all blocks in front, and gradients of this block and all behind it.
    before = np.concatenate([np.zeros((len(saved), 1)), np.cumsum(saved * counts, axis=1)], axis=1)
    after = np.cumsum((gradients * counts)[:, ::-1], axis=1)[:, ::-1]
    found = np.zeros(len(saved))
    for block, count in enumerate(counts):
        for run in {1, int(count)}:
            standing = before[:, block] + run * saved[:, block] + top[:, block]
            # In the backward of run `run` this one has its gradients, and the runs before it have none yet.
            gradient_bytes = after[:, block] - (run - 1) * gradients[:, block]
            found = np.maximum(found, standing + gradient_bytes)
    return found
