"""Measures what saving and restoring cost: each format and each writer, on the user's own state and disk.

The questions are those of Rojas, Kahira, Meneses and Bautista-Gomez (arXiv 2012.00825): cost, size, and whether what
comes back is what was saved. Contenders take turns, so that a busy machine meets all of them alike.
"""

import contextlib
import shutil
import statistics
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from trainwright.checkpoint.policy.interval import Costs
from trainwright.checkpoint.state.captured import Captured, capture_state
from trainwright.checkpoint.tools.bench_targets import (
    BenchTarget,
    FormatTarget,
    ManagerTarget,
    drop_cache,
    fill_optimizers,
)
from trainwright.checkpoint.tools.estimators import compare_estimators
from trainwright.checkpoint.tools.formats.registry import FORMATS, format_named
from trainwright.errors import (
    CheckpointConfigError,
    CheckpointError,
    CheckpointSpaceError,
    InputError,
)
from trainwright.validators import check, integer, number

if TYPE_CHECKING:
    import torch

__all__ = ["WRITERS", "Bench", "BenchRow", "TimeSpan", "bench"]

WRITERS: tuple[Literal["sync", "thread", "process"], ...] = ("sync", "thread", "process")
"""The writers of the Manager."""

_BASELINE = "torch"
_TIMES = ("blocking", "slowdown", "total", "restore", "verified")


@dataclass(frozen=True, kw_only=True, slots=True)
class TimeSpan:
    """A time measured several times, in seconds."""

    least: float
    median: float


@dataclass(frozen=True, kw_only=True, slots=True)
class BenchRow:
    """What one way of saving costs.

    `blocking` training stands still, by `slowdown` it loses time beside the save, and `total` is until all is on disk,
    synced; `restore` is back into the tensors in memory, `verified` the same with every byte hashed. `bitwise`:
    all tensors came back as they were.
    """

    name: str
    blocking: TimeSpan
    slowdown: TimeSpan
    total: TimeSpan
    restore: TimeSpan
    verified: TimeSpan
    bytes: int
    files: int
    bitwise: bool


@dataclass(frozen=True, kw_only=True, slots=True)
class Bench:
    """The rows of a bench, and what they were measured on.

    `raw_bytes` is the state as it lies in memory; `cached` says that reads may have come from the system's page cache,
    which could not be dropped; `skipped` gives the reason for each way that is not among the rows.
    """

    rows: tuple[BenchRow, ...]
    raw_bytes: int
    tensors: int
    repeats: int
    step_seconds: float
    cached: bool
    skipped: Mapping[str, str] = field(default_factory=dict)

    def row(self, name: str) -> BenchRow | None:
        """Return the row of that name, if it was measured."""
        return next((row for row in self.rows if row.name == name), None)

    @property
    def recommendation(self) -> str:
        """What to use, in one sentence."""
        sound = [row for row in self.rows if row.bitwise]
        baseline = self.row(_BASELINE)
        managed = [row for row in sound if row.name.startswith("Manager")]
        if not managed or baseline is None:
            return (
                f"save with {min(sound, key=lambda row: row.total.median).name}" if sound else "nothing came back whole"
            )
        best = min(managed, key=lambda row: row.blocking.median + row.slowdown.median)
        cost = best.blocking.median + best.slowdown.median
        costs = Costs(mtbf_seconds=86_400, cost_seconds=cost, persist_seconds=best.total.median)
        return (
            f'CheckpointConfig(writer="{best.name.split()[1]}") costs training {cost:.2g} s a save, torch.save '
            f"{baseline.blocking.median:.2g} s; a run that is lost once a day should save every "
            f"{compare_estimators(costs)[0].interval_seconds:.0f} s"
        )


def bench(
    state: Mapping[str, Any],
    *,
    directory: Path | None = None,
    formats: Sequence[str] = tuple(FORMATS),
    writers: Sequence[str] = WRITERS,
    repeats: int = 5,
    step_seconds: float = 0.3,
    progress: Callable[[str], None] = lambda _: None,
) -> Bench:
    """Measure what saving and restoring `state` cost below `directory` (default: the system's temporary folder).

    torch's zip format is always measured. Optimizers without state take a step with random gradients first. While the
    Manager writes, the main thread multiplies matrices, as training would; the optimizer's next step comes after
    `step_seconds`. Takes the memory of the state once more, and once for each writer; on return the state is what it
    was. Raises `InputError` for state that cannot be kept and settings out of range.
    """
    check(repeats, integer(minimum=1), "bench, repeats", CheckpointConfigError)
    check(step_seconds, number(minimum=0, maximum=1e6), "bench, step_seconds", CheckpointConfigError)
    unknown = [name for name in writers if name not in WRITERS]
    if unknown:
        raise CheckpointConfigError(f"bench, writer: got {unknown[0]!r}; allowed: {', '.join(WRITERS)}")
    chosen = {name: format_named(name) for name in dict.fromkeys((_BASELINE, *formats))}
    fill_optimizers(state)
    captured = capture_state(state)
    raw = sum(tensor.nbytes for tensor in captured.tensors.values())
    # Refuse before anything is written: a full disk in the middle of a bench may harm others.
    _check_room(Path(directory or tempfile.gettempdir()), raw * (1 + 2 * len(writers)))
    kept = {name: tensor.clone() for name, tensor in captured.tensors.items()}
    skipped: dict[str, str] = {}
    taken: dict[str, _Times] = {}
    dropped = True
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="trainwright-bench-", dir=directory)))
        ways: dict[str, BenchTarget] = {
            name: FormatTarget(folder / name / f"state{one.suffix}", one, captured) for name, one in chosen.items()
        }
        for writer in writers:
            ways[f"Manager {writer}"] = ManagerTarget(folder / writer, writer, state, captured, step_seconds)
        for way in ways.values():
            stack.callback(way.close)
        # The first one warms up: imports, memory, the disk's own structures.
        for repeat in range(repeats + 1):
            for name, way in ways.items():
                if name in skipped:
                    continue
                progress(f"{name}: {'warming up' if repeat == 0 else f'{repeat} of {repeats}'}")
                try:
                    times, empty = _measure_round(way, captured, kept)
                except (InputError, CheckpointError) as error:
                    skipped[name] = str(error)
                    _put_right(captured, kept)
                    continue
                except OSError as error:
                    reason = (error.strerror or str(error)).lower()
                    raise CheckpointSpaceError(f"bench, {name}: {folder} cannot be written: {reason}") from error
                dropped &= empty
                if repeat:
                    taken.setdefault(name, _Times()).add(times)
    return Bench(
        rows=tuple(times.row(name) for name, times in taken.items() if name not in skipped),
        raw_bytes=raw,
        tensors=len(captured.tensors),
        repeats=repeats,
        step_seconds=step_seconds,
        cached=not dropped,
        skipped=skipped,
    )


@dataclass(frozen=True, kw_only=True, slots=True)
class _Round:
    blocking: float
    slowdown: float
    total: float
    restore: float
    verified: float
    bytes: int
    files: int
    bitwise: bool


@dataclass(slots=True)
class _Times:
    rounds: list[_Round] = field(default_factory=list)

    def add(self, one: _Round) -> None:
        self.rounds.append(one)

    def row(self, name: str) -> BenchRow:
        def span(what: str) -> TimeSpan:
            values = [getattr(one, what) for one in self.rounds]
            return TimeSpan(least=min(values), median=statistics.median(values))

        return BenchRow(
            name=name,
            **{what: span(what) for what in _TIMES},
            bytes=self.rounds[-1].bytes,
            files=self.rounds[-1].files,
            bitwise=all(one.bitwise for one in self.rounds),
        )


def _measure_round(way: BenchTarget, captured: Captured, kept: "Mapping[str, torch.Tensor]") -> tuple[_Round, bool]:
    """Save, restore twice, compare, clean up; also return whether the page cache could be dropped."""
    import torch

    blocking, slowdown, total = way.save()
    files = way.files()
    seconds, bitwise, dropped = {}, True, True
    for verified in (False, True):
        # Overwrite the state first: a restore that reads nothing must not pass the comparison.
        with torch.no_grad():
            for name in captured.loadable:
                # What comes back does not come from here.
                captured.tensors[name].zero_()
        dropped &= drop_cache(files)
        began = time.perf_counter()
        way.restore(verified=verified)
        seconds[verified] = time.perf_counter() - began
        bitwise &= _put_right(captured, kept)
    found = _Round(
        blocking=blocking,
        slowdown=slowdown,
        total=total,
        restore=seconds[False],
        verified=seconds[True],
        bytes=sum(file.stat().st_size for file in files),
        files=len(files),
        bitwise=bitwise,
    )
    way.clear()
    return found, dropped


def _check_room(folder: Path, needed: int) -> None:
    """Refuse a folder that is not there or too small, before anything is written."""
    try:
        free = shutil.disk_usage(folder).free
    except OSError as error:
        raise CheckpointSpaceError(
            f"bench, directory: got {folder}: {(error.strerror or str(error)).lower()}; allowed: a folder that is there"
        ) from error
    if free < needed:
        raise CheckpointSpaceError(
            f"bench, directory: {folder} has {free / 1e6:.0f} MB free, this state needs {needed / 1e6:.0f} MB; give "
            "another folder, or fewer writers"
        )


def _put_right(captured: Captured, kept: "Mapping[str, torch.Tensor]") -> bool:
    """Return whether all tensors are bit for bit what they were; one that is not becomes it again."""
    import torch

    same = True
    for name, tensor in captured.tensors.items():
        as_bytes = [one.contiguous().reshape(-1).view(torch.uint8) for one in (tensor, kept[name])]
        if not torch.equal(*as_bytes):
            same = False
            with torch.no_grad():
                tensor.copy_(kept[name])
    return same
