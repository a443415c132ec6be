"""What values that skip stages take: their records for the chain, and their gradients in the stages' own numbers.

When a value is there depends on the plan: the simulator counts it, from a record. Its gradient is alive from the
backward of its last reader to its maker's, or not, by whose backward comes next, as the gradients between stages are:
so it is counted with these, and is one with that of the maker's output where the two values are. While a stage runs
backward, the gradient that arrives and the one it makes both count, and with them twice what is alive before and after:
its temporaries have that taken off.
"""

import weakref
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch.autograd.graph import get_gradient_edge

from trainwright.model.chain import Skip, Stage
from trainwright.train.parallel.recompute.stages import StageRow
from trainwright.train.parallel.recompute.trees import (
    can_have_gradient,
    map_only,
    storage_key,
    storage_keys,
    tensors_of,
    total_bytes,
)

__all__ = ["SkippedValues"]

_Call = Callable[[Any], tuple[Any, dict[str, Any]]]


class SkippedValues:
    """The values that skip stages of a row, and their bytes, once they have been seen."""

    def __init__(self, row: StageRow, arguments: Sequence[Any], granule: int) -> None:
        self._row, self._granule = row, granule
        self._always = storage_keys(arguments)
        self._makers = {name: stage for stage, names in enumerate(row.makes, 1) for name in names}
        self._readers: dict[str, list[int]] = {name: [] for name in self._makers}
        for stage, names in enumerate(row.reads, 1):
            for name in names:
                self._readers[name].append(stage)
        # Bytes of each value: all, those of its maker's output, those of its gradient.
        self._bytes: dict[str, tuple[int, int, int]] = {}
        self._holders: dict[str, list[int]] = {name: [] for name in self._makers}
        self._handed_on: set[str] = set()

    def note_stage(
        self, number: int, call: _Call, given: tuple[Any, list[Any]], out: Any, made: Mapping[str, Any]
    ) -> None:
        """Note what a stage has made beside its output, and what its graph holds of that and of what it has read."""
        shown = storage_keys(out)
        for name, value in made.items():
            tensors = [each for each in tensors_of(value) if storage_key(each) not in self._always]
            shared = [each for each in tensors if storage_key(each) in shown]
            sizes = tensors, shared, filter(can_have_gradient, tensors_of(value))
            self._bytes[name] = tuple(total_bytes(each, self._granule) for each in sizes)  # type: ignore[assignment]
            # Where the next stage is handed the same tensors, their gradient is that of the output.
            if handed_on(out, {name: value}) == storage_keys(value):
                self._handed_on.add(name)
        read = self._row.reads[number - 1]
        if made or read:
            for name in _held_by_graph(call, given, read):
                self._holders[name].append(number)

    @property
    def records(self) -> tuple[Skip, ...]:
        """The values as a chain has them."""
        return tuple(
            Skip(
                name=name,
                maker=maker,
                readers=tuple(self._readers[name]),
                value_bytes=self._bytes[name][0],
                shared_bytes=self._bytes[name][1],
                holders=tuple(self._holders[name]),
            )
            for name, maker in self._makers.items()
        )

    def count_gradients(self, stages: Sequence[Stage]) -> list[Stage]:
        """Return stages, the loss stage last, with the gradients of what skips them in their numbers."""
        if not self._makers:
            return list(stages)
        found = []
        for number, stage in enumerate(stages, 1):
            # While the stage runs backward, gradients that arrive and those that it makes are both counted: subtract
            # one.
            own, before = self._gradients_alive(number), self._gradients_alive(number - 1)
            twice = sum(size for what, size in own.items() if what in before)
            # A gradient that is there already is one of three while another's is added to it.
            added = sum(2 * self._bytes[name][2] for name, readers in self._readers.items() if number in readers[:-1])
            found.append(
                replace(
                    stage,
                    gradient_bytes=stage.output_gradient_bytes + sum(own.values()),
                    backward_temporary_bytes=stage.backward_temporary_bytes - twice + added,
                )
            )
        return found

    def _gradients_alive(self, number: int) -> dict[str, int]:
        """Return the bytes of the gradients alive while a stage's backward is the next."""
        # From the backward of its last reader down to its maker's, where one that is handed on counts as the output's.
        return {
            name: self._bytes[name][2]
            for name, maker in self._makers.items()
            if maker + (name in self._handed_on) <= number < self._readers[name][-1]
        }


def handed_on(out: Any, made: Mapping[str, Any]) -> set[int]:
    """Return the storages of what skips stages and is also what the next one reads, so that its gradients are one."""
    given = {id(tensor) for tensor in tensors_of(out)}
    return {storage_key(each) for each in tensors_of(made) if id(each) in given}


def _held_by_graph(call: _Call, given: tuple[Any, list[Any]], read: Sequence[str]) -> list[str]:
    """Return the names of what skips stages that a stage's graph holds, in whatever way."""

    def without_leaf(tensor: torch.Tensor) -> torch.Tensor:
        # No leaf: the graph would hold it for its gradient.
        return tensor.detach().requires_grad_(tensor.requires_grad).clone()

    value, values = given[0], [map_only(torch.Tensor, without_leaf, each) for each in given[1]]
    out, made = call((value, values))
    named = {**dict(zip(read, values, strict=True)), **made}
    kept = {name: [weakref.ref(t.untyped_storage()) for t in tensors_of(each)] for name, each in named.items()}
    # Keep the graph alone: storages that outlive the tensors are those that it holds.
    edges = [get_gradient_edge(t) for t in tensors_of((out, made)) if t.requires_grad]
    shown = storage_keys(value)
    still = {name for name, each in made.items() if storage_keys(each) & shown}  # nobody could tell
    del values, out, made, named
    found = [name for name, each in kept.items() if name in still or any(one() is not None for one in each)]
    del edges
    return found
