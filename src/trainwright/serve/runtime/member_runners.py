"""Runs the members of a unit, loaded in one process: each computes its predictions in turn."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trainwright.ensemble.library.member import Member, read_member
from trainwright.ensemble.library.networks import apply_link, build_network, shape_outputs
from trainwright.ensemble.metrics import Array

if TYPE_CHECKING:
    import torch

__all__ = ["MemberLoop", "Runner", "describe_member", "runner_of"]


Runner = Callable[[Array, Sequence[int]], Iterator[tuple[int, Array]]]
"""The members of a unit, loaded on their device; yields as `MemberLoop` does."""


def describe_member(member: Member) -> dict[str, Any]:
    """Return what another process needs to load a member, as JSON."""
    return {
        "folder": str(member.folder.absolute()),
        "trial": member.trial,
        "digests": dict(member.digests),
    }


def runner_of(start: Mapping[str, Any]) -> Runner:
    """Return the runner of what a worker is started with: members by folder and digests, device, threads."""
    import torch

    torch.set_num_threads(start["threads"])
    members = [read_member(Path(one["folder"]), one["digests"], trial=one["trial"]) for one in start["members"]]
    return MemberLoop(members, device=start["device"])


class MemberLoop:
    """The members one after the other."""

    def __init__(self, members: Sequence[Member], *, device: str) -> None:
        self.members = tuple(members)
        self.device = device
        networks = [build_network(member).to(device) for member in members]
        firsts = [next(network.parameters(), None) for network in networks]
        self._dtypes = [None if first is None else first.dtype for first in firsts]
        self._layers = [_flatten_layers(network) for network in networks]

    def __call__(self, x: Array, members: Sequence[int]) -> Iterator[tuple[int, Array]]:
        """Yield (k, predictions [N, ...] in float64) for each of these members, as soon as it is done."""
        import torch

        # As in-process prediction does, so that answers are equal.
        compute = torch.inference_mode()(self.compute)
        rows = torch.from_numpy(x).to(self.device)
        # An accelerator works while this thread continues, so there all are started before the first is waited for.
        ahead = list(members) if self.device != "cpu" else []
        started = {k: compute(k, rows) for k in ahead}
        for k in members:
            output = started[k] if k in started else compute(k, rows)
            member = self.members[k]
            yield k, shape_outputs(apply_link(output, member.link).cpu().double().numpy(), member.output)

    def compute(self, k: int, rows: "torch.Tensor") -> "torch.Tensor":
        """Return the output of network k for a batch on its device, in the network's type; in inference mode."""
        dtype = self._dtypes[k]
        if dtype is not None and rows.dtype != dtype and rows.is_floating_point():
            rows = rows.to(dtype)
        for layer in self._layers[k]:
            rows = layer(rows)
        return rows


def _flatten_layers(network: "torch.nn.Module") -> "list[Callable[[torch.Tensor], torch.Tensor]]":
    """Return the calls that compute a network: of a plain `Sequential` those of its layers, else the network itself.

    Calling modules within modules takes as long as the arithmetic of a few rows through small layers.
    """
    import torch
    from torch import nn

    # Hooks are only run by a call of the module.
    if network._forward_hooks or network._forward_pre_hooks:  # noqa: SLF001 - torch has no other way to ask
        return [network]
    if type(network) is nn.Linear:
        return [partial(nn.functional.linear, weight=network.weight, bias=network.bias)]
    if type(network) is not nn.Sequential:
        # Of torch's own layers `forward` is all that a call does.
        own = type(network).__module__.startswith("torch.nn.modules.")
        return [network.forward if own else network]
    calls: list[Callable[[torch.Tensor], torch.Tensor]] = []
    for layer in network:
        # What a linear layer returns belongs to nobody else, so the ReLU behind it needs no memory of its own.
        after_linear = bool(calls) and isinstance(calls[-1], partial)
        found = _flatten_layers(layer)
        calls += [torch.relu_] if after_linear and type(layer) is nn.ReLU and found != [layer] else found
    return calls
