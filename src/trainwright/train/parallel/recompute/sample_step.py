"""Trains one step on a sample: measures peak memory and seconds, and restores the model as it was."""

import os
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import cache
from typing import Any

import torch
from torch import nn

from trainwright.errors import UnsupportedModel
from trainwright.model.trace.step import as_call, call_model
from trainwright.model.trace.storages import StorageTracker
from trainwright.train.parallel.recompute.run_context import (
    Autocast,
    buffer_places,
    copied_buffers,
    read_generators,
    set_generators,
    swapped_values,
)
from trainwright.train.parallel.recompute.trees import granule_of, tensors_of

__all__ = ["REFUSED", "Stopwatch", "accepted_sample", "loss_of", "restored_after", "tracked_peak"]


REFUSED = (RuntimeError, TypeError, ValueError, IndexError, KeyError, AttributeError, AssertionError)
"""What a model raises that does not take a sample."""


@contextmanager
def _as_before(model: nn.Module) -> Iterator[None]:
    """Put attributes of a model's modules, with the content of containers, and random generators back at the end."""
    held = [(vars(module), vars(module).copy()) for module in model.modules()]
    # In place, since others may refer to the same container.
    contents = [
        (value, value.copy()) for _, own in held for value in own.values() if isinstance(value, list | dict | set)
    ]
    states = read_generators()
    owned = [each for _, own in held for each in own.values() if isinstance(each, torch.Generator)]
    drawn = [(each, each.get_state()) for each in owned]
    try:
        yield
    finally:
        for own, before in held:
            own.clear()
            own.update(before)
        for value, content in contents:
            # A container that refuses to be changed has not been.
            if _parts(value) == _parts(content):
                continue
            value.clear()
            if isinstance(value, list):
                value.extend(content)
            else:
                value.update(content)
        set_generators(states)
        for generator, state in drawn:
            generator.set_state(state)


def _parts(container: Any) -> list[int]:
    """Return which objects are in a list, set or dict."""
    return [*map(id, container), *(map(id, container.values()) if isinstance(container, dict) else ())]


def tracked_peak(
    model: nn.Module, sample: Any, *, loss: Callable[[Any], torch.Tensor] | None = None, passes: int = 1
) -> int:
    """Return the peak bytes of live storages of one training step, with the parameters, but no optimizer's state.

    Without `loss` the sum of the result's floating tensors stands for it. With several `passes` gradients add up. The
    model is as before afterwards.
    """
    tracker = StorageTracker(granule_bytes=granule_of(model))
    tracker.watch(model.parameters(), "parameters")
    given = as_call(sample)
    batch = tensors_of((given.args, dict(given.kwargs)))
    tracker.watch(batch, "input")
    with restored_after(model, batch), tracker:
        # Copies stand in the place of the buffers.
        tracker.watch(model.buffers(), "buffers")
        for _ in range(passes):
            loss_of(call_model(model, sample), loss).backward()
    return tracker.peak_bytes


@contextmanager
def accepted_sample(model: nn.Module) -> Iterator[None]:
    """Raise `UnsupportedModel` where a model refuses a sample."""
    try:
        yield
    except (torch.OutOfMemoryError, UnsupportedModel):
        raise
    except REFUSED as error:
        raise UnsupportedModel(
            f"sample: {type(model).__name__} refuses it: {error}; allowed: a sample that the model takes"
        ) from error


def loss_of(result: Any, loss: Callable[[Any], torch.Tensor] | None) -> torch.Tensor:
    """Return the loss of a model's result; without `loss` the sum of its floating tensors."""
    if loss is not None:
        return loss(result)
    # The gradient that arrives is to be a tensor of its own, not a number seen as one.
    ends = [torch.view_as_real(t) if t.is_complex() else t for t in tensors_of(result) if t.requires_grad]
    return sum((t * 1).sum() for t in ends)  # type: ignore[return-value]  # something is trained


class Stopwatch:
    """Seconds of work on some tensors, without those in which other processes had this thread's processor.

    A thread that is put off for one slice of time would make a block look dearer than it is, and the plan worse.
    """

    def __init__(self, tensors: Iterable[torch.Tensor]) -> None:
        self._device = next((each.device for each in tensors if each.is_cuda), None)
        self._synchronise()
        self._waited, self._worked = _waited_seconds(), time.thread_time()
        self._started = time.perf_counter()

    def read(self) -> float:
        """Return the seconds since it was made, with the work that is queued on the device."""
        self._synchronise()
        seconds = time.perf_counter() - self._started
        # On a busy machine the system may count a wait that had begun before: what the thread has worked is the least.
        return max(time.thread_time() - self._worked, seconds - (_waited_seconds() - self._waited))

    def _synchronise(self) -> None:
        if self._device is not None:
            torch.cuda.synchronize(self._device)


def _waited_seconds() -> float:
    """Return how long this thread has been ready to run and had no processor; 0 where the system does not say."""
    file = _schedule_file(threading.get_native_id())
    return 0.0 if file is None else int(os.pread(file, 64, 0).split()[1]) / 1e9


@cache
def _schedule_file(thread: int) -> int | None:
    """Return where Linux says how many nanoseconds a thread has waited for a processor: its second number."""
    try:
        return os.open(f"/proc/self/task/{thread}/schedstat", os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return None


@contextmanager
def restored_after(model: nn.Module, batch: Sequence[torch.Tensor] = ()) -> Iterator[None]:
    """Let stages run on copies of the buffers, and put gradients, attributes and random generators back."""
    # Tensors that are no leaves keep no gradient, and torch warns who asks for it.
    gradients = [(each, each.grad) for each in (*model.parameters(), *batch) if each.is_leaf]
    with ExitStack() as stack:
        stack.enter_context(torch.random.fork_rng())
        stack.enter_context(_as_before(model))
        # A cast kept from stage to stage would be nobody's.
        stack.enter_context(Autocast.now().entered())
        stack.enter_context(swapped_values(copied_buffers(buffer_places([model]))))
        try:
            for each, _ in gradients:
                each.grad = None
            yield
        finally:
            for each, gradient in gradients:
                each.grad = gradient
