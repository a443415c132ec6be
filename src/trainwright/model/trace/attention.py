"""Replaces torch's scaled_dot_product_attention by another function while a model runs."""

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

from torch.backends import mha
from torch.nn import functional

__all__ = ["replace_attention"]


@contextlib.contextmanager
def replace_attention(run: Callable[..., Any]) -> Iterator[None]:
    """Call `run(attention, query, key, value, ...)` for every attention inside; `attention` is torch's function.

    Calls by the name in `torch.nn.functional` are replaced, as `nn.MultiheadAttention` makes them; the fast path of
    torch's encoder layers in evaluation is switched off.
    """
    # The fast path of torch's encoder layers would bypass the replaced function.
    original, fast = functional.scaled_dot_product_attention, mha.get_fastpath_enabled()

    def attention(*args: Any, **kwargs: Any) -> Any:
        return run(original, *args, **kwargs)

    functional.scaled_dot_product_attention = attention
    mha.set_fastpath_enabled(False)
    try:
        yield
    finally:
        functional.scaled_dot_product_attention = original
        mha.set_fastpath_enabled(fast)
