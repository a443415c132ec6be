"""Saves and restores a distributed checkpoint, which all ranks write together; or that of one process alone.

Every rank writes its own file into one temporary folder; the first one, the coordinator, gathers what they wrote,
writes the manifest and publishes. The ranks speak in two gloo groups of their own: one that the writer's thread alone
uses, so that no barrier of the training can meet it, and one for the main thread.
"""

import json
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from trainwright.checkpoint.digest import digest_bytes
from trainwright.checkpoint.manifest import Manifest
from trainwright.checkpoint.ranks.merging import (
    PipelineParts,
    RankReport,
    merge_reports,
    other_ranks_names,
    place_record,
    sum_words,
    tree_of_rank,
)
from trainwright.checkpoint.ranks.reshard import HeldTensors, read_resharded, read_targets, share_tensors
from trainwright.checkpoint.restore.restored import verify_digests
from trainwright.checkpoint.save.publish import Published, WriteJob, publish, write_checkpoint, write_data, write_tree
from trainwright.checkpoint.save.shard_file import ShardFile, plan_shard_file
from trainwright.checkpoint.state.captured import Captured
from trainwright.checkpoint.state.differences import Difference
from trainwright.errors import CheckpointError, first_line
from trainwright.publishing import FileLayer
from trainwright.randomness import seed_all

if TYPE_CHECKING:
    import torch
    from torch.distributed import ProcessGroup, Work

__all__ = ["Agreement", "Findings", "Ranks", "SingleRank", "make_ranks"]

T = TypeVar("T")

_SENT_BYTES = 1 << 20
"""Of a tensor at least that a rank sends to others from its memory."""

_AGREE_SECONDS = 0.25
"""How often ranks agree, unless so long has more steps than the most that may lie between."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Findings:
    """What was found before a save is written: why it must not be, or nothing."""

    trouble: str = ""
    # Refused by the health check: nothing failed.
    refused: bool = False


class SingleRank:
    """One process alone: nobody to wait for."""

    rank = 0
    world = 1
    _parts = PipelineParts()

    @property
    def first(self) -> bool:
        """Whether this is the coordinator, who alone changes what is there."""
        return self.rank == 0

    def item(self, name: str) -> str:
        """Return the name under which this rank keeps an item of its own."""
        return name if self.first else f"{name}@{self.rank}"

    def exchange_names(self, state: Mapping[str, Any], captured: Captured) -> None:
        """Learn which ranks have which of the tensors of modules. To be called once, before anything else."""

    def plan_write(self, captured: Captured, manifest: Manifest, home: Path) -> WriteJob:
        """Return what this rank writes of the state: all."""
        layout = plan_shard_file(captured.tensors)
        return WriteJob(home=home, manifest=manifest, captured=captured, layout=layout, mine=layout)

    def run_together(self, act: Callable[[], T]) -> T:
        """Do the same on all ranks; where it fails on one it fails on all. In the main thread."""
        return act()

    def run_on_first(self, act: Callable[[], T]) -> T:
        """Return what `act` gives on the coordinator. In the main thread."""
        return act()

    def any(self, wish: bool) -> bool:
        """Tell whether a rank wishes it. In the main thread."""
        return wish

    def agree_on_findings(self, findings: Findings) -> Findings:
        """Return what the ranks found together. In the writer's thread, once for each save that was not skipped."""
        return findings

    def due(self, now: bool, wish: bool, *, end: bool = False) -> tuple[bool, bool]:
        """Tell whether to save at this step, and whether to end. To be asked at each step.

        Saved is `now`, which all ranks know, or because one wishes it; ended because one says so.
        """
        return now or wish, end

    def publish(self, layer: FileLayer, job: WriteJob, memory: memoryview) -> Published:
        """Write the parts of all ranks. In the writer's thread. Raises `OSError` or `CheckpointError`."""
        return write_checkpoint(layer, job, memory)

    def select_tree(self, tree: Mapping[str, Any], manifest: Manifest) -> tuple[dict[str, Any], list[Difference]]:
        """Return the plain values that are this rank's, and what cannot be as it was if the ranks were others."""
        return tree_of_rank(self._parts.cut(tree), saved=manifest.world_size, rank=self.rank, world=self.world)

    def read(
        self,
        published: Published,
        state: Mapping[str, Any],
        captured: Captured,
        held: "Mapping[str, torch.Tensor]",
        *,
        check: bool,
    ) -> "dict[str, torch.Tensor]":
        """Return the tensors that this rank needs; with `check` every byte that is read is compared.

        What a rank has `held` in memory, as bytes by name, is not read.
        """
        sizes = self._agree_on_held(held)
        alone = self.world == 1 and not sizes
        # All of it is compared before the first byte goes to a live tensor.
        if alone and check:
            verify_digests(published)
        # What belongs to other ranks, or to stages of a pipeline that are not here, is not read.
        skip = other_ranks_names(published.manifest, rank=self.rank, world=self.world)
        skip |= {each.name for each in published.manifest.tensors if not self._parts.here(each.name)}
        return read_resharded(
            published,
            read_targets(state, captured.tensors),
            places={name: captured.tensors[name] for name in captured.loadable if alone or name in sizes},
            memory=HeldTensors(held, sizes, self._send),
            check=check and not alone,
            skip=skip,
        )

    def _agree_on_held(self, held: "Mapping[str, torch.Tensor]") -> dict[str, int]:
        """Return the sizes of what is taken from memory, here or of another rank, by name."""
        return {name: content.numel() for name, content in held.items()}

    def _send(self, content: "torch.Tensor") -> None:
        """Let all ranks have what one of them holds."""

    def reseed_generators(self, manifest: Manifest) -> None:
        """Give the generators other seeds if the ranks were others; from the saved ones, the step and the rank."""
        if manifest.world_size == self.world:
            return
        saved = [record.digest for record in manifest.tensors if record.name.startswith("rng.")]
        # Every rank derives its own seed from the saved generators, so a restore on other ranks is repeatable.
        key = f"{saved} {manifest.study} {manifest.trial} {manifest.step} {self.rank} of {self.world}"
        seed_all(int(digest_bytes(key.encode())[:8], 16))


class Agreement:
    """What at least one rank wishes, known to all at the same step.

    Every few steps, at most `every` of them, each rank starts an asynchronous max-reduce of its wishes and reads the
    one before it. So a wish is heard by all ranks at the same step, at most two times as many steps later, and nobody
    waits for the network in between. Slow steps are agreed on each: an allocation that ends leaves no time for many.
    `group` is a gloo group for this alone, None where one process trains: then wishes come true at once.
    """

    def __init__(self, group: "ProcessGroup | None" = None, *, every: int = 8) -> None:
        self.every = every
        self.steps = 0
        self.read_from = 0
        """The step at which the wishes that were read last had been told."""
        self._group = group
        self._next = 1
        self._pending: tuple[int, Work, torch.Tensor] | None = None
        self._told_at = time.monotonic()

    def step(self, *wishes: bool) -> tuple[bool, ...]:
        """Count a step; return for each wish whether all ranks follow it now. All ranks call this at each step."""
        if self._group is None:
            return wishes
        self.steps += 1
        # Between two reduces nobody communicates, so a step costs nothing.
        if self.steps < self._next:
            return (False,) * len(wishes)
        import torch
        import torch.distributed as dist

        # The reduce before this one has had a step or more to finish, so waiting for it is free.
        before = 0 if self._pending is None else self._pending[0]
        agreed, slowest = self._read_pending(len(wishes))
        now = time.monotonic()
        took = (now - self._told_at) / max(1, self.steps - before)
        self._told_at = now
        values = torch.tensor([*wishes, round(1e6 * took)], dtype=torch.int64)
        work = dist.all_reduce(values, dist.ReduceOp.MAX, group=self._group, async_op=True)
        self._pending = self.steps, work, values
        # All ranks have read the same, so all count alike.
        self._next = self.steps + max(1, min(self.every, int(_AGREE_SECONDS / slowest) if slowest else 1))
        return agreed

    def _read_pending(self, count: int) -> tuple[tuple[bool, ...], float]:
        """Return what was agreed on, and the seconds of a step on the slowest rank; 0 if nothing was."""
        if self._pending is None:
            return (False,) * count, 0.0
        self.read_from, work, values = self._pending
        try:
            work.wait()
        except RuntimeError as error:
            raise CheckpointError(
                f"the ranks could not agree on a step, one of them seems gone: {first_line(error)}"
            ) from error
        *wishes, micros = values.tolist()
        return tuple(map(bool, wishes)), micros / 1e6


class Ranks(SingleRank):
    """All ranks of the default process group, which all make this object, in the same order as other groups."""

    def __init__(self, timeout_seconds: float) -> None:
        import torch.distributed as dist

        self.rank = dist.get_rank()
        self.world = dist.get_world_size()
        self._timeout = timedelta(seconds=timeout_seconds)
        self._writers = dist.new_group(backend="gloo", timeout=self._timeout)
        self.control = dist.new_group(backend="gloo", timeout=self._timeout)
        self._agreement = Agreement(dist.new_group(backend="gloo", timeout=self._timeout))
        # The step of the last save: wishes that were told until then belong to it.
        self._saved_at = 0
        self._source = 0  # the rank whose memory others restore from

    def exchange_names(self, state: Mapping[str, Any], captured: Captured) -> None:
        """Learn which ranks have which of the tensors of modules."""
        import torch

        modules = {item for item, value in state.items() if isinstance(value, torch.nn.Module)}
        names = sorted(f"{item}.{name}" for item in modules for name in captured.tree[item])
        # Names are long: ranks compare digests first, and exchange the names only if these differ.
        if len(set(self._gather(digest_bytes(_encode_json(names)), self.control))) > 1:
            optimizers = {item for item, value in state.items() if isinstance(value, torch.optim.Optimizer)}
            self._parts = PipelineParts.of(self._gather(names, self.control), self.rank, modules | optimizers)

    def plan_write(self, captured: Captured, manifest: Manifest, home: Path) -> WriteJob:
        """Return what this rank keeps of the state: its parts of DTensors, and all plain tensors.

        Of the plain ones it writes some; the others it compares with those of the other ranks. Buffers of modules are
        the first rank's: batch statistics differ between ranks until DDP hands out the first one's with the next batch.
        """
        # Batch statistics differ between ranks; the first rank's are the ones that DDP broadcasts.
        buffers = {name for name in captured.loadable - captured.lazy if name not in captured.tree}
        own = f"{self.item('rng')}."
        local, shares = share_tensors(
            captured.tensors, self.rank, self.world, own=own, of_first=buffers, parts=self._parts
        )
        mine = plan_shard_file({name: tensor for name, tensor in local.items() if shares[name].writes})
        rest = plan_shard_file({name: tensor for name, tensor in local.items() if not shares[name].writes})
        # The buffer holds what this rank writes, then copies that are only compared; sums there read aligned words.
        start = -(-mine.size // 8) * 8
        places = (*mine.places, *(place._replace(start=place.start + start) for place in rest.places))
        held = replace(captured, tensors=local, lazy=captured.lazy & local.keys())
        return WriteJob(home=home, manifest=manifest, captured=held, layout=ShardFile(places), mine=mine, shares=shares)

    def run_together(self, act: Callable[[], T]) -> T:
        """Do the same on all ranks; where it fails on one it fails on all, with the first one's error."""
        error: CheckpointError | None = None
        try:
            result = act()
        except CheckpointError as raised:
            error = raised
        told = None if error is None else (type(error), str(error))
        # Every rank learns of the first failure, so that none waits in the next collective for one that raised.
        for rank, other in enumerate(self._gather(told, self.control)):
            if error is None and other is not None:
                kind, sentence = other
                error = kind(f"rank {rank}: {sentence}")
        if error is not None:
            raise error
        return result

    def run_on_first(self, act: Callable[[], T]) -> T:
        """Return what `act` gives on the coordinator; what it raises there is raised on all."""
        found: list[T] = []
        self.run_together(lambda: found.append(act()) if self.first else None)
        result: T = self._broadcast(found[0] if self.first else None, self.control)
        return result

    def any(self, wish: bool) -> bool:
        """Tell whether a rank wishes it."""
        return any(self._gather(wish, self.control))

    def agree_on_findings(self, findings: Findings) -> Findings:
        """Wait for all ranks; return what they found, troubles with their ranks."""
        import torch.distributed as dist

        try:
            dist.monitored_barrier(self._writers, timeout=self._timeout, wait_all_ranks=True)
        except RuntimeError as error:
            raise CheckpointError(
                f"save: not all of the {self.world} ranks called save within {self._timeout.total_seconds():g} s: "
                f"{first_line(error)}; call save on all of them, at the same step"
            ) from error
        told = self._gather(findings, self._writers)
        troubles = [(one, f"rank {rank}: {one.trouble}") for rank, one in enumerate(told) if one.trouble]
        return Findings(
            trouble="; ".join(sentence for _, sentence in troubles),
            refused=bool(troubles) and all(one.refused for one, _ in troubles),
        )

    def due(self, now: bool, wish: bool, *, end: bool = False) -> tuple[bool, bool]:
        """Tell whether to save at this step, and whether to end; all ranks do at the same one."""
        agreed, ended = self._agreement.step(wish, end)
        # A wish that led to this save is still on its way to be agreed on once more; it must not cause a second one.
        save = now or (agreed and self._agreement.read_from > self._saved_at)
        if save:
            self._saved_at = self._agreement.steps
        return save, ended

    def _agree_on_held(self, held: "Mapping[str, torch.Tensor]") -> dict[str, int]:
        # Small tensors are read in less time than sent. The stages of a pipeline need different ones.
        own = {name: each.numel() for name, each in held.items() if each.numel() >= _SENT_BYTES}
        offers = self._gather({} if self._parts != PipelineParts() else own, self.control)
        self._source = max(range(self.world), key=lambda rank: len(offers[rank]))
        return offers[self._source]

    def _send(self, content: "torch.Tensor") -> None:
        import torch.distributed as dist

        with _translate_group_errors():
            dist.broadcast(content, group_src=self._source, group=self.control)

    def publish(self, layer: FileLayer, job: WriteJob, memory: memoryview) -> Published:
        """Write this rank's file; on the coordinator, publish what all wrote. Raises the same error on all ranks."""
        return self._publish_as_first(layer, job, memory) if self.first else self._publish_as_other(layer, job, memory)

    def _publish_as_first(self, layer: FileLayer, job: WriteJob, memory: memoryview) -> Published:
        own = {item: _encode_json(value) for item, value in job.captured.tree.items()}
        opened = False

        def write(folder: Path, files: ExitStack) -> Manifest:
            nonlocal opened
            opened = True
            self._broadcast((folder, {item: digest_bytes(text) for item, text in own.items()}), self._writers)
            reports = self._gather(self._write_report(layer, folder, job, memory, {}), self._writers)
            manifest, tree = merge_reports(job.manifest, reports)
            whole = self._parts.unite_trees({**job.captured.tree, **tree})
            return replace(manifest, files=(*manifest.files, write_tree(layer, folder, files, whole)))

        ending: Published | Exception
        try:
            ending = publish(layer, job.home, job.manifest.step, job.manifest.lease, write)
        except (OSError, CheckpointError) as error:
            ending = error
        # The other ranks wait for the name of the folder, even if there is none.
        if not opened:
            self._broadcast(None, self._writers)
        return _unwrap_ending(self._broadcast(ending, self._writers))

    def _publish_as_other(self, layer: FileLayer, job: WriteJob, memory: memoryview) -> Published:
        opened = self._broadcast(None, self._writers)
        if opened is not None:
            folder, known = opened
            # Plain values are equal on most ranks; only those that differ from the first rank's travel.
            trees = {
                item: value
                for item, value in job.captured.tree.items()
                if known.get(item) != digest_bytes(_encode_json(value))
            }
            self._gather(self._write_report(layer, folder, job, memory, trees), self._writers)
        return _unwrap_ending(self._broadcast(None, self._writers))

    def _write_report(
        self, layer: FileLayer, folder: Path, job: WriteJob, memory: memoryview, trees: Mapping[str, Any]
    ) -> RankReport:
        """Write this rank's file, and say what is in it; or why not."""
        own = job.manifest
        report = RankReport(rank=self.rank, step=own.step, lease=own.lease, ties=own.ties)
        try:
            # Durable before the first rank is told.
            with ExitStack() as files:
                file, records = write_data(layer, folder, files, job.mine, memory, rank=self.rank)
        except (OSError, CheckpointError) as error:
            return replace(report, error=error)
        named = {item if "@" in item else f"{item}@{self.rank}": value for item, value in trees.items()}
        return replace(
            report,
            file=file,
            tensors=tuple(place_record(record, job.shares[record.name]) for record in records),
            sums={
                (place.name, job.shares[place.name].box.offsets): sum_words(place, memory)
                for place in job.layout.places
                if job.shares[place.name].shared
            },
            trees=named,
        )

    def _gather(self, own: T, group: "ProcessGroup") -> list[T]:
        import torch.distributed as dist

        found: list[Any] = [None] * self.world
        with _translate_group_errors():
            dist.all_gather_object(found, own, group=group)
        return found

    def _broadcast(self, own: Any, group: "ProcessGroup") -> Any:
        """Return what the coordinator says."""
        import torch.distributed as dist

        said = [own]
        with _translate_group_errors():
            dist.broadcast_object_list(said, group_src=0, group=group)
        return said[0]


def make_ranks(timeout_seconds: float) -> SingleRank:
    """Return the ranks of the default process group; a process alone where there is none."""
    import torch.distributed as dist

    return Ranks(timeout_seconds) if dist.is_available() and dist.is_initialized() else SingleRank()


@contextmanager
def _translate_group_errors() -> Iterator[None]:
    try:
        yield
    except RuntimeError as error:
        raise CheckpointError(
            f"the ranks cannot speak with each other, one seems gone: {first_line(error)}; the newest "
            "checkpoint is kept"
        ) from error


def _unwrap_ending(ending: Published | Exception) -> Published:
    if isinstance(ending, Exception):
        raise ending
    return ending


def _encode_json(value: Any) -> bytes:
    return json.dumps(value, sort_keys=True, separators=(",", ":")).encode()
