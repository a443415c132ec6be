"""A training step written down: its operations, the storages they made and how long these lived."""

import contextlib
import gc
import logging
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import nn
from torch._subclasses import fake_tensor

from trainwright.model.trace.failures import explain_error
from trainwright.model.trace.recorder import StepRecorder, StorageLife, TracedOperation
from trainwright.model.trace.step import Step

__all__ = ["Recording", "record_step"]


@dataclass(frozen=True, kw_only=True)
class Recording:
    """What a step did. Storages are numbers; a part is (first place, place after the last) in `operations`."""

    operations: list[TracedOperation]
    storages: dict[int, StorageLife]
    saved: dict[int, int]
    """Storages that autograd kept, and the place at which each was first kept."""
    saved_until: dict[int, int]
    """The same storages, and the place at which each was last kept."""
    attentions: frozenset[int]
    """Numbers of the module calls that were calls of torch's attention."""
    parameters: dict[int, int]
    """Storages of parameters, and the elements of the parameters in each."""
    trained: dict[int, int]
    """The same of those that get gradients."""
    trained_bytes: int
    """Bytes of these parameters."""
    fixed: frozenset[int]
    """Storages that are there before and after: parameters, buffers, the optimizer's state, the sample."""
    sample: frozenset[int]
    results: frozenset[int]
    """Storages of what the forward pass returned."""
    gradients: frozenset[int]
    """Storages of the gradients of parameters."""
    kept: frozenset[int]
    """Storages that live when the forward pass is done."""
    parts: dict[str, tuple[int, int]]
    """"forward", "backward", "update", and "plain" (a forward pass without gradients)."""
    peak_bytes: int
    peak_by_owner: dict[str, int]
    state_bytes: int
    uncounted: tuple[str, ...]


def record_step(step: Step, *, granule_bytes: int) -> Recording:
    """Run one steady step (the optimizer's state is there already) and a plain forward pass, and write them down.

    Raises ProfileError, of the kind Untraceable where fake tensors were not enough.
    """
    recorder = StepRecorder(granule_bytes=granule_bytes)
    operations, parts = recorder.operations, {}
    with step.tensors(), _no_garbage_collection(), _quiet_logging():
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
                results, kept = recorder.marks(step.result), recorder.live
                parts["forward"] = (0, len(operations))
                recorder.start("backward")
                with recorder.owner("backward"):
                    step.backward()
                # Only now are gradients of parameters told from what backward made on the way.
                recorder.watch(step.gradients, "gradients")
                gradients = recorder.marks(step.gradients)
                trained = step.trained
                # State of parameters that got no gradient: a real optimizer would not have made it.
                idle = recorder.marks([step.state_of(p) for p in set(step.parameters).difference(trained)])
                parts["backward"] = (parts["forward"][1], len(operations))
                recorder.start("update")
                with recorder.owner("update"):
                    step.update()
                parts["update"] = (parts["backward"][1], len(operations))
                peak, by_owner = recorder.peak_bytes, recorder.peak_by_owner
                step.finish()
                # Once more without gradients, for the temporaries of a forward pass that saves nothing.
                recorder.start("plain")
                with torch.no_grad():
                    step.forward()
                parts["plain"] = (parts["update"][1], len(operations))
                step.finish()
        except Exception as error:
            raise explain_error(error, recorder, fake=step.fake is not None) from error
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
        trained_bytes=sum(each.numel() * each.dtype.itemsize for each in trained),
        fixed=frozenset({*parameters, *buffers, *state, *sample}),
        sample=frozenset(sample),
        results=frozenset(results),
        gradients=frozenset(gradients),
        kept=frozenset(kept),
        parts=parts,
        peak_bytes=peak - idle_bytes,
        peak_by_owner={owner: size for owner, size in by_owner.items() if size},
        state_bytes=sum(recorder.storages[number].bytes for number in state) - idle_bytes,
        uncounted=tuple(recorder.uncounted),
    )


@contextlib.contextmanager
def _quiet_logging() -> Iterator[None]:
    """Keep torch from logging operations that fail on fake tensors: what becomes of them is said elsewhere."""
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
def _no_garbage_collection() -> Iterator[None]:
    """Keep the collector of cycles from running: what it frees, and when, would depend on what ran before."""
    gc.collect()
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()
