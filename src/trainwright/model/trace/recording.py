"""The recording of a training step: its operations, the storages that they made, and the lifetimes of these."""

import bisect
import contextlib
import gc
import logging
import textwrap
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from itertools import accumulate

import torch
from torch import nn
from torch._subclasses import fake_tensor

from trainwright.errors import ProfileError
from trainwright.model.trace.corrections import depends_on_values
from trainwright.model.trace.recorder import StepRecorder, StorageLife, TracedOperation
from trainwright.model.trace.step import TrainingStep

__all__ = ["Recording", "StorageLives", "Untraceable", "pause_garbage_collection", "quiet_logging", "record_step"]


class Untraceable(ProfileError):
    """A step that depends on values, or on an operation that fake tensors do not know: it has to be run."""


@dataclass(frozen=True, kw_only=True)
class Recording:
    """What a step did. Storages are numbers; a part is (index of the first operation, index after the last)."""

    operations: list[TracedOperation]
    storages: dict[int, StorageLife]
    saved: dict[int, int]
    """Storages that autograd saved, and the operation at which each was first saved."""
    saved_until: dict[int, int]
    """The same storages, and the operation at which each was last saved."""
    attentions: frozenset[int]
    """Numbers of the module calls that were calls of torch's attention."""
    parameters: dict[int, int]
    """Storages of parameters, and the elements of the parameters in each."""
    trained: dict[int, int]
    """The same of those that get gradients."""
    trained_bytes: int
    """Bytes of these parameters."""
    fixed: frozenset[int]
    """Storages that live before and after the step: parameters, buffers, the optimizer's state, the sample."""
    sample: frozenset[int]
    results: frozenset[int]
    """Storages of what the forward pass returned."""
    gradients: frozenset[int]
    """Storages of the gradients of parameters."""
    live_after_forward: frozenset[int]
    """Storages that live when the forward pass is done."""
    parts: dict[str, tuple[int, int]]
    """"forward", "backward", "update", and "plain" (a forward pass without gradients)."""
    peak_bytes: int
    workspace_bytes: int
    """How much higher the peak is with what kernels borrow."""
    largest_workspace_bytes: int
    peak_by_owner: dict[str, int]
    state_bytes: int
    uncounted: tuple[str, ...]


def record_step(step: TrainingStep, *, granule_bytes: int) -> Recording:
    """Record one steady step (the optimizer already has its state) and a forward pass without gradients.

    Raises ProfileError, or its subclass Untraceable where fake tensors were not enough.
    """
    recorder = StepRecorder(granule_bytes=granule_bytes)
    operations, parts = recorder.operations, {}
    gc.collect()
    with step.tensors(), pause_garbage_collection(), quiet_logging():
        try:
            # A steady step: the optimizer has its state before recording begins.
            step.fill_state()
            step.watched(recorder)
            parameters = _count_elements(step.parameters, recorder)
            buffers, state = recorder.marks(list(step.model.buffers())), recorder.marks(step.state)
            sample = recorder.marks(step.sample)
            with recorder, recorder.modules(step.model):
                recorder.start("forward")
                with recorder.owner("activations"), recorder.saving():
                    step.forward()
                results, live_after_forward = recorder.marks(step.result), recorder.live
                parts["forward"] = (0, len(operations))
                recorder.start("backward")
                with recorder.owner("backward"):
                    step.backward()
                # Only now can gradients of parameters be distinguished from other results of backward.
                recorder.watch(step.gradients, "gradients")
                gradients = recorder.marks(step.gradients)
                trained = step.trained
                # State of parameters that got no gradient: a real optimizer would not have made it.
                idle = recorder.marks(step.state_of(*set(step.parameters).difference(trained)))
                parts["backward"] = (parts["forward"][1], len(operations))
                recorder.start("update")
                with recorder.owner("update"):
                    step.update()
                parts["update"] = (parts["backward"][1], len(operations))
                peak, by_owner = recorder.peak_bytes, recorder.peak_by_owner
                borrowed = max(0, recorder.working_peak_bytes - peak)
                step.finish()
                # Once more without gradients, for the temporaries of a forward pass that saves nothing. One that puts
                # hooks on its gradients needs them: its pass is then bounded, as any that does something else.
                recorder.start("plain")
                with torch.no_grad(), contextlib.suppress(RuntimeError):
                    step.forward()
                parts["plain"] = (parts["update"][1], len(operations))
                step.finish()
        except Exception as error:
            raise _explain_error(error, recorder, fake=step.fake is not None) from error
    # An optimizer makes no state for what never gets a gradient; it was made here, but nothing has touched it.
    idle_bytes = sum(recorder.storages[number].bytes for number in idle)
    by_owner["optimizer"] = by_owner.get("optimizer", 0) - idle_bytes
    return Recording(
        operations=operations,
        storages=recorder.storages,
        saved=recorder.saved,
        saved_until=recorder.saved_until,
        attentions=frozenset(recorder.attentions),
        parameters=parameters,
        trained=_count_elements(trained, recorder),
        trained_bytes=sum(parameter.numel() * parameter.dtype.itemsize for parameter in trained),
        fixed=frozenset({*parameters, *buffers, *state, *sample}),
        sample=frozenset(sample),
        results=frozenset(results),
        gradients=frozenset(gradients),
        live_after_forward=frozenset(live_after_forward),
        parts=parts,
        peak_bytes=peak - idle_bytes,
        workspace_bytes=borrowed,
        largest_workspace_bytes=recorder.largest_workspace_bytes,
        peak_by_owner={owner: size for owner, size in by_owner.items() if size},
        state_bytes=sum(recorder.storages[number].bytes for number in state) - idle_bytes,
        uncounted=tuple(recorder.uncounted),
    )


@contextlib.contextmanager
def quiet_logging() -> Iterator[None]:
    """Keep torch from logging operations that fail on fake tensors: they are run again, or reported as errors."""
    logger = logging.getLogger(fake_tensor.__name__)
    logger.addFilter(_drop_record)
    try:
        yield
    finally:
        logger.removeFilter(_drop_record)


def _drop_record(_: logging.LogRecord) -> bool:
    return False


def _count_elements(parameters: list[nn.Parameter], recorder: StepRecorder) -> dict[int, int]:
    found: dict[int, int] = {}
    for parameter in parameters:
        for number in recorder.marks(parameter):
            found[number] = found.get(number, 0) + parameter.numel()
    return found


@contextlib.contextmanager
def pause_garbage_collection() -> Iterator[None]:
    """Pause garbage collection: what it frees, when, and how long it takes would depend on what ran before."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


def _explain_error(error: Exception, recorder: StepRecorder, *, fake: bool) -> ProfileError:
    """Return the error to raise for one that a model's step raised under a recorder."""
    if isinstance(error, ProfileError):
        return error
    failure = recorder.failure if recorder.failure is not None and recorder.failure.error is error else None
    module = f"module {recorder.path!r}" if recorder.path else "the model itself"
    what = f"{failure.operation} in {module}" if failure is not None else module
    said = textwrap.shorten(str(error), 200, placeholder="...") or type(error).__name__
    # Such a step can still be run on real tensors.
    if fake and _needs_values(error):
        return Untraceable(
            f"model: {what} depends on the values of tensors or is unknown without them, so the model cannot be traced"
        )
    shapes = ", ".join(str(shape) for shape in failure.shapes) if failure is not None else ""
    on = f" on shapes {shapes}" if shapes else ""
    return ProfileError(
        f"sample: {what} fails{on}: {said}; allowed: what the model's forward takes (a tensor, a tuple "
        "of arguments or a mapping of keywords), with the batch as first dimension"
    )


def _needs_values(error: Exception) -> bool:
    return (
        depends_on_values(error)
        or isinstance(error, NotImplementedError)
        or any(word in str(error) for word in ("FakeTensor", "tensor subclasses", "Meta tensors", "meta tensor"))
    )


class StorageLives:
    """Answers which storages live when, and how many bytes they hold."""

    def __init__(self, recording: Recording, pending: dict[int, int]) -> None:
        self.storages = recording.storages
        self.pending = pending
        self.fixed = recording.fixed
        # Sorted by birth, so that the storages made in an interval are one slice.
        order = sorted((stored.first, number) for number, stored in recording.storages.items())
        self.order = [number for _, number in order]
        self.firsts = [first for first, _ in order]
        self.backward, self.end = recording.parts["backward"]
        made = self.made_in(self.backward, self.end - 1) - recording.gradients if self.end > self.backward else set()
        self.changes = self.alive(made, self.backward, self.end)

    def made_in(self, first: int, last: int) -> set[int]:
        """Return the storages made by operations first..last."""
        low, high = bisect.bisect_left(self.firsts, first), bisect.bisect_right(self.firsts, last)
        return set(self.order[low:high]) - self.fixed

    def bytes(self, numbers: Collection[int]) -> int:
        """Return the bytes of storages."""
        return sum(self.storages[number].bytes for number in numbers)

    def differentiable(self, number: int) -> bool:
        """Return whether a storage gets a gradient."""
        return self.storages[number].carries_gradient and self.storages[number].floating

    def peak(self, numbers: Collection[int], first: int, last: int) -> int:
        """Return the peak bytes of `numbers` while operations first..last run."""
        return max(self.alive(numbers, first, last + 1), default=0)

    def alive(self, numbers: Collection[int], first: int, past: int) -> list[int]:
        """Return the bytes of `numbers` that live at each operation from `first` to before `past`."""
        # A difference array: plus at birth, minus after death, then one running sum.
        changes = [0] * (past - first + 1)
        for number in numbers:
            stored = self.storages[number]
            start = max(stored.first, first, self.pending.get(number, first))
            # A storage without a last operation has outlived the recording.
            end = past - 1 if stored.last < 0 else min(stored.last, past - 1)
            if start <= end:
                changes[start - first] += stored.bytes
                changes[end + 1 - first] -= stored.bytes
        return list(accumulate(changes[:-1]))

    def backward_live(self, first: int, past: int) -> list[int]:
        """Return the live bytes that backward has made, without gradients of parameters."""
        return self.changes[first - self.backward : past - self.backward]
