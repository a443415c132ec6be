"""Workspaces: bytes that a kernel takes and gives back inside one operation, which no tensor shows.

As torch's allocator on processors was seen to lend them, operation by operation (torch 2.13 with oneDNN): a convolution
copies its input and output into blocks of 16 channels, a reduction in half precision goes through a copy in fp32, a
product in half precision packs an operand, and the backward pass of flash attention has buffers of the queries' size.
On CUDA cuDNN's and cuBLAS's workspaces play that part; these have not been measured.
"""

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from trainwright.model.trace.recorder import TensorShape

__all__ = ["workspace_bytes"]

_CHANNELS = 16  # of a block
_HALF = {torch.float16, torch.bfloat16}
_FORWARD = frozenset({"convolution", "_convolution"})
_BACKWARD = frozenset({"convolution_backward"})
_PRODUCTS = frozenset({"mm", "addmm", "bmm", "baddbmm"})
_REDUCTIONS = frozenset({"sum", "mean"})
_THREAD_BYTES = 2**18  # of each thread's buffer


def workspace_bytes(func: Any, arguments: Sequence[Any], results: "Sequence[TensorShape]") -> int:
    """Return the bytes that an operation borrows while it runs, 0 for those that need none."""
    name = func._overloadpacket.__name__ if hasattr(func, "_overloadpacket") else ""  # noqa: SLF001 -- torch's own name
    tensors: list[TensorShape] = [each for each in arguments if hasattr(each, "elements")]
    if not tensors:
        return 0
    if name in _FORWARD:
        source, weight = tensors[:2]
        # With channels innermost nothing is copied but weights.
        return weight.bytes + (0 if _channels_last(source) else _blocked(results[0]))
    if name in _BACKWARD:
        gradient, source, weight = tensors[:3]
        if _channels_last(source) and weight.shape[1] == 1:
            # Depthwise: the gradient of each group's weight is a block of channels by channels, in fp32, and then cast.
            cast = weight.dtype.itemsize if weight.dtype in _HALF else 0
            return weight.bytes + weight.elements * _CHANNELS**2 * (torch.float32.itemsize + cast)
        return _blocked(gradient) + _blocked(source) + weight.bytes
    if name in _PRODUCTS and tensors[0].dtype in _HALF:
        return max(each.bytes for each in tensors[-2:])
    if name in _REDUCTIONS and tensors[0].dtype in _HALF:
        return 2 * tensors[0].bytes
    if name.startswith("_scaled_dot_product") and name.endswith("_backward"):
        queries = tensors[1]
        return (2 if queries.dtype in _HALF else 1) * queries.bytes + torch.get_num_threads() * _THREAD_BYTES
    return 0


def _channels_last(tensor: "TensorShape") -> bool:
    return len(tensor.stride) > 2 and tensor.stride[1] == 1 < tensor.shape[1]


def _blocked(tensor: "TensorShape") -> int:
    """Return the bytes of a tensor of (samples, channels, ...) in whole blocks of channels."""
    samples, channels, *places = tensor.shape
    blocks = -(-channels // _CHANNELS)
    return samples * blocks * _CHANNELS * math.prod(places) * tensor.dtype.itemsize
