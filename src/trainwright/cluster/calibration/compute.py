"""Compute and memory of one device: sweeps of matrix products and convolutions, copies, the launch of a kernel."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch.nn import functional

from trainwright.cluster.calibration.timing import fastest, kernel_clock

__all__ = [
    "Timer",
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
            work = _bind_call(torch.mm, left, right, out=out)
            rows.append((2.0 * height * depth * width, timer.seconds(work)))
    return rows


def time_convolutions(timer: Timer) -> list[Row]:
    """Return (operations, seconds) of convolutions of 3 x 3 in single precision."""
    rows = []
    with _use_precision("ieee"), torch.no_grad():
        for channels, side, filters, batch in _CONVOLUTIONS[timer.device.type]:
            image = torch.rand(batch, channels, side, side, device=timer.device)
            weight = torch.rand(filters, channels, 3, 3, device=timer.device)
            work = _bind_call(functional.conv2d, image, weight, padding=1)
            rows.append((2.0 * batch * filters * channels * 9 * side * side, timer.seconds(work)))
    return rows


def time_copies(timer: Timer) -> list[Row]:
    """Return (bytes read and written, seconds) of copies within the device's memory, beyond what its caches hold."""
    rows = []
    # Larger than the caches, or the copy would measure these.
    for size in _COPIES[timer.device.type]:
        source = torch.ones(size, dtype=torch.uint8, device=timer.device)
        target = torch.zeros_like(source)
        rows.append((2.0 * size, timer.seconds(_bind_call(target.copy_, source))))
    return rows


def time_host_copies(timer: Timer) -> list[Row]:
    """Return (bytes, seconds) of copies from pinned memory of the host to the device; none if they share it."""
    if timer.device.type == "cpu":
        return []
    rows = []
    for size in (1 << 24, 1 << 26, 1 << 28):
        source = torch.ones(size, dtype=torch.uint8, pin_memory=True)
        target = torch.empty(size, dtype=torch.uint8, device=timer.device)
        rows.append((float(size), timer.seconds(_bind_call(target.copy_, source, non_blocking=True))))
    return rows


def time_launch(timer: Timer, *, launches: int = 200) -> float:
    """Return the seconds that a kernel takes which does next to nothing, launched one after the other."""
    one = torch.ones(1, device=timer.device)

    # Many launches in a row, so that the clock's resolution does not matter.
    def work() -> None:
        for _ in range(launches):
            one.mul_(1.0)

    return timer.seconds(work) / launches


def _bind_call(function: Callable[..., object], *arguments: Any, **options: Any) -> Callable[[], object]:
    return lambda: function(*arguments, **options)


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
