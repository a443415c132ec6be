"""Measures what saving and restoring cost: each format and each writer of the Manager, on one's own state and disk.

The questions are those of Rojas, Kahira, Meneses and Bautista-Gomez (arXiv 2012.00825): cost, size, and whether what
comes back is what was saved. Contenders take turns, so that a busy machine meets all of them alike.
"""

import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from trainwright.checkpoint.config import CheckpointConfig, Retention
from trainwright.checkpoint.manager import Manager
from trainwright.checkpoint.policy.save_policy import Costs, exact_interval, wait_for_commit
from trainwright.checkpoint.state.captured import Captured, capture_state
from trainwright.checkpoint.tools.formats.format import FORMATS, equal_bits
from trainwright.errors import (
    CheckpointConfigError,
    CheckpointError,
    CheckpointSpaceError,
    CheckpointStateError,
    InputError,
)
from trainwright.validators import check, integer

if TYPE_CHECKING:
    import torch

    from trainwright.checkpoint.tools.formats.format import Format

__all__ = ["Bench", "BenchRow", "bench", "collect_state"]

_WRITERS: tuple[Literal["sync", "thread"], ...] = ("sync", "thread")
_DAY_SECONDS = 86_400.0


@dataclass(frozen=True, kw_only=True, slots=True)
class BenchRow:
    """What one way of saving costs, in seconds: medians over the rounds.

    Training stands still for `blocking`; after `total` all is on disk, synced; `restore` is back into the tensors in
    memory, from the page cache if the system still has it there. `bitwise`: all tensors came back as they were.
    """

    name: str
    blocking: float
    total: float
    restore: float
    bytes: int
    files: int
    bitwise: bool


@dataclass(frozen=True, kw_only=True, slots=True)
class Bench:
    """The rows of a bench, and the state that they were measured on; `skipped` says why a way is not among them."""

    rows: tuple[BenchRow, ...]
    raw_bytes: int
    tensors: int
    repeats: int
    skipped: Mapping[str, str] = field(default_factory=dict)

    @property
    def recommendation(self) -> str:
        """What to use, in one sentence."""
        managed = [row for row in self.rows if row.bitwise and row.name.startswith("Manager")]
        if not managed:
            return "nothing came back whole"
        best = min(managed, key=lambda row: row.blocking)
        costs = Costs(mtbf_seconds=_DAY_SECONDS, cost_seconds=best.blocking, persist_seconds=best.total)
        return (
            f'CheckpointConfig(writer="{best.name.split()[1]}") stops training for {best.blocking:.2g} s a save; a run '
            f"that is lost once a day should save every {wait_for_commit(exact_interval(costs), costs):.0f} s"
        )


_Save = Callable[[], tuple[float, float, Path]]
"""Saves; returns the seconds of blocking and in all, and the file or folder that it made."""
_Restore = Callable[[Path], object]


def bench(
    state: Mapping[str, Any],
    *,
    directory: Path | None = None,
    repeats: int = 5,
) -> Bench:
    """Measure what saving and restoring `state` cost below `directory` (default: the system's temporary folder).

    Optimizers without state take a step with random gradients first. Takes the memory of the state once more, and once
    for each writer; on return the state is what it was. Raises `InputError` for state that cannot be kept and settings
    out of range, and `CheckpointSpaceError` where nothing can be written.
    """
    check(repeats, integer(minimum=1), "bench, repeats", CheckpointConfigError)
    _fill_optimizers(state)
    captured = capture_state(state)
    kept = {name: tensor.clone() for name, tensor in captured.tensors.items()}
    skipped: dict[str, str] = {}
    with ExitStack() as stack:
        try:
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="trainwright-bench-", dir=directory)))
            ways = dict(_contenders(folder, state, captured, stack))
            rounds: dict[str, list[BenchRow]] = {name: [] for name in ways}
            # The first round warms up: imports, memory, the disk's own structures.
            for _ in range(repeats + 1):
                for name in [way for way in ways if way not in skipped]:
                    try:
                        rounds[name].append(_measure_round(name, ways[name], captured, kept))
                    except (InputError, CheckpointError) as error:
                        skipped[name] = str(error)
                        _restore_kept(captured, kept)
        except OSError as error:
            reason = (error.strerror or str(error)).lower()
            raise CheckpointSpaceError(f"bench, directory: got {directory}: it cannot be written: {reason}") from error
    return Bench(
        rows=tuple(_median_row(found[1:]) for name, found in rounds.items() if name not in skipped),
        raw_bytes=sum(tensor.nbytes for tensor in kept.values()),
        tensors=len(kept),
        repeats=repeats,
        skipped=skipped,
    )


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


def _contenders(
    folder: Path, state: Mapping[str, Any], captured: Captured, stack: ExitStack
) -> Iterator[tuple[str, tuple[_Save, _Restore]]]:
    for name, kind in FORMATS.items():
        yield name, _format_ways(folder / f"state{kind.suffix}", kind, captured)
    for writer in _WRITERS:
        config = CheckpointConfig(
            writer=writer, interval=1e9, on_nonfinite="save", retention=Retention(last=1), on_error="raise"
        )
        manager = stack.enter_context(Manager(folder / writer, config=config, **state))
        yield f"Manager {writer}", _manager_ways(manager, captured)


def _format_ways(path: Path, kind: "Format", captured: Captured) -> tuple[_Save, _Restore]:
    """Return how a file format saves and restores: training waits until the file is written."""
    import torch

    def save() -> tuple[float, float, Path]:
        for file in _files_at(path):
            file.unlink()
        if path.is_dir():
            path.rmdir()
        began = time.perf_counter()
        kind.write(path, captured.tensors)
        seconds = time.perf_counter() - began
        return seconds, seconds, path

    def restore(saved: Path) -> None:
        with torch.no_grad(), kind.open(saved) as stored:
            for name, tensor in stored.items():
                captured.tensors[name].copy_(tensor)

    return save, restore


def _manager_ways(manager: Manager, captured: Captured) -> tuple[_Save, _Restore]:
    """Return how the Manager saves and restores: training goes on while the checkpoint is written."""

    def save() -> tuple[float, float, Path]:
        handle = manager.save()
        for optimizer in captured.optimizers:
            # Without gradients it changes nothing, but waits for the snapshot.
            optimizer.zero_grad(set_to_none=True)
            optimizer.step()
        path = handle.committed.result().path
        return handle.blocking_seconds, handle.persist_seconds, path

    return save, lambda _: manager.restore(mode="best_effort")


def _measure_round(
    name: str, ways: tuple[_Save, _Restore], captured: Captured, kept: "Mapping[str, torch.Tensor]"
) -> BenchRow:
    """Save, restore and compare."""
    import torch

    save, restore = ways
    blocking, total, path = save()
    # Overwrite the state first: a restore that reads nothing must not pass the comparison.
    with torch.no_grad():
        for lazy in captured.lazy:
            captured.tensors[lazy].zero_()
    began = time.perf_counter()
    restore(path)
    seconds = time.perf_counter() - began
    files = _files_at(path)
    return BenchRow(
        name=name,
        blocking=blocking,
        total=total,
        restore=seconds,
        bytes=sum(file.stat().st_size for file in files),
        files=len(files),
        bitwise=_restore_kept(captured, kept),
    )


def _median_row(rounds: list[BenchRow]) -> BenchRow:
    """Return the medians of rounds, of which any may have come back otherwise."""
    seconds = {
        each: statistics.median(getattr(one, each) for one in rounds) for each in ("blocking", "total", "restore")
    }
    return replace(rounds[-1], **seconds, bitwise=all(one.bitwise for one in rounds))


def _fill_optimizers(state: Mapping[str, Any]) -> None:
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


def _files_at(path: Path) -> list[Path]:
    """Return the file, or all files in the folder and below."""
    return [path] if path.is_file() else sorted(file for file in path.rglob("*") if file.is_file())


def _restore_kept(captured: Captured, kept: "Mapping[str, torch.Tensor]") -> bool:
    """Return whether all tensors are bit for bit what they were; one that is not becomes it again."""
    import torch

    same = True
    for name, tensor in captured.tensors.items():
        if not equal_bits(tensor, kept[name]):
            same = False
            with torch.no_grad():
                tensor.copy_(kept[name])
    return same
