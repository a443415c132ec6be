"""What the parts share: models of the zoo with a batch, a step, and seconds of it on either kind of device."""

import statistics
import time
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from models import gpt, resnet

__all__ = ["Subject", "peak_of", "reserved_peak", "seconds_of", "subjects", "synchronize"]

Subject = tuple[nn.Module, Tensor]


def subjects(device: str, *, quick: bool, scale: float = 1.0) -> dict[str, Callable[[], Subject]]:
    """Return functions that make a model and a batch on a device; `scale` multiplies the samples of the batch."""

    def residual() -> Subject:
        torch.manual_seed(0)
        model = resnet.resnet18(10, 8) if quick else resnet.resnet50(1000, 64)
        rows, side = (4, 32) if quick else (64, 224)
        return model.to(device), torch.randn(max(1, int(scale * rows)), 3, side, side, device=device)

    def transformer() -> Subject:
        torch.manual_seed(0)
        rows, length = (2, 32) if quick else (16, 1024)
        size, words = ((2, 2, 64), 99) if quick else ((12, 12, 768), 50257)
        model = gpt.GPT(size, words, length, dropout=0.1)
        return model.to(device), torch.randint(words, (max(1, int(scale * rows)), length), device=device)

    return {"ResNet-50": residual, "GPT-2": transformer}


def synchronize(device: str) -> None:
    """Wait until a device has done what it was given."""
    if device != "cpu":
        torch.cuda.synchronize()


def seconds_of(act: Callable[[], Any], device: str, repeats: int) -> float:
    """Return the median of the wall seconds of `act`, the device idle before and after; two calls warm up."""
    found = []
    for turn in range(repeats + 2):
        synchronize(device)
        begun = time.perf_counter()
        act()
        synchronize(device)
        if turn > 1:
            found.append(time.perf_counter() - begun)
    return statistics.median(found)


def peak_of(act: Callable[[], Any], device: str) -> int:
    """Return the most bytes that the device's allocator had given out while `act` ran a second time; 0 on a CPU."""
    act()
    if device == "cpu":
        return 0
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    act()
    torch.cuda.synchronize()
    return torch.cuda.max_memory_allocated()


def reserved_peak(device: str) -> int:
    """Return the most bytes that the allocator had reserved during the last `peak_of`, its fragments among them."""
    return 0 if device == "cpu" else torch.cuda.max_memory_reserved()
