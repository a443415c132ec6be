"""Counts the FLOPs of one aten operation, from shapes alone; a multiply-add counts as two.

Matrix products, convolutions and fused attention are counted. What else a model runs (pointwise operations, norms,
reductions, pooling, copies) is bound by memory: its bytes count, its arithmetic does not.
"""

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch

__all__ = ["count_flops", "has_known_work"]

aten = torch.ops.aten
Shape = Sequence[int]


def count_flops(operation: Any, arguments: Sequence[Any], results: Sequence[Shape]) -> float:
    """Return the floating-point operations of an aten operation.

    `arguments` are its positional arguments with tensors replaced by things that have a `shape`; `results` the shapes
    of what it returns. Operations that are not products count 0. Causal attention counts as a whole, as
    published shares of the peak do and torch's own counter: what its mask leaves out is in the share that it reaches.
    """
    count = _PRODUCTS.get(getattr(operation, "overloadpacket", operation))
    return float(count(arguments, results)) if count else 0.0


def has_known_work(operation: Any) -> bool:
    """Return whether the work of an operation is known: a product, or bound by memory."""
    # Overloads of one operation count alike.
    packet = getattr(operation, "overloadpacket", operation)
    if packet in _PRODUCTS or operation.is_view or torch.Tag.pointwise in operation.tags:
        return True
    name: str = operation._schema.name.partition("::")[2].strip("_")  # noqa: SLF001  the public name has no base name
    return bool(operation.namespace == "aten") and name.startswith(_BOUND_BY_MEMORY)


def _product_flops(arguments: Sequence[Any], _: Sequence[Shape]) -> int:
    left, right = _shapes_of(arguments[:2])
    # Every element of the left side meets one row of the right: a multiply-add for each column.
    return 2 * math.prod(left) * right[-1]


def _triangular_flops(arguments: Sequence[Any], _: Sequence[Shape]) -> int:
    # Half of a square matrix meets every column of the right side.
    matrix, columns = _shapes_of(arguments[:2])
    return math.prod(columns) * matrix[-1]


def _grouped_flops(arguments: Sequence[Any], _: Sequence[Shape]) -> int:
    # rows, columns or the inner size fall to the groups, so that their number counts where neither is a part of them
    left, right = _shapes_of(arguments[:2])
    both = len(left) == len(right) == 3
    return 2 * (left[0] if both else 1) * left[-2] * left[-1] * right[-1]


def _shapes_of(arguments: Sequence[Any]) -> list[Shape]:
    return [tuple(argument.shape) for argument in arguments]


def _after_first(count: Callable[[Sequence[Any], Sequence[Shape]], int]) -> Callable[[Sequence[Any], Any], int]:
    return lambda arguments, results: count(arguments[1:], results)


def _convolution_flops(arguments: Sequence[Any], results: Sequence[Shape]) -> int:
    x, weight = _shapes_of(arguments[:2])
    return _window_flops(x, weight, results[0], transposed=bool(arguments[6]))


def _convolution_backward_flops(arguments: Sequence[Any], _: Sequence[Shape]) -> int:
    gradient, x, weight = _shapes_of(arguments[:3])
    transposed, mask = bool(arguments[7]), arguments[10]
    # Each gradient, of the input and of the weight, costs as much as the forward pass.
    once = _window_flops(x, weight, gradient, transposed=transposed)
    return once * (bool(mask[0]) + bool(mask[1]))


def _window_flops(x: Shape, weight: Shape, out: Shape, *, transposed: bool) -> int:
    # each place of the output (of the input, if transposed) meets the whole weight, less the channels of other groups
    places = x[0] * math.prod((x if transposed else out)[2:])
    return 2 * places * math.prod(weight)


def _attention_flops(arguments: Sequence[Any], _: Sequence[Shape]) -> int:
    query, key, value = _shapes_of(arguments[:3])
    # Two products: queries with keys give the scores, and scores with values the result.
    return 2 * math.prod(query[:-1]) * key[-2] * (query[-1] + value[-1])


def _attention_backward_flops(arguments: Sequence[Any], _: Sequence[Shape]) -> int:
    # the scores again, then gradients of value, weights, query and key: five products for forward's two
    query, key, value = _shapes_of(arguments[1:4])
    return 2 * math.prod(query[:-1]) * key[-2] * (3 * query[-1] + 2 * value[-1])


def _recurrent_flops(arguments: Sequence[Any], _: Sequence[Shape]) -> int:
    # every element of a sequence meets all matrices: of input and of hidden state, for each gate
    # cuDNN passes its weights as a list, oneDNN one by one.
    matrices = arguments[1] if isinstance(arguments[1], list | tuple) else arguments[1:3]
    [x] = _shapes_of(arguments[:1])
    return 2 * math.prod(x[:-1]) * sum(math.prod(shape) for shape in _shapes_of(matrices) if len(shape) > 1)


def _recurrent_backward_flops(arguments: Sequence[Any], results: Sequence[Shape]) -> int:
    # For each product of forward there are two: the gradients of its input and of its weights.
    return 2 * _recurrent_flops(arguments, results)


_FUSED = ("flash_attention", "flash_attention_for_cpu", "efficient_attention", "cudnn_attention")
_PRODUCTS: dict[Any, Callable[[Sequence[Any], Sequence[Shape]], int]] = {
    aten.mm: _product_flops,
    aten.addmm: _after_first(_product_flops),
    aten.bmm: _product_flops,
    aten.baddbmm: _after_first(_product_flops),
    aten._grouped_mm: _grouped_flops,  # noqa: SLF001  aten's name, as below
    aten.linalg_solve_triangular: _triangular_flops,
    aten.convolution: _convolution_flops,
    aten.convolution_backward: _convolution_backward_flops,
    **{getattr(aten, f"_scaled_dot_product_{kernel}"): _attention_flops for kernel in _FUSED},
    **{getattr(aten, f"_scaled_dot_product_{kernel}_backward"): _attention_backward_flops for kernel in _FUSED},
    aten.mkldnn_rnn_layer: _recurrent_flops,
    aten.mkldnn_rnn_layer_backward: _recurrent_backward_flops,
    aten._cudnn_rnn: _recurrent_flops,  # noqa: SLF001
    aten._cudnn_rnn_backward: _recurrent_backward_flops,  # noqa: SLF001
}
_NAMES_BOUND_BY_MEMORY = """
native_batch_norm native_layer_norm native_group_norm cudnn_batch_norm batch_norm fused_rms_norm native_dropout
bernoulli uniform normal rand softmax log_softmax nll_loss embedding avg_pool max_pool adaptive_avg_pool
adaptive_max_pool upsample reflection_pad replication_pad sum mean var std amax amin max min argmax argmin norm
linalg_vector_norm any all cumsum logsumexp topk sort cat stack index gather scatter slice select copy to_copy clone
contiguous view unsafe_view reshape empty zeros ones full new arange scalar_tensor local_scalar_dense lift_fresh fill
zero constant_pad roll flip foreach fused_adam fused_sgd tril triu one_hot repeat split unfold_backward as_strided
mse_loss smooth_l1_loss huber_loss binary_cross_entropy kl_div where nonzero masked put resize set detach alias prod
pixel_shuffle channel_shuffle im2col col2im glu histc bincount diagonal eye linspace expand grid_sampler sdp_choice
fused_sdp_choice is_all_true unsafe_index nan_to_num polar view_as complex lerp amp_ leaky_relu prelu_kernel hardtanh
pixel_unshuffle floor_divide unsafe_split weight_norm thnn_fused mv dot vdot safe_softmax softplus_backward
"""
# Beginnings of names. Of a product of a matrix and a vector each element is read for one multiply-add.
_BOUND_BY_MEMORY = tuple(_NAMES_BOUND_BY_MEMORY.split())
