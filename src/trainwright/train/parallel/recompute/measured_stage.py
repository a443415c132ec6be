"""The bytes and seconds of one stage, called alone with what a model has called it with."""

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch.autograd.graph import get_gradient_edge, saved_tensors_hooks

from trainwright.errors import UnsupportedModel
from trainwright.model.trace.storages import StorageTracker
from trainwright.train.parallel.recompute.run_context import (
    Autocast,
    read_generators,
    set_generators,
    swapped_values,
)
from trainwright.train.parallel.recompute.selective_options import OperationRecorder, SelectiveOption
from trainwright.train.parallel.recompute.stage_arguments import snapshot
from trainwright.train.parallel.recompute.stage_calls import StageSite, is_compiled
from trainwright.train.parallel.recompute.trees import (
    flatten_tree,
    rounded_bytes,
    storage_key,
    storage_keys,
    tensors_of,
    total_bytes,
    unflatten_tree,
)
from trainwright.train.parallel.recompute.values import saving_nothing

__all__ = ["StageBytes", "measure_stage"]

_REPEATS = 2
_RERUN_SECONDS, _SLOT_SECONDS = 2e-4, 5e-6
"""Of Python in the interpreter: for a rerun, and for each tensor that autograd saves, in its first run and again."""


@dataclass(frozen=True, kw_only=True, slots=True)
class StageBytes:
    """What a stage takes; sizes are as in `trainwright.model.chain.Stage`."""

    output_bytes: int
    gradient_bytes: int
    graph_bytes: int
    """What autograd holds when the output is gone, the input apart."""
    saved_bytes: int
    """The same with the output."""
    left_bytes: int
    """What stays when the stage has run without saving, and is no output: in a cache that it was given."""
    forward_temporary_bytes: int
    no_grad_forward_temporary_bytes: int
    backward_temporary_bytes: int
    """With the gradients of what it was given."""
    forward_seconds: float
    backward_seconds: float
    again_seconds: float
    """What a stage that runs again takes beyond two forwards: empty slots, random numbers and buffers kept."""
    selective: Sequence[SelectiveOption] = ()

    def fields(self, linked_bytes: int | None) -> dict[str, Any]:
        """Return the fields of a stage's record, by how many bytes of its output the next stage reads as they are.

        None: the next stage reads something else. Then the output is the model's own, and not the plan's.
        """
        output = linked_bytes or 0
        more = 0 if linked_bytes is not None else self.output_bytes
        saved = self.graph_bytes if linked_bytes is None else max(self.saved_bytes, output)
        # When the backward begins, an output that the stage's own graph does not hold has gone.
        gone = saved - self.graph_bytes
        return {
            "output_bytes": output,
            "gradient_bytes": self.gradient_bytes,
            "saved_bytes": saved,
            "forward_temporary_bytes": self.forward_temporary_bytes + more,
            "no_grad_forward_temporary_bytes": self.no_grad_forward_temporary_bytes + more,
            "backward_temporary_bytes": self.backward_temporary_bytes - gone,
            "forward_seconds": self.forward_seconds,
            "no_grad_forward_seconds": self.forward_seconds + self.again_seconds,
            "backward_seconds": self.backward_seconds,
        }


def measure_stage(site: StageSite, forward: Callable[..., Any], given: Any, *, granule: int) -> StageBytes:
    """Return what a stage takes; its buffers and the random generators stay as they are.

    Raises `UnsupportedModel` for one that makes something else of the same when it runs again.
    """
    leaves, spec = flatten_tree(given)
    runs = _Runs(site, forward, granule)

    def opened() -> Any:
        """Return the arguments as leaves of a graph; caches in them as they are now."""
        return unflatten_tree([snapshot(leaf) for leaf in leaves], spec)

    tracker = runs.tracker(given)
    with runs.alike():
        # A forward that saves nothing: its output, its temporaries, and what it leaves in its arguments.
        entered = opened()
        before = tracker.live_bytes
        saved: list[None] = []
        earlier = OperationRecorder(granule)
        with earlier, tracker, saving_nothing(lambda _: saved.append(None)):
            out = runs.call(entered)
        made = total_bytes(_new_tensors(out, entered), granule)
        left = max(0, tracker.live_bytes - before - made)
        plain_temporary = max(0, tracker.peak_bytes - tracker.live_bytes)
        first = [each.detach() for each in tensors_of(out)]
        del out, entered
    with runs.alike():
        # A forward with gradients: what the graph holds.
        entered = opened()
        tracker.restart_peak()
        before = tracker.live_bytes
        recorder = OperationRecorder(granule, earlier)
        with recorder, tracker, saved_tensors_hooks(recorder.save, _identity):
            result = runs.call(entered)
        _check_same(site, first, tensors_of(result))
        # The first run's output was alive beside all of this run, and is no part of it.
        beside = tracker.live_bytes
        del first
        beside -= tracker.live_bytes
        before -= beside
        grown = max(0, tracker.live_bytes - before)
        temporary = max(0, tracker.peak_bytes - beside - before - grown)
        outputs = {storage_key(each) for each in tensors_of(result)}
        ends = [each for each in _new_tensors(result, entered) if each.requires_grad]
        gradient_bytes = sum(_alone_bytes(each, granule) for each in ends)
        edges, seeds = [get_gradient_edge(each) for each in ends], [_gradient_seed(each) for each in ends]
        del result
        ends.clear()
        graph = max(0, tracker.live_bytes - before)
        backward_temporary = 0
        if edges:
            # The backward: its peak above what is alive at its start, without the gradients that the chain counts by
            # itself. Those that arrive become tensors when the walk begins: they are not among the live bytes yet.
            start, own = tracker.live_bytes + gradient_bytes, runs.gradient_bytes()
            tracker.restart_peak()
            with tracker:
                torch.autograd.backward(edges, seeds)
            own = runs.gradient_bytes() - own
            backward_temporary = tracker.peak_bytes - start - own
        runs.forget_gradients()
        del entered, edges, seeds
    forward_seconds, backward_seconds = runs.seconds(opened)
    return StageBytes(
        output_bytes=made,
        gradient_bytes=gradient_bytes,
        graph_bytes=max(0, graph - left),
        saved_bytes=max(grown - left, made),
        left_bytes=left,
        forward_temporary_bytes=temporary,
        no_grad_forward_temporary_bytes=plain_temporary,
        backward_temporary_bytes=backward_temporary,
        forward_seconds=forward_seconds,
        backward_seconds=backward_seconds,
        again_seconds=_RERUN_SECONDS + len(saved) * _SLOT_SECONDS,
        selective=recorder.options(outputs, forward_seconds) if _is_eager(site) else (),
    )


class _Runs:
    """Runs of a stage, each from the same state."""

    def __init__(self, site: StageSite, forward: Callable[..., Any], granule: int) -> None:
        self._modules, self._forward, self._granule = site.modules, forward, granule
        self._states = read_generators()
        self._places = [
            (module, name)
            for each in site.modules
            for module in each.modules()
            for name, buffer in module._buffers.items()  # noqa: SLF001  named_buffers would give paths
            if buffer is not None
        ]

    def tracker(self, given: Any) -> StorageTracker:
        """Return a tracker to which the stage's own tensors and its input are known."""
        tracker = StorageTracker(granule_bytes=self._granule)
        for module in self._modules:
            tracker.watch([*module.parameters(), *module.buffers()], "fixed")
        tracker.watch(tensors_of(given), "input")
        return tracker

    def call(self, given: Any) -> Any:
        """Run the forward."""
        args, kwargs = given
        return self._forward(*args, **kwargs)

    @contextmanager
    def alike(self) -> Iterator[None]:
        """Begin with the same buffers and random numbers, and put them back."""
        copies = [
            ((module, name), module._buffers[name].clone())  # type: ignore[union-attr]  # noqa: SLF001  it is there
            for module, name in self._places
        ]
        # A cast kept from run to run would be nobody's.
        with swapped_values(copies), Autocast.now().entered():
            try:
                yield
            finally:
                set_generators(self._states)

    def seconds(self, opened: Callable[[], Any]) -> tuple[float, float]:
        """Return the least seconds of a forward and of a backward."""
        forwards, backwards = [], []
        for _ in range(_REPEATS):
            with self.alike():
                entered = opened()
                started = _synchronised_now(entered)
                result = self.call(entered)
                forwards.append(_synchronised_now(entered) - started)
                ends = [each for each in _new_tensors(result, entered) if each.requires_grad]
                if ends:
                    deltas = [torch.ones_like(each) for each in ends]
                    started = _synchronised_now(entered)
                    torch.autograd.backward(ends, deltas)
                    backwards.append(_synchronised_now(entered) - started)
                self.forget_gradients()
        return min(forwards), min(backwards, default=0.0)

    def gradient_bytes(self) -> int:
        """Return what the gradients of the stage's parameters take."""
        found = (each.grad for module in self._modules for each in module.parameters() if each.grad is not None)
        return total_bytes(found, self._granule)

    def forget_gradients(self) -> None:
        """Let gradients of parameters go: the next run makes its own."""
        for module in self._modules:
            for parameter in module.parameters():
                parameter.grad = None


def _identity(tensor: torch.Tensor) -> torch.Tensor:
    return tensor


def _is_eager(site: StageSite) -> bool:
    """Return whether no module is compiled: compiled code does not run under a mode that watches operations."""
    return not any(
        hasattr(each, "_orig_mod") or is_compiled(each) for module in site.modules for each in module.modules()
    )


def _new_tensors(result: Any, given: Any) -> list[torch.Tensor]:
    """Return the tensors that a stage has made itself."""
    known = storage_keys(given)
    return [each for each in tensors_of(result) if each.layout != torch.strided or storage_key(each) not in known]


def _alone_bytes(tensor: torch.Tensor, granule: int) -> int:
    if tensor.layout != torch.strided:
        return rounded_bytes(tensor, granule)
    return -(-tensor.numel() * tensor.itemsize // granule) * granule


def _check_same(site: StageSite, first: list[torch.Tensor], second: list[torch.Tensor]) -> None:
    # On a GPU sums may be taken in any order.
    loose = any(each.is_cuda for each in first)
    same = len(first) == len(second) and all(
        one.shape == other.shape
        and (torch.equal(one, other) or torch.allclose(one, other, rtol=1e-2 if loose else 0, atol=0, equal_nan=True))
        for one, other in zip(first, second, strict=True)
    )
    if not same:
        raise UnsupportedModel(
            f"model: got a stage ({site.name}) that does something else when it runs again; allowed: forwards that "
            "depend on parameters, buffers, inputs and the global random generators alone; keep what else they read or "
            "write out of them, or name other stages"
        )


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


def _synchronised_now(value: Any) -> float:
    for tensor in tensors_of(value):
        if tensor.is_cuda:
            torch.cuda.synchronize(tensor.device)
            break
    return time.perf_counter()
