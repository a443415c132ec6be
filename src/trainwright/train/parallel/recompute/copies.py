"""Offload activations: copies to the host and back, on side streams and pinned memory from a CUDA device."""

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from trainwright.errors import BudgetError
from trainwright.plan.memory.operations import Link

__all__ = ["Copies", "CopyStreams", "HostPacket", "copies_for", "measure_link"]


@dataclass(slots=True)
class HostPacket:
    """A storage's bytes on the host."""

    buffer: Any
    done: Any = None
    """The event after which the last copy that was begun is over; None where copies are over when they return."""


class Copies:
    """Copies that are over when they return. On a CPU the host is the same memory: what is copied is not counted.

    Buffers are taken from a pool and come back to it: after one step nothing is allocated any more.
    """

    def __init__(self) -> None:
        # NumPy's memory, which no tensor shows.
        self._free: dict[int, list[NDArray[np.uint8]]] = {}

    def send(self, storage: torch.UntypedStorage) -> HostPacket:
        """Begin a copy to the host."""
        free = self._free.setdefault(storage.nbytes(), [])
        buffer = free.pop() if free else np.empty(storage.nbytes(), np.uint8)
        np.copyto(buffer, _as_bytes(storage).numpy())
        return HostPacket(buffer)

    def release(self, packet: HostPacket) -> None:
        """Let what is queued from now on reuse the device's memory: it comes after the copy to the host."""

    def prefetch(self, packet: HostPacket) -> torch.UntypedStorage:
        """Begin a copy back, and return what it fills."""
        made = torch.empty(packet.buffer.size, dtype=torch.uint8)
        np.copyto(made.numpy(), packet.buffer)
        return made.untyped_storage()

    def wait(self, packet: HostPacket) -> None:
        """Let what is queued from now on read what was fetched; the buffer on the host is free again."""
        self.drop(packet)

    def drop(self, packet: HostPacket) -> None:
        """Give the buffer on the host back unread."""
        self._free[packet.buffer.size].append(packet.buffer)

    def join(self) -> None:
        """Let what is queued from now on come after all copies."""


class CopyStreams(Copies):
    """Copies beside the work of a CUDA device: a side stream per direction, events both ways, pinned buffers.

    Memory of the device is taken and given back on the stream of the work, which waits for a copy before either; so the
    allocator needs no `record_stream`. The stream of the work is asked for outside the side streams' contexts.
    """

    def __init__(self, device: torch.device) -> None:
        super().__init__()
        self.device = device
        self.out, self.into = torch.cuda.Stream(device), torch.cuda.Stream(device)
        # Free buffers, each with the event after which it has been read.
        self._idle: dict[int, list[tuple[torch.Tensor, Any]]] = {}

    def send(self, storage: torch.UntypedStorage) -> HostPacket:
        """Begin a copy to the host after what has been queued."""
        work = torch.cuda.current_stream(self.device)
        free = self._idle.setdefault(storage.nbytes(), [])
        buffer, read = free.pop() if free else (self._pinned(storage.nbytes()), None)
        # The copy begins when the value has been made, and when the buffer has been read.
        self.out.wait_stream(work)
        if read is not None:
            self.out.wait_event(read)
        with torch.cuda.stream(self.out):
            buffer.copy_(_as_bytes(storage), non_blocking=True)
        return HostPacket(buffer, self.out.record_event())

    def release(self, packet: HostPacket) -> None:
        """Let the work wait for the copy."""
        torch.cuda.current_stream(self.device).wait_event(packet.done)

    def prefetch(self, packet: HostPacket) -> torch.UntypedStorage:
        """Begin a copy back, after what has been queued: that may still read the memory it takes."""
        made = torch.empty(packet.buffer.numel(), dtype=torch.uint8, device=self.device)
        # The memory that it fills may still be read by work that is queued.
        self.into.wait_stream(torch.cuda.current_stream(self.device))
        # The buffer is read only after the copy to the host has filled it.
        self.into.wait_event(packet.done)
        with torch.cuda.stream(self.into):
            made.copy_(packet.buffer, non_blocking=True)
        packet.done = self.into.record_event()
        return made.untyped_storage()

    def wait(self, packet: HostPacket) -> None:
        """Let the work wait for the copy back."""
        torch.cuda.current_stream(self.device).wait_event(packet.done)
        self.drop(packet)

    def drop(self, packet: HostPacket) -> None:
        """Give the buffer back; the next copy into it waits for the last of this one."""
        self._idle[packet.buffer.numel()].append((packet.buffer, packet.done))

    def join(self) -> None:
        """Let the work wait for both side streams."""
        work = torch.cuda.current_stream(self.device)
        work.wait_stream(self.out)
        work.wait_stream(self.into)

    @staticmethod
    def _pinned(size: int) -> torch.Tensor:
        return torch.empty(size, dtype=torch.uint8, pin_memory=True)


def copies_for(device: torch.device) -> Copies:
    """Return how bytes go between a device and the host."""
    return CopyStreams(device) if device.type == "cuda" else Copies()


def measure_link(device: str | torch.device = "cuda", *, size: int = 1 << 28, repeats: int = 5) -> Link:
    """Return how fast this device's copies go: `size` bytes to the host, back, and both at once, the best of `repeats`.

    These are the copies that plans are carried out with: through pinned memory, a stream each way. Raises BudgetError
    where torch sees no such device.
    """
    place = torch.device(device)
    if place.type == "cuda" and not torch.cuda.is_available():
        raise BudgetError(f"device: got {str(device)!r}, which torch does not see here; allowed: one that it sees")
    copies = copies_for(place)
    storage = torch.ones(size, dtype=torch.uint8, device=place).untyped_storage()
    # What `back` fetches lies on the host from here on.
    waiting = copies.send(storage)

    def out() -> None:
        copies.drop(copies.send(storage))

    def back() -> None:
        copies.prefetch(waiting)

    def both() -> None:
        out()
        back()

    def seconds(act: Callable[[], None]) -> float:
        found = []
        # The first run only allocates the buffers.
        for _ in range(repeats + 1):
            begun = time.perf_counter()
            act()
            copies.join()
            if place.type == "cuda":
                torch.cuda.synchronize(place)
            found.append(time.perf_counter() - begun)
        return min(found[1:])

    # Each direction has moved `size` bytes in the time of both.
    together = size / seconds(both)
    return Link(
        to_host=size / seconds(out),
        to_device=size / seconds(back),
        to_host_together=together,
        to_device_together=together,
    )


def _as_bytes(storage: torch.UntypedStorage) -> torch.Tensor:
    return torch.empty(0, dtype=torch.uint8, device=storage.device).set_(storage)
