"""Predicts the throughput of members on devices that are not here (roofline), from traces and data sheets.

Work and traffic of every layer are traced once and scaled with the rows, but for the weights, which each batch reads
once; the roofline makes seconds of them. A member that cannot be traced is taken for a stack of dense layers: two
operations a parameter and row. Nothing of this is measured: what follows from it is said to be simulated.
"""

import contextlib
import math
from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np

from trainwright.cluster import Cluster
from trainwright.ensemble import Ensemble, Member
from trainwright.ensemble.library.networks import build_network
from trainwright.errors import EnsembleError, ProfileError
from trainwright.model.layer import Block, Layer, stages_of
from trainwright.model.profile import Profile
from trainwright.serve.placement.units import MemberFootprint, MemoryModel, TimeTables

__all__ = ["simulated_tables"]

_TRACED_ROWS = 64
_SLACK = 1.25
_ELEMENT_BYTES = 4


def simulated_tables(
    ensemble: Ensemble, clusters: Sequence[Cluster], batches: Sequence[int]
) -> tuple[TimeTables, MemoryModel]:
    """Return seconds of every member and batch on each cluster's device, and what members take of memory.

    Raises ProfileError for a device whose speed at the members' precision is not known.
    """
    traces = [_trace_member(member) for member in ensemble.members]
    seconds = {
        cluster.device.kind: np.array(
            [[_batch_seconds(trace, batch, cluster) for batch in batches] for trace in traces]
        )
        for cluster in clusters
    }
    footprints = tuple(_member_footprint(member, trace) for member, trace in zip(ensemble.members, traces, strict=True))
    return TimeTables(batches=tuple(batches), seconds=seconds, source="roofline"), MemoryModel(footprints=footprints)


def _trace_member(member: Member) -> Profile:
    """Return the profile of a member's forward pass, or of one dense layer with its parameters."""
    import torch

    if member.predicts and member.input_shape is not None:
        dtype = getattr(torch, member.input_dtype or "float32")
        # What cannot be built or traced is estimated by its parameters below.
        with contextlib.suppress(EnsembleError, ProfileError):
            x = torch.zeros(_TRACED_ROWS, *member.input_shape, dtype=dtype)
            return Profile.trace(build_network(member), x, optimizer=None)
    count = member.parameter_count or 1
    width = math.isqrt(count) + 1
    row_bytes = _ELEMENT_BYTES * width * _TRACED_ROWS
    layer = Layer(
        name="dense",
        kind="linear",
        input_elements=width,
        output_elements=width,
        weight_elements=count,
        forward_flops=2.0 * count * _TRACED_ROWS,
        forward_bytes=_ELEMENT_BYTES * count + 2 * row_bytes,
    )
    block = Block(name="dense", layers=(layer,), output_bytes=row_bytes, no_grad_temporary_bytes=row_bytes)
    return Profile(name=f"trial {member.trial}", batch=_TRACED_ROWS, blocks=(block,), input_bytes=row_bytes)


def _batch_seconds(profile: Profile, batch: int, cluster: Cluster) -> float:
    """Return the seconds of a batch: its layers, and the way of the input to the device."""
    device, share = cluster.device, batch / _TRACED_ROWS
    layers = []
    for layer in profile.layers:
        # The weights are read once, whatever the rows.
        weights = min(layer.forward_bytes, _ELEMENT_BYTES * layer.weight_elements)
        moved = weights + int((layer.forward_bytes - weights) * share)
        layers.append(replace(layer, forward_flops=layer.forward_flops * share, forward_bytes=moved))
    scaled = replace(profile, batch=batch, blocks=(Block(name="all", layers=tuple(layers)),))
    found = math.fsum(layer.forward_seconds or 0.0 for layer in scaled.on(device).layers)
    if device.host_bandwidth:
        found += profile.input_bytes * share / device.host_bandwidth
    return max(found, 1e-9)


def _member_footprint(member: Member, profile: Profile) -> MemberFootprint:
    """Return the peak of a row, with slack: input, what is handed on, and what is taken besides."""
    peak = _SLACK * (profile.input_bytes + max(_live_bytes(profile), default=0))
    return MemberFootprint(
        weight_bytes=member.weight_bytes or _ELEMENT_BYTES * (member.parameter_count or 0),
        row_bytes=math.ceil(peak / _TRACED_ROWS),
    )


def _live_bytes(profile: Profile) -> Iterator[int]:
    handed = 0
    for stage in (stage for block in profile.blocks for stage in stages_of(block, _ELEMENT_BYTES)):
        yield handed + stage.no_grad_temporary_bytes + stage.output_bytes
        handed = stage.output_bytes
