"""The targets of the bench: a file format, or the Manager with one of its writers."""

import ctypes
import math
import mmap
import os
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from trainwright.checkpoint.config import CheckpointConfig, Retention
from trainwright.checkpoint.digest import digest_file
from trainwright.checkpoint.manager import Manager
from trainwright.checkpoint.state.captured import Captured
from trainwright.checkpoint.tools.formats.protocol import Format
from trainwright.errors import CheckpointStateError

__all__ = [
    "BenchTarget",
    "FormatTarget",
    "ManagerTarget",
    "collect_state",
    "drop_cache",
    "files_below",
    "fill_optimizers",
]

# Over which the undisturbed pace of training is taken.
_PACE_SECONDS = 0.1


class BenchTarget(Protocol):
    """One way of saving. `save` returns the seconds of blocking, slow-down and total."""

    def save(self) -> tuple[float, float, float]:
        """Save; return the seconds of blocking, slow-down and total."""

    def restore(self, *, verified: bool) -> None:
        """Restore into the tensors in memory; with `verified`, hash every byte too."""

    def files(self) -> list[Path]:
        """Return what the last save wrote."""

    def clear(self) -> None:
        """Make room for the next save."""

    def close(self) -> None:
        """Let go of everything."""


class FormatTarget:
    """A file format: training waits until it is written."""

    def __init__(self, path: Path, form: Format, captured: Captured) -> None:
        self._path, self._format, self._captured = path, form, captured
        path.parent.mkdir()

    def save(self) -> tuple[float, float, float]:
        """Write a file; training waits."""
        began = time.perf_counter()
        self._format.write(self._path, self._captured.tensors)
        seconds = time.perf_counter() - began
        return seconds, 0.0, seconds

    def restore(self, *, verified: bool) -> None:
        """Read the file, hash it first if asked, and copy its tensors into place."""
        import torch

        if verified:
            for file in self.files():
                digest_file(file)
        with torch.no_grad(), self._format.open(self._path) as stored:
            for name, tensor in stored.read().items():
                self._captured.tensors[name].copy_(tensor)

    def files(self) -> list[Path]:
        """Return the file or files."""
        return files_below(self._path.parent)

    def clear(self) -> None:
        """Remove the files."""
        for file in self.files():
            file.unlink()
        if self._path.is_dir():
            self._path.rmdir()

    def close(self) -> None:
        """Hold nothing open."""


class ManagerTarget:
    """The Manager: training goes on while the checkpoint is written."""

    def __init__(
        self, folder: Path, writer: Any, state: Mapping[str, Any], captured: Captured, step_seconds: float
    ) -> None:
        config = CheckpointConfig(
            writer=writer, interval=1e9, health_check=None, retention=Retention(last=1), on_error="raise"
        )  # fmt: skip
        self._captured, self._step_seconds = captured, step_seconds
        self._manager = Manager(folder, config=config, **state)
        self._saved = folder

    def save(self) -> tuple[float, float, float]:
        """Save while training computes, until all is on disk."""
        # The undisturbed speed first; the slowdown is what is missing from it during the save.
        pace = _compute_until(until=lambda: False, seconds=_PACE_SECONDS) / _PACE_SECONDS
        handle = self._manager.save()
        at_once, began = handle.blocking_seconds, time.perf_counter()
        products = 0
        if not handle.committed.done():
            products += _compute_until(until=handle.committed.done, seconds=self._step_seconds)
            for optimizer in self._captured.optimizers:
                optimizer.zero_grad(set_to_none=True)
                # Without gradients: it changes nothing, but waits for the snapshot.
                optimizer.step()
            products += _compute_until(until=handle.committed.done, seconds=math.inf)
        beside = time.perf_counter() - began - (handle.blocking_seconds - at_once)
        self._saved = handle.committed.result().path
        return handle.blocking_seconds, max(0.0, beside - products / pace), handle.persist_seconds

    def restore(self, *, verified: bool) -> None:
        """Restore the newest checkpoint."""
        self._manager.restore(mode="best_effort", check=verified)

    def files(self) -> list[Path]:
        """Return the files of the last checkpoint."""
        return files_below(self._saved)

    def clear(self) -> None:
        """Leave it to the retention."""

    def close(self) -> None:
        """Close the manager."""
        self._manager.close()


def collect_state(made: Any) -> dict[str, Any]:
    """Return the items of state that a factory made: a model, a tuple of model, optimizer and schedule, or a dict."""
    import torch

    if isinstance(made, torch.nn.Module):
        return {"model": made}
    if isinstance(made, tuple | list) and 1 <= len(made) <= 3:
        return dict(zip(("model", "optimizer", "schedule"), made, strict=False))
    if isinstance(made, Mapping) and made and all(isinstance(name, str) for name in made):
        return dict(made)
    raise CheckpointStateError(
        f"factory: got {type(made).__name__}; allowed: a torch.nn.Module, a tuple (model, optimizer[, schedule]), or a "
        "dict of items such as {'model': model, 'optimizer': optimizer}"
    )


def fill_optimizers(state: Mapping[str, Any]) -> None:
    """Give optimizers that took no step yet the state that they will have in training."""
    import torch

    for value in state.values():
        if isinstance(value, torch.optim.Optimizer) and not value.state:
            for group in value.param_groups:
                for parameter in group["params"]:
                    # Random gradients, so that the moments are not all zeros.
                    parameter.grad = 1e-3 * torch.randn_like(parameter)
            value.step()
            value.zero_grad(set_to_none=True)


def files_below(folder: Path) -> list[Path]:
    """Return all files in a folder and below."""
    return sorted(path for path in folder.rglob("*") if path.is_file())


def drop_cache(files: Sequence[Path]) -> bool:
    """Drop the files' pages from the system's cache; return whether none is left there."""
    if not hasattr(os, "posix_fadvise"):
        return False
    for file in files:
        handle = os.open(file, os.O_RDONLY)
        try:
            os.posix_fadvise(handle, 0, 0, os.POSIX_FADV_DONTNEED)
        finally:
            os.close(handle)
    return all(_cached_pages(file) == 0 for file in files)


def _cached_pages(file: Path) -> int:
    """Return how many pages of a file are in the cache, by mincore(2): to read one of them would bring in others."""
    size = file.stat().st_size
    if size == 0:
        return 0
    with file.open("rb") as content, mmap.mmap(content.fileno(), size, access=mmap.ACCESS_COPY) as mapped:
        # Of a private mapping, which may be asked for its address.
        first = ctypes.c_ubyte.from_buffer(mapped)
        found = (ctypes.c_ubyte * -(-size // mmap.PAGESIZE))()
        failed = ctypes.CDLL(None).mincore(ctypes.c_void_p(ctypes.addressof(first)), ctypes.c_size_t(size), found)
        del first
    return len(found) if failed else sum(page & 1 for page in bytes(found))


def _compute_until(*, until: Callable[[], bool], seconds: float) -> int:
    """Keep the main thread as busy as training does; return how many products it got done."""
    import torch

    matrix, products = torch.ones(256, 256), 0
    end = time.perf_counter() + seconds
    while time.perf_counter() < end and not until():
        torch.mm(matrix, matrix)
        products += 1
    return products
