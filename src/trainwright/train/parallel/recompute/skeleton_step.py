"""One step of a model in which each stage is measured where it is called, and then stands for itself with no graph.

A stage's call becomes one node of autograd's graph that saves nothing, and whose backward makes gradients of the right
shapes out of zeros. What the step holds and frees is then what lies between the stages: values that skip stages,
layers that are in no stage, the loss. So no more is alive than a plan of least memory needs.
"""

import weakref
from collections.abc import Callable, Iterable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import nn
from torch.autograd.graph import saved_tensors_hooks
from torch.utils._python_dispatch import _disable_current_modes

from trainwright.errors import UnsupportedModel
from trainwright.model.trace.step import Call
from trainwright.model.trace.storages import StorageTracker
from trainwright.train.parallel.recompute.measured_stage import StageBytes, StageMeasurement, StageRuns, TensorShape
from trainwright.train.parallel.recompute.sample_step import REFUSED, Stopwatch, accepted_sample, loss_of
from trainwright.train.parallel.recompute.stage_calls import StageSite, stage_calls, stage_sites
from trainwright.train.parallel.recompute.step_store import links_of, snapshot
from trainwright.train.parallel.recompute.trees import (
    StridedView,
    flatten_tree,
    map_only,
    storage_key,
    storage_keys,
    tensors_of,
    total_bytes,
)
from trainwright.train.parallel.recompute.values import can_move, second_derivative_error

__all__ = ["MeasuredCall", "SkeletonStep", "StagesChangedError"]

_REPEATS = 2
"""How often stages that take the same are timed at most: the first when it is measured, others when they are called."""


class StagesChangedError(Exception):
    """A stage that has been measured turned out to be none; the step is to be measured again without it."""


@dataclass(slots=True)
class MeasuredCall:
    """A call of a stage, and the bytes beside the stages when the step came to it; from the start of the step."""

    site: StageSite
    taken: StageBytes
    held: list[torch.Tensor]
    """What it was given and its graph does not save, until its backward."""
    saved: list[torch.Tensor]
    """What it was given and its graph saves, until its backward has ended."""
    linked_bytes: int | None = None
    """Of how much of its output the next stage reads as it is; None: it reads something else."""
    entry_bytes: int = 0
    """Beside the stages when it is called, without what the stage before has handed on."""
    entry_peak_bytes: int = 0
    """The most since the stage before."""
    held_bytes: int = 0
    """Of what it was given, what goes when its backward begins."""
    backward_bytes: int = 0
    """Beside the stages, without the gradients that have arrived, when its backward begins."""
    backward_peak_bytes: int = 0
    """The most since the backward of the stage behind."""
    gradients: list[nn.Parameter] = field(default_factory=list)
    """Of no stage, those whose gradients were made since then."""
    left: list[weakref.ref[torch.UntypedStorage]] = field(default_factory=list)
    """What it has left in a cache that it was given."""


class SkeletonStep:
    """A step of `model` with a sample; `run` makes it, and the attributes say what it took.

    `names` are stages; `unfit` collects, over several steps, why some of them are none.
    """

    def __init__(
        self, model: nn.Module, granule: int, names: Sequence[str], unfit: dict[str, str], known: dict[Any, Any]
    ) -> None:
        self.model, self.granule = model, granule
        self.names = [name for name in names if name not in unfit]
        self.calls: list[MeasuredCall] = []
        self.draws = 0
        """How many calls draw random numbers."""
        self.loss_bytes = self.loss_peak_bytes = 0
        """Beside the stages after the loss, and at most until then."""
        self.loss_seconds = (0.0, 0.0)
        self.end_peak_bytes = 0
        """The most behind the first stage's backward."""
        self.end_gradients: list[nn.Parameter] = []
        self._unfit, self._known = unfit, known
        self._tracker = StorageTracker(granule_bytes=granule)
        self._below: list[torch.Tensor | None] = []
        self._awaited = [each for each in model.parameters() if each.requires_grad]
        self._base_bytes = self._left_bytes = 0
        self._loss_watch = Stopwatch(())

    def run(self, call: Call, loss: Callable[[Any], torch.Tensor] | None) -> None:
        """Run the model forward and backward; raise UnsupportedModel where it fails."""
        tracker, model = self._tracker, self.model
        tracker.watch(model.parameters(), "parameters")
        tracker.watch(model.buffers(), "buffers")
        tracker.watch(tensors_of((call.args, dict(call.kwargs))), "input")
        self._base_bytes = tracker.live_bytes
        with stage_calls(model, stage_sites(model, self.names), self._call) as forward, tracker:
            with accepted_sample(model):
                results = [forward(*call.args, **call.kwargs)]
            if not any(tensor.requires_grad for tensor in tensors_of(results)):
                raise UnsupportedModel(
                    f"model: got a result ({type(results[0]).__name__}) without a tensor that wants a gradient; "
                    "allowed: one for a loss, in tuples, lists, mappings or dataclasses"
                )
            if self.calls:
                self._finish(results, loss)

    def _finish(self, results: list[Any], loss: Callable[[Any], torch.Tensor] | None) -> None:
        """Run the loss, and the backward of all that is in no stage; as in training, nobody holds the result."""
        self._below = []
        end = loss_of(results.pop(), loss)
        self.loss_seconds = self._loss_watch.read(), 0.0
        self.loss_bytes, self.loss_peak_bytes = self._live_bytes(), self._peak_bytes()
        self._tracker.restart_peak()
        self._loss_watch = Stopwatch([end])
        end.backward()
        self.end_peak_bytes, self.end_gradients = self._peak_bytes(), self._new_gradients()

    def _call(self, site: StageSite, forward: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Measure a stage where the model calls it, and return what it makes, as the beginning of a graph."""
        leaves, _ = flatten_tree((args, kwargs))
        kind = _kind_of(site, leaves)
        if kind in self._unfit:
            self._leave_out(site, kind)
            return forward(*args, **kwargs)
        given = [leaf for leaf in leaves if isinstance(leaf, torch.Tensor)]
        links = links_of(leaves, self._below)
        linked_bytes = 0
        if links:
            read = [self._below[place] for place in set(links.values())]
            linked_bytes = total_bytes((each for each in read if each is not None), self.granule)
            self.calls[-1].linked_bytes = linked_bytes
        self._below = []
        # What stages are given that none can make again: the interpreter holds it, so it is held here.
        held = {
            at: leaf.detach() for at, leaf in enumerate(leaves) if isinstance(leaf, torch.Tensor) and at not in links
        }
        entry = self._live_bytes() - linked_bytes, self._peak_bytes()
        # Seconds would be those of the tracker.
        with _disable_current_modes():
            taken, output = self._measure(site, forward, args, kwargs, kind)
        saved = [held.pop(at) for at in taken.saved_places if at in held]
        call = MeasuredCall(site, taken, [*held.values()], saved, None, *entry)
        held.clear()
        self.calls.append(call)
        self._left_bytes += taken.left_bytes
        output = self._without_graph(call, output, given)
        known = storage_keys(given)
        if taken.left_bytes:
            there: list[torch.Tensor] = []
            snapshot((args, kwargs), change=there.append)
            call.left = [weakref.ref(each.untyped_storage()) for each in there if storage_key(each) not in known]
        self._below = [None if storage_key(each) in known else each for each in tensors_of(output)]
        # The caller still has what it has called the stage with, though it goes when the stage returns.
        self._tracker.restart_peak()
        self._tracker.peak_bytes -= linked_bytes
        self._loss_watch = Stopwatch(given)
        return output

    def _measure(
        self, site: StageSite, forward: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any], kind: Any
    ) -> tuple[StageBytes, Any]:
        """Return what a stage takes, and what it makes of these arguments; a stage that cannot run again is none."""
        given = tensors_of((args, kwargs))
        versions = [each._version for each in given]  # noqa: SLF001  counts the writes to a tensor
        before, reason = torch.get_rng_state(), ""
        measured: StageMeasurement | None = None
        try:
            if kind not in self._known:
                measured = StageMeasurement(site, forward, (args, kwargs), self.granule)
            elif self._known[kind].timed < _REPEATS:
                self._known[kind].time_again(StageRuns(site, forward, (args, kwargs)))
        except (*REFUSED, UnsupportedModel) as error:
            if isinstance(error, torch.OutOfMemoryError):
                raise
            reason = str(error)
        try:
            with measured.watched() if measured else nullcontext(), saved_tensors_hooks(_without_bytes, _of_zeros):
                output = forward(*args, **kwargs)
        except REFUSED as error:
            if isinstance(error, torch.OutOfMemoryError | UnsupportedModel):
                raise
            shapes = ", ".join(str(tuple(each.shape)) for each in given)
            raise UnsupportedModel(
                f"sample: stage {len(self.calls) + 1} ({site.name}) refuses what the sample makes there (shapes "
                f"{shapes}): {error}; allowed: a sample that the model takes"
            ) from error
        if measured is not None:
            try:
                self._known[kind] = measured.finish((args, kwargs), output)
            except UnsupportedModel as error:
                reason = str(error)
        if any(each._version != version for each, version in zip(given, versions, strict=True)):  # noqa: SLF001
            reason = "it writes to what it is given"
        elif storage_keys(output) <= storage_keys(given):
            # Running it again would free nothing; what it hands on is what the stage before has made.
            reason = "it makes no tensor of its own"
        if reason:
            self._unfit[kind] = reason
            self._leave_out(site, kind)
            # What measuring has done to the arguments would change the rest of the step.
            raise StagesChangedError
        self.draws += not torch.equal(before, torch.get_rng_state())
        return self._known[kind], output

    def _leave_out(self, site: StageSite, kind: Any) -> None:
        """Let a module be no stage, in none of its calls."""
        self._unfit[site.name] = self._unfit[kind]
        if any(call.site.name == site.name for call in self.calls):
            raise StagesChangedError

    def _without_graph(self, call: MeasuredCall, output: Any, given: Sequence[torch.Tensor]) -> Any:
        """Return what a stage has made, from a node of the graph that saves nothing."""
        known = storage_keys(given)
        made = [each for each in tensors_of(output) if each.requires_grad and storage_key(each) not in known]
        self._tracker.see(tensors_of(output))
        if not made:
            return output
        # A node is wanted where no argument has a gradient too.
        wanted = [each for each in given if each.requires_grad] or [torch.zeros((), requires_grad=True)]
        graphs = iter(_StandIn.apply(self, call, [_apart(each) for each in made], *wanted))
        places = {id(each) for each in made}
        del made
        return map_only(torch.Tensor, lambda each: next(graphs) if id(each) in places else each, output)

    def arrive(self, call: MeasuredCall, gradients: Iterable[torch.Tensor]) -> None:
        """Note what is there when the backward of a stage begins."""
        if torch.is_grad_enabled():
            raise second_derivative_error()
        with_held = self._live_bytes()
        call.held.clear()
        call.held_bytes = with_held - self._live_bytes()
        arrived = total_bytes(gradients, self.granule)
        call.backward_bytes, call.backward_peak_bytes = self._live_bytes() - arrived, self._peak_bytes()
        call.gradients = self._new_gradients()
        if call is self.calls[-1]:
            self.loss_seconds = self.loss_seconds[0], self._loss_watch.read()

    def leave(self, call: MeasuredCall, gradients: Iterable[torch.Tensor]) -> None:
        """Begin to look for the most until the next stage's backward: what the stage has read goes now."""
        call.saved.clear()
        # What it has left in a cache is in its graph too, which has gone; the cache goes with the model's result.
        if call.left and not any(each() for each in call.left):
            self._left_bytes -= call.taken.left_bytes
        self._tracker.restart_peak()
        self._tracker.peak_bytes -= total_bytes(gradients, self.granule)

    def add_left_out(self) -> int:
        """Add stages that this step did not call, such as layers dropped at random; return how many.

        Another step may call them all. Each is like one of its kind, behind the stage that precedes it in the model.
        """
        count, names = len(self.calls), [call.site.name for call in self.calls]
        left_out = stage_sites(self.model, [each for each in self.names if each not in {*names, *self._unfit}])
        kinds = {_modules_kind(call.site): call.taken for call in self.calls} if left_out else {}
        for name, site in left_out.items():
            taken = kinds.get(_modules_kind(site))
            if taken is None:
                continue
            before = self.names[self.names.index(name) - 1]
            place = names.index(before) + 1 if before in names else 0
            beside = self.calls[max(0, place - 1)]
            self.calls.insert(place, replace(beside, site=site, taken=taken, gradients=[]))
            # It reads what the last stage of this step has made, whose result was the model's own.
            if place == len(self.calls) - 1:
                beside.linked_bytes = beside.taken.output_bytes
            names.insert(place, name)
            self.draws += 1
        return len(self.calls) - count

    def _new_gradients(self) -> list[nn.Parameter]:
        found = [each for each in self._awaited if each.grad is not None]
        self._awaited = [each for each in self._awaited if each.grad is None]
        return found

    def _live_bytes(self) -> int:
        """Return the bytes of this step that are alive, with what stages have left in caches."""
        return self._tracker.live_bytes - self._base_bytes + self._left_bytes

    def _peak_bytes(self) -> int:
        return self._tracker.peak_bytes - self._base_bytes + self._left_bytes


class _StandIn(torch.autograd.Function):
    """The node of a stage: it takes tensors that want gradients, and hands out tensors that are made already."""

    @staticmethod
    def forward(
        ctx: Any, step: SkeletonStep, call: MeasuredCall, made: list[torch.Tensor], *wanted: torch.Tensor
    ) -> Any:
        """Hand out what is made."""
        ctx.step, ctx.call = step, call
        ctx.shapes = [TensorShape.of(each) for each in wanted]
        ctx.set_materialize_grads(False)
        return tuple(made)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor | None) -> Any:
        """Return gradients of nothing."""
        arrived = [each for each in gradients if each is not None]
        ctx.step.arrive(ctx.call, arrived)
        made = [each.filled(0) for each in ctx.shapes]
        ctx.step.leave(ctx.call, arrived)
        return (None, None, None, *made)


def _apart(tensor: torch.Tensor) -> torch.Tensor:
    """Return a tensor out of its graph that autograd does not take for a view, which nobody could write to."""
    if not can_move(tensor):
        return tensor.detach()
    return StridedView.of(tensor).on(tensor.untyped_storage())


def _kind_of(site: StageSite, leaves: Sequence[Any]) -> Any:
    """Return what stages have in common that take the same bytes and seconds."""
    given = [
        (tuple(leaf.shape), leaf.stride() if leaf.layout == torch.strided else (), leaf.dtype, leaf.requires_grad)
        if isinstance(leaf, torch.Tensor)
        else leaf if isinstance(leaf, bool | int | float | str | type(None)) else type(leaf)
        for leaf in leaves
    ]  # fmt: skip
    return _modules_kind(site), tuple(given)


def _modules_kind(site: StageSite) -> Any:
    """Return what the modules of stages have in common that take the same."""
    tensors = [
        (path, tuple(each.shape), each.dtype, each.requires_grad)
        for module in site.modules
        for path, each in (*module.named_parameters(), *module.named_buffers())
    ]
    modules = [each for module in site.modules for each in module.modules()]
    traits = [(name, _trait_of(value)) for each in modules for name, value in vars(each).items()]
    return tuple((type(each), repr(each)) for each in site.modules), tuple(tensors), tuple(traits)


def _trait_of(value: Any) -> Any:
    """Return what an attribute says of a module's work: a flag, a name, or whether a number is 0.

    Which number it is may be the module's place in the model, or a rate that grows with it.
    """
    if isinstance(value, int | float) and not isinstance(value, bool):
        return value != 0
    if type(value) in {tuple, list}:
        return tuple(map(_trait_of, value))
    return value if isinstance(value, bool | str) else type(value)


def _without_bytes(tensor: torch.Tensor) -> TensorShape | None:
    """Return what a node saves instead of a tensor."""
    return TensorShape(tensor.size(), tensor.stride(), tensor.dtype, tensor.device) if can_move(tensor) else None


def _of_zeros(shape: TensorShape | None) -> torch.Tensor:
    # What a stage leaves elsewhere than in its result, such as a loss in a list, leads back into the stage's own graph.
    if shape is None:
        raise UnsupportedModel(
            "model: got a stage with a result in an unknown container, such as an object of a user's class, and saved "
            "values that are no plain tensors; allowed: tuples, lists, mappings and dataclasses of tensors"
        )
    return shape.filled(0)
