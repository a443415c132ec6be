"""Attention by another function: what stands in for torch's scaled_dot_product_attention while a model runs."""

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

from torch.backends import mha
from torch.nn import functional

__all__ = ["replace_attention"]


@contextlib.contextmanager
def replace_attention(run: Callable[..., Any]) -> Iterator[None]:
    """Let attention be done by `run(attention, query, key, value, ...)`, with torch's own as its first argument.

    What calls it by its name in `torch.nn.functional`, as `nn.MultiheadAttention` does, calls `run`; torch's encoder
    layers take no shorter way in evaluation.
    """
    # The fast path of torch's encoder layers would bypass the replaced function.
    own, fast = functional.scaled_dot_product_attention, mha.get_fastpath_enabled()

    def attention(*args: Any, **kwargs: Any) -> Any:
        return run(own, *args, **kwargs)

    functional.scaled_dot_product_attention = attention
    mha.set_fastpath_enabled(False)
    try:
        yield
    finally:
        functional.scaled_dot_product_attention = own
        mha.set_fastpath_enabled(fast)
