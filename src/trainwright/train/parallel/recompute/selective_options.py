"""Chooses which operations of a block to recompute (selective checkpointing), by the seconds that a byte costs.

One forward is recorded, with the seconds of each operation, what it reads and makes, and what autograd saves of it.
A saved result may be made again by its operation if that does the same again; what this reads must be kept, or be
made again too. Results are dropped one after the other, the one with the least seconds a byte first. So cheap ones go
(activation functions, norms, casts, dropout's products) and dear ones stay (matrix products, convolutions, attention)
as long as the times say so, and no kind of block needs a rule.
"""

import heapq
import weakref
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch

from trainwright.model.trace.storages import tensors_in
from trainwright.train.parallel.recompute.operation_tape import OperationKind, OperationMode, is_minor
from trainwright.train.parallel.recompute.sample_step import Stopwatch
from trainwright.train.parallel.recompute.trees import rounded_bytes, storage_key
from trainwright.train.parallel.recompute.values import can_move, detach_unseen

__all__ = ["SLOT_SECONDS", "OperationRecorder", "SelectiveOption"]

_OPTIONS = 4
"""Of a block at most, and the one that keeps least."""
_SMALL = 1 / 64
"""Of what a block saves: a smaller result is not worth its slot."""
_STATE_BYTES = 5120
"""Of a generator of numbers."""
SLOT_SECONDS, _WATCHED_SECONDS, _REMADE_SECONDS, _STAGE_SECONDS = 1e-5, 2e-5, 6e-5, 2e-4
"""Of Python, between operations of a size that evicts its code from the caches: for each tensor that autograd saves,
each time; for each operation that a tape sees, views among them; for one that is done again; and for the stage."""


class SelectiveOption(NamedTuple):
    """Operations that are done again, and what this takes beyond keeping everything."""

    remade: tuple[int, ...]
    freed_bytes: int
    """Of what autograd saves."""
    extra_bytes: int
    """Of what is made on the way, and was never saved."""
    forward_seconds: float
    backward_seconds: float


@dataclass(eq=False, slots=True)
class _Value:
    """What is in a storage, from one write to the next."""

    maker: int
    """The operation, -1 for what the forward was given."""
    size: int
    saved: bool = False
    written: bool = False
    """Something else is in the storage since."""
    minor: bool = False
    """It stays where its operation is done again."""


@dataclass(slots=True)
class _Operation:
    repeatable: bool
    draws: bool
    seconds: float
    reads: list[_Value]
    makes: list[_Value] = field(default_factory=list)
    workspace_bytes: int = 0


class OperationRecorder(OperationMode):
    """Records the operations of a forward that it is entered for; entered first, it times them without other modes."""

    def __init__(self, granule: int) -> None:
        super().__init__()
        self._granule = granule
        self.saved = 0
        """How many tensors autograd has saved."""
        self.saved_keys: set[int] = set()
        """Their storages."""
        self.operations: list[_Operation] = []
        self._values: dict[int, tuple[weakref.ref[torch.UntypedStorage], _Value]] = {}
        self._outputs: set[int] = set()

    def save(self, tensor: torch.Tensor) -> torch.Tensor:
        """Note that autograd saves a tensor, and return what it is to hold."""
        self.saved += 1
        if can_move(tensor):
            self.saved_keys.add(storage_key(tensor))
            self._value_of(tensor).saved = True
        return detach_unseen(tensor)

    def note_workspace(self, size: int) -> None:
        """Note what the operation that was recorded last has taken and given back."""
        if self.operations:
            self.operations[-1].workspace_bytes = max(self.operations[-1].workspace_bytes, size)

    def run(self, kind: OperationKind, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """Do an operation, and record it."""
        given = tensors_in((args, kwargs))
        reads = [self._value_of(each) for each in given if can_move(each)]
        watch = Stopwatch(given)
        result = func(*args, **kwargs)
        seconds = watch.read()
        written = tensors_in(kind.written(args, kwargs)) if kind.writes else []
        # What it writes must have been made here, to be made again.
        own = [self._value_of(each) if can_move(each) else None for each in written]
        repeatable = kind.repeatable and len(reads) == len(given) and all(each and each.maker >= 0 for each in own)
        self.operations.append(_Operation(repeatable, kind.draws, seconds, reads))
        for value, tensor in zip(own, written, strict=True):
            if value is not None:
                value.written = True
                self._add_value(tensor, self.number)
        known = {storage_key(each) for each in given}
        made = tensors_in(result)
        for tensor in made:
            if can_move(tensor) and storage_key(tensor) not in known:
                self._add_value(tensor, self.number).minor = is_minor(tensor, made)
        return result

    def finish_forward(self) -> None:
        """Note that what is gone is not saved: its node went with a part of the graph that nobody reads."""
        for storage, value in self._values.values():
            value.saved &= storage() is not None

    def _add_value(self, tensor: torch.Tensor, maker: int) -> _Value:
        value = _Value(maker, rounded_bytes(tensor, self._granule))
        _, before = self._values.get(storage_key(tensor), (None, value))
        before.saved = False
        self._values[storage_key(tensor)] = weakref.ref(tensor.untyped_storage()), value
        if maker >= 0:
            self.operations[maker].makes.append(value)
        return value

    def _value_of(self, tensor: torch.Tensor) -> _Value:
        storage, value = self._values.get(storage_key(tensor), (None, None))
        if value is None or storage is None or storage() is not tensor.untyped_storage():
            return self._add_value(tensor, -1)
        return value

    def options(
        self, outputs: Collection[int], forward_seconds: float, again: "OperationRecorder"
    ) -> list[SelectiveOption]:
        """Return ways to keep less and less, by a forward's seconds; storages of outputs are there in any case.

        `again` has recorded the same forward once more: of two times the lesser counts.
        """
        kept = {id(value) for key, (_, value) in self._values.items() if key in outputs}
        saved = [value for _, value in self._values.values() if value.saved and not value.written]
        # The first run has cold caches.
        if len(again.operations) == len(self.operations):
            for each, other in zip(self.operations, again.operations, strict=True):
                each.seconds = min(each.seconds, other.seconds)
        slots = self.saved * SLOT_SECONDS
        watched = _STAGE_SECONDS + self.seen * _WATCHED_SECONDS + slots
        return _Selection(self.operations, saved, kept, forward_seconds).options(watched, slots)


class _Selection:
    """Drops saved values of a recorded forward, one after the other."""

    def __init__(
        self, operations: list[_Operation], saved: list[_Value], outputs: set[int], forward_seconds: float
    ) -> None:
        self._operations = operations
        total = sum(value.size for value in saved if value.maker >= 0)
        self._candidates = [
            value
            for value in saved
            if value.maker >= 0 and not value.minor and value.size > _SMALL * total and id(value) not in outputs
        ]
        # Running the whole block again would free all of it.
        self._dearest = forward_seconds / max(total, 1)
        self._dropped: set[int] = set()
        self._remade: set[int] = set()

    def options(self, watched_seconds: float, slots_seconds: float) -> list[SelectiveOption]:
        """Return at most so many of the selections, of about equal steps in bytes, and the one that keeps least.

        A tape takes so long in each forward, and what it has put in slots in each backward.
        """
        found: list[SelectiveOption] = []
        worth = 0  # of them, before the first that takes more seconds a byte than to run the whole block again
        heap = [(0.0, place, value) for place, value in enumerate(self._candidates)]
        freed, seconds = 0, slots_seconds
        while heap:
            _, place, value = heapq.heappop(heap)
            more = self._needed(value)
            if more is None:
                continue
            cost = sum(self._seconds(each) for each in more) / value.size
            # What has been dropped since may have made it cheaper, or dearer.
            if heap and cost > heap[0][0]:
                heapq.heappush(heap, (cost, place, value))
                continue
            self._dropped.add(id(value))
            self._remade |= more
            freed, seconds = freed + value.size, seconds + cost * value.size
            found.append(
                SelectiveOption(tuple(sorted(self._remade)), freed, self._extra_bytes(), watched_seconds, seconds)
            )
            worth += worth == len(found) - 1 and cost <= self._dearest
        # The last before each share of what can be freed.
        chosen = {}
        for share in range(1, _OPTIONS + 1):
            within = [
                each for each in found[:worth] if each.freed_bytes <= found[worth - 1].freed_bytes * share / _OPTIONS
            ]
            if within:
                chosen[within[-1].freed_bytes] = within[-1]
        # Whatever it takes: the least budget of a model depends on no clock.
        chosen |= {each.freed_bytes: each for each in found[-1:]}
        return list(chosen.values())

    def _seconds(self, number: int) -> float:
        return self._operations[number].seconds + _REMADE_SECONDS

    def _needed(self, value: _Value) -> set[int] | None:
        """Return the operations that are to be done as well to make a value again; None if it cannot be."""
        needed: set[int] = set()
        waiting = [value]
        while waiting:
            each = waiting.pop()
            if each.maker in needed or each.maker in self._remade:
                continue
            if each.maker < 0 or not self._operations[each.maker].repeatable:
                return None
            needed.add(each.maker)
            waiting += [
                read for read in self._operations[each.maker].reads if read is not value and not self._is_there(read)
            ]
        return needed

    def _is_there(self, value: _Value) -> bool:
        return not value.written and (value.maker < 0 or (value.saved and id(value) not in self._dropped))

    def _extra_bytes(self) -> int:
        """Return the most bytes at a time of what is made beside what was dropped, with the states of generators."""
        waiting = Counter(id(read) for number in self._remade for read in self._operations[number].reads)
        live = most = 0
        done: set[int] = set()
        # The backward asks for what was saved last first; what this reads is made in the order of the forward.
        for value in reversed(self._candidates):
            if id(value) not in self._dropped:
                continue
            needed, asked = set[int](), [value.maker]
            while asked:
                number = asked.pop()
                if number not in done | needed:
                    needed.add(number)
                    asked += [each.maker for each in self._operations[number].reads if each.maker in self._remade]
            for number in sorted(needed):
                live += sum(each.size for each in self._operations[number].makes if id(each) not in self._dropped)
                most = max(most, live + self._operations[number].workspace_bytes)
                # What nobody reads goes at once, and what is read when its last reader is done.
                live -= sum(
                    each.size
                    for each in self._operations[number].makes
                    if id(each) not in self._dropped and not waiting[id(each)]
                )
                for each in self._operations[number].reads:
                    waiting[id(each)] -= 1
                    if not waiting[id(each)] and each.maker in self._remade and id(each) not in self._dropped:
                        live -= each.size
            done |= needed
        return most + sum(self._operations[number].draws for number in self._remade) * _STATE_BYTES
