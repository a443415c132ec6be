"""The chain of a model's stages, measured: each stage runs alone, forward and backward, with every storage counted.

Bytes are those of live storages (not of the process), rounded as the allocator does; seconds are the least of several
runs. Afterwards parameters, buffers, gradients, random generators and the training mode are as before.
"""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import nn
from torch.utils._pytree import tree_leaves, tree_map_only

from trainwright.errors import BudgetError, UnsupportedModel, closest
from trainwright.memory.chain import NO_LOSS, Chain, Stage
from trainwright.memory.execute.stages import Row
from trainwright.memory.execute.surroundings import swapped
from trainwright.profile.storages import StorageTracker

__all__ = ["OPTIMIZERS", "call", "measured", "tensors_of", "tracked_peak"]

_REPEATS = 3
OPTIMIZERS = {"sgd": 0, "momentum": 1, "adam": 2, "adamw": 2}
"""Copies of the trained parameters that an optimizer keeps."""


def measured(
    model: nn.Module,
    row: Row,
    arguments: Sequence[Any],
    *,
    loss: Callable[[Any], torch.Tensor] | None = None,
    optimizer: str | None = None,
    repeats: int = _REPEATS,
) -> Chain:
    """Return the chain of a model's stages for the arguments of its first stage.

    `loss` makes a scalar of the model's result, and is measured as the loss stage; `optimizer` (see `OPTIMIZERS`) is
    what its state takes. Raises `UnsupportedModel` if nothing is trained, or the sample does not run through a stage.
    """
    granule = 512 if any(each.is_cuda for each in model.parameters()) else 64
    fixed = {
        "parameters": _bytes(model.parameters(), granule),
        "gradients": _bytes((each for each in model.parameters() if each.requires_grad), granule),
        "buffers": 2 * _bytes(model.buffers(), granule),  # reruns write to copies
    }
    if not fixed["gradients"]:
        raise UnsupportedModel(
            "model: got no parameter that wants a gradient; allowed: at least one, for a plan to serve"
        )
    if optimizer is not None:
        if optimizer not in OPTIMIZERS:
            raise BudgetError(
                f"optimizer: got {optimizer!r}; allowed: {', '.join(OPTIMIZERS)}{closest(optimizer, OPTIMIZERS)}"
            )
        fixed["optimizer"] = OPTIMIZERS[optimizer] * fixed["gradients"]
    constant = _storages(arguments) | _storages(list(model.parameters())) | _storages(list(model.buffers()))
    stages: list[Stage] = []
    last: dict[str, Any] | None = None
    with _untouched(model):
        value: Any = tuple(arguments)
        for number, (stage, name) in enumerate(zip(row.stages, row.names, strict=True), start=1):
            spread = row.tuples or number == 1
            told, value = _told(
                number, name, stage, value, spread=spread, constant=constant, granule=granule, repeats=repeats
            )
            stages.append(Stage(name=name, parameter_bytes=_bytes(stage.parameters(), granule), **told))
        if not any(t.is_floating_point() for t in tensors_of(value)):
            raise UnsupportedModel(
                f"model: got a result without a floating tensor ({type(value).__name__}); allowed: one for a loss"
            )
        fixed["output"] = _bytes(tensors_of(value), granule)  # the caller has it until the loss's backward is over
        if loss is not None:
            last, _ = _told(
                len(stages) + 1, "loss", _Loss(loss), value,
                spread=False, constant=constant, granule=granule, repeats=repeats,
            )  # fmt: skip
            last |= {"output_bytes": 0, "gradient_bytes": 0}
    return Chain(
        stages=tuple(stages),
        loss=NO_LOSS if last is None else Stage(name="loss", **last),
        input_bytes=_bytes(tensors_of(arguments), granule),
        fixed=fixed,
        name=type(model).__name__,
    )


def tracked_peak(model: nn.Module, sample: Any, *, loss: Callable[[Any], torch.Tensor] | None = None) -> int:
    """Return the peak bytes of live storages of one training step, with the parameters, but no optimizer's state.

    Without `loss` the sum of the result's floating tensors stands for it. The model is as before afterwards.
    """
    tracker = StorageTracker(granule_bytes=512 if any(each.is_cuda for each in model.parameters()) else 64)
    tracker.watch(model.parameters(), "parameters")
    tracker.watch(model.buffers(), "buffers")
    tracker.watch(tensors_of(sample), "input")
    with _untouched(model), tracker:
        out = call(model, sample)
        total = loss(out) if loss is not None else sum(t.sum() for t in tensors_of(out) if t.requires_grad)
        total.backward()  # type: ignore[union-attr]  # a model that trains has such a tensor
        del out, total
    return tracker.peak_bytes


def call(function: Callable[..., Any], sample: Any) -> Any:
    """Call with a sample: a mapping holds keyword arguments, a tuple or list positional ones, all else is the one."""
    if isinstance(sample, Mapping):
        return function(**sample)
    return function(*sample) if isinstance(sample, tuple | list) else function(sample)


class _Loss(nn.Module):
    def __init__(self, loss: Callable[[Any], torch.Tensor]) -> None:
        super().__init__()
        self.loss = loss

    def forward(self, value: Any) -> torch.Tensor:
        return self.loss(value)


def _told(
    number: int,
    name: str,
    stage: nn.Module,
    value: Any,
    *,
    spread: bool,
    constant: set[int],
    granule: int,
    repeats: int,
) -> tuple[dict[str, Any], Any]:
    try:
        return _measured_stage(stage, value, spread=spread, fixed=constant, granule=granule, repeats=repeats)
    except torch.OutOfMemoryError:
        raise
    except (RuntimeError, TypeError, ValueError, IndexError) as error:
        shapes = ", ".join(str(tuple(t.shape)) for t in tensors_of(value))
        raise UnsupportedModel(
            f"sample: stage {number} ({name}) refuses what the sample makes there (shapes {shapes}): {error}; allowed: "
            "a sample that the model takes"
        ) from error


def _measured_stage(
    stage: nn.Module, value: Any, *, spread: bool, fixed: set[int], granule: int, repeats: int
) -> tuple[dict[str, Any], Any]:
    """Return the numbers of a stage as the fields of its record, and what it hands on."""

    def call(given: Any) -> Any:
        return stage(*given) if spread else stage(given)

    def plain() -> Any:
        with torch.no_grad():
            return call(value)

    def opened() -> Any:
        return tree_map_only(torch.Tensor, lambda t: _leaf(t, fixed), value)

    tracker = StorageTracker(granule_bytes=granule)
    tracker.watch(stage.parameters(), "fixed")
    tracker.watch(stage.buffers(), "fixed")
    tracker.watch(tensors_of(value), "input")
    before = tracker.live_bytes
    with tracker:
        out = plain()
    made = tracker.live_bytes - before
    told: dict[str, Any] = {"output_bytes": made, "plain_forward_temporary_bytes": tracker.peak_bytes - before - made}

    entered = opened()
    tracker.restart_peak()
    before = tracker.live_bytes
    with tracker:
        result = call(entered)
    grown = tracker.live_bytes - before
    told |= {"saved_bytes": max(grown, made), "forward_temporary_bytes": max(0, tracker.peak_bytes - before - grown)}

    ends = [t for t in tensors_of(result) if t.requires_grad]
    deltas = [torch.ones_like(t) for t in ends]
    tracker.watch(deltas, "gradient")
    told["gradient_bytes"] = sum(_rounded(t, granule) for t in deltas)
    gradients = before_gradients = 0
    if ends:
        tracker.restart_peak()
        start = tracker.live_bytes
        before_gradients = _gradient_bytes(stage, granule)
        with tracker:
            torch.autograd.backward(ends, deltas, retain_graph=False)
        gradients = _gradient_bytes(stage, granule) - before_gradients
        below = sum(_rounded(t.grad, granule) for t in tensors_of(entered) if t.grad is not None)
        told["backward_temporary_bytes"] = max(0, tracker.peak_bytes - start - gradients - below)
    else:
        told["backward_temporary_bytes"] = 0
    del result, entered, ends, deltas
    _forget_gradients(stage)

    told["plain_forward_seconds"] = _least(plain, repeats, value)
    forwards, backwards = [], []
    for _ in range(repeats):
        entered = opened()
        started = _now(value)
        result = call(entered)
        forwards.append(_now(value) - started)
        ends = [t for t in tensors_of(result) if t.requires_grad]
        if ends:
            deltas = [torch.ones_like(t) for t in ends]
            started = _now(value)
            torch.autograd.backward(ends, deltas)
            backwards.append(_now(value) - started)
        _forget_gradients(stage)
    told |= {"forward_seconds": min(forwards), "backward_seconds": min(backwards, default=0.0)}
    return told, out


def _least(call: Any, repeats: int, value: Any) -> float:
    found = []
    for _ in range(repeats):
        started = _now(value)
        call()
        found.append(_now(value) - started)
    return min(found)


def _now(value: Any) -> float:
    for tensor in tensors_of(value):
        if tensor.is_cuda:
            torch.cuda.synchronize(tensor.device)
            break
    return time.perf_counter()


def _leaf(tensor: torch.Tensor, fixed: set[int]) -> torch.Tensor:
    """Return a leaf of the same storage; what rides along from the model's input wants a gradient only if it did."""
    leaf = tensor.detach()
    wants = tensor.requires_grad if _key(tensor) in fixed else tensor.is_floating_point() or tensor.is_complex()
    return leaf.requires_grad_() if wants else leaf


@contextmanager
def _untouched(model: nn.Module) -> Iterator[None]:
    """Let stages run on copies of the buffers, and put gradients and random generators back."""
    places = [
        ((module, name), buffer.clone())
        for module in model.modules()
        for name, buffer in module._buffers.items()  # noqa: SLF001  to swap them, not to read them
        if buffer is not None
    ]
    gradients = [(parameter, parameter.grad) for parameter in model.parameters()]
    with ExitStack() as stack:
        stack.enter_context(torch.random.fork_rng())
        stack.enter_context(swapped(places, "_buffers"))
        try:
            _forget_gradients(model)
            yield
        finally:
            for parameter, gradient in gradients:
                parameter.grad = gradient


def _forget_gradients(module: nn.Module) -> None:
    for parameter in module.parameters():
        parameter.grad = None


def _gradient_bytes(module: nn.Module, granule: int) -> int:
    return sum(_rounded(p.grad, granule) for p in module.parameters() if p.grad is not None)


def tensors_of(tree: Any) -> list[torch.Tensor]:
    """Return the tensors of a tree."""
    return [leaf for leaf in tree_leaves(tree) if isinstance(leaf, torch.Tensor)]


def _storages(tree: Any) -> set[int]:
    return {_key(tensor) for tensor in tensors_of(tree)}


def _bytes(tensors: Any, granule: int) -> int:
    """Return the bytes of distinct storages."""
    return sum({_key(t): _rounded(t, granule) for t in tensors}.values())


def _key(tensor: torch.Tensor) -> int:
    return int(tensor.untyped_storage()._cdata)  # noqa: SLF001  the only identity of a storage


def _rounded(tensor: torch.Tensor, granule: int) -> int:
    return -(-tensor.untyped_storage().nbytes() // granule) * granule
