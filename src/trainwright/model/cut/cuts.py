"""Cuts of a graph of operations into a chain, the bytes of each stage of it, and equal stages found once.

A cut is a place of the forward pass where exactly one storage that carries gradients is live from what has run to the
rest, and is not written any more. Bytes follow the conventions of `Stage`.
"""

from collections.abc import Callable, Collection, Hashable, Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, pairwise, takewhile

from trainwright.model.chain import Stage
from trainwright.model.layer import Block, Layer

__all__ = ["Access", "find_cuts", "fold_blocks", "intervals_between", "shared_beginning"]


@dataclass(frozen=True, slots=True)
class Access:
    """Which storages an operation touches."""

    reads: frozenset[int]
    writes: frozenset[int] = frozenset()
    """Those that it changes in place."""
    creates: frozenset[int] = frozenset()


def find_cuts(
    accesses: Sequence[Access], results: Iterable[int], ignored: Iterable[int] = (), barred: Collection[int] = ()
) -> list[tuple[int, int]]:
    """Return (place, storage) of each cut: after operation `place` only `storage` is read later, or is of `results`.

    `ignored` storages are there for all (parameters, the sample), at `barred` places is no cut. Of several places with
    one storage, where only views of it are taken in between, the last is the cut. One sweep over the intervals in which
    storages are live.
    """
    # A storage is live from the operation that makes it (-1: from the start) to its last reader.
    left_out = set(ignored)
    first: dict[int, int] = {}
    last: dict[int, int] = {}
    written: dict[int, int] = {}
    for place, access in enumerate(accesses):
        for storage in access.reads | access.writes | access.creates:
            first.setdefault(storage, place if storage in access.creates else -1)
            last[storage] = place
        for storage in access.writes:
            written[storage] = place
    last.update((storage, len(accesses)) for storage in results if storage in first)
    # Events of the sweep: at which operation each interval begins and ends.
    starts: dict[int, list[int]] = {}
    ends: dict[int, list[int]] = {}
    for storage, start in first.items():
        if storage not in left_out and last[storage] > start:
            starts.setdefault(start, []).append(storage)
            ends.setdefault(last[storage], []).append(storage)
    live = set(starts.get(-1, ()))
    found: list[tuple[int, int]] = []
    for place in range(len(accesses) - 1):
        live.difference_update(ends.get(place, ()))
        live.update(starts.get(place, ()))
        # More than one live storage: what follows could not be run from one tensor.
        if len(live) != 1 or place in barred:
            continue
        (storage,) = live
        # A storage that is still to be changed in place is not finished yet.
        if written.get(storage, -1) > place:
            continue
        # Only views lie between two cuts of one storage: the later place stands for both.
        if found and found[-1][1] == storage:
            found.pop()
        found.append((place, storage))
    return found


def intervals_between(places: Sequence[int], size: int) -> list[tuple[int, int]]:
    """Return (first, last) of each stage into which cuts after `places` divide `size` operations."""
    return [(before + 1, last) for before, last in pairwise([-1, *places, size - 1])]


def join_stages(stages: Sequence[Stage], arriving_gradient_bytes: int) -> Block:
    """Return the bytes of a run of stages taken as one: as if a single forward and a single backward ran through it.

    `arriving_gradient_bytes` is the gradient of the run's input. Name and layers are for the caller to add.
    """
    # While stage i runs forward, everything that the stages before it saved is held.
    saved = [0, *accumulate(stage.saved_bytes for stage in stages)]
    end = stages[-1]
    forward = max(saved[i + 1] + stage.forward_temporary_bytes for i, stage in enumerate(stages))
    # Without gradients nothing is saved: only a stage's input and output are held.
    inputs = [0, *(stage.output_bytes for stage in stages[:-1])]
    plain = max(inputs[i] + stage.output_bytes + stage.no_grad_temporary_bytes for i, stage in enumerate(stages))
    # Backward of stage i holds what stages up to i saved, its output's gradient and its input's.
    gradients = [arriving_gradient_bytes, *(stage.output_gradient_bytes for stage in stages)]
    backward = max(
        saved[i + 1] + gradients[i] + gradients[i + 1] + stage.backward_temporary_bytes
        for i, stage in enumerate(stages)
    )
    return Block(
        name=end.name,
        layers=(),
        output_bytes=end.output_bytes,
        saved_bytes=saved[-1],
        forward_temporary_bytes=max(0, forward - saved[-1]),
        no_grad_temporary_bytes=max(0, plain - end.output_bytes),
        backward_temporary_bytes=max(0, backward - saved[-1] - end.output_gradient_bytes - arriving_gradient_bytes),
        gradient_bytes=end.output_gradient_bytes,
        stages=tuple(stages),
    )


def find_repeats(
    signatures: Sequence[Hashable], whole: Callable[[int, int], bool] = lambda _start, _length: True
) -> list[tuple[int, int, int]]:
    """Divide a sequence into runs (start, length, count) of `count` equal parts of `length`, from left to right.

    Where several lengths repeat, the one that covers most is taken, and of these the shortest. Only parts that are
    `whole` (of a start and a length) make a run.
    """
    found: list[tuple[int, int, int]] = []
    start, size = 0, len(signatures)
    while start < size:
        best = (1, 1)
        # A cheap test first: a part of this length can repeat only if its first stage does.
        for length in range(1, (size - start) // 2 + 1):
            if signatures[start + length] != signatures[start] or not whole(start, length):
                continue
            count = 1
            part = signatures[start : start + length]
            while signatures[start + count * length : start + (count + 1) * length] == part:
                count += 1
            # Strictly more: of equal coverage the shortest part wins, as lengths rise.
            if count > 1 and length * count > best[0] * best[1]:
                best = (length, count)
        found.append((start, *best))
        start += best[0] * best[1]
    return found


def fold_blocks(
    stages: Sequence[Stage], layers: Sequence[Sequence[Layer]], *, input_gradient_bytes: int = 0
) -> tuple[Block, ...]:
    """Return the blocks of a chain: equal runs of stages become one block with their count."""
    nameless = [_without_names(stage, found) for stage, found in zip(stages, layers, strict=True)]
    # the gradient that a stage hands back belongs to its place: stages after different ones are not equal
    arriving = [input_gradient_bytes, *(stage.output_gradient_bytes for stage in stages)]
    signatures = [(own, before) for own, before in zip(nameless, arriving[:-1], strict=True)]
    paths = [[layer.name.split(".") for layer in found] for found in layers]

    def whole(start: int, length: int) -> bool:
        parts = [[path for own in paths[i : i + length] for path in own] for i in (start, start + length)]
        return length == 1 or _in_different_modules(*parts)

    # Blocks are found on signatures without names: equal layers, equal bytes, equal gradients on both sides.
    runs = find_repeats(signatures, whole)
    blocks = []
    for start, length, count in runs:
        block = join_stages(stages[start : start + length], arriving[start])
        parts = [range(start + i * length, start + (i + 1) * length) for i in range(count)]
        names = [stages[part[0]].name if length == 1 else _common_path(stages, layers, part) for part in parts]
        own = tuple(layer for found in layers[start : start + length] for layer in found)
        members = tuple(names) if count > 1 else ()
        begins = tuple(_first_module([each for i in part for each in layers[i]], layers[: part[0]]) for part in parts)
        blocks.append(replace(block, name=names[0], layers=own, count=count, members=members, begins=begins))
    return tuple(blocks)


def _first_module(run: Sequence[Layer], before: Sequence[Sequence[Layer]]) -> str:
    """Return the path of the outermost module whose first layer is the first with weights of a run."""
    # WeightCounter that two layers share count at the first.
    weighty = (each.name for each in run if each.weight_elements or each.kind in {"conv", "linear"})
    path = next(weighty, "").split(".")
    # The outermost module that none of the earlier layers lies in begins here.
    earlier = [layer.name.split(".") for own in before for layer in own]
    inside = {tuple(each[:depth]) for each in earlier for depth in range(1, len(each) + 1)}
    depths = (depth for depth in range(1, len(path) + 1) if tuple(path[:depth]) not in inside)
    return ".".join(path[: next(depths, len(path))])


def _without_names(stage: Stage, layers: Sequence[Layer]) -> Hashable:
    return replace(stage, name=""), tuple(replace(layer, name="") for layer in layers)


def shared_beginning(paths: Iterable[Sequence[str]]) -> list[str]:
    """Return the parts that all paths begin with."""
    levels = zip(*paths, strict=False)
    return [level[0] for level in takewhile(lambda level: len({*level}) == 1, levels)]


def _in_different_modules(one: Sequence[Sequence[str]], other: Sequence[Sequence[str]]) -> bool:
    """Whether two neighbouring parts of a chain are of different modules below what all have in common."""
    shared = len(shared_beginning([*one, *other]))
    heads = [{path[shared] for path in part if len(path) > shared} for part in (one, other)]
    return not heads[0] & heads[1]


def _common_path(stages: Sequence[Stage], layers: Sequence[Sequence[Layer]], part: range) -> str:
    """Return the path that the layers of stages have in common: "blocks.3" of "blocks.3.norm" and "blocks.3.up"."""
    paths = [layer.name.split(".") for i in part for layer in layers[i]]
    return ".".join(shared_beginning(paths)) or "+".join(stages[i].name for i in part)
