"""A recorded step as a compiler would run it: what lies between two products is one kernel in each direction.

A kernel reads what comes from outside it and writes what others read; nothing inside reaches memory. What autograd kept
of the inside is computed anew from the kernel's inputs, which are kept in its place: the choice of a compiler that
keeps least (torch's own partitioner, for operations that are cheap to do again).
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from trainwright.model.cut.layers import Gathered
from trainwright.model.trace.recorder import Operation, Shaped
from trainwright.model.trace.recording import Recording

__all__ = ["fused"]


def fused(recording: Recording, layers: Iterable[Sequence[Gathered]]) -> Recording:
    """Return the recording with every layer of a module that has no product in its forward pass fused."""
    operations, storages = list(recording.operations), dict(recording.storages)
    saved, kept = dict(recording.saved), set(recording.kept)
    readers = _readers(operations)
    alone = {i for i, operation in enumerate(operations) if operation.flops or not operation.call}
    for layer in (layer for found in layers for layer in found if alone.isdisjoint(layer.forward)):
        made = {number for i in layer.forward for number in operations[i].creates}
        own = {*layer.forward, *layer.backward}
        inside = {number for number in made - recording.results if readers.get(number, set()) <= own}
        again = {number for number in inside if not readers.get(number, set()) <= set(layer.forward)}
        again |= inside & saved.keys()
        inputs = _read(operations, layer.forward, made)
        back = {number for i in layer.backward for number in operations[i].creates} - recording.gradients
        back = {number for number in back if readers.get(number, set()) <= set(layer.backward)}
        _rewrite(operations, layer.forward, inside, {})
        _rewrite(operations, layer.backward, inside | back, inputs if again else {})
        for number in inside | back:
            storages[number] = replace(storages[number], bytes=0)
        saved = {number: place for number, place in saved.items() if number not in inside}
        kept -= inside
        for number in inputs if again and layer.backward else ():
            stored = storages[number]
            if number in recording.fixed or not stored.carries_gradient:
                continue
            saved.setdefault(number, layer.forward[0])
            kept.add(number)
            last = stored.last if stored.last < 0 else max(stored.last, layer.backward[-1])
            storages[number] = replace(stored, last=last)
    return replace(recording, operations=operations, storages=storages, saved=saved, kept=frozenset(kept))


def _readers(operations: Sequence[Operation]) -> dict[int, set[int]]:
    found: dict[int, set[int]] = {}
    for i, operation in enumerate(operations):
        for number in operation.reads:
            found.setdefault(number, set()).add(i)
    return found


def _read(operations: Sequence[Operation], places: Iterable[int], made: set[int]) -> dict[int, Shaped]:
    return {number: shaped for i in places for number, shaped in operations[i].reads.items() if number not in made}


def _rewrite(operations: list[Operation], places: Sequence[int], inside: set[int], more: Mapping[int, Shaped]) -> None:
    """Let the last of the operations read all that comes from outside, and each write only what others read."""
    places = [i for i in places if not operations[i].is_view]
    if not places:
        return
    made = inside | {number for i in places for number in operations[i].creates}
    outer = {**more, **_read(operations, places, made)}
    for i in places:
        operation, last = operations[i], i == places[-1]
        results = [_nothing(shaped) if at in inside else shaped for at, shaped in _made(operation)]
        operations[i] = replace(operation, reads=outer if last else {}, results=tuple(results), joins=not last)


def _made(operation: Operation) -> list[tuple[int, Shaped]]:
    """Return the results with the storages that they made, -1 where it is not known which."""
    numbers = [*operation.creates, *([-1] * len(operation.results))]
    return list(zip(numbers, operation.results, strict=False))


def _nothing(shaped: Shaped) -> Shaped:
    return replace(shaped, shape=(0,), stride=(1,))
