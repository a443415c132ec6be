"""Measures saving on several ranks: the Manager and torch.distributed.checkpoint, on replicas of a user's state.

Each rank is a process of its own, in a gloo group on this machine; all hold the same state, as data-parallel training
does, and each writes its part.
"""

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trainwright.checkpoint.config import CheckpointConfig, Retention
from trainwright.checkpoint.manager import Manager
from trainwright.checkpoint.manifest import Manifest
from trainwright.checkpoint.state.captured import capture_state
from trainwright.checkpoint.tools.bench import TimeSpan
from trainwright.checkpoint.tools.bench_targets import collect_state, files_below, fill_optimizers
from trainwright.checkpoint.tools.formats.registry import FORMATS
from trainwright.errors import CheckpointConfigError, CheckpointError

__all__ = ["RanksRow", "call_factory", "rank_main", "scale"]

_TIMEOUT_SECONDS = 3600


@dataclass(frozen=True, kw_only=True, slots=True)
class RanksRow:
    """What one way of saving took on so many ranks; `listed` is the time to read names and shapes of all tensors."""

    ranks: int
    name: str
    total: TimeSpan
    restore: TimeSpan
    listed: TimeSpan
    bytes: int
    files: int


def scale(
    factory: str,
    ranks: Sequence[int],
    *,
    directory: Path | None = None,
    repeats: int = 3,
    progress: Callable[[str], None] = lambda _: None,
) -> tuple[RanksRow, ...]:
    """Measure on each number of ranks; `factory` is "module:function" as `call_factory` calls it, in each rank.

    Raises `CheckpointError` if a rank fails.
    """
    if any(number < 1 for number in ranks) or repeats < 1:
        raise CheckpointConfigError(f"scale: got ranks {list(ranks)} and repeats {repeats}; allowed: numbers >= 1")
    found: list[RanksRow] = []
    for number in ranks:
        progress(f"{number} ranks")
        with tempfile.TemporaryDirectory(prefix="trainwright-scale-", dir=directory) as folder:
            for name, spans, size, files in _run_ranks(factory, number, Path(folder), repeats):
                total, restore, listed = (TimeSpan(least=min(span), median=statistics.median(span)) for span in spans)
                found.append(
                    RanksRow(
                        ranks=number, name=name, total=total, restore=restore, listed=listed, bytes=size, files=files
                    )
                )
    return tuple(found)


def call_factory(factory: str) -> Any:
    """Return what the function "module:function" returns."""
    from importlib import import_module

    module, _, name = factory.partition(":")
    return getattr(import_module(module), name)()


def _run_ranks(factory: str, ranks: int, folder: Path, repeats: int) -> list[tuple[str, list[list[float]], int, int]]:
    command = f"from {__name__} import rank_main; import sys; rank_main(*sys.argv[1:])"
    threads = max(1, (os.cpu_count() or 1) // ranks)
    environment = {
        **os.environ,
        "OMP_NUM_THREADS": str(threads),
        "PYTHONPATH": os.pathsep.join(path for path in sys.path if path),
    }
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", command, factory, str(rank), str(ranks), str(folder), str(repeats)],
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(ranks)
    ]
    try:
        said = [process.communicate(timeout=_TIMEOUT_SECONDS) for process in processes]
    finally:
        for process in processes:
            process.kill()
    wrong = next((rank for rank, process in enumerate(processes) if process.returncode != 0), None)
    if wrong is not None:
        last = (said[wrong][1].strip() or "nothing said").splitlines()[-1]
        raise CheckpointError(f"bench, {ranks} ranks: rank {wrong} failed: {last}")
    return [tuple(row) for row in json.loads(said[0][0].splitlines()[-1])]


def rank_main(factory: str, rank: str, ranks: str, folder: str, repeats: str) -> None:
    """Be one of the ranks; the first one prints what it measured."""
    import torch
    import torch.distributed as dist

    home = Path(folder)
    dist.init_process_group("gloo", init_method=f"file://{home}/store", rank=int(rank), world_size=int(ranks))
    torch.manual_seed(0)
    state = collect_state(call_factory(factory))
    torch.manual_seed(0)
    fill_optimizers(state)
    rows = []
    for name, save, restore, listed in _targets(state, home):
        spans: list[list[float]] = [[], [], []]
        path = home
        # The first one warms up.
        for repeat in range(int(repeats) + 1):
            dist.barrier()
            began = time.perf_counter()
            path = save(repeat)
            dist.barrier()
            saved = time.perf_counter()
            restore(path)
            dist.barrier()
            restored = time.perf_counter()
            listed(path)
            if repeat:
                for span, seconds in zip(
                    spans, (saved - began, restored - saved, time.perf_counter() - restored), strict=True
                ):
                    span.append(seconds)
        files = files_below(path)
        rows.append((name, spans, sum(file.stat().st_size for file in files), len(files)))
    if rank == "0":
        print(json.dumps(rows))  # noqa: T201  to the process that started this one
    dist.destroy_process_group()


def _targets(state: dict[str, Any], home: Path) -> Any:
    """Yield name, save, restore and listing of each way; at most one is open at a time."""
    from importlib import import_module

    # It lists what it exports for no type checker.
    dcp: Any = import_module("torch.distributed.checkpoint")
    config = CheckpointConfig(
        writer="sync", interval=10**9, health_check=None, retention=Retention(last=1), on_error="raise"
    )
    with Manager(home / "manager", config=config, **state) as manager:

        def save(_: int) -> Path:
            return manager.save(wait=True).committed.result().path

        yield "Manager", save, lambda _: manager.restore(mode="best_effort", check=False), Manifest.read
    tensors = dict(capture_state(state).tensors)

    def save_stock(number: int) -> Path:
        path = home / f"dcp-{number}"
        dcp.save(tensors, storage_writer=dcp.FileSystemWriter(path, sync_files=True))
        return path

    def load(path: Path) -> None:
        dcp.load(tensors, storage_reader=dcp.FileSystemReader(path))

    yield "torch DCP", save_stock, load, FORMATS["dcp"].names
