"""Measures the bytes and seconds of one stage, called alone with what a model has called it with."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch.autograd.graph import get_gradient_edge, saved_tensors_hooks
from torch.utils._python_dispatch import _disable_current_modes

from trainwright.errors import UnsupportedModel
from trainwright.model.trace.recording import pause_garbage_collection
from trainwright.model.trace.storages import StorageTracker
from trainwright.train.parallel.recompute.run_context import (
    Autocast,
    buffer_places,
    copied_buffers,
    read_buffer,
    read_generators,
    set_generators,
    swapped_values,
)
from trainwright.train.parallel.recompute.sample_step import Stopwatch
from trainwright.train.parallel.recompute.selective_options import SLOT_SECONDS, OperationRecorder, SelectiveOption
from trainwright.train.parallel.recompute.stage_calls import StageSite
from trainwright.train.parallel.recompute.step_store import snapshot
from trainwright.train.parallel.recompute.trees import (
    flatten_tree,
    rounded_bytes,
    storage_key,
    storage_keys,
    tensors_of,
    total_bytes,
    unflatten_tree,
)
from trainwright.train.parallel.recompute.values import can_move

__all__ = ["StageBytes", "StageMeasurement", "StageRuns", "TensorShape"]

_RERUN_SECONDS = 2e-4
"""Of Python in the interpreter, for a rerun."""


@dataclass(kw_only=True, slots=True)
class StageBytes:
    """What a stage takes; sizes are as in `trainwright.model.chain.Stage`, seconds the least that were measured."""

    output_bytes: int
    gradient_bytes: int
    graph_bytes: int
    """What autograd holds when the output is gone, the input apart."""
    saved_bytes: int
    """The same with the output."""
    left_bytes: int
    """What stays when the stage has run without saving, and is no output: in a cache that it was given."""
    buffer_bytes: int
    """Of all its buffers. A stage that is to run again clones them in its first forward, to learn which it writes."""
    written_bytes: int
    """Of the buffers that it writes: a rerun needs what they held before."""
    forward_temporary_bytes: int
    no_grad_forward_temporary_bytes: int
    backward_temporary_bytes: int
    """With the gradients of what it was given."""
    forward_seconds: float
    backward_seconds: float
    again_seconds: float
    """What a stage that runs again takes beyond two forwards: empty slots, random numbers and buffers kept."""
    saved_places: Sequence[int] = ()
    """Places of those leaves of its arguments that its graph saves."""
    selective: Sequence[SelectiveOption] = ()
    timed: int = 1
    """How often it was."""

    def time_again(self, runs: "StageRuns") -> None:
        """Time a stage that takes the same."""
        forward_seconds, backward_seconds = runs.seconds()
        self.forward_seconds = min(self.forward_seconds, forward_seconds)
        self.backward_seconds = min(self.backward_seconds, backward_seconds)
        self.timed += 1

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
            "forward_temporary_bytes": self.forward_temporary_bytes + self.written_bytes + more,
            "no_grad_forward_temporary_bytes": self.no_grad_forward_temporary_bytes + self.buffer_bytes + more,
            "backward_temporary_bytes": self.backward_temporary_bytes - gone,
            "forward_seconds": self.forward_seconds,
            "no_grad_forward_seconds": self.forward_seconds + self.again_seconds,
            "backward_seconds": self.backward_seconds,
        }


class StageMeasurement:
    """Measures a stage by one run of its own, forward and backward, and by the run that its model makes.

    Buffers and the random generators stay as they are.
    """

    def __init__(self, site: StageSite, forward: Callable[..., Any], given: Any, granule: int) -> None:
        self._site, self._granule = site, granule
        self._runs = StageRuns(site, forward, given)
        self._recorder, self._recorder_again = OperationRecorder(granule), OperationRecorder(granule)
        self._tracker = StorageTracker(granule_bytes=granule, on_workspace=self._recorder.note_workspace)
        self._before = 0
        for module in site.modules:
            self._tracker.watch([*module.parameters(), *module.buffers()], "fixed")
        self._tracker.watch(tensors_of(given), "input")
        places = buffer_places(site.modules)
        own = [read_buffer(place) for place in places]
        with self._runs.alike():
            copies = [read_buffer(place) for place in places]
            self._tracker.watch(copies, "fixed")
            self._run_with_gradients()
            pairs = zip(places, own, copies, strict=True)
            written = [was for place, was, one in pairs if read_buffer(place) is not one or not torch.equal(was, one)]
        self._buffer_bytes, self._written_bytes = total_bytes(own, granule), total_bytes(written, granule)
        self._seconds = self._runs.seconds()

    def _run_with_gradients(self) -> None:
        tracker, granule, runs = self._tracker, self._granule, self._runs
        # A forward with gradients: what the graph holds.
        entered = runs.opened()
        before = tracker.live_bytes
        with self._recorder, tracker, saved_tensors_hooks(self._recorder.save, lambda tensor: tensor):
            result = runs.call(entered)
        self._recorder.finish_forward()
        self._grown = max(0, tracker.live_bytes - before)
        self._temporary = max(0, tracker.peak_bytes - before - self._grown)
        # Copies that nobody counts, to be compared with what another run makes.
        self._first = [each.detach().clone() for each in tensors_of(result)]
        self._outputs = {storage_key(each) for each in tensors_of(result)}
        made = _new_tensors(result, entered)
        self._gradient_bytes = sum(_alone_bytes(each, granule) for each in made if each.requires_grad)
        edges, seeds = _backward_start(made)
        del result
        made.clear()
        self._graph = max(0, tracker.live_bytes - before)
        self._backward_temporary = 0
        if edges:
            # The backward: its peak above what is alive at its start, without the gradients that the chain counts by
            # itself. Those that arrive become tensors when the walk begins: they are not among the live bytes yet.
            start, own = tracker.live_bytes + self._gradient_bytes, self._own_gradient_bytes()
            tracker.restart_peak()
            with tracker:
                torch.autograd.backward(edges, seeds)
            own = self._own_gradient_bytes() - own
            self._backward_temporary = tracker.peak_bytes - start - own
        runs.forget_gradients()

    @contextmanager
    def watched(self) -> Iterator[None]:
        """Watch the forward that the model makes."""
        self._tracker.restart_peak()
        self._before = self._tracker.live_bytes
        with self._recorder_again, self._tracker:
            yield

    def finish(self, given: Any, output: Any) -> StageBytes:
        """Return what the stage takes, by what that forward was given and has made.

        Raises `UnsupportedModel` for a stage that makes something else of the same when it runs again.
        """
        tracker = self._tracker
        _check_same(self._site, self._first, tensors_of(output))
        self._first.clear()
        # What it leaves in its arguments, and its temporaries.
        made = total_bytes(_new_tensors(output, given), self._granule)
        left = max(0, tracker.live_bytes - self._before - made)
        no_grad_temporary = max(0, tracker.peak_bytes - tracker.live_bytes)
        forward_seconds, backward_seconds = self._seconds
        leaves, _ = flatten_tree(given)
        saved_places = [
            at for at, leaf in enumerate(leaves)
            if isinstance(leaf, torch.Tensor) and can_move(leaf) and storage_key(leaf) in self._recorder.saved_keys
        ]  # fmt: skip
        selective = self._recorder.options(self._outputs, forward_seconds, self._recorder_again)
        return StageBytes(
            output_bytes=made,
            gradient_bytes=self._gradient_bytes,
            graph_bytes=max(0, self._graph - left),
            saved_bytes=max(self._grown - left, made),
            left_bytes=left,
            buffer_bytes=self._buffer_bytes,
            written_bytes=self._written_bytes,
            forward_temporary_bytes=self._temporary,
            no_grad_forward_temporary_bytes=no_grad_temporary,
            backward_temporary_bytes=self._backward_temporary,
            forward_seconds=forward_seconds,
            backward_seconds=backward_seconds,
            again_seconds=_RERUN_SECONDS + self._recorder.saved * SLOT_SECONDS,
            saved_places=saved_places,
            selective=selective if self._site.is_eager() else (),
        )

    def _own_gradient_bytes(self) -> int:
        """Return what the gradients of the stage's parameters take."""
        found = (each.grad for each in self._runs.parameters if each.grad is not None)
        return total_bytes(found, self._granule)


class StageRuns:
    """Runs of a stage on what it was given, each from the same state."""

    def __init__(self, site: StageSite, forward: Callable[..., Any], given: Any) -> None:
        self._forward = forward
        self._leaves, self._spec = flatten_tree(given)
        self._states = read_generators()
        self.parameters = [each for module in site.modules for each in module.parameters()]
        self._places = buffer_places(site.modules)

    def opened(self) -> Any:
        """Return the arguments as leaves of a graph; caches in them as they are now."""
        return unflatten_tree([snapshot(leaf) for leaf in self._leaves], self._spec)

    def call(self, given: Any) -> Any:
        """Run the forward."""
        args, kwargs = given
        return self._forward(*args, **kwargs)

    @contextmanager
    def alike(self) -> Iterator[None]:
        """Begin with the same buffers and random numbers, and put them back."""
        # A cast kept from run to run would be nobody's.
        with swapped_values(copied_buffers(self._places)), Autocast.now().entered():
            try:
                yield
            finally:
                set_generators(self._states)

    def seconds(self) -> tuple[float, float]:
        """Return the seconds of a forward and of a backward."""
        with self.alike(), pause_garbage_collection():
            entered = self.opened()
            tensors = tensors_of(entered)
            watch = Stopwatch(tensors)
            result = self.call(entered)
            forward = watch.read()
            edges, seeds = _backward_start(_new_tensors(result, entered))
            del result
            backward = 0.0
            if edges:
                watch = Stopwatch(tensors)
                torch.autograd.backward(edges, seeds)
                backward = watch.read()
        self.forget_gradients()
        return forward, backward

    def forget_gradients(self) -> None:
        """Let gradients of parameters go: the next run makes its own."""
        for parameter in self.parameters:
            parameter.grad = None


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


def _backward_start(made: Iterable[torch.Tensor]) -> tuple[list[Any], list[torch.Tensor]]:
    """Return where a backward begins from what a stage has made, which need not stay, and with which gradients."""
    ends = [each for each in made if each.requires_grad]
    return [get_gradient_edge(each) for each in ends], [_gradient_seed(each) for each in ends]


def _gradient_seed(end: torch.Tensor) -> torch.Tensor:
    """Return a number seen as the gradient of a stage's output, which becomes a tensor when autograd's walk begins.

    That goes when the first to read it is done, as one from the next stage does: nobody outside holds it.
    """
    edge, alike = get_gradient_edge(end), TensorShape.of(end)
    place = edge.output_nr

    def arrive(gradients: tuple[torch.Tensor, ...]) -> tuple[torch.Tensor, ...]:
        # Strides of 0 alone: still the one number. Others: a gradient that autograd has summed already.
        whole = gradients[place]
        return (*gradients[:place], whole if any(whole.stride()) else alike.filled(1), *gradients[place + 1 :])

    edge.node.register_prehook(arrive)
    return torch.ones((), dtype=end.dtype, device=end.device).expand_as(end)


class TensorShape(NamedTuple):
    """A tensor without its bytes."""

    size: torch.Size
    stride: tuple[int, ...]
    dtype: torch.dtype
    device: torch.device

    @classmethod
    def of(cls, tensor: torch.Tensor) -> "TensorShape":
        """Return that of one like a tensor, without holes."""
        with _disable_current_modes():
            like = torch.empty_like(tensor, device="meta")
        return cls(like.size(), like.stride(), tensor.dtype, tensor.device)

    def filled(self, number: int) -> torch.Tensor:
        """Return a tensor of one number."""
        made = torch.empty_strided(self.size, self.stride, dtype=self.dtype, device=self.device)
        return made.fill_(number)
