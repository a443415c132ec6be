"""Corrections: the few operations of which fake tensors tell other bytes than the kernel's results have."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor, unset_fake_temporarily
from torch.utils._pytree import tree_map

__all__ = ["corrected"]


def corrected(func: Any, args: Sequence[Any], kwargs: Mapping[str, Any], result: Any) -> Any:
    """Return the result of an operation, with fake tensors as large as the kernel's would be."""
    correct = _CORRECTIONS.get(func._schema.name)  # noqa: SLF001  no public name
    return result if correct is None or not isinstance(result[0], FakeTensor) else correct(func, args, kwargs, result)


def _with_workspace(place: int) -> Callable[..., Any]:
    """Of recurrent layers: what their library keeps for the backward pass, as large as in one call on real zeros."""

    def correct(func: Any, args: Sequence[Any], kwargs: Mapping[str, Any], result: Any) -> Any:
        with unset_fake_temporarily():
            real = func(*tree_map(_zeros, tuple(args)), **tree_map(_zeros, dict(kwargs)))
        if real[place] is None:  # nothing is kept where no gradients are wanted
            return result
        made = result[place].new_empty(real[place].numel())
        return type(result)((*result[:place], made, *result[place + 1 :]))

    return correct


def _zeros(value: Any) -> Any:
    return torch.zeros(value.shape, dtype=value.dtype, device=value.device) if isinstance(value, FakeTensor) else value


def _like_input(_: Any, args: Sequence[Any], __: Mapping[str, Any], result: Any) -> Any:
    """Of a group norm with weights of more precision: the gradient of its input has the input's."""
    return type(result)((result[0].to(args[1].dtype), *result[1:])) if result[0] is not None else result


def _in_fp32(_: Any, __: Sequence[Any], ___: Mapping[str, Any], result: Any) -> Any:
    """Of gradients of recurrent layers, that torch 2.11 takes for those of the input's precision."""
    return type(result)(each.float() if isinstance(each, FakeTensor) else each for each in result)


_CORRECTIONS: dict[str, Callable[..., Any]] = {
    "aten::mkldnn_rnn_layer": _with_workspace(3),
    "aten::mkldnn_rnn_layer_backward": _in_fp32,
    "aten::_cudnn_rnn": _with_workspace(4),
    "aten::native_group_norm_backward": _like_input,
}
