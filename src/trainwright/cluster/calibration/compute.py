"""Measures one device: matrix products, convolutions, copies (memory bandwidth), launches; and a folder's storage."""

import os
import statistics
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch.nn import functional

from trainwright.cluster.calibration.timing import check_times, fastest, kernel_clock, wall_clock
from trainwright.cluster.device import Storage
from trainwright.errors import InputError

__all__ = [
    "Timer",
    "measure_storage",
    "precisions_of",
    "time_convolutions",
    "time_copies",
    "time_host_copies",
    "time_launch",
    "time_products",
]

Row = tuple[float, float]

# Rows, depth and columns of a product; channels, side, filters and batch of a 3 x 3 convolution. On a processor they
# take a few milliseconds at most: longer ones are never undisturbed where the system has other work.
_PRODUCTS = {
    "cpu": ((64, 64, 64), (128, 128, 128), (256, 256, 256), (512, 512, 512), (256, 1024, 512), (32, 1024, 1024)),
    "cuda": (
        (1024, 1024, 1024), (2048, 2048, 2048), (4096, 4096, 4096), (8192, 8192, 8192), (512, 4096, 4096),
        (4096, 1024, 4096),
    ),
}  # fmt: skip
_CONVOLUTIONS = {
    "cpu": ((16, 32, 16, 4), (32, 32, 32, 4), (64, 28, 64, 4), (128, 14, 128, 4), (64, 56, 64, 1)),
    "cuda": ((64, 56, 64, 64), (128, 28, 128, 64), (256, 14, 256, 64), (512, 14, 512, 64), (64, 112, 64, 64)),
}
_COPIES = {"cpu": (3 << 23, 1 << 25, 3 << 24), "cuda": (1 << 28, 3 << 27, 1 << 29)}
_DTYPES = {"fp32": torch.float32, "tf32": torch.float32, "fp16": torch.float16, "bf16": torch.bfloat16}


class Timer:
    """Takes the shortest of several runs of some work on a device, after a first run that is not counted."""

    def __init__(self, device: torch.device, *, repeats: int) -> None:
        self.device, self.repeats = device, repeats

    def seconds(self, work: Callable[[], object]) -> float:
        """Return the shortest time of the work; raises `InputError` if the clock gave none."""
        return fastest(work, warmup=1, repeats=self.repeats, clock=kernel_clock(self.device))


def precisions_of(device: torch.device) -> tuple[str, ...]:
    """Return the precisions that are worth measuring on this device."""
    return ("fp32", "tf32", "fp16", "bf16") if device.type == "cuda" else ("fp32",)


def time_products(timer: Timer, precision: str) -> list[Row]:
    """Return (operations, seconds) of matrix products; a multiply-add counts as two."""
    rows = []
    with _use_precision("tf32" if precision == "tf32" else "ieee"):
        for height, depth, width in _PRODUCTS[timer.device.type]:
            left = torch.rand(height, depth, dtype=_DTYPES[precision], device=timer.device)
            right = torch.rand(depth, width, dtype=_DTYPES[precision], device=timer.device)
            out = torch.empty(height, width, dtype=_DTYPES[precision], device=timer.device)
            work = partial(torch.mm, left, right, out=out)
            rows.append((2.0 * height * depth * width, timer.seconds(work)))
    return rows


def time_convolutions(timer: Timer) -> list[Row]:
    """Return (operations, seconds) of convolutions of 3 x 3 in single precision."""
    rows = []
    with _use_precision("ieee"), torch.no_grad():
        for channels, side, filters, batch in _CONVOLUTIONS[timer.device.type]:
            image = torch.rand(batch, channels, side, side, device=timer.device)
            weight = torch.rand(filters, channels, 3, 3, device=timer.device)
            work = partial(functional.conv2d, image, weight, padding=1)
            rows.append((2.0 * batch * filters * channels * 9 * side * side, timer.seconds(work)))
    return rows


def time_copies(timer: Timer) -> list[Row]:
    """Return (bytes read and written, seconds) of copies within the device's memory, beyond what its caches hold."""
    rows = []
    # Larger than the caches, or the copy would measure these.
    for size in _COPIES[timer.device.type]:
        source = torch.ones(size, dtype=torch.uint8, device=timer.device)
        target = torch.zeros_like(source)
        rows.append((2.0 * size, timer.seconds(partial(target.copy_, source))))
    return rows


def time_host_copies(timer: Timer) -> list[Row]:
    """Return (bytes, seconds) of copies from pinned memory of the host to the device; none if they share it."""
    if timer.device.type == "cpu":
        return []
    rows = []
    for size in (1 << 24, 1 << 26, 1 << 28):
        source = torch.ones(size, dtype=torch.uint8, pin_memory=True)
        target = torch.empty(size, dtype=torch.uint8, device=timer.device)
        rows.append((float(size), timer.seconds(partial(target.copy_, source, non_blocking=True))))
    return rows


def time_launch(timer: Timer, *, launches: int = 200) -> float:
    """Return the seconds that a kernel takes which does next to nothing, launched one after the other."""
    one = torch.ones(1, device=timer.device)

    # Many launches in a row, so that the clock's resolution does not matter.
    def work() -> None:
        for _ in range(launches):
            one.mul_(1.0)

    return timer.seconds(work) / launches


@contextmanager
def _use_precision(kind: str) -> Iterator[None]:
    """Compute single precision on GPUs as "ieee" or with the 10 bits of "tf32" for as long as the block runs."""
    # TF32 keeps 10 bits of the mantissa: timing fp32 with it on would give the wrong peak.
    cudnn: Any = torch.backends.cudnn  # whose type hints leave out what it has
    switches: tuple[Any, ...] = (torch.backends.cuda.matmul, cudnn.conv)
    before = [switch.fp32_precision for switch in switches]
    for switch in switches:
        switch.fp32_precision = kind
    try:
        yield
    finally:
        for switch, kind_before in zip(switches, before, strict=True):
            switch.fp32_precision = kind_before


def measure_storage(folder: Path, *, size: int, repeats: int) -> tuple[Storage, float]:
    """Return the speed of a folder, and how much the median of its repeats is above the shortest.

    A file of `size` bytes is written until it is on disk, and read again after the host was asked to forget it, which
    a parallel file system's own caches may not do. `write` is one writer's, no cap of a whole job. Raises `InputError`
    if the folder cannot be written.
    """
    writes, reads = [], []
    try:
        with tempfile.TemporaryDirectory(prefix="trainwright-", dir=folder) as name:
            path, content = Path(name) / "file", os.urandom(size)
            for _ in range(repeats):
                writes.append(wall_clock(lambda: _write_synced(path, content)))
                # Without this the file would come from the host's memory, not from the disk.
                _drop_from_cache(path)
                reads.append(wall_clock(lambda: _read_file(path)))
    except OSError as error:
        raise InputError(f"storage {folder}: cannot be measured ({error}); allowed: a folder to write in") from None
    write, read = (float(check_times(times).min()) for times in (writes, reads))
    # The larger of the two relative differences is the error of the whole.
    spread = max(1 - write / statistics.median(writes), 1 - read / statistics.median(reads))
    return Storage(node_read=size / read, write=size / write), spread


def _write_synced(path: Path, content: bytes) -> None:
    with path.open("wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())


def _read_file(path: Path) -> None:
    with path.open("rb", buffering=0) as file:
        while file.read(1 << 22):
            pass


def _drop_from_cache(path: Path) -> None:
    """Ask the host to drop a file from its page cache, where there is a call for it."""
    if hasattr(os, "posix_fadvise"):
        with path.open("rb") as file:
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
