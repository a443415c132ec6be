"""Seeds the data loader's worker processes: each sample of a requested batch is made under its own seed.

Python's, NumPy's and torch's global generators are seeded from (seed, epoch, index, repeat) before each sample, so what
it looks like depends on no worker, no rank, no batch and nothing that happened before.
"""

import hashlib
import os
import random
import signal
import struct
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from trainwright.signals import LAUNCHER_SIGNALS, signals_held

if TYPE_CHECKING:
    from torch.utils.data import DataLoader

__all__ = ["BatchFetch", "Samples", "generators_kept", "requesting", "sample_key", "seed_generators"]


@dataclass(frozen=True, slots=True)
class BatchFetch:
    """One batch of one rank: the samples' indices, and the place of the batch in its epoch."""

    epoch: int
    place: int
    indices: Sequence[int]
    repeats: Sequence[int] | None


class Samples:
    """A map-style data set behind the requests of a loader."""

    def __init__(self, dataset: Any, seed: int, collate: Callable[[list[Any]], Any]) -> None:
        self._dataset = dataset
        self._collate = collate
        self._sample_key = sample_key(seed, "sample")
        self._batch_key = sample_key(seed, "batch")

    def __getitem__(self, request: BatchFetch) -> Any:
        with undisturbed():
            samples = []
            repeats = request.repeats or [0] * len(request.indices)
            for index, repeat in zip(request.indices, repeats, strict=True):
                seed_generators(self._sample_key, request.epoch, index, repeat)
                samples.append(self._dataset[index])
            # a collate function may draw as well, as those that mix the samples of a batch do
            seed_generators(self._batch_key, request.epoch, request.place, 0)
            return self._collate(samples)


def sample_key(seed: int, purpose: str) -> bytes:
    """Return the key of a stream of seeds."""
    return hashlib.blake2b(f"{seed}/{purpose}".encode(), digest_size=16).digest()


def seed_generators(key: bytes, epoch: int, index: int, repeat: int) -> None:
    """Seed the global generators of this process; torch's and NumPy's take 32 bits of it."""
    import torch

    digest = hashlib.blake2b(struct.pack("<3q", epoch, index, repeat), key=key, digest_size=16).digest()
    python, numpy, pytorch = struct.unpack("<QII", digest)
    random.seed(python)
    np.random.seed(numpy)  # noqa: NPY002 -- the global generators are the ones that augmentations draw from
    # Not torch.manual_seed: it seeds CUDA too, and takes longer.
    torch.default_generator.manual_seed(pytorch)


@contextmanager
def generators_kept() -> Iterator[None]:
    """Leave the global generators as they were, CUDA's too where it is in use."""
    import torch

    from trainwright.train.parallel.recompute.run_context import read_generators, set_generators

    devices = range(torch.cuda.device_count()) if torch.cuda.is_initialized() else []
    states = read_generators(["cpu", "python", "numpy", *(f"cuda:{index}" for index in devices)])
    try:
        yield
    finally:
        set_generators(states)


@contextmanager
def undisturbed() -> Iterator[None]:
    """Leave the training process as it was, where it fetches by itself; with one thread, as a worker has."""
    import torch

    if torch.utils.data.get_worker_info() is not None:
        yield
        return
    threads = torch.get_num_threads()
    if threads != 1:
        torch.set_num_threads(1)
    try:
        with generators_kept():
            yield
    finally:
        if threads != 1:
            torch.set_num_threads(threads)


def requesting(
    data: Any, requests: Iterable[Any], *, fetching: Mapping[str, Any], pin_memory: bool, persistent_workers: bool
) -> "DataLoader[Any]":
    """Return torch's loader of what `data` answers to each of `requests`, collated by itself, with calm workers.

    `fetching` are the DataLoader's num_workers and, with workers, prefetch_factor.
    """
    import torch

    class HeldStart(torch.utils.data.DataLoader[Any]):
        """Starts its workers with launcher signals blocked, so that none ends a worker before it is calm."""

        def __iter__(self) -> Any:
            with signals_held():
                return super().__iter__()

    return HeldStart(
        data,
        sampler=requests,
        batch_size=None,
        collate_fn=_as_it_is,
        **fetching,
        pin_memory=pin_memory and torch.cuda.is_available(),
        persistent_workers=persistent_workers and fetching["num_workers"] > 0,
        worker_init_fn=_ignore_signals,
        # Else each pass would draw from the global one.
        generator=torch.Generator(),
    )


def _as_it_is(batch: Any) -> Any:
    """Return the batch: it is collated already."""
    return batch


def _ignore_signals(_: int) -> None:
    """Make a worker deaf to the signals by which an allocation ends; only its parent's SIGTERM still ends it."""
    for number in (signal.SIGUSR1, signal.SIGUSR2):
        signal.signal(number, signal.SIG_IGN)
    # They were blocked from the worker's start. SIGTERM stays so where its sender can be seen, which macOS cannot.
    waits = {signal.SIGTERM} if hasattr(signal, "sigwaitinfo") else set()
    signal.pthread_sigmask(signal.SIG_UNBLOCK, set(LAUNCHER_SIGNALS) - waits)
    if waits:
        threading.Thread(target=_exit_with_parent, daemon=True).start()


def _exit_with_parent() -> None:
    # A blocked signal can be taken with its sender: one that a launcher sends to all processes is dropped.
    while signal.sigwaitinfo({signal.SIGTERM}).si_pid != os.getppid():
        pass
    os._exit(0)
