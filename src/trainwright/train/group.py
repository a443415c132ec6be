"""The process group of a trial on several devices: how ranks initialise torch.distributed, report as one, and part."""

import contextlib
import gc
import os
from datetime import timedelta
from enum import IntEnum
from typing import TYPE_CHECKING, Any

from trainwright.errors import MissingExtra, TrialError, first_line
from trainwright.ledger import Record

if TYPE_CHECKING:
    from trainwright.train.assignment import Assignment, Channel

__all__ = ["WAIT_SECONDS", "GroupFailed", "join_process_group", "leave_process_group", "wait_for_ranks"]

WAIT_SECONDS = 1800.0
"""For which ranks wait for each other: one may evaluate alone. Of a rank that is gone its engine knows at once."""


class GroupFailed(Exception):
    """The ranks of a trial have not found each other, through no fault of the trial's."""


class _Word(IntEnum):
    """What a rank says where all meet."""

    LEAVES = 0
    HERE = 1
    ENDS = 2
    GOES_ON = 3


def join_process_group(assignment: "Assignment", channel: "Channel", *, gpu: bool) -> "Channel":
    """Make this process a rank of its trial; return the channel through which all go on or end together.

    A process alone keeps its channel, and loads no torch. Raises `GroupFailed` if the ranks do not find each other.
    """
    if assignment.world_size == 1:
        return channel
    with MissingExtra.instead_of_import_error("a trial on several devices", "torch", "torch"):
        import torch.distributed as dist
        from torch.distributed.rendezvous import rendezvous
    rank, world, timeout = assignment.rank, assignment.world_size, timedelta(seconds=WAIT_SECONDS)
    try:
        store, _, _ = next(rendezvous(f"tcp://{assignment.address}", rank, world, timeout=timeout))
        backend = "cpu:gloo,cuda:nccl" if gpu and _own_gpus(store, rank, world) else "gloo"
        dist.init_process_group(backend, store=store, rank=rank, world_size=world, timeout=timeout)
    except (RuntimeError, ValueError) as error:  # torch's words for a port in use, no answer, an odd host
        raise GroupFailed(
            f"its {world} processes did not find each other at {assignment.address}: {first_line(error)}"
        ) from error
    _tell_frameworks(assignment)
    return _Leader(channel) if assignment.rank == 0 else _Follower()


def wait_for_ranks() -> None:
    """Wait until all ranks are at a report. Raises `TrialError` if one does not come."""
    _exchange_words(_Word.HERE)


def leave_process_group() -> None:
    """Take down the group of a trial that has ended well and that nobody holds, once all ranks have come here.

    After a failure it is left as it is, and the process has to be ended: else the other ranks would fail for it before
    the cause is known.
    """
    import torch.distributed as dist

    if dist.is_initialized():
        # A rank that is gone says why itself.
        with contextlib.suppress(RuntimeError):
            _gather_words(_Word.LEAVES)
        # A group's end waits for threads that may wait for the GIL; torch gives that up, but not where DDP comes last.
        gc.collect()
        dist.destroy_process_group()
        for name in _LAUNCHED:
            os.environ.pop(name, None)


_LAUNCHED = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "NODE_RANK", "MASTER_ADDR", "MASTER_PORT")
"""The variables that torchrun sets for each process, by which frameworks see that they are one of several."""


def _tell_frameworks(assignment: "Assignment") -> None:
    """Describe the group as torchrun does: Lightning and accelerate then use it, and launch no processes themselves.

    Each process sees its own device only, and so counts as a node of its own: `Trainer(devices=1, num_nodes=2)`.
    """
    host, _, port = assignment.address.rpartition(":")
    rank, world = str(assignment.rank), str(assignment.world_size)
    os.environ.update(zip(_LAUNCHED, (rank, "0", world, "1", rank, host, port), strict=True))


class _Leader:
    """The channel of rank 0: it speaks with the driver, and tells the others."""

    def __init__(self, channel: "Channel") -> None:
        self._channel = channel

    def exchange(self, records: list[Record]) -> bool:
        return _exchange_words(_Word.GOES_ON if self._channel.exchange(records) else _Word.ENDS) is _Word.GOES_ON

    def leaves(self) -> bool:
        return self._channel.leaves()


class _Follower:
    """The channel of the other ranks: what they would tell is rank 0's to tell."""

    def exchange(self, records: list[Record]) -> bool:  # noqa: ARG002 -- rank 0 has the same
        return _exchange_words(_Word.HERE) is _Word.GOES_ON

    def leaves(self) -> bool:
        # Rank 0 hears of it, and tells the others by `Manager.save_if_due`.
        return False


def _exchange_words(word: _Word) -> _Word:
    """Return what rank 0 says."""
    try:
        words = _gather_words(word)
    except RuntimeError as error:
        raise TrialError(f"trial.report: not all ranks called it, one seems gone: {first_line(error)}") from error
    if _Word.LEAVES in words:
        raise TrialError(
            f"trial.report: rank {words.index(_Word.LEAVES)} has returned from train without it; report on every rank, "
            "equally often: what rank 0 says counts"
        )
    return words[0]


def _gather_words(word: _Word) -> list[_Word]:
    import torch
    import torch.distributed as dist

    words = [torch.zeros(1, dtype=torch.int64) for _ in range(dist.get_world_size())]
    dist.all_gather(words, torch.tensor([int(word)]))
    return [_Word(int(word)) for word in words]


def _own_gpus(store: Any, rank: int, world: int) -> bool:
    """Whether each rank has a GPU of its own: NCCL does not serve two ranks on one, gloo does."""
    import torch

    if torch.cuda.is_available():
        store.set(f"gpu/{rank}", str(torch.cuda.get_device_properties(0).uuid))
        return len({store.get(f"gpu/{other}") for other in range(world)}) == world
    return False
