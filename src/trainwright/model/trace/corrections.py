"""Corrects operations whose fake results have other bytes than the kernel's, or that fake tensors do not know."""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor, unset_fake_temporarily
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map

__all__ = ["RealFallback", "call_operation", "correct_result", "depends_on_values"]

_OF_FAKE_TENSORS = (
    "DataDependent",
    "DynamicOutputShape",
    "UnsupportedFakeTensor",
    "UnsupportedOperator",
    "GuardOnData",
)


def depends_on_values(error: Exception) -> bool:
    """Return whether an error means that a result depends on values, which fake tensors do not have."""
    return type(error).__name__.startswith(_OF_FAKE_TENSORS)


def correct_result(func: Any, args: Sequence[Any], kwargs: Mapping[str, Any], result: Any) -> Any:
    """Return the result of an operation, its fake tensors resized to what the kernel returns."""
    correct = _CORRECTIONS.get(func._schema.name)  # noqa: SLF001  no public name
    return result if correct is None or not isinstance(result[0], FakeTensor) else correct(func, args, kwargs, result)


def call_operation(func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """Return what an operation does, run once on real tensors if fake ones do not know it."""
    if func is torch.ops.aten._grouped_mm.default and isinstance(args[0], FakeTensor):  # noqa: SLF001 -- aten's name
        # The fake kernel knows bf16 alone; the others return as many bytes an element as they take.
        cast = [each.to(torch.bfloat16) for each in args[:2]] if args[0].dtype == args[1].dtype else args[:2]
        return func(*cast, *args[2:], **kwargs).to(args[0].dtype)
    try:
        return correct_result(func, args, kwargs, func(*args, **kwargs))
    except Exception as error:
        result = NotImplemented if depends_on_values(error) else _run_on_real_tensors(func, args, kwargs)
        if result is NotImplemented:
            raise
        return result


class RealFallback(TorchDispatchMode):
    """A mode in which operations that fake tensors do not know run once on real ones."""

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        return call_operation(func, args, kwargs or {})


def _run_on_real_tensors(func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """Return fake tensors like the results of an operation on real tensors, for one that fails on fake tensors.

    The operation runs once on a CPU, on arbitrary numbers; integers, which may be indices or sizes, are zeros.
    Returns NotImplemented if it has no fake arguments, writes to its arguments, or fails on real tensors too.
    """
    # Views and in-place operations would have to share storages with their arguments, which a stand-in cannot.
    tensors = [tensor for tensor in tree_leaves((tuple(args), dict(kwargs))) if isinstance(tensor, FakeTensor)]
    if not tensors or func._schema.is_mutable or func.is_view:  # noqa: SLF001  no public name
        return NotImplemented
    try:
        with unset_fake_temporarily():
            real = func(*tree_map(_stand_in, tuple(args)), **tree_map(_stand_in, dict(kwargs)))
    except Exception:  # noqa: BLE001  the error on fake tensors is reported
        return NotImplemented
    return tree_map(partial(_to_fake, tensors[0]), real)


def _stand_in(value: Any) -> Any:
    if not isinstance(value, FakeTensor):
        return torch.device("cpu") if isinstance(value, torch.device) else value
    # Floats may hold anything; integers may be indices, and zero is a valid one.
    stand_in = torch.empty_strided(value.shape, value.stride(), dtype=value.dtype, device="cpu")
    return stand_in if value.is_floating_point() or value.is_complex() else stand_in.zero_()


def _to_fake(like: FakeTensor, value: Any) -> Any:
    if not isinstance(value, torch.Tensor):
        return value
    with like.fake_mode:
        return torch.empty_strided(value.shape, value.stride(), dtype=value.dtype, device=like.device)


def _with_workspace(place: int) -> Callable[..., Any]:
    """Recurrent layers: the workspace saved for the backward pass gets the size that a call on real zeros returns."""

    def correct(func: Any, args: Sequence[Any], kwargs: Mapping[str, Any], result: Any) -> Any:
        with unset_fake_temporarily():
            real = func(*tree_map(_to_zeros, tuple(args)), **tree_map(_to_zeros, dict(kwargs)))
        if real[place] is None:  # nothing is kept where no gradients are wanted
            return result
        stand_in = result[place].new_empty(real[place].numel())
        return type(result)((*result[:place], stand_in, *result[place + 1 :]))

    return correct


def _to_zeros(value: Any) -> Any:
    return torch.zeros(value.shape, dtype=value.dtype, device=value.device) if isinstance(value, FakeTensor) else value


def _like_input(_: Any, args: Sequence[Any], __: Mapping[str, Any], result: Any) -> Any:
    """Group norm with weights of higher precision: the gradient of the input has the input's precision."""
    return type(result)((result[0].to(args[1].dtype), *result[1:])) if result[0] is not None else result


def _in_fp32(_: Any, __: Sequence[Any], ___: Mapping[str, Any], result: Any) -> Any:
    """Recurrent layers: their gradients are float32, where torch 2.11 reports the input's precision."""
    return type(result)(tensor.float() if isinstance(tensor, FakeTensor) else tensor for tensor in result)


_CORRECTIONS: dict[str, Callable[..., Any]] = {
    "aten::mkldnn_rnn_layer": _with_workspace(3),
    "aten::mkldnn_rnn_layer_backward": _in_fp32,
    "aten::_cudnn_rnn": _with_workspace(4),
    "aten::native_group_norm_backward": _like_input,
}
