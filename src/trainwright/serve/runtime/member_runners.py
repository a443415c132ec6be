"""The members of a unit, loaded in one process and computed in turn."""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from trainwright.ensemble.library.member import Member, read_member
from trainwright.ensemble.library.networks import apply_link, build_network, shape_outputs
from trainwright.ensemble.metrics import Array

if TYPE_CHECKING:
    import torch

__all__ = ["MemberLoop", "Runner", "describe_member", "runner_of"]


class Runner(Protocol):
    """The members of a unit, loaded on their device."""

    def __call__(self, x: Array, members: Sequence[int]) -> Iterator[tuple[int, Array]]:
        """Yield (k, predictions [N, ...] in float64) for each of these members of the unit, as soon as it is done."""


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
        self.networks = [build_network(member).to(device) for member in members]

    def __call__(self, x: Array, members: Sequence[int]) -> Iterator[tuple[int, Array]]:
        """Yield (k, predictions [N, ...] in float64) for each of these members, as soon as it is done."""
        import torch

        rows = torch.from_numpy(x).to(self.device)
        # An accelerator works while this thread continues, so there all are started before the first is waited for.
        ahead = list(members) if self.device != "cpu" else []
        started = {k: self._compute(k, rows) for k in ahead}
        for k in members:
            output = started[k] if k in started else self._compute(k, rows)
            member = self.members[k]
            yield k, shape_outputs(apply_link(output, member.link).cpu().double().numpy(), member.output)

    def _compute(self, k: int, rows: "torch.Tensor") -> "torch.Tensor":
        """Return the output of network k for a batch on its device, in the network's floating type."""
        import torch

        first = next(self.networks[k].parameters(), None)
        # As in-process prediction does, so that answers are equal.
        with torch.inference_mode():
            typed = rows.to(first.dtype) if rows.is_floating_point() and first is not None else rows
            out: torch.Tensor = self.networks[k](typed)
            return out
