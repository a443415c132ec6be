"""The members of a unit computed in one process: in turn, or fused where that was shown to give the same answers."""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trainwright.ensemble.entry import Member, read_member
from trainwright.ensemble.metrics import Array
from trainwright.ensemble.networks import linked, shaped
from trainwright.ensemble.weights import built

if TYPE_CHECKING:
    import torch

__all__ = ["Loop", "runner_of"]


def runner_of(told: Mapping[str, Any]) -> "Loop":
    """Return the runner of what a front tells a worker: members by folder and digests, device, threads, kind."""
    import torch

    torch.set_num_threads(told["threads"])
    members = [read_member(Path(one["folder"]), one["digests"], trial=one["trial"]) for one in told["members"]]
    return Loop(members, device=told["device"])


class Loop:
    """The members one after the other: the reference of all other kinds."""

    def __init__(self, members: Sequence[Member], *, device: str) -> None:
        self._members = tuple(members)
        self._device = device
        self._networks = [built(member).to(device) for member in members]

    def __call__(self, x: Array, members: Sequence[int]) -> Iterator[tuple[int, Array]]:
        """Yield (k, predictions [N, ...] in float64) for each of these members, as soon as it is done."""
        import torch

        given = torch.from_numpy(x).to(self._device)
        for k in members:
            with torch.inference_mode():
                network, member = self._networks[k], self._members[k]
                found = linked(network(_fitting(given, network)), member.link).cpu()
            yield k, shaped(found.double().numpy(), member.output)


def _fitting(x: "torch.Tensor", network: "torch.nn.Module") -> "torch.Tensor":
    """Return x in the floating type of the network, as in-process prediction does."""
    first = next(network.parameters(), None)
    return x.to(first.dtype) if x.is_floating_point() and first is not None else x
