"""Copies the state into a snapshot buffer while the next step computes, and checks it for NaN and infinity.

Weights and optimizer state change only in a step of an optimizer. So they are copied by a thread during the next
forward and backward pass; a hook before each optimizer's step lends a hand with what is left and waits for the end. The
versions that torch counts for each tensor tell whether one changed meanwhile all the same.
"""

import collections
import ctypes
import math
import mmap
import sys
import threading
from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING

from trainwright.checkpoint.save.shard_file import ShardFile, TensorPlace
from trainwright.checkpoint.state.captured import Captured

if TYPE_CHECKING:
    import torch

__all__ = ["Buffer", "Snapshot", "find_nonfinite"]

_PIECE_BYTES = 8 << 20
_CHECKED = 32_768  # values at a time
_trim_heap = getattr(ctypes.CDLL(None), "malloc_trim", None) if sys.platform == "linux" else None


class Buffer:
    """Memory for one snapshot, allocated once; it grows when the state does.

    A process that goes on with a trial gives it to the next manager, which restores what was saved last from it.
    """

    def __init__(self) -> None:
        self._memory = mmap.mmap(-1, mmap.PAGESIZE)
        # Its address while CUDA holds its pages.
        self._pinned = 0
        self.content: tuple[str, ShardFile] | None = None
        """The digest of the checkpoint that it holds, and where its tensors lie; None while it is being filled."""
        self._trial: int | None = None

    def reserve(self, size: int, *, pinned: bool = False) -> memoryview:
        """Return at least `size` bytes of it; what it held is gone if it had to grow.

        `pinned` pages are copied to by a CUDA device without a detour, several times as fast.
        """
        if len(self._memory) < size:
            # The old memory first: never both at once.
            self.release()
            self._memory = mmap.mmap(-1, size)
            if hasattr(mmap, "MADV_HUGEPAGE"):
                self._memory.madvise(mmap.MADV_HUGEPAGE)
        if pinned and not self._pinned:
            import torch

            address = torch.frombuffer(self._memory, dtype=torch.uint8).data_ptr()
            # Refused where the system lets a process hold few pages; then copies are slower, and that is all.
            if int(torch.cuda.cudart().cudaHostRegister(address, len(self._memory), 0)) == 0:
                self._pinned = address
        return memoryview(self._memory)

    def release(self) -> None:
        """Let go of the memory, once nobody looks at it any more."""
        if self._pinned:
            import torch

            torch.cuda.cudart().cudaHostUnregister(self._pinned)
            self._pinned = 0
        self.content = None
        self._memory = mmap.mmap(-1, mmap.PAGESIZE)

    def keep_for(self, trial: int) -> None:
        """Let go of the memory of another trial, and of what the process has kept of it."""
        if trial != self._trial:
            self.release()
            # Of glibc; workers tell it to keep what is freed.
            if _trim_heap is not None:
                _trim_heap(0)
        self._trial = trial

    def find_tensors(self, digest: str) -> "dict[str, torch.Tensor]":
        """Return the bytes of tensors by name, where they lie, if it holds the checkpoint of this digest."""
        import torch

        if self.content is None or self.content[0] != digest:
            return {}
        places = [place for place in self.content[1].places if place.size]
        return {
            each.name: torch.frombuffer(self._memory, dtype=torch.uint8, count=each.size, offset=each.start)
            for each in places
        }

    @property
    def size(self) -> int:
        """Its bytes."""
        return len(self._memory)


class Snapshot:
    """The copying of one captured state into a buffer."""

    def __init__(self, captured: Captured, layout: ShardFile, memory: memoryview) -> None:
        import torch

        self._flat = torch.frombuffer(memory, dtype=torch.uint8) if len(memory) else torch.empty(0, dtype=torch.uint8)
        self._captured = captured
        self._places = {place.name: place for place in layout.places}
        self._pieces: collections.deque[tuple[int, int, int] | str] = collections.deque()
        self._left = 0
        self._lock = threading.Lock()
        self._done = threading.Event()
        self._versions: dict[str, int] = {}
        # By CUDA device: a stream of the copies, so that they neither wait for the next step's work nor delay it.
        self._streams: dict[torch.device, torch.cuda.Stream] = {}

    def copy_small(self) -> None:
        """Copy everything that may change at any time, and list the rest."""
        import torch

        for name, tensor in self._captured.tensors.items():
            # Only optimizer steps change these tensors; the rest is small and is copied now.
            if name in self._captured.lazy:
                self._versions[name] = tensor._version  # noqa: SLF001 -- torch has no other way to ask
                self._pieces.extend(self._cut_pieces(name, tensor))
            else:
                self._copy_tensor(name)
        for device in {tensor.device for tensor in self._captured.tensors.values() if tensor.is_cuda}:
            self._streams[device] = torch.cuda.Stream(device)
            # The copies come after all that this thread has queued, on whatever stream it trains.
            self._streams[device].wait_stream(torch.cuda.current_stream(device))
        self._left = len(self._pieces)
        if not self._left:
            self._done.set()

    def copy_rest(self) -> None:
        """Copy what is left, together with any other thread that does; return when all is copied."""
        while True:
            try:
                piece = self._pieces.popleft()
            except IndexError:
                break
            try:
                if isinstance(piece, str):
                    self._copy_tensor(piece)
                else:
                    # A call by ctypes releases the interpreter lock.
                    ctypes.memmove(*piece)
            finally:
                # Count the piece as done even if its copy failed, or the other thread would wait for ever.
                with self._lock:
                    self._left -= 1
                    if not self._left:
                        self._done.set()
        self._done.wait()

    def changed(self) -> Sequence[str]:
        """Return the names of tensors that were written to since `copy_small`."""
        tensors = self._captured.tensors
        return [name for name, version in self._versions.items() if tensors[name]._version != version]  # noqa: SLF001

    def _cut_pieces(self, name: str, tensor: "torch.Tensor") -> "list[tuple[int, int, int] | str]":
        if tensor.device.type != "cpu" or not tensor.is_contiguous():
            return [name]
        # Small pieces let the thread of the training help when its optimizer waits.
        target, source = self._flat.data_ptr() + self._places[name].start, tensor.data_ptr()
        return [
            (target + at, source + at, min(_PIECE_BYTES, tensor.nbytes - at))
            for at in range(0, tensor.nbytes, _PIECE_BYTES)
        ]

    def _copy_tensor(self, name: str) -> None:
        tensor, place = self._captured.tensors[name], self._places[name]
        if place.size:
            import torch

            target = self._flat[place.start : place.start + place.size].view(tensor.dtype).view(tensor.shape)
            # None for tensors of a CPU, and on the training's own stream for what is copied before this was made.
            with torch.cuda.stream(self._streams.get(tensor.device)):
                # The copy is over when this returns: its stream is waited for, no other.
                target.copy_(tensor)


def find_nonfinite(layout: ShardFile, memory: memoryview, names: Collection[str]) -> list[str]:
    """Return the floating-point tensors among `names` in which a value is NaN or infinite: the health check.

    A checkpoint of a network that has diverged would take the place of the last one that is worth resuming from.
    """
    import torch

    flat = torch.frombuffer(memory, dtype=torch.uint8) if len(memory) else torch.empty(0, dtype=torch.uint8)
    checked = [place for place in layout.places if place.name in names and place.size]
    return [
        place.name for place in checked if getattr(torch, place.dtype).is_floating_point and not _is_finite(flat, place)
    ]


def _is_finite(flat: "torch.Tensor", place: TensorPlace) -> bool:
    """Look at the norm piece by piece: each stays in cache, and is too small for torch to spread over threads."""
    import torch

    values = flat[place.start : place.start + place.size].view(getattr(torch, place.dtype))
    # Eight-bit floats know no arithmetic.
    if values.element_size() == 1:
        values = values.float()
    kind = torch.float64 if values.dtype == torch.float64 else torch.float32
    # One pass in the cache: a norm is finite only if all values are.
    if all(math.isfinite(float(torch.linalg.vector_norm(piece, dtype=kind))) for piece in values.split(_CHECKED)):
        return True
    # A norm can be too large for its type where no value is.
    return bool(torch.isfinite(values).all())
