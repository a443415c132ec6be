"""Merges what ranks saved into one checkpoint: combines shards, compares replicas, unites the trees of split modules.

Of modules that are split over ranks, as pipeline stages are, a checkpoint keeps the whole: the trees of the ranks are
united when it is saved, and cut to what is here when it is restored. So the stages of one run are the model of another,
or its other stages.
"""

from collections import Counter, defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import prod
from typing import Any

import numpy as np

from trainwright.checkpoint.manifest import FileRecord, Manifest, ShardRecord, TensorRecord
from trainwright.checkpoint.ranks.tensor_slices import TensorShare
from trainwright.checkpoint.save.shard_file import TensorPlace
from trainwright.checkpoint.state.differences import Difference, Effect
from trainwright.errors import CheckpointError

__all__ = [
    "PipelineParts",
    "RankReport",
    "merge_reports",
    "other_ranks_names",
    "place_record",
    "sum_words",
    "tree_of_rank",
]


@dataclass(frozen=True, kw_only=True, slots=True)
class RankReport:
    """What one rank wrote: its file, its parts of tensors, sums of what others have too, and values of its own.

    `sums` are by name and offsets of the slice, `trees` by item, `ties` further names of its tensors.
    `error` says why it wrote nothing.
    """

    rank: int
    step: int
    lease: int
    file: FileRecord | None = None
    tensors: tuple[TensorRecord, ...] = ()
    sums: Mapping[tuple[str, tuple[int, ...]], int] = field(default_factory=dict)
    trees: Mapping[str, Any] = field(default_factory=dict)
    ties: Mapping[str, str] = field(default_factory=dict)
    error: OSError | CheckpointError | None = None


def place_record(record: TensorRecord, share: TensorShare) -> TensorRecord:
    """Return a rank's record of its local tensor as a part of the global one."""
    (shard,) = record.shards
    return replace(record, shape=share.shape, shards=(replace(shard, offsets=share.box.offsets),))


def merge_reports(manifest: Manifest, reports: Sequence[RankReport]) -> tuple[Manifest, dict[str, Any]]:
    """Return the manifest with the files and tensors of all ranks, and the values that are a rank's own.

    Raises a rank's error, and `CheckpointError` if the ranks did not save the same, if what should be equal on
    several is not, or if their parts leave a hole.
    """
    for report in reports:
        if report.error is not None:
            raise report.error
        if (report.step, report.lease) != (manifest.step, manifest.lease):
            raise CheckpointError(
                f"save: rank {report.rank} saves step {report.step} of lease {report.lease}, rank 0 step "
                f"{manifest.step} of lease {manifest.lease}; save at the same step on all ranks"
            )
    # Replicas must agree before anything is published: a difference means that a rank computes wrongly.
    _compare_sums(reports)
    records: dict[str, TensorRecord] = {}
    shards: dict[str, dict[tuple[tuple[int, ...], tuple[int, ...]], ShardRecord]] = defaultdict(dict)
    for report in reports:
        for record in report.tensors:
            # A rank with no part of it saw no tie.
            if record.name in manifest.ties:
                continue
            known = records.setdefault(record.name, record)
            if (known.dtype, known.shape) != (record.dtype, record.shape):
                raise CheckpointError(
                    f"save: {record.name} is {record.dtype} {record.shape} on rank {report.rank} and {known.dtype} "
                    f"{known.shape} before it; give all ranks the same model"
                )
            # Several ranks may report one slice; the first report counts, since replicas were found equal.
            for shard in record.shards:
                shards[record.name].setdefault((shard.offsets, shard.lengths), shard)
    tensors = []
    for name, record in records.items():
        parts = shards[name]
        # Parts of several writers do not overlap, so equal counts mean that no value is missing.
        covered = sum(prod(lengths) for _, lengths in parts)
        if covered != prod(record.shape):
            raise CheckpointError(f"save: the ranks hold {covered} of the {prod(record.shape)} values of {name}")
        tensors.append(replace(record, shards=tuple(parts[place] for place in sorted(parts))))
    ties = {alias: home for report in reports for alias, home in report.ties.items() if alias not in records}
    files = tuple(report.file for report in reports if report.file is not None)
    own = {item: value for report in reports for item, value in report.trees.items()}
    ties |= manifest.ties
    return replace(manifest, world_size=len(reports), files=files, tensors=tuple(tensors), ties=ties), own


_OF_GENERATORS = frozenset({"rng", "replay"})
"""Items in which ranks differ by the states of their generators alone: those now, and at the start of the epoch."""


def sum_words(place: TensorPlace, memory: memoryview) -> int:
    """Return the sum of a tensor's bytes as words of 64 bits: as fast as memory; any one flipped bit changes it."""
    content = np.frombuffer(memory, np.uint8)[place.start : place.start + place.size]
    words = place.size // 8 * 8
    total = int(content[:words].view(np.uint64).sum(dtype=np.uint64))
    return total + int.from_bytes(content[words:].tobytes(), "little")


def tree_of_rank(
    tree: Mapping[str, Any], *, saved: int, rank: int, world: int
) -> tuple[dict[str, Any], list[Difference]]:
    """Return the tree as this rank saved it, or as the first one did if there were other ranks; and what that means."""
    common = {item: value for item, value in tree.items() if _rank_of(item) is None}
    own = {item.rpartition("@")[0] for item in tree if _rank_of(item) is not None}
    # With as many ranks as before, each gets back what it saved itself.
    if saved == world:
        return {item: tree.get(f"{item}@{rank}", value) for item, value in common.items()}, []
    counts = {"saved": f"{saved} rank{'s' * (saved > 1)}", "now": f"{world} rank{'s' * (world > 1)}"}
    # Random generators belong to a rank, so with another number of ranks draws cannot be the same.
    effects = {item: Effect.DRAWS if item in _OF_GENERATORS else Effect.STATE for item in sorted({"rng", *own})}
    return common, [Difference(item=item, **counts, effect=effect) for item, effect in effects.items()]


def other_ranks_names(manifest: Manifest, *, rank: int, world: int) -> frozenset[str]:
    """Return the tensors that are another rank's own; all ranks' own but the first one's if the ranks were others."""
    owners = {record.name: _rank_of(record.name.partition(".")[0]) for record in manifest.tensors}
    keeps = rank if manifest.world_size == world else None
    return frozenset(name for name, owner in owners.items() if owner is not None and owner != keeps)


def _rank_of(item: str) -> int | None:
    _, mark, number = item.rpartition("@")
    return int(number) if mark and number.isdigit() else None


def _compare_sums(reports: Sequence[RankReport]) -> None:
    """Refuse what should be the same on several ranks and is not; name those that are in the minority."""
    seen: dict[tuple[str, tuple[int, ...]], dict[int, int]] = defaultdict(dict)
    for report in reports:
        for place, total in report.sums.items():
            seen[place][report.rank] = total
    wrong = {place: sums for place, sums in seen.items() if len(set(sums.values())) > 1}
    if not wrong:
        return
    (name, _), sums = next(iter(wrong.items()))
    # With three or more copies the majority is taken as right, and the others are named.
    usual, count = Counter(sums.values()).most_common(1)[0]
    odd = [rank for rank, total in sums.items() if total != usual]
    which = (
        f"rank{'s' * (len(odd) > 1)} {', '.join(map(str, odd))}" if count > 1 else f"ranks {', '.join(map(str, sums))}"
    )
    raise CheckpointError(
        f"save: {name} is not the same on all ranks: {which} differ{'s' * (which.startswith('rank '))}, and so for "
        f"{len(wrong)} tensor{'s' * (len(wrong) > 1)}; nothing was published: a rank may compute wrongly, or the "
        "tensors are not meant to be the same and should be DTensors"
    )


@dataclass(frozen=True, slots=True)
class PipelineParts:
    """The tensors of modules that not all ranks hold; the same on all ranks but for `rank`."""

    rank: int = 0
    holders: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    """By the name of a tensor, the ranks that hold it."""
    items: frozenset[str] = frozenset()
    """The modules and optimizers, of which each rank may have a part."""

    @classmethod
    def of(cls, names: Sequence[Collection[str]], rank: int, items: Collection[str]) -> "PipelineParts":
        """Return who holds what, of the names on each rank."""
        held: dict[str, list[int]] = {}
        for place, own in enumerate(names):
            for name in own:
                held.setdefault(name, []).append(place)
        # Only tensors that some rank lacks; the others need no table.
        holders = {name: tuple(ranks) for name, ranks in held.items() if len(ranks) < len(names)}
        return cls(rank, holders, frozenset(items if holders else ()))

    def holding(self, name: str) -> tuple[int, ...] | None:
        """Return the ranks that hold a tensor, an optimizer's with its parameter; None: all."""
        # "optimizer.state.model.0.weight.exp_avg" is where "model.0.weight" is.
        _, _, parameter = name.rpartition(".")[0].partition(".state.")
        return self.holders.get(name, self.holders.get(parameter))

    def here(self, name: str) -> bool:
        """Whether this rank holds a tensor."""
        ranks = self.holding(name)
        return ranks is None or self.rank in ranks

    def unite_trees(self, tree: Mapping[str, Any]) -> dict[str, Any]:
        """Return a tree in which the ranks' own trees of divided items ("model@1") are one ("model")."""
        found: dict[str, Any] = {}
        for item, value in tree.items():
            # "model@1" is what rank 1 has of "model".
            home = item.rpartition("@")[0]
            whole = home if home in self.items else item
            found[whole] = _join_trees(found[whole], value) if whole in found else value
        return found

    def cut(self, tree: Mapping[str, Any]) -> dict[str, Any]:
        """Return a tree with what this rank has of divided items."""
        return {item: self._cut_item(item, value) if item in self.items else value for item, value in tree.items()}

    def _cut_item(self, item: str, tree: Mapping[str, Any]) -> dict[str, Any]:
        # Only the tree of an optimizer has groups; that of a module has its names at the top.
        if "param_groups" not in tree:
            return {name: value for name, value in tree.items() if self.here(f"{item}.{name}")}
        groups = [
            {**group, "params": [name for name in group["params"] if self.here(name)]} for group in tree["param_groups"]
        ]
        state = {name: value for name, value in tree["state"].items() if self.here(name)}
        return {**tree, "state": state, "param_groups": groups}


def _join_trees(one: Any, other: Any) -> Any:
    """Return what two ranks' trees are together: all keys, and all names of a list of names."""
    if one == other:
        return one
    if isinstance(one, dict) and isinstance(other, dict):
        return {**one, **{key: _join_trees(one[key], value) if key in one else value for key, value in other.items()}}
    if isinstance(one, list) and isinstance(other, list):
        if all(isinstance(each, dict) for each in (*one, *other)) and len(one) == len(other):
            return [_join_trees(*pair) for pair in zip(one, other, strict=True)]
        # The names of both, each once, in the order in which they come.
        return list(dict.fromkeys((*one, *other)))
    # Of plain values that differ, those of the first rank count.
    return one
