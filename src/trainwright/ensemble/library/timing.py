"""What the members of a library cost here and now, all timed by one process on one device."""

from collections.abc import Callable
from dataclasses import replace

from trainwright.ensemble.library.cost import measure
from trainwright.ensemble.library.member import Member
from trainwright.ensemble.library.weights import build_network
from trainwright.errors import CostError

__all__ = ["measure_member"]


def measure_member(member: Member, sample: object | Callable[[], object] | None = None, device: str = "cpu") -> Member:
    """Return a member with its costs measured on a device ("cpu", "cuda:1") at batch 128.

    `sample` is a batch or a function of one; without it rows of zeros do, of the shape that the trial's own sample had.
    Raises `CostError` without either, and what building the network raises.
    """
    import torch

    if sample is None:
        if member.input_shape is None or member.input_dtype is None:
            raise CostError(
                f"Library.measured: trial {member.trial} has left no sample batch, so the shape of its input is not "
                "known; allowed: a sample for all members; give sample="
            )
        sample = torch.zeros((1, *member.input_shape), dtype=getattr(torch, member.input_dtype))
    cost = measure(build_network(member).to(device), sample)
    return replace(
        member,
        device=cost.device,
        seconds_per_row=None if cost.seconds is None else cost.seconds / cost.rows,
        weight_bytes=cost.weight_bytes,
        parameter_count=cost.parameter_count,
        input_shape=cost.input_shape,
        input_dtype=cost.input_dtype,
    )
