"""One training step with a sample: its peak of live storages, what it leaves behind, and the model as it was."""

import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import nn

from trainwright.errors import UnsupportedModel
from trainwright.model.trace.storages import StorageTracker
from trainwright.train.parallel.recompute.run_context import Autocast, swapped_values
from trainwright.train.parallel.recompute.tracing import as_before
from trainwright.train.parallel.recompute.trees import flatten_tree, granule_of, map_only, tensors_of

__all__ = ["Call", "StepResult", "as_call", "call_with", "plain_peak", "restored_after", "tracked_peak", "train_once"]


@dataclass(frozen=True, slots=True)
class Call:
    """A sample as a model was called with it."""

    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]


def as_call(sample: Any) -> Call:
    """Return a sample as a call: a mapping holds keyword arguments, a tuple or list positional ones, else it is one."""
    if isinstance(sample, Call):
        return sample
    if isinstance(sample, Mapping):
        return Call((), dict(sample))
    return Call(tuple(sample) if isinstance(sample, tuple | list) else (sample,), {})


def call_with(function: Callable[..., Any], sample: Any) -> Any:
    """Call with a sample."""
    given = as_call(sample)
    return function(*given.args, **given.kwargs)


def tracked_peak(
    model: nn.Module, sample: Any, *, loss: Callable[[Any], torch.Tensor] | None = None, passes: int = 1
) -> int:
    """Return the peak bytes of live storages of one training step, with the parameters, but no optimizer's state.

    Without `loss` the sum of the result's floating tensors stands for it. With several `passes` gradients add up. The
    model is as before afterwards.
    """
    tracker = StorageTracker(granule_bytes=granule_of(model))
    tracker.watch(model.parameters(), "parameters")
    tracker.watch(model.buffers(), "buffers")
    given = as_call(sample)
    batch = tensors_of((given.args, dict(given.kwargs)))
    tracker.watch(batch, "input")
    with restored_after(model, batch), tracker:
        for _ in range(passes):
            train_once(model, sample, loss)
    return tracker.peak_bytes


def plain_peak(
    model: nn.Module, sample: Any, *, loss: Callable[[Any], torch.Tensor] | None = None, passes: int = 1
) -> int:
    """Return the `tracked_peak` of a model as it is; raise `UnsupportedModel` where it refuses the sample."""
    try:
        return tracked_peak(model, sample, loss=loss, passes=passes)
    except (torch.OutOfMemoryError, UnsupportedModel):
        raise
    except (RuntimeError, TypeError, ValueError, IndexError) as error:
        raise UnsupportedModel(
            f"sample: {type(model).__name__} refuses it: {error}; allowed: a sample that the model takes"
        ) from error


def train_once(model: Callable[..., Any], sample: Any, loss: Callable[[Any], torch.Tensor] | None) -> None:
    """Run a model forward and backward; without `loss` the sum of the result's floating tensors stands for it."""
    out = call_with(model, sample)
    if loss is not None:
        loss(out).backward()
    else:
        # The gradient that arrives is to be a tensor of its own, not a number seen as one.
        ends = [torch.view_as_real(t) if t.is_complex() else t for t in tensors_of(out) if t.requires_grad]
        sum((t * 1).sum() for t in ends).backward()  # type: ignore[union-attr]  # something is trained


@contextmanager
def restored_after(model: nn.Module, batch: Sequence[torch.Tensor] = ()) -> Iterator[None]:
    """Let stages run on copies of the buffers, and put gradients, attributes and random generators back."""
    places = [
        ((module, name), buffer.clone())
        for module in model.modules()
        for name, buffer in module._buffers.items()  # noqa: SLF001  to swap them, not to read them
        if buffer is not None
    ]
    # Tensors that are no leaves keep no gradient, and torch warns who asks for it.
    gradients = [(each, each.grad) for each in (*model.parameters(), *batch) if each.is_leaf]
    with ExitStack() as stack:
        stack.enter_context(torch.random.fork_rng())
        stack.enter_context(as_before(model))
        # A cast kept from stage to stage would be nobody's.
        stack.enter_context(Autocast.now().entered())
        stack.enter_context(swapped_values(places))
        try:
            for each, _ in gradients:
                each.grad = None
            yield
        finally:
            for each, gradient in gradients:
                each.grad = gradient


@dataclass(frozen=True)
class StepResult:
    """What a step leaves behind, by name: the result, gradients, buffers, and the next random numbers."""

    left: dict[str, Any]

    @classmethod
    def of(
        cls, run: Callable[..., Any], model: nn.Module, sample: Any, loss: Callable[[Any], torch.Tensor] | None
    ) -> "StepResult":
        """Return what `run` leaves behind in the place of a model, which is as before afterwards."""
        given = as_call(sample)
        # Leaves of our own collect the gradients of the inputs, so that the caller's stay as they are.
        args, kwargs = map_only(torch.Tensor, _fresh_leaf, (given.args, dict(given.kwargs)))
        results: list[Any] = []

        def run_and_keep(*args: Any, **kwargs: Any) -> Any:
            out = run(*args, **kwargs)
            # A copy, for the loss may write to the result.
            results.append(map_only(torch.Tensor, lambda t: t.detach().clone(), out))
            return out

        with restored_after(model):
            train_once(run_and_keep, Call(args, kwargs), loss)
            # Read before the model is put back.
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
    # Entries that are not yet summed may stand in any order.
    if one.layout == torch.sparse_coo:
        one, other = one.coalesce(), other.coalesce()
        return torch.equal(one.indices(), other.indices()) and _are_equal(one.values(), other.values())
    # `equal` is false where both have NaN.
    return torch.equal(one, other) or torch.allclose(one, other, rtol=0, atol=0, equal_nan=True)
