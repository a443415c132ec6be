"""Cuts a model into stages, by the recording of a step: layers, the bytes of each stage, equal stages once."""

import bisect
import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import accumulate
from typing import Any

import torch
from torch.utils._pytree import tree_leaves

from trainwright.errors import ProfileError
from trainwright.model.chain import Stage
from trainwright.model.cut.cuts import Access, find_cuts, fold_blocks, intervals_between, shared_beginning
from trainwright.model.cut.fusion import fuse_layers
from trainwright.model.cut.layers import LayerOperations, WeightCounter, group_by_module, group_for_fusion, make_layer
from trainwright.model.cut.transformer import find_attention, recognise_transformers
from trainwright.model.layer import Layer, ProfileFields
from trainwright.model.trace.recording import Recording, StorageLives
from trainwright.model.trace.step import TrainingStep

__all__ = ["CutRecording", "batch_size", "make_profile"]


class CutRecording:
    """A recording divided at its cuts into stages, and these into layers."""

    def __init__(self, recording: Recording, *, fuse: bool = False) -> None:
        self.recording = recording
        operations, storages = recording.operations, recording.storages
        _, size = recording.parts["forward"]
        gradients = any(storages[number].carries_gradient for number in recording.results)
        # The input is live from the start to its last reader, and so bars cuts before that, like any activation.
        # It is the first floating tensor of the sample, while targets and masks are common.
        sample = [number for number in sorted(recording.sample) if storages[number].floating]
        self.entry = frozenset(sample[:1])
        ignored = set(recording.fixed) - self.entry
        if gradients:  # what carries none is no activation: masks and positions are common to the stages
            ignored |= {number for number, stored in storages.items() if not stored.carries_gradient} - self.entry
        forward = operations[:size]
        accesses = [
            Access(
                # A loss that compares with the input does not keep the input alive.
                frozenset(operation.reads) - (self.entry if operation.call == 0 else frozenset()),
                frozenset(operation.writes),
                frozenset(operation.creates),
            )
            for operation in forward
        ]
        # No cut inside one call of a leaf module: memory plans rerun whole modules.
        within = {i for i in range(size - 1) if forward[i].leaf and forward[i].call == forward[i + 1].call}
        if fuse:  # a kernel may not be cut
            calls = [operation.call if not operation.flops else 0 for operation in forward]
            within |= {i for i in range(size - 1) if calls[i] == calls[i + 1] != 0}
        # A cut is (place, storage); each divides the operations into one more stage.
        found = find_cuts(accesses, recording.results, ignored, within)
        while found and all(operation.is_view for operation in forward[found[-1][0] + 1 :]):
            found.pop()  # the end only looks at the last stage's result in another way
        self.spans = intervals_between([place for place, _ in found], size)
        # The output of a stage is the storage at its cut; of the last one, what the forward pass returned.
        self.outputs = [{storage} for _, storage in found] + [set(recording.results) - recording.fixed]
        self.common = self._find_shared(forward)
        weights = frozenset(recording.parameters)
        self.layers = [
            group_for_fusion(operations, *span) if fuse else group_by_module(operations, *span, weights)
            for span in self.spans
        ]
        self._stage_of = {i: k for k, (first, last) in enumerate(self.spans) for i in range(first, last + 1)}
        self.backward_spans = self._attribute_backward()
        if fuse:
            self.recording = fuse_layers(recording, self.layers)

    def _find_shared(self, forward: Sequence[Any]) -> set[int]:
        """Return what a stage makes and a later one reads in addition to the cut: masks, positions; charged once."""
        # The stage of an operation is the first whose last operation is not before it.
        ends = [last for _, last in self.spans]
        last_read: dict[int, int] = {}
        for i, operation in enumerate(forward):
            for number in operation.reads:
                last_read[number] = i
        found = set()
        for number, i in last_read.items():
            maker = bisect.bisect_left(ends, max(0, self.recording.storages[number].first))
            # Read in a later stage, though it is neither the maker's output nor there all along: shared.
            if bisect.bisect_left(ends, i) > maker and number not in self.outputs[maker] | self.recording.fixed:
                found.add(number)
        return found

    def _attribute_backward(self) -> list[tuple[int, int]]:
        """Attribute each backward operation to its layer; return the (first, after last) operation of each stage."""
        first, past = self.recording.parts["backward"]
        layer_at: dict[int, LayerOperations] = {
            i: layer for found in self.layers for layer in found for i in layer.forward
        }
        # Backward visits stages from the last to the first: an operation without a forward one stays with the current
        # stage.
        current = len(self.spans) - 1
        starts: dict[int, int] = {}
        for i in range(first, past):
            forward = self.recording.operations[i].forward
            if forward in layer_at:
                layer_at[forward].backward.append(i)
                current = min(current, self._stage_of[forward])
            starts.setdefault(current, i)
        spans, end = [(past, past)] * len(self.spans), past
        for stage in sorted(starts):
            spans[stage] = (starts[stage], end)
            end = starts[stage]
        return spans

    def stages(self, seconds: Mapping[int, float] | None = None) -> list[tuple[Stage, list[Layer]]]:
        """Return the stages and their layers, in order, with the measured seconds of operations if there are any."""
        recording = self.recording
        outside = _read_in_other_layers(recording, self.layers)
        weights = WeightCounter(recording.parameters, recording.trained)
        lives = StorageLives(recording, self._find_pending_gradients())
        again = self._match_no_grad_pass()
        saved, copies = self._saved_by_layer(), self._find_weight_copies()
        names, paths = _UniqueNames(), _UniqueNames()
        found = []
        before = 0
        for k, (first, last) in enumerate(self.spans):
            made_here = lives.made_in(first, last) - self.common
            # Saved bytes (w_a): what the stage made and what lives when the forward pass is done, its output included.
            saved_here = (made_here & recording.live_after_forward) | (self.outputs[k] & made_here)
            saved_bytes, output = lives.bytes(saved_here), lives.bytes(self.outputs[k])
            # The forward peak beyond the saved bytes.
            forward = max(0, lives.peak(made_here, first, last) - saved_bytes)
            plain = max(0, saved_bytes + forward - output)
            # The pass without gradients was recorded too: its peak is measured instead of bounded.
            if again:
                span = again[first], again[last]
                plain = max(0, lives.peak(lives.made_in(*span), *span) - output)
            # Only floating storages that carry gradients have one of their own.
            gradient = sum(lives.bytes({number}) for number in self.outputs[k] if lives.differentiable(number))
            layers = [
                make_layer(
                    recording.operations, layer, weights, outside, lives.bytes(saved.get(layer.forward[0], set()))
                )
                for layer in self.layers[k]
            ]
            layers = [
                replace(
                    layer,
                    name=names.fresh(layer.name),
                    copied_bytes=lives.bytes(copies & saved.get(gathered.forward[0], set())),
                    rerun_bytes=self._rerun_bytes(gathered, lives),
                )
                for layer, gathered in zip(layers, self.layers[k], strict=True)
            ]
            if seconds is not None:
                pairs = zip(layers, self.layers[k], strict=True)
                layers = [_with_seconds(layer, gathered, seconds) for layer, gathered in pairs]
            # Weights that nothing reads are charged to the last stage, so that all parameters are counted.
            if k == len(self.spans) - 1:
                layers += weights.rest()
            stage = Stage(
                name=paths.fresh(_stage_name(layers)),
                layers=len(layers),
                forward_seconds=0.0,
                backward_seconds=0.0,
                output_bytes=output,
                saved_bytes=saved_bytes,
                forward_temporary_bytes=forward,
                no_grad_forward_temporary_bytes=plain,
                backward_temporary_bytes=self._backward_temporary(
                    lives, k, saved_here, saved_bytes + gradient + before
                ),
                gradient_bytes=gradient,
            )
            found.append((stage, layers))
            before = gradient
        return found

    def _backward_temporary(self, lives: StorageLives, k: int, saved: set[int], charged: int) -> int:
        first, past = self.backward_spans[k]
        if first == past:
            return 0
        # What backward has made, plus what is left of the saved bytes, minus all that the convention already charges.
        transient = lives.backward_live(first, past)
        remaining = lives.alive(saved, first, past)
        return max(0, max(a + b for a, b in zip(transient, remaining, strict=True)) - charged)

    def _find_pending_gradients(self) -> dict[int, int]:
        """Return the gradients of tied weights that wait for the share of another use, and where the wait ends.

        Until then they are the gradient of the parameter, which is charged for the whole step.
        """
        recording = self.recording
        # In which stages each parameter is read: one that is read in several is tied.
        uses: dict[int, set[int]] = {}
        for i, k in self._stage_of.items():
            for number in recording.operations[i].reads.keys() & recording.parameters.keys():
                uses.setdefault(number, set()).add(k)
        tied = {recording.parameters[number] for number, stages in uses.items() if len(stages) > 1}
        found = {}
        for k, (first, past) in enumerate(self.backward_spans):
            for i in range(first, past):
                for number in recording.operations[i].creates:
                    stored = recording.storages[number]
                    # It waits if it dies in the backward pass of an earlier stage, where the other use's share is
                    # added.
                    start = next((a for a, b in self.backward_spans[:k] if a <= stored.last < b), None)
                    if stored.elements in tied and start is not None and number not in recording.gradients:
                        found[number] = start
        return found

    def _match_no_grad_pass(self) -> list[int]:
        """Return for each operation of the forward pass its place in the pass without gradients, [] if that differs.

        Views may differ (autograd makes some of its own): they get the place of the operation before them.
        """
        operations = self.recording.operations
        parts = [range(*self.recording.parts[part]) for part in ("forward", "plain")]
        forward, plain = ([i for i in part if not operations[i].is_view] for part in parts)
        if [operations[i].func for i in forward] != [operations[i].func for i in plain]:
            return []
        # The same kernels in the same order: the n-th of one pass is the n-th of the other.
        place = dict(zip(forward, plain, strict=True))
        return list(accumulate((place.get(i, -1) for i in parts[0]), max, initial=parts[1].start))[1:]

    def _saved_by_layer(self) -> dict[int, set[int]]:
        """Return what autograd saves because of each layer, without parameters and the sample."""
        # Layers in order of their first operation; a saved storage belongs to the layer that runs when it is first
        # saved.
        starts = sorted(layer.forward[0] for found in self.layers for layer in found)
        saved: dict[int, set[int]] = {}
        for number, place in self.recording.saved.items():
            if number not in self.recording.fixed:
                start = starts[max(0, bisect.bisect_right(starts, place) - 1)]
                saved.setdefault(start, set()).add(number)
        return saved

    def _rerun_bytes(self, layer: LayerOperations, lives: StorageLives) -> int:
        """Return the bytes that autograd saves only because of a call of torch's attention in this layer.

        Running the call again needs its inputs: those that would not be saved otherwise are subtracted.
        """
        operations, until = self.recording.operations, self.recording.saved_until
        calls = [i for i in layer.forward if operations[i].call in self.recording.attentions]
        results = {number for i in calls for number in operations[i].creates}
        read = {number for i in calls for number in operations[i].reads} - results - self.recording.fixed - until.keys()
        alone = {number for number in results if until.get(number, calls[-1] + 1) <= calls[-1]}
        return max(0, lives.bytes(alone) - lives.bytes(read))

    def _find_weight_copies(self) -> set[int]:
        """Return the copies of parameters in another precision that the forward pass makes."""
        recording = self.recording
        cast = torch.ops.aten._to_copy.default  # noqa: SLF001 -- what autocast calls
        forward = recording.operations[: recording.parts["forward"][1]]
        casts = [
            operation
            for operation in forward
            if operation.func is cast and operation.reads.keys() & recording.parameters.keys()
        ]
        return {number for operation in casts for number in operation.creates}


class _UniqueNames:
    """Makes names unique: a second "add" becomes "add_2"."""

    def __init__(self) -> None:
        self.counts: dict[str, int] = {}

    def fresh(self, name: str) -> str:
        self.counts[name] = self.counts.get(name, 0) + 1
        return name if self.counts[name] == 1 else f"{name}_{self.counts[name]}"


def make_profile(
    step: TrainingStep,
    recording: Recording,
    *,
    name: str,
    granule_bytes: int,
    optimizer: str = "",
    fuse: bool = False,
    seconds: Mapping[int, float] | None = None,
) -> ProfileFields:
    """Return the profile that a recorded step gives, with the measured seconds of its operations if there are any."""
    chained = CutRecording(recording, fuse=fuse)
    recording = chained.recording
    stages = chained.stages(seconds)
    storages = recording.storages
    # A sample that carries gradients gets one too.
    arriving = sum(storages[n].bytes for n in recording.sample if storages[n].carries_gradient)
    blocks = fold_blocks(
        [stage for stage, _ in stages], [layers for _, layers in stages], input_gradient_bytes=arriving
    )
    batch = batch_size(step.sample)
    # The attention of each stage, None where it has none.
    attentions = [find_attention(recording.operations[first : last + 1], batch) for first, last in chained.spans]
    return ProfileFields(
        name=name,
        batch=batch,
        blocks=recognise_transformers(blocks, attentions),
        precision=step.precision,
        parameters=sum(parameter.numel() for parameter in step.parameters),
        parameter_bytes=_tensor_bytes(step.parameters),
        trainable_elements=sum(recording.trained.values()),
        gradient_bytes=recording.trained_bytes,
        buffer_bytes=_tensor_bytes(list(step.model.buffers())),
        input_bytes=sum(storages[number].bytes for number in recording.sample),
        common_bytes=sum(storages[number].bytes for number in chained.common),
        state_bytes=recording.state_bytes,
        update_bytes=_update_bytes(recording),
        peak_bytes=None if fuse else recording.peak_bytes,
        workspace_bytes=0 if fuse else recording.workspace_bytes,
        largest_workspace_bytes=0 if fuse else recording.largest_workspace_bytes,
        peak_by_owner={} if fuse else recording.peak_by_owner,
        granule_bytes=granule_bytes,
        optimizer=optimizer,
        uncounted=recording.uncounted,
        torch_version=torch.__version__,
    )


def _update_bytes(recording: Recording) -> int:
    """Return the peak bytes of the temporaries of the optimizer's step."""
    first, past = recording.parts["update"]
    lives = StorageLives(recording, {})
    return lives.peak(lives.made_in(first, past - 1), first, past - 1) if past > first else 0


def _with_seconds(layer: Layer, gathered: LayerOperations, seconds: Mapping[int, float]) -> Layer:
    return replace(
        layer,
        forward_seconds=math.fsum(seconds.get(i, 0.0) for i in gathered.forward),
        backward_seconds=math.fsum(seconds.get(i, 0.0) for i in gathered.backward),
        origin="measured",
    )


def batch_size(sample: Any) -> int:
    """Return the first dimension of the first tensor of a sample."""
    tensors = [leaf for leaf in tree_leaves(sample) if isinstance(leaf, torch.Tensor)]
    if not tensors or not tensors[0].dim():
        raise ProfileError("sample: got no tensor with a batch dimension; allowed: tensors with the batch first")
    return int(tensors[0].shape[0])


def _tensor_bytes(tensors: Sequence[torch.Tensor]) -> int:
    return sum(tensor.numel() * tensor.dtype.itemsize for tensor in tensors)


def _read_in_other_layers(recording: Recording, layers: Sequence[Sequence[LayerOperations]]) -> set[int]:
    """Return the storages that a layer makes and another reads, or that the forward pass returns."""
    # A storage is read elsewhere if the layer that reads it is not the one that made it last.
    maker: dict[int, int] = {}
    found = set(recording.results)
    for index, layer in enumerate(layer for found in layers for layer in found):
        for i in layer.forward:
            operation = recording.operations[i]
            found.update(number for number in operation.reads if maker.get(number, index) != index)
            maker.update(dict.fromkeys(operation.creates, index))
    return found


def _stage_name(layers: Sequence[Layer]) -> str:
    names = [layer.name for layer in layers]
    if len(names) == 1:
        return names[0]
    # Without a common path the stage is called after the layer with most work.
    heaviest = max(layers, key=lambda layer: (layer.forward_flops, layer.weight_elements)).name
    return ".".join(shared_beginning(name.split(".") for name in names)) or heaviest
