"""Who reads what skips stages, and how: by units of a script, in autograd's own graph and in reruns."""

from collections import Counter
from collections.abc import Sequence
from typing import Any

import torch

from trainwright.train.parallel.recompute.program import FORWARDS, Script
from trainwright.train.parallel.recompute.stages import StageRow
from trainwright.train.parallel.recompute.trees import map_only
from trainwright.train.parallel.recompute.values import detach_leaf

__all__ = ["apart_in_backward", "read_later", "read_outside", "wanted_after", "without_graph"]


def wanted_after(row: StageRow, script: Script) -> list[frozenset[str]]:
    """Return what skips stages and is read, behind each act, by a unit that is run again before it is made anew."""
    wanted: frozenset[str] = frozenset()
    found = []
    left = Counter(script.runs)
    for act in reversed(script.acts):
        found.append(wanted)
        if act.kind in FORWARDS:
            unit = script.units[act.stage - 1]
            left[act.stage] -= 1
            wanted -= {name for stage in unit for name in row.makes[stage - 1]}
            if left[act.stage]:
                wanted |= {*read_outside(row, unit)}
    return found[::-1]


def read_later(row: StageRow, parts: Sequence[range]) -> list[frozenset[str]]:
    """Return, for each stage, what skips stages to those behind it in its part."""
    found: list[frozenset[str]] = []
    for part in reversed(parts):
        names: frozenset[str] = frozenset()
        for stage in reversed(part):
            found.append(names)
            names |= {*row.reads[stage - 1]}
    return found[::-1]


def read_outside(row: StageRow, unit: range) -> list[str]:
    """Return what stages read that others before them have made to skip stages."""
    made = {name for stage in unit for name in row.makes[stage - 1]}
    read = [name for stage in unit for name in row.reads[stage - 1]]
    return [name for name in dict.fromkeys(read) if name not in made]


def apart_in_backward(value: Any) -> Any:
    """Return a value whose gradient is never a part of a larger one's storage: that would live as long."""

    def view_of(tensor: torch.Tensor) -> torch.Tensor:
        if not tensor.requires_grad:
            return tensor
        seen = tensor.view_as(tensor)
        seen.register_hook(lambda each: each.clone() if each.untyped_storage().nbytes() > each.nbytes else each)
        return seen

    return map_only(torch.Tensor, view_of, value)


def without_graph(value: Any) -> Any:
    """Return a value of a rerun for the next stage: a graph behind it would hold what the run began with."""
    return map_only(torch.Tensor, detach_leaf, value)
