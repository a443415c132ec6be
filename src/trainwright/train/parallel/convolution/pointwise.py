"""The operations of torch that do to each element of a tensor the same, by name."""

__all__ = ["POINTWISE"]

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
