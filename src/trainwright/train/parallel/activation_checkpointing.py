"""Activation checkpointing as part of a plan: blocks, or attention alone, recomputed by torch's checkpoint.

Chen et al., "Training Deep Nets with Sublinear Memory Cost" (arXiv 1604.06174), section 4; attention alone:
Korthikanti et al. (arXiv 2205.05198), section 5. Random numbers, autocast and buffers are those of the first run.
"""

import contextlib
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from trainwright.errors import UnsupportedPlan
from trainwright.model.trace.attention import replace_attention
from trainwright.plan import Layout
from trainwright.train.parallel.blocks import blocks_of
from trainwright.train.parallel.recompute.run_context import Buffers, RunContext

__all__ = ["recompute_blocks"]


def recompute_blocks(model: nn.Module, plan: Layout) -> None:
    """Let a model keep as little as the plan says; its modules, their names and what they return stay as they are.

    Raises `UnsupportedPlan` if the model has not the modules that the plan runs again.
    """
    if plan.recompute == "full":
        for block in _blocks(model, plan):
            block.forward = _Block(block)
    elif plan.recompute == "selective":
        # A pipeline's stage need not have attention.
        model.forward = _Attention(model, plan if plan.degrees.pipeline == 1 else None)


def _blocks(model: nn.Module, plan: Layout) -> list[nn.Module]:
    modules = dict(model.named_modules())
    missing = [path for path in plan.recomputed if path not in modules]
    if missing:
        raise UnsupportedPlan.of(
            plan.strategy, f"it runs {missing[0]!r} again, which the model has not; plan it with a profile of the model"
        )
    found = [modules[path] for path in plan.recomputed] or blocks_of(model)
    if not found:
        raise UnsupportedPlan.of(
            plan.strategy,
            f"recompute='full' names no modules, and {type(model).__name__} has no list of blocks; allowed: a plan "
            "made with a profile of the model, or recompute='none'",
        )
    return found


class _Block:
    """The forward pass of a block: it keeps what the block is given, and runs it again for the backward pass."""

    def __init__(self, block: nn.Module) -> None:
        self._block, self._forward = block, block.forward
        self._buffers: Buffers | None = None

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if not torch.is_grad_enabled():
            return self._forward(*args, **kwargs)
        # Buffers are found with the first call: a plan may have put other layers in before.
        if self._buffers is None:
            self._buffers = Buffers([self._block])
        return checkpoint(self._forward, *args, use_reentrant=False, context_fn=self._contexts, **kwargs)

    def _contexts(self) -> tuple[AbstractContextManager[Any], AbstractContextManager[Any]]:
        """Return what the first run, and each later one, are done in: only the first changes buffers."""
        assert self._buffers is not None  # noqa: S101 -- the call has made them
        seen = RunContext()
        return self._buffers.watched(seen), _Scratch(seen)


class _Scratch:
    """Copies in the place of buffers that the first run wrote, as often as it is entered."""

    def __init__(self, seen: RunContext) -> None:
        self._seen, self._now = seen, contextlib.ExitStack()

    def __enter__(self) -> None:
        self._now.enter_context(Buffers.scratch(self._seen))

    def __exit__(self, *error: object) -> None:
        self._now.close()


class _Attention:
    """The forward pass of a model whose attention keeps queries, keys and values, and nothing that it makes of them."""

    def __init__(self, module: nn.Module, plan: Layout | None) -> None:
        self._forward, self._plan = module.forward, plan
        self._calls = 0

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        with replace_attention(self._run):
            found = self._forward(*args, **kwargs)
        if self._plan is not None and not self._calls:
            raise UnsupportedPlan.of(
                self._plan.strategy,
                "recompute='selective' runs torch.nn.functional.scaled_dot_product_attention again, which the model "
                "does not call; allowed: recompute='full' or 'none'",
            )
        return found

    def _run(self, attend: Callable[..., torch.Tensor], *args: Any, **kwargs: Any) -> Any:
        self._calls += 1
        if not torch.is_grad_enabled():
            return attend(*args, **kwargs)
        return checkpoint(attend, *args, use_reentrant=False, **kwargs)
