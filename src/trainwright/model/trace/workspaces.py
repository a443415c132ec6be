"""Computes workspace memory: bytes that a kernel takes and gives back inside one operation, which no tensor shows.

As torch's allocator on processors was seen to lend them, operation by operation (torch 2.13 with oneDNN): a convolution
copies its input and output into blocks of 16 channels (8 without AVX-512), or unfolds its input where torch's own
kernel runs; a reduction in half precision goes through a copy in fp32, a product in half precision packs an operand,
and the backward pass of flash attention has buffers of the queries' size.
On CUDA cuDNN's and cuBLAS's workspaces play that part; these have not been measured.
Where operations run, the allocator itself is asked, one by one.
"""

import gc
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import torch
from torch import autograd
from torch._C._profiler import ProfilerConfig, ProfilerState, _ExperimentalConfig

if TYPE_CHECKING:
    from trainwright.model.trace.recorder import TensorShape

__all__ = ["call_measured", "workspace_bytes"]

_AVX512 = torch.backends.cpu.get_cpu_capability().startswith("AVX512")
_CHANNELS = 16 if _AVX512 else 8  # of a block: as many as a vector register holds in fp32
_VOLUME = 3  # dimensions
_COLOURS = 3  # of an image, which a convolution reads as it is
_PADDED = 17 / 16  # rows of matrices that a recurrent layer copies are a little longer than they need be
_HALF = {torch.float16, torch.bfloat16}
_PRODUCTS = frozenset({"mm", "addmm", "bmm", "baddbmm"})
_REDUCTIONS = frozenset({"sum", "mean"})
_PANEL_BYTES = 2**15  # of each thread, in products in half precision, and in convolutions with channels innermost
_QUERY_ROWS = ((768, 256), (192, 64), (0, 32))  # of a block of attention's scores, from so many queries on
_KEY_COLUMNS = 512  # of the same block
_SMALL_BYTES = 2**17  # of what is turned round in half precision
# The profiler without Kineto: four microseconds an operation, and nothing is written to the terminal.
_SETTINGS = ProfilerConfig(ProfilerState.CPU, False, True, False, False, False, _ExperimentalConfig())
# Names that are torch's own: without them no workspace is seen, and all else goes on.
_start = getattr(autograd, "_enable_profiler_legacy", None)
_stop = getattr(autograd, "_disable_profiler_legacy", None)


def call_measured(func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> tuple[Any, int]:
    """Do an operation; return its result, and how far its peak lay above what is alive when it is done.

    On CUDA by the allocator's counts of the current device, whose peak is started anew; on processors by the events of
    this thread, and 0 while another profiler watches it or where torch has none of this kind.
    """
    if torch.cuda.is_initialized() and any(each.is_cuda for each in args if isinstance(each, torch.Tensor)):
        collecting = gc.isenabled()
        # What a garbage collection would give back just now is no workspace.
        gc.disable()
        try:
            torch.cuda.reset_peak_memory_stats()
            result = func(*args, **kwargs)
            return result, torch.cuda.max_memory_allocated() - torch.cuda.memory_allocated()
        finally:
            if collecting:
                gc.enable()
    # There is one profiler at a time.
    if _start is None or _stop is None or autograd._profiler_enabled():  # type: ignore[attr-defined]  # noqa: SLF001
        return func(*args, **kwargs), 0
    _start(_SETTINGS)
    try:
        result = func(*args, **kwargs)
    finally:
        threads = _stop()
    live = peak = 0
    taken: Counter[int] = Counter()
    for event in (event for thread in threads for event in thread):
        size = event.cpu_memory_usage() if event.kind() == "memory_alloc" else 0
        # What is given back comes as a negative number. Of older blocks, which a garbage collection may drop just now,
        # it does not count: they are no workspace, and torch may have their sizes wrong.
        if size > 0 or taken[-size]:
            taken[abs(size)] += 1 if size > 0 else -1
            live += size
            peak = max(peak, live)
    return result, peak - live


def workspace_bytes(func: Any, arguments: Sequence[Any], results: "Sequence[TensorShape]") -> int:
    """Return the bytes that an operation borrows beyond its results while it runs, 0 for those that need none."""
    name = func._overloadpacket.__name__ if hasattr(func, "_overloadpacket") else ""  # noqa: SLF001 -- torch's own name
    tensors: list[TensorShape] = [each for each in arguments if hasattr(each, "elements")]
    if not tensors:
        return 0
    half = tensors[0].dtype in _HALF
    if name in {"convolution", "_convolution"}:
        columns = _columns_bytes(tensors[0], tensors[1], results[0], arguments[3:9])
        if columns is not None:
            # Torch's own kernels take a group at a time, and put the results together.
            return columns + (results[0].bytes if arguments[8] > 1 else 0)
        return (
            2 * results[0].bytes if arguments[6] else _convolution_bytes(tensors[0], tensors[1], results[0], half=half)
        )
    if name == "convolution_backward":
        columns = _columns_bytes(tensors[1], tensors[2], tensors[0], arguments[4:10])
        if columns is not None:
            return columns + (tensors[1].bytes + tensors[2].bytes if arguments[9] > 1 else 0)
        unfolded = _unfolded_bytes(*tensors[:3], padding=arguments[5])
        return max(unfolded, _convolution_backward_bytes(*tensors[:3], wanted=bool(arguments[10][0]), half=half))
    if name.startswith("mkldnn_rnn_layer"):
        return _recurrent_bytes(*tensors[:3], backward=name.endswith("backward"), half=half)
    if name == "native_batch_norm_backward":
        return tensors[0].bytes
    if name in _PRODUCTS and half:
        return max(each.bytes for each in tensors[-2:]) + torch.get_num_threads() * _PANEL_BYTES
    if name in _REDUCTIONS and half:
        return 2 * tensors[0].bytes
    if name.startswith("_fft_"):
        return _transform_bytes(tensors[0], arguments[1], back=name.endswith("c2r"))
    if name.startswith("_scaled_dot_product") and name.endswith("_backward"):
        return _attention_backward_bytes(tensors[1], tensors[2])
    return 0


def _columns_bytes(
    source: "TensorShape", weight: "TensorShape", result: "TensorShape", settings: Sequence[Any]
) -> int | None:
    """Return the columns into which torch's own convolution unfolds its input; None where oneDNN's runs.

    The own one runs for single samples that are small, and in double precision. `settings` are stride, padding,
    dilation, transposed, output padding and groups.
    """
    stride, padding, _, transposed, *_ = settings
    operands = (torch.empty(1, dtype=each.dtype).expand(each.shape) for each in (source, weight))
    backend = torch._C._select_conv_backend(*operands, None, *settings, [result.shape[1]]).name  # noqa: SLF001  torch's own choice
    if not backend.startswith("Slow"):
        return None
    rows = weight.shape[1] * math.prod(weight.shape[2:])
    if transposed:
        # Unfolded is the gradient of the input, sample by sample; the input is copied.
        return (rows * math.prod(source.shape[2:]) + source.elements // source.shape[0]) * source.dtype.itemsize
    if set(weight.shape[2:]) == set(stride) == {1} and not any(padding):
        # The input is its own matrix; its gradient is made beside it.
        return source.bytes
    samples = 1 if "Dilated" in backend else source.shape[0]
    return samples * rows * math.prod(result.shape[2:]) * source.dtype.itemsize


def _unfolded_bytes(
    gradient: "TensorShape", source: "TensorShape", weight: "TensorShape", *, padding: Sequence[int]
) -> int:
    """Return what oneDNN takes where it unfolds the input for the gradient of the weights, 0 where it does not.

    Each thread then has the columns of a sample, one layer of a volume at a time, and the weights and their gradient in
    two orders each. With AVX-512 that is so for kernels that reach from padding to padding of a volume. Without, it is
    so for all volumes that are padded in depth, and for kernels higher or deeper than the input; width never counts.
    """
    sizes, kernel = source.shape[2:], weight.shape[2:]
    if len(sizes) == 1:
        return 0
    if _AVX512:
        reach = any(size + pad <= length for size, pad, length in zip(sizes, padding, kernel, strict=True))
        unfolded = len(sizes) == _VOLUME and reach
    else:
        longer = any(length > size for size, length in zip(sizes[:-1], kernel[:-1], strict=True))
        unfolded = longer or (len(sizes) == _VOLUME and padding[0] > 0)
    rows = weight.shape[1] * math.prod(kernel)
    columns = rows * math.prod(gradient.shape[-2:]) * source.dtype.itemsize
    return torch.get_num_threads() * (4 * weight.bytes + columns) if unfolded else 0


def _convolution_bytes(source: "TensorShape", weight: "TensorShape", result: "TensorShape", *, half: bool) -> int:
    """Return what a convolution takes: operands in blocks before the result is there, then the result in both forms."""
    # With channels innermost nothing is copied but weights.
    if _channels_last(source):
        return weight.bytes * (1 if _channels_last(weight) else 2) + torch.get_num_threads() * _PANEL_BYTES
    operands = _blocked_source(source) + weight.bytes + _blocked(result) - result.bytes
    if half and set(weight.shape[2:]) == {1} and weight.shape[1] > 1:
        # Each thread adds up one sample in fp32.
        operands += torch.get_num_threads() * _blocked(result) // result.shape[0] * 2
    return max(operands, _blocked(result) + weight.bytes)


def _convolution_backward_bytes(
    gradient: "TensorShape", source: "TensorShape", weight: "TensorShape", *, wanted: bool, half: bool
) -> int:
    """Return what the gradients of a convolution take: operands in blocks, and in half precision sums in fp32.

    `wanted` says whether the input has a gradient: that of an image has none.
    """
    if _channels_last(source) and weight.shape[1] == 1:
        # Depthwise: the gradient of each group's weight is a block of channels by channels, in fp32, and then cast.
        cast = weight.dtype.itemsize if half else 0
        return weight.bytes + weight.elements * _CHANNELS**2 * (torch.float32.itemsize + cast)
    operands = _blocked(gradient) + weight.bytes + (_blocked(source) if wanted else _blocked_source(source))
    if half:
        operands += _half_gradient_bytes(gradient, source, weight)
    # With strides the gradient of the input is there three times, as it is turned from one order into another.
    strided = wanted and gradient.shape[2:] != source.shape[2:] and (half or weight.shape[1] > 1)
    # With channels innermost the weights are turned round, and their gradient back.
    turned = 0
    if _channels_last(source) and set(weight.shape[2:]) != {1}:
        turned = 3 * weight.bytes + (0 if _channels_last(gradient) else gradient.bytes)
    return max(operands, turned, 2 * source.bytes if strided else 0)


def _half_gradient_bytes(gradient: "TensorShape", source: "TensorShape", weight: "TensorShape") -> int:
    """Return what the gradients of a convolution take in half precision beyond operands, the larger of two phases.

    Each thread turns a sample of both operands round and adds up a gradient of the weights in fp32; of 1 x 1 kernels it
    adds up a sample's gradient of the input in fp32 instead.
    """
    threads, samples = torch.get_num_threads(), source.shape[0]
    if weight.shape[1] == 1:
        return threads * weight.elements * torch.float32.itemsize + _SMALL_BYTES
    both = math.prod(-(-size // _CHANNELS) * _CHANNELS for size in weight.shape[:2]) * math.prod(weight.shape[2:])
    sums = threads * both * torch.float32.itemsize
    at_work = min(threads, samples)
    if set(weight.shape[2:]) == {1}:
        return sums + max(0, 2 * at_work - samples) * _blocked(source) // samples + _SMALL_BYTES
    return sums + at_work * (_blocked(source) + _blocked(gradient)) // samples + _SMALL_BYTES


def _recurrent_bytes(
    source: "TensorShape", weight: "TensorShape", hidden: "TensorShape", *, backward: bool, half: bool
) -> int:
    """Return what a recurrent layer takes: its matrices in another order, and the gates of all steps in fp32."""
    matrices = weight.bytes + hidden.bytes
    step = source.shape[1] * weight.shape[0] * torch.float32.itemsize
    gates = source.shape[0] * step
    if not half:
        again = hidden.bytes if backward else 0
        return int(_PADDED * (matrices + gates + again)) + step
    # The gradient of the output, a quarter of the gates, and those of both matrices are in fp32.
    sums = gates // 4 + int(_PADDED * 2 * matrices) if backward else 0
    return matrices + sums + 2 * step + _SMALL_BYTES // 2


def _transform_bytes(source: "TensorShape", dims: Sequence[int], *, back: bool) -> int:
    """Return what a Fourier transform takes: a copy where other dimensions do not lie in one row, two on the way back.

    From complex to real numbers along several dimensions, all but the last are transformed first, in a copy.
    """
    if back and len(dims) > 1:
        return 2 * source.bytes
    along = {dim % len(source.shape) for dim in dims}
    others = sorted((source.stride[at], size) for at, size in enumerate(source.shape) if at not in along)
    in_a_row = all(stride == inner * size for (inner, size), (stride, _) in pairwise(others))
    return 0 if in_a_row else source.bytes


def _attention_backward_bytes(queries: "TensorShape", keys: "TensorShape") -> int:
    """Return what the backward of flash attention takes: the queries' gradient, and each thread's block of scores.

    The block is there with its gradient, and in half precision both in that too.
    """
    half = queries.dtype in _HALF
    length = queries.shape[-2]
    rows = min(length, next(size for least, size in _QUERY_ROWS if length >= least))
    block = (
        rows * min(_KEY_COLUMNS, keys.shape[-2]) * (torch.float32.itemsize + (queries.dtype.itemsize if half else 0))
    )
    return (2 if half else 1) * queries.bytes + 2 * torch.get_num_threads() * block


def _channels_last(tensor: "TensorShape") -> bool:
    return len(tensor.stride) > 2 and tensor.stride[1] == 1 < tensor.shape[1]


def _blocked(tensor: "TensorShape") -> int:
    """Return the bytes of a tensor of (samples, channels, ...) in whole blocks of channels."""
    samples, channels, *places = tensor.shape
    return samples * -(-channels // _CHANNELS) * _CHANNELS * math.prod(places) * tensor.dtype.itemsize


def _blocked_source(source: "TensorShape") -> int:
    """Return the bytes of a convolution's input in blocks; images are read as they are."""
    return _blocked(source) if source.shape[1] > _COLOURS else 0
