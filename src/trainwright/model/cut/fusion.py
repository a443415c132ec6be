"""A recorded step as a compiler would run it: what lies between two products is one kernel in each direction.

A kernel reads what comes from outside it and writes what others read; nothing inside reaches memory. What autograd kept
of the inside is computed anew from the kernel's inputs, which are kept in its place: the choice of a compiler that
keeps least (torch's own partitioner, for operations that are cheap to do again).
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from trainwright.model.cut.layers import LayerOperations
from trainwright.model.trace.recorder import TensorShape, TracedOperation
from trainwright.model.trace.recording import Recording

__all__ = ["fuse_layers"]


def fuse_layers(recording: Recording, layers: Iterable[Sequence[LayerOperations]]) -> Recording:
    """Return the recording with every layer of a module that has no product in its forward pass fused."""
    operations, storages = list(recording.operations), dict(recording.storages)
    saved, kept = dict(recording.saved), set(recording.kept)
    readers = _readers_by_storage(operations)
    alone = {i for i, operation in enumerate(operations) if operation.flops or not operation.call}
    for layer in (layer for found in layers for layer in found if alone.isdisjoint(layer.forward)):
        # Inside: made by the layer and read by nobody else, so that a fused kernel never writes it.
        made = {number for i in layer.forward for number in operations[i].creates}
        own = {*layer.forward, *layer.backward}
        inside = {number for number in made - recording.results if readers.get(number, set()) <= own}
        # Of the inside, what backward reads or autograd saved must be computed again from the inputs.
        again = {number for number in inside if not readers.get(number, set()) <= set(layer.forward)}
        again |= inside & saved.keys()
        # In place of the inside, the kernel's inputs are saved.
        inputs = _outside_reads(operations, layer.forward, made)
        back = {number for i in layer.backward for number in operations[i].creates} - recording.gradients
        back = {number for number in back if readers.get(number, set()) <= set(layer.backward)}
        _rewrite_as_kernel(operations, layer.forward, inside, {})
        _rewrite_as_kernel(operations, layer.backward, inside | back, inputs if again else {})
        for number in inside | back:
            storages[number] = replace(storages[number], bytes=0)
        saved = {number: place for number, place in saved.items() if number not in inside}
        kept -= inside
        for number in inputs if again and layer.backward else ():
            stored = storages[number]
            if number in recording.fixed or not stored.carries_gradient:
                continue
            # An input lives until the layer's backward kernel has read it.
            saved.setdefault(number, layer.forward[0])
            kept.add(number)
            last = stored.last if stored.last < 0 else max(stored.last, layer.backward[-1])
            storages[number] = replace(stored, last=last)
    return replace(recording, operations=operations, storages=storages, saved=saved, kept=frozenset(kept))


def _readers_by_storage(operations: Sequence[TracedOperation]) -> dict[int, set[int]]:
    found: dict[int, set[int]] = {}
    for i, operation in enumerate(operations):
        for number in operation.reads:
            found.setdefault(number, set()).add(i)
    return found


def _outside_reads(
    operations: Sequence[TracedOperation], places: Iterable[int], made: set[int]
) -> dict[int, TensorShape]:
    return {number: shaped for i in places for number, shaped in operations[i].reads.items() if number not in made}


def _rewrite_as_kernel(
    operations: list[TracedOperation], places: Sequence[int], inside: set[int], more: Mapping[int, TensorShape]
) -> None:
    """Let the last of the operations read all that comes from outside, and each write only what others read."""
    places = [i for i in places if not operations[i].is_view]
    if not places:
        return
    made = inside | {number for i in places for number in operations[i].creates}
    outer = {**more, **_outside_reads(operations, places, made)}
    # The last operation stands for the kernel: it reads everything, the others nothing.
    for i in places:
        operation, last = operations[i], i == places[-1]
        results = [_empty_shape(shaped) if at in inside else shaped for at, shaped in _results_by_storage(operation)]
        operations[i] = replace(operation, reads=outer if last else {}, results=tuple(results), joins=not last)


def _results_by_storage(operation: TracedOperation) -> list[tuple[int, TensorShape]]:
    """Return the results with the storages that they made, -1 where it is not known which."""
    numbers = [*operation.creates, *([-1] * len(operation.results))]
    return list(zip(numbers, operation.results, strict=False))


def _empty_shape(shaped: TensorShape) -> TensorShape:
    return replace(shaped, shape=(0,), stride=(1,))
