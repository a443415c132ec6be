"""The chain of a model's stages, measured: each stage runs alone, forward and backward, with every storage counted.

Bytes are those of live storages (not of the process), rounded as the allocator does; seconds are the least of several
runs. Afterwards parameters, buffers, gradients, random generators and the training mode are as before.
"""

import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from torch import nn
from torch.autograd.graph import get_gradient_edge
from torch.optim import Optimizer

from trainwright.errors import BudgetError, UnsupportedModel
from trainwright.model.chain import NO_LOSS, Chain, Stage, with_least_peaks
from trainwright.model.trace.storages import StorageTracker
from trainwright.train.parallel.recompute.sample_step import restored_after
from trainwright.train.parallel.recompute.stages import StageRow
from trainwright.train.parallel.recompute.trees import (
    granule_of,
    map_only,
    rounded_bytes,
    storage_key,
    storage_keys,
    tensors_of,
    total_bytes,
)
from trainwright.train.parallel.recompute.values import detach_leaf, saving_nothing, written_error
from trainwright.validators import check, one_of

__all__ = ["OPTIMIZERS", "measure_chain", "named_state_bytes", "state_bytes"]


_REPEATS = 3


def measure_chain(
    model: nn.Module,
    row: StageRow,
    arguments: Sequence[Any],
    *,
    loss: Callable[[Any], torch.Tensor] | None = None,
    optimizer: str | int | None = None,
    accumulate: bool = False,
    reserve_bytes: int = 0,
    repeats: int = _REPEATS,
) -> Chain:
    """Return the chain of a model's stages for the arguments of its first stage.

    `loss` makes a scalar of the model's result, and is measured as the loss stage; `optimizer` is what its state takes,
    by name (see `OPTIMIZERS`) or in bytes. Gradients of parameters count from the backward that makes them, as after
    `zero_grad(set_to_none=True)`; with `accumulate` they are there from the start, and a stage's new ones come on top.
    `reserve_bytes` are somebody else's. Raises `UnsupportedModel` if nothing is trained, or the sample does not run
    through a stage.
    """
    granule = granule_of(model)
    fixed = {
        "parameters": total_bytes(model.parameters(), granule),
        # Twice: reruns need the values that a step began with.
        "buffers": 2 * total_bytes(model.buffers(), granule),
        "reserve": reserve_bytes,
    }
    gradients = total_bytes((each for each in model.parameters() if each.requires_grad), granule)
    if not gradients:
        raise UnsupportedModel(
            "model: got no parameter that wants a gradient; allowed: at least one, for a plan to serve"
        )
    if accumulate:
        fixed["gradients"] = gradients
    if optimizer is not None:
        fixed["optimizer"] = optimizer if isinstance(optimizer, int) else named_state_bytes(optimizer, gradients)
    stages: list[Stage] = []
    last: dict[str, Any] = {}
    draws = 0
    riding: dict[int, int] = {}
    # Run the stages one after the other; each is measured on what the one before has handed on.
    with restored_after(model):
        row.refresh()
        value: Any = tuple(arguments)
        for number, (stage, name) in enumerate(zip(row.stages, row.names, strict=True), start=1):
            state, buffers = torch.get_rng_state(), [each.clone() for each in stage.buffers()]
            numbers, value = _measure_or_refuse(
                number, name, stage, partial(row.run, number), value, granule=granule, repeats=repeats,
                riding=partial(row.riding, number), last=number == len(row.stages),
            )  # fmt: skip
            draws += not torch.equal(state, torch.get_rng_state())
            changed = [new for old, new in zip(buffers, stage.buffers(), strict=True) if not torch.equal(old, new)]
            # Reruns write to copies of the buffers that the stage has changed.
            fixed["buffers"] += total_bytes(changed, granule)
            numbers |= _first_gradients(
                row.stages[number - 1 :], numbers["backward_temporary_bytes"], granule, accumulate=accumulate
            )
            riding |= {storage_key(each): rounded_bytes(each, granule) for each in row.riding(number, value)}
            stages.append(Stage(name=name, parameter_bytes=total_bytes(stage.parameters(), granule), **numbers))
        if not any(t.requires_grad for t in tensors_of(value)):
            raise UnsupportedModel(
                f"model: got a result ({type(value).__name__}) without a tensor that wants a gradient; allowed: one "
                "for a loss, in tuples, lists, mappings or dataclasses"
            )
        # What skips stages is in the boundaries of all of them, which share it: it is there whatever else goes, and
        # beside it what its maker makes when it runs again.
        if riding:
            fixed["skips"] = sum(riding.values())
        # The caller has it until the loss's backward is over.
        fixed["output"] = total_bytes(tensors_of(value), granule)
        # Of the executor: a loss, the states of generators for reruns.
        state_bytes = (
            -(-state.nbytes // granule) * granule if not any(each.is_cuda for each in model.parameters()) else 0
        )
        fixed["executor"] = 4 * granule + (1 + draws) * state_bytes
        if loss is not None:
            last, _ = _measure_or_refuse(
                len(stages) + 1, "loss", nn.Module(), loss, value, granule=granule, repeats=repeats,
                riding=lambda _: [], last=False,
            )  # fmt: skip
            last |= {"output_bytes": 0, "gradient_bytes": 0}
    *counted_stages, counted_loss = with_least_peaks([*stages, Stage(name="loss", **last) if last else NO_LOSS])
    return Chain(
        stages=tuple(counted_stages),
        loss=counted_loss,
        input_bytes=total_bytes(tensors_of(arguments), granule),
        fixed=fixed,
        name=type(model).__name__,
    )


_Caller = Callable[[Any], Any]
"""From a stage's arguments to its result."""


def _first_gradients(stages: Sequence[nn.Module], temporary: int, granule: int, *, accumulate: bool) -> dict[str, Any]:
    """Return what the first stage's backward leaves, and its temporaries beside it; the others come behind it."""
    own = {id(each): each for each in stages[0].parameters() if each.requires_grad}
    later = {id(each) for stage in stages[1:] for each in stage.parameters()}
    # Gradients of shared parameters are added to what is there.
    shared = total_bytes((each for key, each in own.items() if key in later), granule)
    alone = total_bytes((each for key, each in own.items() if key not in later), granule)
    # Where gradients add up, all of them are counted from the start: the new ones are temporary.
    if accumulate:
        return {"parameter_gradient_bytes": 0, "backward_temporary_bytes": max(temporary, 0) + shared + alone}
    if shared:
        temporary = max(temporary + shared, 2 * shared)
    return {"parameter_gradient_bytes": alone, "backward_temporary_bytes": temporary}


def _measure_or_refuse(
    number: int,
    name: str,
    stage: nn.Module,
    call: _Caller,
    value: Any,
    **settings: Any,
) -> tuple[dict[str, Any], Any]:
    try:
        return _measured_stage(stage, call, value, **settings)
    except torch.OutOfMemoryError:
        raise
    except (RuntimeError, TypeError, ValueError, IndexError) as error:
        if "in-place operation" in str(error) or "inplace operation" in str(error):
            raise written_error(
                f"model, stage {number} ({name})", "a value that another stage made or needs"
            ) from error
        shapes = ", ".join(str(tuple(t.shape)) for t in tensors_of(value))
        raise UnsupportedModel(
            f"sample: stage {number} ({name}) refuses what the sample makes there (shapes {shapes}): {error}; allowed: "
            "a sample that the model takes"
        ) from error


def _measured_stage(
    stage: nn.Module,
    call: _Caller,
    value: Any,
    *,
    granule: int,
    repeats: int,
    riding: Callable[[Any], list[torch.Tensor]],
    last: bool,
) -> tuple[dict[str, Any], Any]:
    """Return the numbers of a stage as the fields of its record, and what it hands on.

    The output of the model's last stage is its caller's, and among what is fixed; that of a rerun goes at once.
    `riding` finds the tensors that skip stages in what this one hands on.
    """

    def opened() -> Any:
        return map_only(torch.Tensor, detach_leaf, value)

    def plain() -> Any:
        with saving_nothing():
            return call(opened())

    # A forward without gradients: its output, and its temporaries.
    tracker = StorageTracker(granule_bytes=granule)
    tracker.watch(stage.parameters(), "fixed")
    tracker.watch(stage.buffers(), "fixed")
    tracker.watch(tensors_of(value), "input")
    before = tracker.live_bytes
    with tracker:
        out = plain()
    made = tracker.live_bytes - before
    numbers: dict[str, Any] = {
        "output_bytes": made,
        "no_grad_forward_temporary_bytes": tracker.peak_bytes - before - made,
    }

    # A forward with gradients: what the graph holds.
    entered = opened()
    tracker.restart_peak()
    before = tracker.live_bytes
    with tracker:
        result = call(entered)
    grown = tracker.live_bytes - before
    # At least the output, which the next stage reads even where the graph holds less.
    temporary = max(0, tracker.peak_bytes - before - grown)
    numbers |= {"saved_bytes": max(grown, made), "forward_temporary_bytes": temporary}
    # The model's result is counted among what is fixed, and here only while the forward makes it.
    if last:
        numbers |= {
            "output_bytes": 0,
            "saved_bytes": _without_output(call, opened, tracker),
            "forward_temporary_bytes": numbers["forward_temporary_bytes"] + made,
            "no_grad_forward_temporary_bytes": numbers["no_grad_forward_temporary_bytes"] + made,
        }

    ends = [t for t in tensors_of(result) if t.requires_grad]
    numbers["gradient_bytes"] = sum(rounded_bytes(t, granule) for t in ends)
    known, handed = storage_keys(value), {id(t) for t in tensors_of(entered)}
    # The gradient that comes with what rides on is there while that of what is read here is added to it.
    read = [t for t in riding(result) if t.requires_grad and storage_key(t) in known and id(t) not in handed]
    added = total_bytes(read, granule)
    del read
    edges: list[Any] = []
    if ends:
        # The gradients that arrive become tensors when the walk begins: they are not among the live bytes yet.
        arriving = sum(-(-t.numel() * t.itemsize // granule) * granule for t in ends)
        edges, seeds = [get_gradient_edge(t) for t in ends], [_gradient_seed(t) for t in ends]
        # The backward: its peak above what is alive at its start, without the gradients that the chain counts by
        # itself.
        start = tracker.live_bytes + arriving
        # When a stage's backward begins, only its graph has the output, if it needs that at all.
        if not last:
            result = None
            ends.clear()
        tracker.restart_peak()
        before_gradients = _gradient_bytes(stage, granule)
        with tracker:
            torch.autograd.backward(edges, seeds)
        gradients = _gradient_bytes(stage, granule) - before_gradients
        below = total_bytes((t.grad for t in tensors_of(entered) if t.grad is not None), granule)
        numbers["backward_temporary_bytes"] = tracker.peak_bytes - start - gradients - below + added
    else:
        numbers["backward_temporary_bytes"] = 0
    del result, entered, ends, edges
    _forget_gradients(stage)

    # Times come last, without the tracker, which makes every operation slower.
    numbers |= _stage_seconds(stage, call, opened, repeats)
    return numbers, out


def _stage_seconds(stage: nn.Module, call: _Caller, opened: Callable[[], Any], repeats: int) -> dict[str, float]:
    """Return the least seconds of a stage's forward without and with gradients, and of its backward."""
    plain, forwards, backwards = [], [], []
    for _ in range(repeats):
        entered = opened()
        started = _synchronised_now(entered)
        with saving_nothing():
            call(entered)
        plain.append(_synchronised_now(entered) - started)
        entered = opened()
        started = _synchronised_now(entered)
        result = call(entered)
        forwards.append(_synchronised_now(entered) - started)
        ends = [t for t in tensors_of(result) if t.requires_grad]
        if ends:
            deltas = [torch.ones_like(t) for t in ends]
            started = _synchronised_now(entered)
            torch.autograd.backward(ends, deltas)
            backwards.append(_synchronised_now(entered) - started)
        _forget_gradients(stage)
    forward = min(forwards)
    return {
        "forward_seconds": forward,
        "backward_seconds": min(backwards, default=0.0),
        # What a forward that saves nothing costs more is the work in Python for it: nobody is to save values to avoid
        # that.
        "no_grad_forward_seconds": min(*plain, forward),
    }


def _gradient_seed(end: torch.Tensor) -> torch.Tensor:
    """Return a number seen as the gradient of a stage's output, which becomes a tensor when autograd's walk begins.

    That goes when the first to read it is done, as one from the next stage does: nobody outside holds it.
    """
    edge, alike = get_gradient_edge(end), partial(torch.ones_like, torch.empty_like(end, device="meta"))
    device, place = end.device, edge.output_nr

    def arrive(gradients: tuple[torch.Tensor, ...]) -> tuple[torch.Tensor, ...]:
        # Strides of 0 alone: still the one number. Others: a gradient that autograd has summed already.
        whole = gradients[place]
        return (*gradients[:place], whole if any(whole.stride()) else alike(device=device), *gradients[place + 1 :])

    edge.node.register_prehook(arrive)
    return torch.ones((), dtype=end.dtype, device=device).expand_as(end)


def _without_output(call: Callable[[Any], Any], opened: Callable[[], Any], tracker: StorageTracker) -> int:
    """Return the bytes that a stage's graph holds by itself."""
    before = tracker.live_bytes
    with tracker:
        result = call(opened())
    edges = [get_gradient_edge(t) for t in tensors_of(result) if t.requires_grad]
    del result
    held = tracker.live_bytes - before
    del edges
    return held


def _synchronised_now(value: Any) -> float:
    for tensor in tensors_of(value):
        if tensor.is_cuda:
            torch.cuda.synchronize(tensor.device)
            break
    return time.perf_counter()


def _forget_gradients(module: nn.Module) -> None:
    for parameter in module.parameters():
        parameter.grad = None


def _gradient_bytes(module: nn.Module, granule: int) -> int:
    return total_bytes((p.grad for p in module.parameters() if p.grad is not None), granule)


OPTIMIZERS = {"sgd": 0, "momentum": 1, "adam": 2, "adamw": 2}
"""Copies of the trained parameters that an optimizer keeps."""
_ROWS, _COLUMNS = 2, 3


def state_bytes(optimizer: Optimizer, *, granule: int = 1) -> int:
    """Return the bytes of an optimizer's state once it has stepped; storages are rounded up to `granule`.

    Per-parameter state of fewer elements than the parameter (a count of steps) is left out. Raises `BudgetError` for an
    optimizer that cannot be made anew from its own settings, if it has not stepped yet.
    """
    if optimizer.state:
        tensors = [each for held in optimizer.state.values() for each in held.values()]
        state = [each for each in tensors if isinstance(each, torch.Tensor)]
        return sum(-(-each.untyped_storage().nbytes() // granule) * granule for each in state if each.dim())
    return sum(_of_group(optimizer, group, granule) for group in optimizer.param_groups)


def _of_group(optimizer: Optimizer, group: dict[str, object], granule: int) -> int:
    parameters: list[torch.Tensor] = group["params"]  # type: ignore[assignment]  # torch's groups hold it so
    total = 0
    for dtype in {each.dtype for each in parameters}:
        kept = _bytes_per_element(optimizer, group, dtype)
        own = [each for each in parameters if each.dtype is dtype and each.requires_grad]
        total += sum(-(-int(share * each.numel()) // granule) * granule for each in own for share in kept)
    return total


def _bytes_per_element(optimizer: Optimizer, group: dict[str, object], dtype: torch.dtype) -> list[float]:
    """Return the bytes per element of each tensor that the state of one parameter has."""
    # Let an optimizer of the same class and settings step once on a small tensor, and see what it keeps.
    probe = torch.nn.Parameter(torch.ones(_ROWS, _COLUMNS, dtype=dtype))
    probe.grad = torch.ones_like(probe)
    settings = {name: value for name, value in group.items() if name not in {"params", "fused", "capturable"}}
    try:
        made = type(optimizer)([settings | {"params": [probe]}])  # type: ignore[call-arg]  # of any class
        made.step()
    except Exception as error:
        raise BudgetError(
            f"optimizer: got a {type(optimizer).__name__} whose state is not known before it steps ({error}); allowed: "
            "one that can be made from its parameters; let it step once, or plan without it"
        ) from error
    state = [each for each in made.state[probe].values() if isinstance(each, torch.Tensor)]
    return [each.untyped_storage().nbytes() / probe.numel() for each in state if each.dim()]


def named_state_bytes(optimizer: str | None, trained_bytes: int) -> int:
    """Return what the state of an optimizer takes for so many bytes of trained parameters; 0 for None."""
    if optimizer is None:
        return 0
    check(optimizer, one_of(*OPTIMIZERS), "optimizer", BudgetError)
    return OPTIMIZERS[optimizer] * trained_bytes
