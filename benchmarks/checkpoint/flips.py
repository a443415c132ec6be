"""Damage checkpoints at random, one way at a time, and count what a restore does not notice.

A flipped bit in the data, its header, the manifest or the rest; a truncated, emptied or missing file; two files that
changed places; a file of the step before. The restore must take the checkpoint before, or find the newest exactly as it
was saved. Anything else was not noticed.
"""

import random
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

__all__ = ["DAMAGES", "Damaged", "damage_at_random"]

_STEPS = (1, 2)


@dataclass(frozen=True, kw_only=True, slots=True)
class Damaged:
    """How many damages there were, how many made the restore fall back, and how many it did not notice."""

    damages: int
    fell_back: int
    undetected: int


def damage_at_random(folder: Path, damages: int, *, seed: int = 0, kinds: tuple[str, ...] = ("flip",)) -> Damaged:
    """Save two steps below `folder` once, and damage a copy of the newer one so often, in one of `kinds` at random."""
    chance = random.Random(seed)
    whole = folder / "whole"
    for step in _STEPS:
        _save(whole, step)
    fell_back = undetected = 0
    for number in range(damages):
        copy = folder / f"damaged-{number}"
        shutil.copytree(whole, copy)
        DAMAGES[chance.choice(kinds)](copy / "step-000000000002", chance)
        step, good = _restored(copy)
        fell_back += step == _STEPS[0]
        undetected += not good
        shutil.rmtree(copy)
    return Damaged(damages=damages, fell_back=fell_back, undetected=undetected)


def _flip(folder: Path, chance: random.Random) -> None:
    path = _some_file(folder, chance)
    content = bytearray(path.read_bytes())
    content[chance.randrange(len(content))] ^= 1 << chance.randrange(8)
    path.write_bytes(content)


def _truncate(folder: Path, chance: random.Random) -> None:
    path = _some_file(folder, chance)
    path.write_bytes(path.read_bytes()[: chance.randrange(path.stat().st_size)])


def _extend(folder: Path, chance: random.Random) -> None:
    with _some_file(folder, chance).open("ab") as file:
        file.write(b"\0")


def _remove(folder: Path, chance: random.Random) -> None:
    _some_file(folder, chance).unlink()


def _swap(folder: Path, chance: random.Random) -> None:
    one, other = chance.sample(sorted(folder.iterdir()), 2)
    first, second = one.read_bytes(), other.read_bytes()
    one.write_bytes(second)
    other.write_bytes(first)


def _mix(folder: Path, chance: random.Random) -> None:
    path = _some_file(folder, chance)
    if path.name == "manifest.json":  # with its own files it would be a whole checkpoint
        path = folder / "state.json"
    shutil.copyfile(folder.with_name("step-000000000001") / path.name, path)


def _some_file(folder: Path, chance: random.Random) -> Path:
    return chance.choice(sorted(folder.iterdir()))


DAMAGES: dict[str, Callable[[Path, random.Random], None]] = {
    "flip": _flip,
    "truncate": _truncate,
    "extend": _extend,
    "remove": _remove,
    "swap": _swap,
    "mix": _mix,
}
"""The kinds of damage by name: each changes a checkpoint's folder."""


def _state(step: int) -> tuple[dict[str, Any], list[int]]:
    import torch

    return {"weight": torch.arange(64.0) + step, "table": torch.full((3, 5), step, dtype=torch.int16)}, [step, step]


def _save(folder: Path, step: int) -> None:
    from trainwright.checkpoint import CheckpointConfig, Manager

    tensors, log = _state(step)
    with Manager(folder, config=CheckpointConfig(writer="sync"), log=log, **tensors) as manager:
        manager.steps = step
        manager.save()


def _restored(folder: Path) -> tuple[int, bool]:
    """Return the step that is restored, and whether the state is exactly that step's."""
    import torch

    from trainwright.checkpoint import Manager

    tensors, log = _state(0)
    with Manager(folder, log=log, **tensors) as manager:
        restored = manager.restore()
    if restored is None:
        return 0, False
    expected, lines = _state(restored.step)
    same = log == lines and all(torch.equal(tensors[name], expected[name]) for name in expected)
    return restored.step, same and restored.step in _STEPS
