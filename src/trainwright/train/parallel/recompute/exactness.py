"""Whether what trains in a model's place does the same, bit by bit: a step of each on the sample, side by side."""

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import nn

from trainwright.train.parallel.recompute.sample_step import Call, as_call, restored_after, train_once
from trainwright.train.parallel.recompute.trees import flatten_tree, map_only, tensors_of

__all__ = ["StepResult"]

Loss = Callable[[Any], torch.Tensor]


@dataclass(frozen=True)
class StepResult:
    """What a step leaves behind, by name: the result, gradients, buffers, and the next random numbers."""

    left: dict[str, Any]

    @classmethod
    def of(cls, run: Callable[..., Any], model: nn.Module, sample: Any, loss: Loss | None) -> "StepResult":
        """Return what `run` leaves behind in the place of a model, which is as before afterwards."""
        given = as_call(sample)
        args, kwargs = map_only(torch.Tensor, _fresh_leaf, (given.args, dict(given.kwargs)))
        results: list[Any] = []

        def run_and_keep(*args: Any, **kwargs: Any) -> Any:
            out = run(*args, **kwargs)
            results.append(map_only(torch.Tensor, lambda t: t.detach().clone(), out))
            return out

        with restored_after(model):
            train_once(run_and_keep, Call(args, kwargs), loss)
            left = dict(_traces(model, (args, kwargs), results[0]))
        return cls(left)

    def difference(self, other: "StepResult") -> str:
        """Return the name of the first thing that is not the same, "" if all are."""
        names = [*self.left, *(name for name in other.left if name not in self.left)]
        return next((name for name in names if not _are_equal(self.left.get(name), other.left.get(name))), "")


def _fresh_leaf(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.detach().requires_grad_(tensor.requires_grad)


def _traces(model: nn.Module, given: Any, out: Any) -> Iterator[tuple[str, Any]]:
    leaves, spec = flatten_tree(out)
    yield "the kind of its result", (spec, [type(leaf) for leaf in leaves])
    for place, tensor in enumerate(tensors_of(out)):
        yield f"its result ({place})", tensor
    for name, parameter in model.named_parameters():
        yield f"the gradient of {name}", parameter.grad
    for place, tensor in enumerate(tensors_of(given)):
        yield f"the gradient of its input ({place})", tensor.grad
    for name, buffer in model.named_buffers():
        yield f"the buffer {name}", buffer
    yield "torch's random numbers", torch.get_rng_state()
    yield "Python's and numpy's random numbers", (random.random(), np.random.rand())  # noqa: NPY002  a user's


def _are_equal(one: Any, other: Any) -> bool:
    if not (isinstance(one, torch.Tensor) and isinstance(other, torch.Tensor)):
        return bool(type(one) is type(other) and one == other)
    if (one.shape, one.dtype, one.layout) != (other.shape, other.dtype, other.layout):
        return False
    if one.layout == torch.sparse_coo:
        one, other = one.coalesce(), other.coalesce()
        return torch.equal(one.indices(), other.indices()) and _are_equal(one.values(), other.values())
    return torch.equal(one, other) or torch.allclose(one, other, rtol=0, atol=0, equal_nan=True)
