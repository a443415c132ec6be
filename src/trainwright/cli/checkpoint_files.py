"""`trainwright checkpoint inspect`, `verify`, `diff` and `convert`: checkpoints of any kind, as files."""

import sys
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import click

from trainwright.checkpoint.tools.convert import convert as write
from trainwright.checkpoint.tools.diff import Diff
from trainwright.checkpoint.tools.diff import diff as compare
from trainwright.checkpoint.tools.inspect import Inspected, Inspection
from trainwright.checkpoint.tools.inspect import inspect as look
from trainwright.checkpoint.tools.inspect import verify as check
from trainwright.cli.command import Argument, Option, Result, print_table, size
from trainwright.errors import CheckpointFormatError
from trainwright.report.formatting import count

__all__ = ["convert", "diff", "inspect", "verify"]

_LINES = 100
"""No more names than these are shown."""

_DIFFERENCES = 40
"""Nor more tensors that differ."""

_FACTS = ("python", "torch", "cuda", "device", "devices", "cpu")
"""Of a checkpoint's fingerprint."""

_Path = Annotated[Path, Argument(help="A checkpoint, a folder of them, or a file of a known format.")]


def inspect(
    path: _Path,
    *,
    depth: Annotated[int | None, Option(minimum=1, help="Sum up names by so many of their parts.")] = None,
) -> Result:
    """Show what is in a checkpoint, without reading any tensor; of a folder of many, in the newest."""
    found = look(path)
    print(found.path, *_describe_checkpoint(found), sep="\n  ")
    print()
    rows = _list_names(found.tensors, depth)
    print_table(["name", "dtype", "shape", "size", ""], rows[:_LINES], left=3)
    if len(rows) > _LINES:
        print(f"\n{len(rows) - _LINES:,} more names: --depth 2 sums them up")
    return Result(asdict(found))


def verify(path: Annotated[Path, Argument(help="A checkpoint that a Manager wrote, or a folder of them.")]) -> Result:
    """Verify every checksum of a checkpoint, or of all in a folder; exit 1 if one is wrong."""
    found = check(path)
    for one in found.checkpoints:
        print(f"{'BAD ' if one.damages else 'good'}  {one.path}: {size(one.bytes)} in {count(one.files, 'file')}")
        for damage in one.damages:
            print(f"      {damage}")
    return Result({**asdict(found), "good": found.good}, status=0 if found.good else 1)


def diff(
    a: Annotated[Path, Argument(help="A checkpoint of any kind.")],
    b: Annotated[Path, Argument(help="Another one.")],
    *,
    tolerance: Annotated[float, Option(help="Absolute difference of values that counts as none.")] = 0.0,
) -> Result:
    """Compare two checkpoints, tensor by tensor; exit 1 if they differ."""
    found = compare(a, b, tolerance)
    _show_differences(found)
    return Result(found.to_json(), status=0 if found.same else 1)


def convert(
    source: Annotated[Path, Argument(help="A checkpoint of any kind.")],
    target: Annotated[Path, Argument(help="Where to write; nothing may be there.")],
    *,
    to: Annotated[str, Option(help="torch, safetensors; or manager, of a torch.save file or a Hugging Face folder.")],
    allow_lossy: Annotated[bool, Option("--allow-lossy", help="Leave out what the format cannot hold.")] = False,
) -> Result:
    """Write a checkpoint in another format, tensor by tensor, and compare what was written bit by bit.

    Exit 1 if something would be lost and --allow-lossy was not given.
    """
    try:
        done = write(source, target, to, allow_lossy=allow_lossy)
    except CheckpointFormatError as error:
        if "--allow-lossy" not in str(error):
            raise
        # Status 1, not 2: the input is sound.
        print(f"trainwright: {error}", file=sys.stderr)
        raise click.exceptions.Exit(1) from None
    print(
        f"{done.target}: {count(done.tensors, 'tensor')}, {size(done.bytes)} as {done.format}; every bit "
        f"compared with {done.source}"
    )
    if done.lost:
        print(f"left out: {_list_some(done.lost)}")
    return Result(asdict(done))


def _describe_checkpoint(found: Inspection) -> list[str]:
    """Return what is known of a checkpoint beside its tensors; a file of another tool may say none of it."""
    ranks = "" if found.world_size is None else f", saved by {count(found.world_size, 'rank')}"
    form = "" if found.format == "manager" else f", {found.format}"
    lines = [f"{count(len(found.tensors), 'tensor')}, {size(found.bytes)}{form}{ranks}"]
    if found.step is not None:
        epochs = f", {count(found.epoch, 'epoch')} done" if found.epoch else ""
        lines.append(f"step {found.step}{epochs}{'' if found.screen == 'good' else f', {found.screen}'}")
    if others := [str(step) for step in found.steps if step != found.step]:
        lines.append(f"other steps there: {_list_some(others)}")
    if found.trial is not None:
        lines.append(f"trial {found.trial}, run {found.lease} of study {found.study or 'without a name'}")
    if found.digest is not None:
        parent = "" if found.parent is None else f", went on from {found.parent[:12]}"
        lines.append(f"digest {found.digest[:12]}{parent}")
    facts = [
        f"{name} {value}" for name in _FACTS if isinstance(value := (found.fingerprint or {}).get(name), str | int)
    ]
    return [
        *lines,
        *([", ".join(facts)] if facts else []),
        *([f"metadata: {_list_some(list(found.metadata))}"] if found.metadata else []),
        *([f"neither tensors nor plain values: {_list_some(found.lost)}"] if found.lost else []),
    ]


def _list_names(tensors: Sequence[Inspected], depth: int | None) -> list[list[str]]:
    """Return a row for each tensor, or for all whose names begin with the same `depth` parts."""
    groups: dict[str, list[Inspected]] = defaultdict(list)
    for tensor in tensors:
        groups[".".join(tensor.name.split(".")[:depth])].append(tensor)
    rows = []
    for name, members in groups.items():
        first = members[0]
        if first.name == name:
            note = f"= {first.tied}" if first.tied else "" if first.shards == 1 else f"in {first.shards} shards"
            cells = [first.dtype, " x ".join(map(str, first.shape)) or "scalar", size(first.bytes), note]
        else:
            # Tied tensors share their bytes with the one that they are tied to.
            total = sum(tensor.bytes for tensor in members if tensor.tied is None)
            cells = ["", count(len(members), "tensor"), size(total), ""]
        rows.append([name, *cells])
    return rows


def _show_differences(found: Diff) -> None:
    if found.same:
        within = f" beyond {found.tolerance:g}" if found.tolerance else ""
        print(f"no difference{within}: {count(found.compared, 'tensor')} and all plain values are equal")
        return
    for path, names in ((found.a, found.only_a), (found.b, found.only_b)):
        if names:
            print(f"only in {path}: {_list_some(names)}")
    for changed in found.changed:
        print(f"{changed.name}: {changed.a} became {changed.b}")
    if found.different:
        print_table(
            ["tensor", "differing", "largest", "relative"],
            [
                [one.name, f"{one.different:,} of {one.values:,}", f"{one.max_abs:.3g}", f"{one.max_rel:.2g}"]
                for one in found.different[:_DIFFERENCES]
            ],
            left=1,
        )
    if len(found.different) > _DIFFERENCES:
        print(f"... and {len(found.different) - _DIFFERENCES} more; --json has all")
    if found.metadata:
        print(f"plain values that differ: {_list_some(found.metadata)}")
    equal = found.compared - len(found.different)
    print(f"{count(equal, 'tensor')} equal, {len(found.different)} with other values")


def _list_some(names: Sequence[str], most: int = 10) -> str:
    return ", ".join(names[:most]) + (f" and {len(names) - most} more" if len(names) > most else "")
