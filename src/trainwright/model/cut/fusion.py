"""Fuses operations of a recorded step as a compiler would: between two products, one kernel in each direction.

A kernel reads what is made outside it and writes what others read; its intermediate values never reach memory. Where
autograd saved an intermediate value, backward computes it again from the kernel's inputs, which are saved instead:
the choice of torch's partitioner for operations that are cheap to repeat.
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
    saved, live = dict(recording.saved), set(recording.live_after_forward)
    readers = _readers_by_storage(operations)
    alone = {i for i, operation in enumerate(operations) if operation.flops or not operation.call}
    for layer in (layer for found in layers for layer in found if alone.isdisjoint(layer.forward)):
        # Inside: made by the layer and read by nobody else, so that a fused kernel never writes it.
        created = {number for i in layer.forward for number in operations[i].creates}
        operations_of_layer = {*layer.forward, *layer.backward}
        inside = {number for number in created - recording.results if readers.get(number, set()) <= operations_of_layer}
        # Of the inside, what backward reads or autograd saved must be computed again from the inputs.
        again = {number for number in inside if not readers.get(number, set()) <= set(layer.forward)}
        again |= inside & saved.keys()
        # In place of the inside, the kernel's inputs are saved.
        inputs = _outside_reads(operations, layer.forward, created)
        # What only this layer's own backward reads of what it makes stays within the kernel too.
        back = {number for i in layer.backward for number in operations[i].creates} - recording.gradients
        back = {number for number in back if readers.get(number, set()) <= set(layer.backward)}
        _rewrite_as_kernel(operations, layer.forward, inside, {})
        _rewrite_as_kernel(operations, layer.backward, inside | back, inputs if again else {})
        for number in inside | back:
            storages[number] = replace(storages[number], bytes=0)
        saved = {number: place for number, place in saved.items() if number not in inside}
        live -= inside
        for number in inputs if again and layer.backward else ():
            stored = storages[number]
            if number in recording.fixed or not stored.carries_gradient:
                continue
            # An input lives until the layer's backward kernel has read it.
            saved.setdefault(number, layer.forward[0])
            live.add(number)
            last = stored.last if stored.last < 0 else max(stored.last, layer.backward[-1])
            storages[number] = replace(stored, last=last)
    return replace(recording, operations=operations, storages=storages, saved=saved, live_after_forward=frozenset(live))


def _readers_by_storage(operations: Sequence[TracedOperation]) -> dict[int, set[int]]:
    found: dict[int, set[int]] = {}
    for i, operation in enumerate(operations):
        for number in operation.reads:
            found.setdefault(number, set()).add(i)
    return found


def _outside_reads(
    operations: Sequence[TracedOperation], places: Iterable[int], created: set[int]
) -> dict[int, TensorShape]:
    return {number: shaped for i in places for number, shaped in operations[i].reads.items() if number not in created}


def _rewrite_as_kernel(
    operations: list[TracedOperation], places: Sequence[int], inside: set[int], more: Mapping[int, TensorShape]
) -> None:
    """Rewrite operations as one kernel: the last reads everything from outside, each writes only what others read."""
    places = [i for i in places if not operations[i].is_view]
    if not places:
        return
    created = inside | {number for i in places for number in operations[i].creates}
    outer = {**more, **_outside_reads(operations, places, created)}
    # The last operation represents the kernel: it reads everything, the others nothing.
    for i in places:
        operation, last = operations[i], i == places[-1]
        # A result that stays within the kernel is made empty, so that no bytes count for it.
        results = [_empty_shape(shaped) if at in inside else shaped for at, shaped in _results_by_storage(operation)]
        operations[i] = replace(operation, reads=outer if last else {}, results=tuple(results), joins=not last)


def _results_by_storage(operation: TracedOperation) -> list[tuple[int, TensorShape]]:
    """Return the results with the storages that they made, -1 where it is not known which."""
    numbers = [*operation.creates, *([-1] * len(operation.results))]
    return list(zip(numbers, operation.results, strict=False))


def _empty_shape(shaped: TensorShape) -> TensorShape:
    return replace(shaped, shape=(0,), stride=(1,))
