"""The operators that a network from somebody else may use: tensors in, tensors out, and nothing else is touched.

Left out on purpose: whatever opens or maps files (`from_file`), draws random numbers, shows memory that was not
written (`empty`), runs other graphs (higher-order operators), changes a tensor's storage (`set_`, `resize_`,
`as_strided`), answers with a shape that depends on values (`nonzero`), or has kernels that trust their arguments
(LAPACK, sparse, quantized, `embedding_bag`).
"""

import math
import operator
import re
from collections.abc import Callable, Mapping, Sequence
from importlib import resources
from typing import TYPE_CHECKING, Any

from trainwright.errors import ExportError

if TYPE_CHECKING:
    import torch

__all__ = ["OPERATORS", "NeedsTrust", "arguments_of", "find_check", "find_operator", "refuse_target"]

OPERATORS = frozenset(resources.files(__package__).joinpath("operators.txt").read_text(encoding="ascii").split())
"""Names in torch.ops.aten: of each any overload that writes to none but, where the name ends so, its first argument."""

_SPELLING = re.compile(r"torch\.ops\.aten\.([A-Za-z0-9_]+)\.([A-Za-z0-9_]+)")
_PIECES = 1 << 16  # that a tensor is cut into, or steps of a sequence
_LARGEST = 1 << 62  # of a whole number that the graph computes from sizes

# Arithmetic of sizes. There is no power in it: a few of them fill the memory.
_ARITHMETIC = ("add", "sub", "mul", "floordiv", "truediv", "mod", "neg", "eq", "ne", "lt", "le", "gt", "ge")
_OF_NUMBERS: Mapping[str, Callable[..., Any]] = {
    **{f"_operator.{name}": getattr(operator, name) for name in _ARITHMETIC},
    **{f"math.{name}": getattr(math, name) for name in ("ceil", "floor", "trunc")},
    "torch.sym_float": float,
    "torch.sym_int": int,
    "torch.sym_max": max,
    "torch.sym_min": min,
}

_OF_SHAPES: Mapping[str, Callable[..., Any]] = {
    "torch.ops.aten.sym_size.int": lambda tensor, dim: tensor.size(dim),
    "torch.ops.aten.sym_numel.default": lambda tensor: tensor.numel(),
}

_TRAINS = ("train", "training")  # names of arguments that turn randomness on
_MAY_TRAIN = "batch_norm"  # which without running statistics always does, and draws nothing


class NeedsTrust(ExportError):
    """A program may be honest, but does what is run for people whom one trusts alone."""


def refuse_target(target: str) -> None:
    """Raise `NeedsTrust` if an operator, as a graph names it, is none of this module's, whichever its overload."""
    spelled = _SPELLING.fullmatch(target)
    if target not in {*_OF_NUMBERS, *_OF_SHAPES} and (spelled is None or spelled[1] not in OPERATORS):
        raise NeedsTrust(f"uses {target[:100]!r}")


def find_operator(target: str) -> Callable[..., Any]:
    """Return the function of an operator as a graph names it, such as "torch.ops.aten.linear.default".

    Raises `NeedsTrust` for every other than those of this module.
    """
    import torch

    # Sizes computed from sizes stay bounded, so that no later shape can exhaust memory.
    if target in _OF_NUMBERS:
        return _bound_result(_OF_NUMBERS[target])
    if target in _OF_SHAPES:
        return _OF_SHAPES[target]
    refuse_target(target)
    spelled = target.split(".")[-2:]
    # The overload decides which arguments are written to, so it is looked up too.
    packet = getattr(torch.ops.aten, spelled[0], None)
    if packet is None or spelled[1] not in packet.overloads():
        raise NeedsTrust(f"uses {target!r}, which torch {torch.__version__} does not have")
    found: Callable[..., Any] = getattr(packet, spelled[1])
    schema = found._schema  # type: ignore[attr-defined]  # noqa: SLF001 - its only name
    # Only the first argument of an in-place operator may be written to.
    written = [at for at, one in enumerate(schema.arguments) if one.alias_info is not None and one.alias_info.is_write]
    in_place = spelled[0].endswith("_") and written == [0]
    if any(str(one.type) not in {"Tensor", "List[Tensor]"} for one in schema.returns) or (written and not in_place):
        raise NeedsTrust(f"uses {target!r}")
    return found


def arguments_of(target: str, values: Mapping[str, Any]) -> None:
    """Refuse arguments, by name, with which an operator would be random."""
    name = target.split(".")[-2]
    for argument, value in values.items():
        trains = argument in _TRAINS and name != _MAY_TRAIN and value is not False
        if trains or (argument == "dropout_p" and value != 0):
            raise NeedsTrust(f"uses {target!r} with {argument} = {value!r}, which is random")


def find_check(target: str) -> Callable[..., None] | None:
    """Return what refuses tensors that an operator's kernel would take on trust; None where torch checks them."""
    return _CHECKS.get(target)


def _bound_result(function: Callable[..., Any]) -> Callable[..., Any]:
    def bounded(*numbers: Any) -> Any:
        found = function(*numbers)
        if not -_LARGEST < found < _LARGEST:
            raise RuntimeError(f"a size of {numbers[0]!r} grew too large")
        return found

    return bounded


def _refuse_shapes(*, unless: bool, what: str) -> None:
    if not unless:
        raise RuntimeError(f"the shapes given to {what} do not fit each other")


def _check_recurrent(gates: int) -> Callable[..., None]:
    """Return the check of an LSTM, GRU or RNN whose weights have so many gates; one kernel views them by its sizes."""

    def check(*values: Any) -> None:
        x, state, weights, has_biases, layers, _, _, bidirectional, batch_first = values
        states = list(state) if isinstance(state, list | tuple) else [state]
        directions, item = (2 if bidirectional else 1), (4 if has_biases else 2)
        fits = x.dim() == 3 and layers >= 1 and len(weights) == layers * directions * item and len(states) > 0
        fits = fits and max(x.shape[:2]) <= _PIECES
        _refuse_shapes(unless=fits and weights[1].dim() == 2, what="a recurrent layer")
        # The kernel reads weights by these sizes without checking them.
        hidden, width, rows = weights[1].shape[1], x.shape[2], x.shape[0 if batch_first else 1]
        shape = (layers * directions, rows, hidden)
        _refuse_shapes(unless=all(tuple(one.shape) == shape for one in states), what="a recurrent layer")
        for at in range(layers * directions):
            inner = width if at < directions else hidden * directions
            wanted = [(gates * hidden, inner), (gates * hidden, hidden), (gates * hidden,), (gates * hidden,)][:item]
            found = [tuple(one.shape) for one in weights[at * item : (at + 1) * item]]
            _refuse_shapes(unless=found == wanted, what="a recurrent layer")

    return check


def _check_weight_norm(v: "torch.Tensor", g: "torch.Tensor", dim: int = 0) -> None:
    at = dim % v.dim() if v.dim() and dim != -1 else None
    wanted = [size if place == at else 1 for place, size in enumerate(v.shape)]
    _refuse_shapes(unless=at is not None and list(g.shape) == wanted, what="a weight norm")


def _check_attention(
    query: "torch.Tensor",
    key: "torch.Tensor",
    value: "torch.Tensor",
    attn_mask: "torch.Tensor | None" = None,
    *_: Any,
    **__: Any,
) -> None:
    fits = min(query.dim(), key.dim(), value.dim()) >= 2
    _refuse_shapes(
        unless=fits and query.shape[-1] == key.shape[-1] and key.shape[-2] == value.shape[-2], what="attention"
    )
    if attn_mask is not None:
        wanted = (query.shape[-2], key.shape[-2])
        ends = tuple(attn_mask.shape[-2:])
        fits = len(ends) == 2 and all(one in (1, other) for one, other in zip(ends, wanted, strict=True))
        _refuse_shapes(unless=fits, what="attention")


def _check_split(x: "torch.Tensor", size: "int | Sequence[int]", dim: int = 0) -> None:
    _refuse_shapes(unless=not isinstance(size, int) or x.shape[dim] <= size * _PIECES, what="a split")


def _check_chunk(x: "torch.Tensor", chunks: int, dim: int = 0) -> None:  # noqa: ARG001 - the operator's form
    _refuse_shapes(unless=chunks <= _PIECES, what="a split")


def _check_unbind(x: "torch.Tensor", dim: int = 0) -> None:
    _refuse_shapes(unless=x.shape[dim] <= _PIECES, what="a split")


_CHECKS: Mapping[str, Callable[..., None]] = {
    "torch.ops.aten.lstm.input": _check_recurrent(4),
    "torch.ops.aten.gru.input": _check_recurrent(3),
    "torch.ops.aten.rnn_relu.input": _check_recurrent(1),
    "torch.ops.aten.rnn_tanh.input": _check_recurrent(1),
    "torch.ops.aten._weight_norm.default": _check_weight_norm,
    "torch.ops.aten.scaled_dot_product_attention.default": _check_attention,
    "torch.ops.aten.split.Tensor": _check_split,
    "torch.ops.aten.unsafe_split.Tensor": _check_split,
    "torch.ops.aten.chunk.default": _check_chunk,
    "torch.ops.aten.unsafe_chunk.default": _check_chunk,
    "torch.ops.aten.unbind.int": _check_unbind,
}
