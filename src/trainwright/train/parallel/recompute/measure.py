"""The chain of a model's stages, measured in one forward of the model as it is.

Where the forward calls a stage, the stage is measured alone, forward and backward, with every storage counted, and
then runs once more without saving anything, so that the forward goes on. So no more is alive than a plan of least
memory needs. Stages of one kind that are called alike are measured once. What follows the last stage, with the loss, is
the chain's loss stage; what lies between stages is kept, and fixed.

Bytes are those of live storages (not of the process), rounded as the allocator does; seconds are the least of several
runs. Afterwards parameters, buffers, gradients, random generators and the training mode are as before.
"""

import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn
from torch.utils._python_dispatch import _disable_current_modes

from trainwright.errors import UnsupportedModel
from trainwright.model.chain import Chain, Stage, with_least_peaks
from trainwright.model.trace.storages import StorageTracker
from trainwright.train.parallel.recompute.measured_stage import StageBytes, measure_stage
from trainwright.train.parallel.recompute.optimizer_state import named_state_bytes
from trainwright.train.parallel.recompute.sample_step import Call, as_call, loss_of, restored_after
from trainwright.train.parallel.recompute.stage_arguments import links_of
from trainwright.train.parallel.recompute.stage_calls import (
    StageSite,
    check_trains,
    find_stages,
    stage_calls,
    stage_sites,
)
from trainwright.train.parallel.recompute.trees import (
    flatten_tree,
    granule_of,
    map_only,
    storage_key,
    storage_keys,
    tensors_of,
    total_bytes,
)
from trainwright.train.parallel.recompute.values import saving_nothing, written_error

__all__ = ["measure_chain"]

_REFUSED = (RuntimeError, TypeError, ValueError, IndexError, KeyError, AttributeError)
"""What a model raises that does not take a sample."""


def measure_chain(
    model: nn.Module,
    sample: Any,
    *,
    stages: Sequence[str] = (),
    loss: Callable[[Any], torch.Tensor] | None = None,
    optimizer: str | int | None = None,
    accumulate: bool = False,
    reserve_bytes: int = 0,
) -> Chain:
    """Return the chain of a model's stages for a sample, in the order of the calls.

    `stages` name the stages, as `find_stages` takes them; `loss` makes a scalar of the model's result. `optimizer` is
    what its state takes, by name (see `OPTIMIZERS`) or in bytes. Gradients of parameters count from the backward that
    makes them, as after `zero_grad(set_to_none=True)`; with `accumulate` they are there from the start, and a stage's
    new ones come on top. `reserve_bytes` are somebody else's. Raises `UnsupportedModel` if nothing is trained, or the
    model does not take the sample.
    """
    check_trains(model)
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
    found = _Forward(model, granule, find_stages(model, stages))
    call = as_call(sample)
    batch = tensors_of((call.args, dict(call.kwargs)))
    with restored_after(model, batch):
        after = found.run(call, loss)
    made = found.stages(accumulate=accumulate)
    *counted_stages, counted_loss = with_least_peaks([*made, found.loss_stage(after, accumulate=accumulate)])
    # The states of generators, for reruns.
    states = found.draws * (-(-torch.get_rng_state().nbytes // granule) * granule) if granule < _CUDA_GRANULE else 0
    fixed |= {"between stages": found.between_bytes, "executor": 4 * granule + states}
    return Chain(
        stages=tuple(counted_stages),
        loss=counted_loss,
        input_bytes=total_bytes(batch, granule),
        fixed=fixed,
        name=type(model).__name__,
    )


_CUDA_GRANULE = 512


@dataclass(slots=True)
class _Measured:
    """A call of a stage."""

    site: StageSite
    bytes: StageBytes
    # Whether the next stage reads what it has made as it is; then of how many bytes that is.
    linked_bytes: int | None = None


@dataclass(slots=True)
class _After:
    """What follows the last stage: bytes and seconds of the loss stage."""

    saved_bytes: int
    forward_temporary_bytes: int
    backward_temporary_bytes: int
    forward_seconds: float
    backward_seconds: float


@dataclass
class _Forward:
    """A forward of a model in which each stage is measured where it is called."""

    model: nn.Module
    granule: int
    names: Sequence[str]
    calls: list[_Measured] = field(default_factory=list)
    between_bytes: int = 0
    draws: int = 0

    def __post_init__(self) -> None:
        self._tracker = StorageTracker(granule_bytes=self.granule)
        self._known: dict[Any, StageBytes] = {}
        # What stages are given that none can make again: the interpreter holds it, so it is held here.
        self._held: dict[int, torch.Tensor] = {}
        self._readers: Counter[int] = Counter()
        self._below: list[torch.Tensor | None] = []
        self._cut: torch.Tensor | None = None
        self._base_bytes = self._live_bytes = self._extra_bytes = 0
        self._left = 0.0

    def run(self, call: Call, loss: Callable[[Any], torch.Tensor] | None) -> _After:
        """Run the model with a sample, and its loss forward and backward; raise UnsupportedModel where it fails."""
        tracker, model = self._tracker, self.model
        tracker.watch(model.parameters(), "parameters")
        tracker.watch(model.buffers(), "buffers")
        tracker.watch(tensors_of((call.args, dict(call.kwargs))), "input")
        self._base_bytes = tracker.live_bytes
        with stage_calls(model, stage_sites(model, self.names), self._call) as forward, tracker:
            try:
                result = forward(*call.args, **call.kwargs)
            except _REFUSED as error:
                if isinstance(error, torch.OutOfMemoryError | UnsupportedModel):
                    raise
                raise UnsupportedModel(
                    f"sample: {type(model).__name__} refuses it: {error}; allowed: a sample that the model takes"
                ) from error
            if not self.calls:
                named = ", ".join(self.names[:3])
                raise UnsupportedModel(
                    f"stages: got {named}, none of which {type(model).__name__} calls with gradients; allowed: modules "
                    "that its forward calls"
                )
            if not any(tensor.requires_grad for tensor in tensors_of(result)):
                raise UnsupportedModel(
                    f"model: got a result ({type(result).__name__}) without a tensor that wants a gradient; allowed: "
                    "one for a loss, in tuples, lists, mappings or dataclasses"
                )
            return self._finish(result, loss)

    def _finish(self, result: Any, loss: Callable[[Any], torch.Tensor] | None) -> _After:
        tracker = self._tracker
        # Gradients of what several stages read wait until the first of them is done.
        several = [self._held[key] for key, times in self._readers.items() if times > 1]
        self.between_bytes = self._live_bytes - self._base_bytes + self._extra_bytes
        self.between_bytes += total_bytes((each for each in several if each.requires_grad), self.granule)
        end = loss_of(result, loss)
        now = time.perf_counter()
        saved = tracker.live_bytes - self._live_bytes
        forward_peak = tracker.peak_bytes - tracker.live_bytes
        forward_seconds, start = now - self._left, tracker.live_bytes
        tracker.restart_peak()
        end.backward()
        seconds = time.perf_counter() - now
        own = total_bytes((each.grad for each in self.model.parameters() if each.grad is not None), self.granule)
        temporary = tracker.peak_bytes - start - own - self.calls[-1].bytes.gradient_bytes
        return _After(max(0, saved), max(0, forward_peak), temporary, forward_seconds, seconds)

    def _call(self, site: StageSite, forward: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        number = len(self.calls) + 1
        leaves, _ = flatten_tree((args, kwargs))
        given = [leaf for leaf in leaves if isinstance(leaf, torch.Tensor)]
        links = links_of(leaves, self._below)
        if links:
            read = [self._below[place] for place in set(links.values())]
            self.calls[-1].linked_bytes = total_bytes((each for each in read if each is not None), self.granule)
        self._below = []
        for at, leaf in enumerate(leaves):
            if isinstance(leaf, torch.Tensor) and at not in links:
                self._held.setdefault(storage_key(leaf), leaf.detach().requires_grad_(leaf.requires_grad))
                self._readers[storage_key(leaf)] += 1
        try:
            # Seconds would be those of the tracker.
            with _disable_current_modes():
                found = self._bytes_of(site, forward, args, kwargs, leaves)
                before = torch.get_rng_state()
                with saving_nothing():
                    output = forward(*args, **kwargs)
                self.draws += not torch.equal(before, torch.get_rng_state())
        except _REFUSED as error:
            if isinstance(error, torch.OutOfMemoryError | UnsupportedModel):
                raise
            if "in-place operation" in str(error) or "inplace operation" in str(error):
                raise written_error(f"model, stage {number} ({site.name})", "its input") from error
            shapes = ", ".join(str(tuple(each.shape)) for each in given)
            raise UnsupportedModel(
                f"sample: stage {number} ({site.name}) refuses what the sample makes there (shapes {shapes}): {error}; "
                "allowed: a sample that the model takes"
            ) from error
        self.calls.append(_Measured(site, found))
        self._extra_bytes += found.left_bytes
        output = self._without_graph(output, storage_keys(given))
        self._below = [None if storage_key(each) in storage_keys(given) else each for each in tensors_of(output)]
        # The caller still has what it has called the stage with, though it goes when the stage returns.
        self._live_bytes = self._tracker.live_bytes - (self.calls[-2].linked_bytes or 0 if links else 0)
        self._tracker.restart_peak()
        self._left = time.perf_counter()
        return output

    def _bytes_of(
        self, site: StageSite, forward: Callable[..., Any], args: Any, kwargs: Any, leaves: Sequence[Any]
    ) -> StageBytes:
        kind = _kind_of(site, leaves)
        if kind not in self._known:
            self._known[kind] = measure_stage(site, forward, (args, kwargs), granule=self.granule)
        return self._known[kind]

    def _without_graph(self, output: Any, given: set[int]) -> Any:
        """Return what a stage has made, as the beginning of a graph, but no leaf: the forward may write to it."""

        def begun(tensor: torch.Tensor) -> torch.Tensor:
            if not tensor.requires_grad or storage_key(tensor) in given:
                self._tracker.see(tensor)
                return tensor
            # A sum saves nothing, and its gradient ends in a number.
            return tensor.detach() + torch.zeros((), dtype=tensor.dtype, device=tensor.device, requires_grad=True)

        return map_only(torch.Tensor, begun, output)

    def stages(self, *, accumulate: bool) -> list[Stage]:
        """Return the records of the stages, in the order of the calls."""
        found = []
        for place, call in enumerate(self.calls):
            own = {id(each): each for module in call.site.modules for each in module.parameters() if each.requires_grad}
            later = {
                id(each)
                for other in self.calls[place + 1 :]
                for module in other.site.modules
                for each in module.parameters()
            }
            parameters = (each for module in call.site.modules for each in module.parameters())
            found.append(
                Stage(
                    name=call.site.name,
                    parameter_bytes=total_bytes(parameters, self.granule),
                    **call.bytes.fields(call.linked_bytes),
                    **_first_gradients(own, later, call.bytes.backward_temporary_bytes, self.granule, accumulate),
                )
            )
        return found

    def loss_stage(self, after: _After, *, accumulate: bool) -> Stage:
        """Return the record of what follows the last stage, with the gradients of all that is in no stage."""
        inside = {id(each) for call in self.calls for module in call.site.modules for each in module.parameters()}
        outside = {id(each): each for each in self.model.parameters() if each.requires_grad and id(each) not in inside}
        temporary = after.backward_temporary_bytes
        return Stage(
            name="loss",
            forward_seconds=after.forward_seconds,
            backward_seconds=after.backward_seconds,
            output_bytes=0,
            gradient_bytes=0,
            saved_bytes=after.saved_bytes,
            forward_temporary_bytes=after.forward_temporary_bytes,
            **_first_gradients(outside, set(), temporary, self.granule, accumulate),
        )


def _first_gradients(
    own: Mapping[int, nn.Parameter], later: set[int], temporary: int, granule: int, accumulate: bool
) -> dict[str, Any]:
    """Return what the first backward of parameters leaves, and its temporaries beside it."""
    # Gradients of shared parameters are added to what is there.
    shared = total_bytes((each for key, each in own.items() if key in later), granule)
    alone = total_bytes((each for key, each in own.items() if key not in later), granule)
    # Where gradients add up, all of them are counted from the start: the new ones are temporary.
    if accumulate:
        return {"parameter_gradient_bytes": 0, "backward_temporary_bytes": max(temporary, 0) + shared + alone}
    if shared:
        temporary = max(temporary + shared, 2 * shared)
    return {"parameter_gradient_bytes": alone, "backward_temporary_bytes": temporary}


def _kind_of(site: StageSite, leaves: Sequence[Any]) -> Any:
    """Return what stages have in common that take the same bytes and seconds."""
    tensors = [
        (path, tuple(each.shape), each.dtype, each.requires_grad)
        for module in site.modules
        for path, each in (*module.named_parameters(), *module.named_buffers())
    ]
    given = [
        (tuple(leaf.shape), leaf.stride() if leaf.layout == torch.strided else (), leaf.dtype, leaf.requires_grad)
        if isinstance(leaf, torch.Tensor)
        else leaf if isinstance(leaf, bool | int | float | str | type(None)) else type(leaf)
        for leaf in leaves
    ]  # fmt: skip
    return tuple((type(each), repr(each)) for each in site.modules), tuple(tensors), tuple(given)
