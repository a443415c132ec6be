"""Time tables and bytes of members on devices that are not here, from traces of their networks and data sheets.

Work and traffic of every layer are traced at two batch sizes and are lines in between and beyond; the roofline makes
seconds of them. A member that cannot be traced is taken for a stack of dense layers: two operations a parameter and
row. Nothing of this is measured: what follows from it is said to be simulated.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np

from trainwright.cluster import Cluster
from trainwright.ensemble import Ensemble, Member
from trainwright.ensemble.library.weights import build_network
from trainwright.errors import EnsembleError, ProfileError
from trainwright.model.layer import Block, Layer
from trainwright.model.measure.roofline import predict_seconds
from trainwright.model.profile import Profile
from trainwright.serve.placement.memory_model import MemberFootprint, MemoryModel
from trainwright.serve.placement.time_tables import TimeTables

__all__ = ["simulated_tables"]

_FEW, _MANY = 2, 64  # rows of the two traces
_SLACK = 1.25


def simulated_tables(
    ensemble: Ensemble, clusters: Sequence[Cluster], batches: Sequence[int]
) -> tuple[TimeTables, MemoryModel]:
    """Return seconds of every member and batch on each cluster's device, and what members take of memory.

    Raises ProfileError for a device whose speed at the members' precision is not known.
    """
    traces = [_trace_member(member) for member in ensemble.members]
    seconds = {
        cluster.device.kind: np.array(
            [[_batch_seconds(_profile_at(trace, batch), cluster) for batch in batches] for trace in traces]
        )
        for cluster in clusters
    }
    footprints = tuple(_member_footprint(member, trace) for member, trace in zip(ensemble.members, traces, strict=True))
    return TimeTables(batches=tuple(batches), seconds=seconds, source="roofline"), MemoryModel(footprints=footprints)


def _trace_member(member: Member) -> tuple[Profile, Profile]:
    """Return the profiles of a few and of many rows, of the same layers."""
    import torch

    if member.predicts and member.input_shape is not None:
        try:
            network = build_network(member)
            few, many = (
                Profile.trace(
                    network,
                    torch.zeros(rows, *member.input_shape, dtype=getattr(torch, member.input_dtype or "float32")),
                    optimizer=None,
                    fold=False,
                )
                for rows in (_FEW, _MANY)
            )
        except (EnsembleError, ProfileError):
            return _dense_profile(member, _FEW), _dense_profile(member, _MANY)
        if len(list(_list_layers(few))) == len(list(_list_layers(many))):
            return few, many
    return _dense_profile(member, _FEW), _dense_profile(member, _MANY)


def _dense_profile(member: Member, rows: int) -> Profile:
    """Return the profile of one dense layer with the member's parameters."""
    count = member.parameter_count or 1
    width = math.isqrt(count) + 1
    layer = Layer(
        name="dense",
        kind="linear",
        input_elements=width,
        output_elements=width,
        weight_elements=count,
        forward_flops=2.0 * count * rows,
        forward_bytes=4 * (count + 2 * width * rows),
    )
    block = Block(
        name="dense", layers=(layer,), output_bytes=4 * width * rows, no_grad_temporary_bytes=4 * width * rows
    )
    return Profile(name=f"trial {member.trial}", batch=rows, blocks=(block,), input_bytes=4 * width * rows)


def _list_layers(profile: Profile) -> Iterator[Layer]:
    for block in profile.blocks:
        for _ in range(block.count):
            yield from block.layers


def _profile_at(traces: tuple[Profile, Profile], batch: int) -> Profile:
    """Return one block with the layers' work at a batch size, on the line through the two traces."""
    few, many = traces
    share = (batch - few.batch) / (many.batch - few.batch)
    layers = tuple(
        replace(
            less,
            forward_flops=max(0.0, less.forward_flops + share * (more.forward_flops - less.forward_flops)),
            forward_bytes=max(0, int(less.forward_bytes + share * (more.forward_bytes - less.forward_bytes))),
        )
        for less, more in zip(_list_layers(few), _list_layers(many), strict=True)
    )
    return replace(few, batch=batch, blocks=(Block(name="all", layers=layers),))


def _batch_seconds(profile: Profile, cluster: Cluster) -> float:
    """Return the seconds of a batch: its layers, and the way of the input to the device."""
    device = cluster.device
    found = math.fsum(layer.forward_seconds or 0.0 for layer in _list_layers(predict_seconds(profile, device)))
    if device.host_bandwidth:
        found += profile.input_bytes * profile.batch / _FEW / device.host_bandwidth
    return max(found, 1e-9)


def _member_footprint(member: Member, traces: tuple[Profile, Profile]) -> MemberFootprint:
    """Return a line above the peaks of both traces, with slack: input, what is handed on, and what is taken beside."""
    few, many = (_SLACK * (profile.input_bytes + max(_held_bytes(profile), default=0)) for profile in traces)
    row = max(0.0, (many - few) / (_MANY - _FEW))
    return MemberFootprint(
        weight_bytes=member.weight_bytes or 4 * (member.parameter_count or 0),
        row_bytes=math.ceil(row),
        fixed_bytes=math.ceil(max(0.0, few - _FEW * row)),
    )


def _held_bytes(profile: Profile) -> Iterator[int]:
    handed = 0
    for block in profile.blocks:
        yield handed + block.no_grad_temporary_bytes + block.output_bytes
        handed = block.output_bytes
