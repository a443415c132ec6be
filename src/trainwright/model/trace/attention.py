"""Attention while a model is traced: another function for torch's own, and masks as a real step has them."""

import contextlib
import sys
from collections.abc import Callable, Iterator
from typing import Any

from torch.backends import mha
from torch.nn import functional

__all__ = ["assume_unpacked_rows", "replace_attention"]


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


@contextlib.contextmanager
def assume_unpacked_rows() -> Iterator[None]:
    """Let models of transformers find one sequence in each row, as the positions that they number themselves say.

    Fake tensors do not show it, and the model would take a mask, with keys and values repeated for each head of the
    queries, where a real step has neither.
    """
    masks: Any = sys.modules.get("transformers.masking_utils")
    original = getattr(masks, "find_packed_sequence_indices", None)
    if original is None:
        yield
        return
    masks.find_packed_sequence_indices = lambda position_ids: None  # noqa: ARG005  its name is theirs
    try:
        yield
    finally:
        masks.find_packed_sequence_indices = original
