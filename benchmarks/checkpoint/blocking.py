"""How long a save stops a training, and how long a restore takes, beside torch.save and torch.load of the same state.

One training of a multi-layer perceptron with Adam; in each round torch.save with fsync and the Manager take turns on
the state as it is then, and the Manager's save goes on beside further steps. Reads are measured with the page cache
dropped and with it warm, all ways in each round, in turn: the ratio of two of one round tells more than that of their
medians where other work comes and goes. The file of torch.save is hashed by the digest that our checkpoints have.
"""

import ctypes
import mmap
import os
import shutil
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

__all__ = ["Blocking", "compare_blocking", "idle_step_seconds", "make_training"]


@dataclass(kw_only=True, slots=True)
class Blocking:
    """Seconds of each round, by what was done; `cold` tells whether the page cache could be dropped."""

    bytes: int
    cold: bool = True
    seconds: dict[str, list[float]] = field(default_factory=dict)

    def add(self, what: str, seconds: float) -> None:
        """Take note of one time."""
        self.seconds.setdefault(what, []).append(seconds)

    def median(self, what: str) -> float:
        """Return the median over the rounds."""
        return statistics.median(self.seconds[what])

    def ratio(self, one: str, other: str) -> float:
        """Return the median over the rounds of one time over another of the same round."""
        return statistics.median(a / b for a, b in zip(self.seconds[one], self.seconds[other], strict=True))

    def least(self, what: str) -> float:
        """Return the least of the rounds: on a machine with other work, what it takes without that."""
        return min(self.seconds[what])


def compare_blocking(folder: Path, size: int, rounds: int = 20, writer: str = "thread") -> Blocking:
    """Train with a state of at least `size` bytes and measure; files go below `folder`."""
    from trainwright.checkpoint import CheckpointConfig, Manager, Retention

    model, optimizer, step = make_training(size)

    def managed_step() -> None:
        step()
        manager.step()

    step()
    found = Blocking(bytes=3 * 4 * sum(parameter.numel() for parameter in model.parameters()))
    config = CheckpointConfig(interval=10**9, writer=writer, retention=Retention(last=1), on_error="raise")  # type: ignore[arg-type]  # one of its words
    with Manager(folder / "manager", config=config, model=model, optimizer=optimizer) as manager:
        for number in range(rounds + 1):  # the first one allocates and imports
            alone = _timed(step)
            file = folder / f"{number}.pt"
            stopped = _timed(lambda: _torch_save(file, model, optimizer))  # noqa: B023  called at once
            handle = manager.save()
            steps = []
            while not handle.committed.done():
                steps.append(_timed(managed_step))
            handle.committed.result()
            waited = handle.blocking_seconds
            if number:
                found.add("torch.save", stopped)
                found.add("blocking", waited)
                found.add("persist", handle.persist_seconds)
                found.add("step", alone)
                found.add("slowdown", sum(steps) - len(steps) * alone)
            file.unlink() if number < rounds else None
        saved = handle.committed.result().path
        restores = list(_restores(manager, file).items())
        for number in range(2 * rounds):
            cold = number < rounds
            kind = "cold" if cold else "warm"
            restores.append(restores.pop(0))  # each comes first as often as the others
            for what, restore in restores:
                if cold:
                    found.cold &= _drop_cache([file, *saved.iterdir()])
                began = time.process_time()
                found.add(f"{what}, {kind}", _timed(restore))
                found.add(f"{what}, {kind}, cpu", time.process_time() - began)
    shutil.rmtree(folder / "manager")
    file.unlink()
    return found


def make_training(size: int) -> tuple[Any, Any, Callable[[], None]]:
    """Return a perceptron, its optimizer, and what takes a step; their state has at least `size` bytes."""
    import torch
    from torch import nn

    width = 1024
    layers = -(-size // (12 * (width + 1) * width))  # fp32 weights and two moments
    torch.manual_seed(0)
    model = nn.Sequential(*(part for _ in range(layers) for part in (nn.Linear(width, width), nn.Tanh())))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-4)
    batch = torch.randn(16, width)

    def step() -> None:
        optimizer.zero_grad()
        model(batch).square().mean().backward()
        optimizer.step()

    return model, optimizer, step


def idle_step_seconds(folder: Path, steps: int = 20_000) -> float:
    """Return what `manager.step()` takes when there is nothing to do: the least mean of several runs."""
    import torch

    from trainwright.checkpoint import CheckpointConfig, Manager

    with Manager(folder, config=CheckpointConfig(interval=10**9), weight=torch.zeros(4)) as manager:

        def run() -> None:
            for _ in range(steps):
                manager.step()

        return min(_timed(run) for _ in range(5)) / steps


def _restores(manager: Any, file: Path) -> dict[str, Callable[[], object]]:
    import torch

    from trainwright.checkpoint.digest import XXH3, digest_file

    def hashed() -> None:
        digest_file(file, kind=XXH3)
        torch.load(file, weights_only=True)

    return {
        "torch.load": lambda: torch.load(file, weights_only=True),
        "restore": lambda: manager.restore(check=False),
        "torch.load and hash": hashed,
        "restore, verified": manager.restore,
    }


def _torch_save(path: Path, model: Any, optimizer: Any) -> None:
    import torch

    with path.open("wb") as file:
        torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, file)
        file.flush()
        os.fsync(file.fileno())


def _timed(act: Callable[[], object]) -> float:
    began = time.perf_counter()
    act()
    return time.perf_counter() - began


def _drop_cache(files: list[Path]) -> bool:
    """Drop the files' pages from the system's cache; return whether none is left there."""
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
        first = ctypes.c_ubyte.from_buffer(mapped)  # of a private mapping, which may be asked for its address
        found = (ctypes.c_ubyte * -(-size // mmap.PAGESIZE))()
        failed = ctypes.CDLL(None).mincore(ctypes.c_void_p(ctypes.addressof(first)), ctypes.c_size_t(size), found)
        del first
    return len(found) if failed else sum(page & 1 for page in bytes(found))
