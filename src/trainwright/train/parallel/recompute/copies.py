"""Offloads activations: copies to the host (CPU) and prefetches back, on side streams and pinned memory."""

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils._python_dispatch import _disable_current_modes

from trainwright.errors import BudgetError
from trainwright.plan.memory.operations import Link

__all__ = ["Copies", "HostCopy", "measure_link"]


@dataclass(slots=True)
class HostCopy:
    """A storage's bytes on the host; `storage` is the device's, until it goes."""

    storage: torch.UntypedStorage | None
    buffer: torch.Tensor
    done: Any = None
    """The event after which the last copy that was begun is over; None where copies are over when they return."""


class Copies:
    """Copies beside the work of a CUDA device, on a stream each way; on a CPU they are over when they return.

    Memory of the device is taken and given back on the stream of the work, which waits for a copy before either; so the
    allocator needs no `record_stream`. Buffers are taken from a pool and come back to it: after one step nothing is
    allocated any more. On a CPU the host is the same memory: buffers are hidden from modes that count bytes.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        cuda = device.type == "cuda"
        self._out: Any = torch.cuda.Stream(device) if cuda else None
        self._back: Any = torch.cuda.Stream(device) if cuda else None
        # Free buffers by size, each with the event after which it has been read.
        self._idle: dict[int, list[tuple[torch.Tensor, Any]]] = {}

    def offload(self, storage: torch.UntypedStorage) -> HostCopy:
        """Begin a copy to the host, after what has been queued and when the buffer has been read."""
        free = self._idle.setdefault(storage.nbytes(), [])
        with _disable_current_modes():
            pinned = self._out is not None
            empty = None if free else torch.empty(storage.nbytes(), dtype=torch.uint8, pin_memory=pinned)
            buffer, read = free.pop() if empty is None else (empty, None)
            source = torch.empty(0, dtype=torch.uint8, device=storage.device).set_(storage)
            done = self._queue(self._out, read, lambda: buffer.copy_(source, non_blocking=True))
        return HostCopy(storage, buffer, done)

    def release(self, sent: HostCopy) -> None:
        """Let what is queued from now on reuse the device's memory: it comes after the copy to the host."""
        self._wait_for(sent.done)
        sent.storage = None

    def prefetch(self, sent: HostCopy) -> torch.UntypedStorage:
        """Begin a copy back, after what has been queued and that to the host; return what it fills."""
        # The memory that it fills may still be read by work that is queued.
        made = torch.empty(sent.buffer.numel(), dtype=torch.uint8, device=self._device)
        sent.done = self._queue(self._back, sent.done, lambda: made.copy_(sent.buffer, non_blocking=True))
        return made.untyped_storage()

    def wait(self, sent: HostCopy) -> None:
        """Let what is queued from now on read what was fetched; the buffer on the host is free again."""
        self._wait_for(sent.done)
        self.drop(sent)

    def drop(self, sent: HostCopy) -> None:
        """Give the buffer on the host back; the next copy into it waits for the last of this one."""
        self._idle[sent.buffer.numel()].append((sent.buffer, sent.done))

    def join(self) -> None:
        """Let what is queued from now on come after all copies."""
        for stream in (self._out, self._back):
            if stream is not None:
                torch.cuda.current_stream(self._device).wait_stream(stream)

    def _queue(self, stream: Any, after: Any, copy: Callable[[], object]) -> Any:
        """Copy on a stream, behind the work and an event; return the event of its end."""
        if stream is None:
            copy()
            return None
        # The stream of the work is asked for outside the side stream's context.
        stream.wait_stream(torch.cuda.current_stream(self._device))
        if after is not None:
            stream.wait_event(after)
        with torch.cuda.stream(stream):
            copy()
        return stream.record_event()

    def _wait_for(self, event: Any) -> None:
        if event is not None:
            torch.cuda.current_stream(self._device).wait_event(event)


def measure_link(device: str | torch.device = "cuda", *, size: int = 1 << 28, repeats: int = 5) -> Link:
    """Return how fast this device's copies go: `size` bytes to the host, back, and both at once, the best of `repeats`.

    These are the copies that plans are carried out with: through pinned memory, a stream each way. Raises BudgetError
    where torch sees no such device.
    """
    place = torch.device(device)
    if place.type == "cuda" and not torch.cuda.is_available():
        raise BudgetError(f"device: got {str(device)!r}, which torch does not see here; allowed: one that it sees")
    copies = Copies(place)
    storage = torch.ones(size, dtype=torch.uint8, device=place).untyped_storage()
    # What is fetched lies on the host from here on.
    waiting = copies.offload(storage)

    def bytes_per_second(*, out: bool, back: bool) -> float:
        found = []
        # The first run only allocates the buffers.
        for _ in range(repeats + 1):
            begun = time.perf_counter()
            if out:
                copies.drop(copies.offload(storage))
            if back:
                copies.prefetch(waiting)
            copies.join()
            if place.type == "cuda":
                torch.cuda.synchronize(place)
            found.append(time.perf_counter() - begun)
        return size / min(found[1:])

    # Each direction has moved `size` bytes in the time of both.
    both = bytes_per_second(out=True, back=True)
    return Link(
        to_host=bytes_per_second(out=True, back=False),
        to_device=bytes_per_second(out=False, back=True),
        to_host_together=both,
        to_device_together=both,
    )
