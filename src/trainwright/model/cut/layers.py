"""Groups operations into layers: those of one module call, or of one part of a forward function between calls."""

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from trainwright.model.layer import Kind, Layer
from trainwright.model.trace.recorder import TensorShape, TracedOperation

__all__ = ["LayerOperations", "WeightCounter", "group_by_module", "group_for_fusion", "make_layer"]


@dataclass(slots=True)
class LayerOperations:
    """The operations of a layer: indices into the recording, of its forward and its backward pass."""

    forward: list[int]
    backward: list[int] = field(default_factory=list)


@dataclass(slots=True)
class WeightCounter:
    """Parameter storages with their elements and trained elements; each is counted at the first layer that reads it."""

    elements: Mapping[int, int]
    trained: Mapping[int, int]
    counted: set[int] = field(default_factory=set)

    def take(self, storages: Collection[int]) -> tuple[int, int]:
        """Return the elements of the parameters among `storages` that no layer has counted yet, and those frozen."""
        # A tied weight counts at the first layer that reads it.
        new = (self.elements.keys() & storages) - self.counted
        self.counted |= new
        whole, trained = (sum(known.get(number, 0) for number in new) for known in (self.elements, self.trained))
        return whole, whole - trained

    def rest(self) -> list[Layer]:
        """Return a layer without work for the parameters that nothing reads, if there are any."""
        whole, frozen = self.take(self.elements.keys())
        unread = Layer(
            name="unread",
            kind="other",
            input_elements=0,
            output_elements=0,
            weight_elements=whole,
            frozen_elements=frozen,
            launches=0,
        )
        return [unread] if whole else []


def group_for_fusion(operations: Sequence[TracedOperation], first: int, last: int) -> list[LayerOperations]:
    """Divide the operations first..last of a stage into products, each alone, and what lies between two of them.

    What only one later stretch between products reads is part of that. What runs outside any module stays as it is.
    """
    found: list[LayerOperations] = []
    views: list[int] = []
    for i in range(first, last + 1):
        if operations[i].is_view:
            views.append(i)
            continue
        # A product, or an operation outside any module, is a layer of its own; what follows it starts another.
        alone = any(
            operations[k].flops or not operations[k].call for k in (i, *(found[-1].forward[-1:] if found else ()))
        )
        if found and not alone:
            found[-1].forward += [*views, i]
        else:
            found.append(LayerOperations([*views, i]))
        views = []
    if not found:
        return [LayerOperations(views)]
    found[-1].forward += views
    layer_of = {i: layer for layer in found for i in layer.forward}
    readers: dict[int, list[LayerOperations]] = {}
    for i, layer in layer_of.items():
        for number in operations[i].reads:
            readers.setdefault(number, []).append(layer)
    # Stretches that only one later stretch reads join it: a compiler would make one kernel of both.
    merged = []
    for layer in found:
        outside = [
            reader
            for i in layer.forward
            for number in operations[i].creates
            for reader in readers.get(number, ())
            if reader is not layer
        ]
        into = outside[0] if outside else layer
        stretches = not any(
            operations[i].flops or not operations[i].call
            for layer_operations in (layer, into)
            for i in layer_operations.forward
        )
        if outside and stretches and all(reader is into for reader in outside):
            into.forward[:0] = layer.forward
        else:
            merged.append(layer)
    return merged


def group_by_module(
    operations: Sequence[TracedOperation], first: int, last: int, parameters: frozenset[int]
) -> list[LayerOperations]:
    """Divide the operations first..last of a stage into layers; what only views joins the layer before or after."""
    found: list[LayerOperations] = []
    # A module call is one layer; a function with several products of weights is divided at each of them.
    weighted = False  # whether the layer that grows has a product with a weight
    for i in range(first, last + 1):
        operation = operations[i]
        product = operation.flops > 0 and not parameters.isdisjoint(operation.reads)
        grows = found and operations[found[-1].forward[-1]].call == operation.call
        if grows and not (weighted and product and not operation.leaf):
            found[-1].forward.append(i)
            weighted |= product
        else:
            found.append(LayerOperations([i]))
            weighted = product
    return _without_views(operations, found)


def make_layer(
    operations: Sequence[TracedOperation],
    gathered: LayerOperations,
    weights: WeightCounter,
    outside: set[int],
    saved: int,
) -> Layer:
    """Return the record of a layer. `outside`: storages that the rest reads; `saved`: bytes kept because of it."""
    forward_operations = [operations[i] for i in gathered.forward]
    back = [operations[i] for i in gathered.backward]
    # Inputs are what the layer reads and did not make itself.
    created = {number for operation in forward_operations for number in operation.creates}
    read = {
        number: shaped
        for operation in forward_operations
        for number, shaped in operation.reads.items()
        if number not in created
    }
    results = {
        number: shaped.elements
        for operation in forward_operations
        for number, shaped in zip(operation.creates, operation.results, strict=False)
    }
    whole, frozen = weights.take(read.keys())
    # Outputs are what others read; of a layer that nothing reads, its largest result.
    handed = [elements for number, elements in results.items() if number in outside]
    changed = [
        read[number].elements for operation in forward_operations for number in operation.writes if number in read
    ]
    kind = _layer_kind(forward_operations)
    return Layer(
        name=_layer_name(forward_operations, kind),
        kind=kind,
        input_elements=sum(shaped.elements for number, shaped in read.items() if number not in weights.elements),
        output_elements=sum(handed) or max((*results.values(), *changed), default=0),
        weight_elements=whole,
        frozen_elements=frozen,
        forward_flops=math.fsum(operation.flops for operation in forward_operations),
        backward_flops=math.fsum(operation.flops for operation in back),
        forward_bytes=sum(operation.bytes for operation in forward_operations),
        backward_bytes=sum(operation.bytes for operation in back),
        saved_bytes=saved,
        experts=max((_expert_count(operation) for operation in forward_operations), default=0),
        launches=sum(_launches_kernel(operation) for operation in forward_operations),
        backward_launches=sum(_launches_kernel(operation) for operation in back),
        **_layer_geometry(forward_operations),
    )


def _without_views(operations: Sequence[TracedOperation], found: Sequence[LayerOperations]) -> list[LayerOperations]:
    layers: list[LayerOperations] = []
    waiting: list[int] = []
    for gathered in found:
        if all(operations[i].is_view for i in gathered.forward):
            if layers:
                layers[-1].forward += gathered.forward
            else:
                waiting += gathered.forward
        else:
            layers.append(LayerOperations(waiting + gathered.forward))
            waiting = []
    return layers or [LayerOperations(waiting)]


def _launches_kernel(operation: TracedOperation) -> bool:
    return not operation.is_view and not operation.joins


def _base_name(operation: TracedOperation) -> str:
    return str(operation.func).split(".")[1].strip("_")


_KINDS: tuple[tuple[Kind, tuple[str, ...]], ...] = (
    ("attention", ("scaled_dot_product",)),
    ("conv", ("convolution",)),
    ("linear", ("addmm", "mm", "linear", "grouped_mm")),
    ("norm", ("native_batch_norm", "native_layer_norm", "native_group_norm", "cudnn_batch_norm", "fused_rms_norm")),
    ("embedding", ("embedding",)),
    ("pool", ("max_pool", "avg_pool", "adaptive_avg_pool", "adaptive_max_pool")),
    ("loss", ("nll_loss", "mse_loss", "smooth_l1_loss", "huber_loss", "binary_cross_entropy", "kl_div")),
)


def _layer_kind(operations: Sequence[TracedOperation]) -> Kind:
    names = [_base_name(operation) for operation in operations]
    # Attention written out: a softmax between batched products.
    if {"softmax", "safe_softmax"} & set(names) and {"bmm", "baddbmm"} & set(names):
        return "attention"
    for kind, beginnings in _KINDS:
        if any(name.startswith(beginnings) for name in names):
            return kind
    if {"rsqrt", "mean"} <= set(names):  # a norm written out
        return "norm"
    if any(operation.flops for operation in operations):
        return "linear"
    pointwise = all(operation.is_view or _moves_only(operation) for operation in operations)
    return "pointwise" if pointwise else "other"


def _moves_only(operation: TracedOperation) -> bool:
    reads = max((shaped.elements for shaped in operation.reads.values()), default=0)
    return any(shaped.elements >= reads for shaped in operation.results)


def _layer_name(operations: Sequence[TracedOperation], kind: Kind) -> str:
    first = operations[0]
    if first.leaf:
        return first.path
    word = kind
    if kind in {"pointwise", "other"}:
        named = [_base_name(operation) for operation in operations if not operation.is_view]
        word = named[0] if named else "view"  # type: ignore[assignment]  # a word of its own
    return f"{first.path}.{word}".lstrip(".")


def _layer_geometry(operations: Sequence[TracedOperation]) -> dict[str, Any]:
    """Return channels, filters and the sizes of the first convolution or product with a weight."""
    for operation in operations:
        arguments, name = operation.arguments, _base_name(operation)
        if name == "convolution":
            x, weight, _, stride, padding, dilation, transposed, _, groups = arguments[:9]
            return {
                "channels": x.shape[1],
                "filters": operation.results[0].shape[1],
                "kernel": tuple(weight.shape[2:]),
                "stride": tuple(stride),
                "padding": tuple(padding),
                "dilation": tuple(dilation),
                "groups": groups,
                "transposed": bool(transposed),
                "input_size": tuple(x.shape[2:]),
                "output_size": operation.results[0].shape[2:],
            }
        if name in {"addmm", "mm"}:
            x, weight = arguments[-2:] if name == "mm" else arguments[1:3]
            return {"channels": x.shape[1], "filters": weight.shape[1]}
        if (
            name.startswith(("native_batch_norm", "cudnn_batch_norm", "native_group_norm"))
            and len(_first_shape(arguments)) > 1
        ):
            shape = _first_shape(arguments)
            return {"channels": shape[1], "filters": shape[1], "input_size": shape[2:], "output_size": shape[2:]}
        if name.startswith(("max_pool", "avg_pool", "adaptive_avg_pool")):
            shape, after = _first_shape(arguments), operation.results[0].shape
            return {"channels": shape[1], "filters": after[1], "input_size": shape[2:], "output_size": after[2:]}
    return {}


def _expert_count(operation: TracedOperation) -> int:
    """Return how many experts' weights a grouped product reads, 0 of other operations."""
    if _base_name(operation) != "grouped_mm":
        return 0
    weights = operation.arguments[1].shape
    return weights[0] if len(weights) == 3 else 0


def _first_shape(arguments: Sequence[object]) -> tuple[int, ...]:
    return next((argument.shape for argument in arguments if isinstance(argument, TensorShape)), ())
