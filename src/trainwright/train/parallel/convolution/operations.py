"""Operations on parts of tensors: those on single elements, by name, convolution, pooling, normalisation, joining.

Each of the others returns NotImplemented where it cannot work on parts: then the whole tensor is gathered first.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from math import prod
from typing import Any

import torch
from torch.nn import functional

from trainwright.train.parallel.convolution.halo import Bounds, even_bounds, exchange_halo, halo_windows, is_divided

__all__ = ["POINTWISE", "operation_of"]

Sizes = int | Sequence[int]


def operation_of(name: str, *, spatial: bool) -> Callable[..., Any] | None:
    """Return how an operation of torch works on parts; None: not at all."""
    return (_SPATIAL if spatial else _CHANNELS).get(name)


def _convolution(  # noqa: PLR0917 -- torch's arguments, which may come by place
    func: Callable[..., Any],
    input: Any,  # noqa: A002 -- torch's name, by which it may be given
    weight: torch.Tensor,
    bias: torch.Tensor | None = None,
    stride: Sizes = 1,
    padding: str | Sizes = 0,
    dilation: Sizes = 1,
    groups: int = 1,
) -> Any:
    """Convolve this rank's rows and their halo (Dryden et al., arXiv 1903.06681)."""
    dims = weight.ndim - 2
    if not is_divided(input) or is_divided(weight) or input.ndim != dims + 2:
        return NotImplemented
    kernel, strides = tuple(weight.shape[2:]), _per_dimension(stride, dims)
    dilations = _per_dimension(dilation, dims)
    pads = _paddings(padding, kernel, dilations)

    def compute(local: torch.Tensor, flat: Sequence[int]) -> Any:
        return func(local, weight, bias, strides, flat, dilations, groups)

    return _slide_window(compute, input, kernel, strides, dilations, pads)


def _slide_window(  # noqa: PLR0917 -- what a window is, in torch's order
    compute: Callable[[torch.Tensor, Sequence[int]], torch.Tensor],
    part: Any,
    kernel: Sequence[int],
    strides: Sequence[int],
    dilations: Sequence[int],
    paddings: tuple[Sequence[int], Sequence[int]],
    fill: float = 0.0,
) -> Any:
    """Compute this rank's rows of what a window makes that slides over a tensor; NotImplemented for too few rows."""
    (before, after), at, division = paddings, part.division.dim - 2, part.division
    # A kernel covers `reach` rows; the output has a row for each place that it takes on its way.
    reach = dilations[at] * (kernel[at] - 1) + 1
    rows = (division.size + before[at] + after[at] - reach) // strides[at] + 1
    # A rank with no row of the output would have an empty part.
    if rows < len(division.sizes):
        return NotImplemented
    # Each rank computes an equal share of the output's rows, for which it fetches the rows that it lacks.
    out = even_bounds(rows, len(division.sizes))
    wanted = halo_windows(
        out, division.size, kernel=kernel[at], stride=strides[at], dilation=dilations[at], before=before[at]
    )
    local = exchange_halo(part.local, division.group, dim=division.dim, bounds=division.bounds, wanted=wanted)
    window = wanted[torch.distributed.get_rank(division.group)]
    # The rows that were fetched get their padding here; torch pads the other dimensions.
    pads = [0 if dim == at else low for dim, low in enumerate(before)]
    # Padding "same" with an even kernel pads one side more.
    low = [window.before if dim == at else 0 for dim in range(len(pads))]
    high = [window.after if dim == at else after[dim] - before[dim] for dim in range(len(pads))]
    if any(low) or any(high):
        local = functional.pad(local, _pad(high, low), value=fill)
    return _part(compute(local, pads), part, out)


def _max_pool(func: Callable[..., Any], input: Any, *args: Any, **kwargs: Any) -> Any:  # noqa: A002
    names = ("kernel_size", "stride", "padding", "dilation", "ceil_mode", "return_indices")
    settings = {**dict(zip(names, args, strict=False)), **kwargs}
    if settings.pop("ceil_mode", False) or settings.pop("return_indices", False):
        return NotImplemented
    return _pool_rows(func, input, float("-inf"), **{"dilation": 1, **settings})


def _average_pool(func: Callable[..., Any], input: Any, *args: Any, **kwargs: Any) -> Any:  # noqa: A002
    names = ("kernel_size", "stride", "padding", "ceil_mode", "count_include_pad", "divisor_override")
    settings = {**dict(zip(names, args, strict=False)), **kwargs}
    # Padding comes as rows of zeros here, which torch counts like any others.
    counted, padding = settings.pop("count_include_pad", True), settings.get("padding", 0)
    padded = bool(padding) if isinstance(padding, int) else any(padding)
    if settings.pop("ceil_mode", False) or settings.pop("divisor_override", None) or (padded and not counted):
        return NotImplemented
    return _pool_rows(func, input, 0.0, **settings)


def _pool_rows(
    func: Callable[..., Any],
    part: Any,
    fill: float,
    *,
    kernel_size: Sizes,
    stride: Sizes | None = None,
    padding: Sizes = 0,
    dilation: Sizes | None = None,
) -> Any:
    dims = part.ndim - 2
    if dims < 1 or (not isinstance(kernel_size, int) and len(kernel_size) not in {1, dims}):
        return NotImplemented
    kernel, pads = _per_dimension(kernel_size, dims), _per_dimension(padding, dims)
    strides = _per_dimension(kernel if stride is None or stride == [] else stride, dims)
    spread = _per_dimension(1 if dilation is None else dilation, dims)
    rest = () if dilation is None else (spread,)

    def compute(local: torch.Tensor, flat: Sequence[int]) -> Any:
        return func(local, kernel, strides, flat, *rest)

    return _slide_window(compute, part, kernel, strides, spread, (pads, pads), fill)


def _local_norm(func: Callable[..., Any], input: Any, *args: Any, **kwargs: Any) -> Any:  # noqa: A002
    """Normalise by the statistics of this rank's rows."""
    return input.of(func(input.local, *args, **kwargs), input.division)


def _keep_channels(func: Callable[..., Any], input: Any, *args: Any, **kwargs: Any) -> Any:  # noqa: A002
    """Do to each channel what does not look at the others."""
    if not is_divided(input) or input.division.dim != 1 or input.ndim < 3:
        return NotImplemented
    found = func(input.local, *args, **kwargs)
    return input.of(found, input.division) if isinstance(found, torch.Tensor) else NotImplemented


def _flatten_channels(func: Callable[..., Any], input: Any, start_dim: int = 0, end_dim: int = -1) -> Any:  # noqa: A002
    """Flatten channels and what lies behind them: each rank's stay together."""
    if not is_divided(input) or input.division.dim != 1 or start_dim != 1:
        return NotImplemented
    local = input.local
    last = end_dim % local.ndim
    # A channel becomes as many features as it has elements, and borders move by that factor.
    each = prod(local.shape[2 : last + 1])
    bounds = tuple(bound * each for bound in input.division.bounds)
    return _part(func(local, start_dim, end_dim), input, bounds)


def _join_parts(func: Callable[..., Any], tensors: Any, dim: int = 0) -> Any:
    """Join equal parts along another dimension than theirs."""
    if not all(is_divided(tensor) for tensor in tensors):
        return NotImplemented
    division, ndim = tensors[0].division, tensors[0].ndim
    if dim % ndim == division.dim or any(item.division != division or item.ndim != ndim for item in tensors):
        return NotImplemented
    return tensors[0].of(func([entry.local for entry in tensors], dim), division)


def _part(done: torch.Tensor, like: Any, bounds: Bounds) -> Any:
    """Return what an operation made of the part `like` as a part with other bounds."""
    return like.of(done, replace(like.division, bounds=bounds))


def _per_dimension(value: Any, dims: int) -> tuple[int, ...]:
    if isinstance(value, int):
        return (value,) * dims
    return tuple(value) * dims if len(value) == 1 else tuple(value)


def _paddings(
    padding: str | Sizes, kernel: tuple[int, ...], dilations: tuple[int, ...]
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return the padding before and after each spatial dimension."""
    if padding == "same":
        total = [dilation * (taps - 1) for taps, dilation in zip(kernel, dilations, strict=True)]
        return tuple(item // 2 for item in total), tuple(entry - entry // 2 for entry in total)
    even = _per_dimension(0 if padding == "valid" else padding, len(kernel))
    return even, even


def _pad(after: Sequence[int], before: Sequence[int]) -> list[int]:
    """Return paddings as `functional.pad` takes them, the last dimension first."""
    return [item for low, high in zip(reversed(before), reversed(after), strict=True) for item in (low, high)]


_POOLS = [f"{kind}_pool{dims}d" for kind in ("max", "avg") for dims in (1, 2, 3)]
_SPATIAL: dict[str, Callable[..., Any]] = {
    **{f"conv{dims}d": _convolution for dims in (1, 2, 3)},
    **{name: _max_pool if name.startswith("max") else _average_pool for name in _POOLS},
    "batch_norm": _local_norm,
    "cat": _join_parts,
}
_CHANNELS: dict[str, Callable[..., Any]] = {
    **dict.fromkeys(_POOLS, _keep_channels),
    **{f"adaptive_{kind}_pool{dims}d": _keep_channels for kind in ("max", "avg") for dims in (1, 2, 3)},
    "interpolate": _keep_channels,
    "flatten": _flatten_channels,
    "cat": _join_parts,
}


_ARITHMETIC = ("add", "sub", "mul", "div", "pow", "truediv")
_FUNCTIONS = (  # noqa: SIM905 -- a column of sixty strings says no more
    "abs addcdiv addcmul alpha_dropout bfloat16 celu clamp clamp_max clamp_min clone contiguous cos detach divide "
    "double dropout elu erf exp exp2 expm1 float gelu half hardshrink hardsigmoid hardswish hardtanh leaky_relu lerp "
    "log log10 log1p log2 log_sigmoid logsigmoid maximum minimum mish multiply nan_to_num neg negative positive "
    "reciprocal relu relu6 rrelu rsqrt selu sigmoid silu sin softplus softshrink softsign sqrt square subtract tanh "
    "tanhshrink threshold to true_divide type where"
).split()

POINTWISE = frozenset(
    {
        *_FUNCTIONS,
        *(f"{name}_" for name in _FUNCTIONS),
        *_ARITHMETIC,
        *(f"{name}_" for name in _ARITHMETIC),
        *(f"__{prefix}{name}__" for name in _ARITHMETIC for prefix in ("", "r", "i")),
        "__neg__",
        "__pos__",
        "__abs__",
    }
)
"""Names of functions and methods, with and without the underscore of those that work in place."""
