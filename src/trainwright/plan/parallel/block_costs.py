"""What one run of each block takes and keeps on one device, for the different ways to divide it."""

from dataclasses import dataclass

import numpy as np

from trainwright.cluster import Cluster
from trainwright.plan.parallel.mesh import RECOMPUTE, Bools, Floats, Mesh
from trainwright.plan.parallel.model_arrays import ModelArrays
from trainwright.plan.parallel.recomputation import exchanges_again, layers_again, saved_bytes
from trainwright.plan.parallel.roofline import host_seconds, layer_seconds
from trainwright.plan.parallel.strategies.context import gathered_bytes
from trainwright.plan.parallel.strategies.registry import STRATEGIES
from trainwright.plan.parallel.strategies.strategy import Exchange, Phase, all_seconds

__all__ = ["BlockCosts", "block_costs"]

_ROUNDNESS = 6.0  # of the norm between device and host


@dataclass(frozen=True, eq=False, kw_only=True, slots=True)
class BlockCosts:
    """Arrays of (ways, blocks) for one run on one micro-batch; those with recompute have its choices in front."""

    forward: Floats
    backward: Floats
    again: Floats
    """(recompute, ways, blocks): forward work that is done a second time, its exchanges included."""
    forward_exchange: Floats
    backward_exchange: Floats
    """Exposed seconds of the exchanges inside the block."""
    saved: Floats
    """(recompute, ways, blocks): bytes that wait for the backward pass."""
    whole: Floats
    """Bytes that the block keeps without recomputing: what stands again while it is recomputed."""
    temporary: Floats
    """Bytes on top during its backward pass."""
    weights: Floats
    trained: Floats
    """Of them, those that get gradients."""
    trained_experts: Floats
    exchanges: tuple[Exchange, ...]


def block_costs(arrays: ModelArrays, cluster: Cluster, mesh: Mesh) -> BlockCosts:
    """Return the costs of every way that is a row of `mesh`."""
    samples = mesh.micro.astype(np.float64)
    share = np.ones((mesh.rows, len(arrays.layers)))
    weights, saved = share.copy(), share.copy()
    exchanges: list[Exchange] = []
    # Shares of several strategies multiply: each divides what the others leave.
    for strategy in STRATEGIES:
        if (mesh.axis(strategy.axis.name) > 1).any():
            share *= strategy.compute(arrays, mesh)
            weight_share, keeps = strategy.memory(arrays, mesh)
            weights *= weight_share
            saved *= keeps
            exchanges += strategy.communication(arrays, mesh, None)
    experts = np.array([layer.experts > 0 for layer in arrays.layers])
    uneven = np.where(experts & (mesh.axis("expert") > 1)[:, None], arrays.expert_imbalance, 1.0)
    share = share * uneven
    # Seconds of the divided layers, then those of the exchanges that computation does not hide.
    layers_ahead, layers_back = layer_seconds(arrays, cluster, samples=samples, share=share, weights=weights)
    took = all_seconds(cluster, exchanges)
    forward, ahead = _phase_seconds(arrays, cluster, exchanges, took, phase="forward", layers=layers_ahead)
    backward, back = _phase_seconds(arrays, cluster, exchanges, took, phase="backward", layers=layers_back)
    bytes_kept = saved * arrays.saved * samples[:, None]
    # For each kind of recomputation: what stays saved, and what runs a second time.
    choices = [saved_bytes(arrays, mesh, bytes_kept, name, share=share) for name in RECOMPUTE]
    again = []
    for name in RECOMPUTE:
        repeated = layers_again(arrays, name)
        places = exchanges_again(arrays, exchanges, name)
        some = [exchanges[i] for i in places], [took[i] for i in places]
        again.append(sum(_phase_seconds(arrays, cluster, *some, phase="forward", layers=layers_ahead, chosen=repeated)))
    trained = weights * arrays.trained
    whole = arrays.per_block(bytes_kept)
    if link := cluster.device.host_bandwidth:
        # Copies to the host and back, as far as computation of their own phase does not hide them.
        copied = np.where(arrays.again, whole / link, 0.0)
        again[RECOMPUTE.index("offload")] = np.maximum(0.0, copied - forward) + np.maximum(0.0, copied - backward)
    return BlockCosts(
        forward=forward,
        backward=backward,
        again=np.stack(again),
        forward_exchange=ahead,
        backward_exchange=back,
        saved=np.stack(choices),
        whole=whole,
        temporary=_temporary(arrays, samples, whole, saved) + gathered_bytes(arrays, mesh),
        weights=arrays.per_block(weights * arrays.weights),
        trained=arrays.per_block(trained),
        trained_experts=arrays.per_block(np.where(experts, trained, 0.0)),
        exchanges=tuple(exchanges),
    )


def _phase_seconds(
    arrays: ModelArrays,
    cluster: Cluster,
    exchanges: list[Exchange],
    took: list[Floats],
    *,
    phase: Phase,
    layers: Floats,
    chosen: Bools | None = None,
) -> tuple[Floats, Floats]:
    """Return what blocks compute in one phase, and their exposed exchanges: (ways, blocks) each.

    The host issues operations ahead of the device. Where that takes longer than the work, the device waits: a block
    takes the 6-norm of both, which is nearly the longer one and smooth between them.
    """
    runs = np.ones(len(arrays.layers), dtype=np.bool_) if chosen is None else chosen
    compute = arrays.per_block(np.where(runs, layers, 0.0))
    # Covered exchanges cost what is longer than the computation, or what that slows down.
    open_, covered = np.zeros_like(compute), np.zeros_like(compute)
    for exchange, seconds in zip(exchanges, took, strict=True):
        if exchange.phase == phase and exchange.block is not None:
            seconds_of = covered if exchange.overlaps else open_
            seconds_of[:, exchange.block] += exchange.count * seconds
    exposed = open_ + np.maximum((1 - cluster.overlap) * covered, covered - compute)
    # A backward pass has two operations for one forward.
    host = (2 if phase == "backward" else 1) * host_seconds(arrays, cluster, runs)
    issued = np.tile(host, (len(compute), 1))
    for exchange in exchanges:
        if exchange.phase == phase and exchange.block is not None:
            issued[:, exchange.block] += exchange.count * cluster.exchange_seconds
    busy = compute + exposed
    longer = (busy**_ROUNDNESS + issued**_ROUNDNESS) ** (1 / _ROUNDNESS) if issued.any() else busy
    return compute + longer - busy, exposed


def _temporary(arrays: ModelArrays, samples: Floats, whole: Floats, share: Floats) -> Floats:
    """Return the bytes of a block's backward pass beyond what is kept: both gradients, and what it needs inside.

    They are divided as what the block keeps is, on the average of its layers if it keeps nothing.
    """
    inside = []
    for place, block in enumerate(arrays.blocks):
        # The gradient of a run's input is that of the output of the run before it: of the same block, or of another.
        handed = [block.gradient_bytes] if block.count > 1 else []
        handed += [arrays.blocks[place - 1].gradient_bytes] if place else []
        both = block.gradient_bytes + max(handed, default=0)
        inside.append(max(block.forward_temporary_bytes, block.backward_temporary_bytes + both))
    undivided = samples[:, None] * np.array([arrays.scaled(size) for size in inside])
    saved = samples[:, None] * arrays.per_block(arrays.saved)
    plain = arrays.per_block(share) / arrays.per_block(np.ones_like(share))
    ratio: Floats = np.where(saved > 0, whole / np.maximum(saved, 1.0), plain)
    found: Floats = undivided * ratio
    return found
