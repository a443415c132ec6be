"""Profiles a model: traces it without running a kernel, or times every operation on this machine."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.utils._pytree import tree_map

from trainwright.cluster.calibration.timing import Clock, fastest, kernel_clock, wall_clock
from trainwright.errors import ProfileError
from trainwright.model.cut.stages import batch_size, make_profile
from trainwright.model.layer import ProfileFields
from trainwright.model.measure.profiler_trace import ProfilerTrace
from trainwright.model.trace.recorder import TensorShape, TracedOperation
from trainwright.model.trace.recording import Recording, Untraceable, record_step
from trainwright.model.trace.step import Loss, MakeOptimizer, TrainingStep, prepare_step
from trainwright.validators import check, integer

__all__ = ["TraceOptions", "measure_model", "profile_trace", "time_operations", "trace_model"]


def time_operations(
    operations: Sequence[TracedOperation],
    places: Sequence[int],
    *,
    device: torch.device,
    warmup: int = 3,
    repeats: int = 10,
    clock: Clock = wall_clock,
) -> tuple[dict[int, float], list[str]]:
    """Time operations on tensors like those recorded; those of equal arguments once. Views take no time.

    Returns seconds by place, and the names of operations that could not be run alone.
    """
    known: dict[Any, float | None] = {}
    seconds: dict[int, float] = {}
    failed: set[str] = set()
    for place in places:
        operation = operations[place]
        if operation.is_view:
            continue
        # Equal operations on equal shapes take equal time: each is measured once.
        key = (operation.func, repr(operation.arguments), repr(operation.keywords))
        if key not in known:
            known[key] = _time_alone(operation, device, warmup, repeats, clock)
        found = known[key]
        if found is None:
            failed.add(str(operation.func))
        else:
            seconds[place] = found
    return seconds, sorted(failed)


def _time_alone(
    operation: TracedOperation, device: torch.device, warmup: int, repeats: int, clock: Clock
) -> float | None:
    with torch.no_grad():
        try:
            arguments, keywords = tree_map(
                lambda leaf: _make_tensor(leaf, device) if isinstance(leaf, TensorShape) else leaf,
                (operation.arguments, operation.keywords),
            )
            operation.func(*arguments, **keywords)
        except (RuntimeError, TypeError, ValueError, IndexError):  # it needs values that made-up tensors do not have
            return None
        return fastest(
            lambda: operation.func(*arguments, **keywords),
            warmup=warmup,
            repeats=repeats,
            clock=clock,
            error=ProfileError,
        )


def _make_tensor(shaped: TensorShape, device: torch.device) -> torch.Tensor:
    """Return a tensor of a shape, with numbers between 0.5 and 1 (no zeros, infinities or denormals), or zeros."""
    # The smallest flat storage in which all strides fit.
    extent = 1 + sum((size - 1) * stride for size, stride in zip(shaped.shape, shaped.stride, strict=True))
    flat = torch.empty(max(0, extent), dtype=shaped.dtype, device=device)
    if shaped.dtype.is_floating_point:
        flat.uniform_(0.5, 1.0)
    else:
        flat.zero_()  # a valid index everywhere
    return flat.as_strided(shaped.shape, shaped.stride)


_HALVINGS = 6  # of the batch, each of which is measured too


@dataclass(frozen=True, kw_only=True)
class TraceOptions:
    """A model, a sample, and how the model is trained."""

    model: nn.Module
    sample: Any
    loss: Loss | None = None
    optimizer: str | MakeOptimizer | None = "adamw"
    precision: str = "fp32"
    device: str | None = None
    name: str = ""
    fuse: bool = False

    def __post_init__(self) -> None:
        if not isinstance(self.model, nn.Module):  # the model itself may be too long for a message
            raise ProfileError(f"model: got {type(self.model).__name__}; allowed: a torch.nn.Module")
        batch_size(self.sample)

    @property
    def place(self) -> torch.device:
        """The device asked for, else the model's where it is there, else the CPU."""
        if self.device is not None:
            return torch.device(self.device)
        # A model on a GPU is traced by CUDA's rules for mixed precision and attention.
        first = next(self.model.parameters(), None)
        on_cuda = first is not None and first.is_cuda and torch.cuda.is_available()
        return torch.device("cuda" if on_cuda else "cpu")

    @property
    def granule_bytes(self) -> int:
        """What the device's allocator rounds storages up to."""
        return 512 if self.place.type == "cuda" else 64

    def step(self, *, fake: bool) -> TrainingStep:
        """Return the prepared step."""
        return prepare_step(
            self.model,
            self.sample,
            loss=self.loss,
            optimizer=self.optimizer,
            precision=self.precision,
            device=self.place,
            fake=fake,
        )

    def profile(
        self, step: TrainingStep, recording: Recording, seconds: dict[int, float] | None = None
    ) -> ProfileFields:
        """Return the profile of a recording."""
        return make_profile(
            step,
            recording,
            name=self.name or type(self.model).__name__,
            optimizer=_optimizer_name(self.optimizer),
            granule_bytes=self.granule_bytes,
            fuse=self.fuse,
            seconds=seconds,
        )


def trace_model(request: TraceOptions) -> ProfileFields:
    """Return the profile of a step on fake tensors, or of one that is run and timed if that cannot be."""
    try:
        step = request.step(fake=True)
        return request.profile(step, record_step(step, granule_bytes=request.granule_bytes))
    except Untraceable as why:
        try:
            return measure_model(request)
        except ProfileError as error:
            raise ProfileError(f"{why}; running it fails too: {error}") from error


def measure_model(request: TraceOptions, *, warmup: int = 3, repeats: int = 10) -> ProfileFields:
    """Return the profile of a step with the seconds of each operation, and of the whole step."""
    check(warmup, integer(minimum=0), "warmup", ProfileError)
    check(repeats, integer(minimum=1), "repeats", ProfileError)
    profile = _measure_once(request, warmup, repeats)
    batch = profile.batch
    smaller = []
    # Halves of the batch, from the smallest up.
    for size in sorted({batch >> halvings for halvings in range(1, _HALVINGS + 1)} - {0}):
        try:
            found = _measure_once(replace(request, sample=_first_samples(request.sample, batch, size)), warmup, repeats)
        except ProfileError:  # a batch norm of one sample, a shape that is written into the model
            continue
        # Seconds can be compared layer by layer only if the chain is the same.
        if found.batch == size and _chain_signature(found) == _chain_signature(profile):
            smaller.append(found)
    return _with_smaller(profile, smaller)


def _measure_once(request: TraceOptions, warmup: int, repeats: int) -> ProfileFields:
    step, recording = _record(request)
    clock = kernel_clock(request.place)
    end = recording.parts["backward"][1]
    # Dropout and random inputs must not change the caller's generator.
    with torch.random.fork_rng(devices=[request.place] if request.place.type == "cuda" else []):
        seconds, failed = time_operations(
            recording.operations, range(end), device=request.place, warmup=warmup, repeats=repeats, clock=clock
        )
        whole = _time_whole_step(request, warmup, repeats, clock)
    profile = request.profile(step, recording, seconds)
    return replace(
        profile,
        origin="measured",
        # The pass as a whole, less its operations one by one: launch gaps, cold caches, autograd.
        framework_seconds=whole - sum(seconds.values()),
        uncounted=tuple(sorted({*profile.uncounted, *failed})),
    )


def _record(request: TraceOptions) -> tuple[TrainingStep, Recording]:
    try:
        step = request.step(fake=True)
        return step, record_step(step, granule_bytes=request.granule_bytes)
    except Untraceable:
        step = request.step(fake=False)
        return step, record_step(step, granule_bytes=request.granule_bytes)


def profile_trace(request: TraceOptions, path: str | Path) -> ProfileFields:
    """Return the profile of a step with the seconds that a file of `torch.profiler` says of each operation."""
    step, recording = _record(request)
    trace = ProfilerTrace.load(path, recording.operations)
    seconds, others, steps = trace.operation_seconds(recording.operations, recording.parts["backward"][1])
    profile = request.profile(step, recording, seconds)
    return replace(profile, origin="measured", framework_seconds=others, step_seconds=steps)


def _first_samples(sample: Any, batch: int, size: int) -> Any:
    """Return the first `size` samples: of every tensor whose first dimension is the batch."""

    def first(leaf: Any) -> Any:
        batched = isinstance(leaf, torch.Tensor) and leaf.dim() and leaf.shape[0] == batch
        return leaf[:size].clone() if batched else leaf

    return tree_map(first, sample)


def _chain_signature(profile: ProfileFields) -> list[tuple[int, list[tuple[str, str]]]]:
    return [(block.count, [(layer.name, layer.kind) for layer in block.layers]) for block in profile.blocks]


def _with_smaller(profile: ProfileFields, smaller: Sequence[ProfileFields]) -> ProfileFields:
    """Return a profile with the seconds of those of smaller batches, whose chains are equal."""
    blocks = []
    for place, block in enumerate(profile.blocks):
        others = [other.blocks[place].layers for other in smaller]
        layers = tuple(
            replace(
                layer,
                smaller_forward_seconds=tuple(other[i].forward_seconds or 0.0 for other in others),
                smaller_backward_seconds=tuple(other[i].backward_seconds or 0.0 for other in others),
            )
            for i, layer in enumerate(block.layers)
        )
        blocks.append(replace(block, layers=layers))
    return replace(
        profile,
        blocks=tuple(blocks),
        smaller_batches=tuple(other.batch for other in smaller),
        smaller_framework_seconds=tuple(other.framework_seconds for other in smaller),
    )


def _time_whole_step(request: TraceOptions, warmup: int, repeats: int, clock: Clock) -> float:
    """Return the seconds of a forward and backward pass of the whole model, which adds to the gradients there are."""
    step = request.step(fake=False)

    def once() -> None:
        step.forward()
        step.backward()
        step.result = None

    return fastest(once, warmup=warmup, repeats=repeats, clock=clock, error=ProfileError)


def _optimizer_name(optimizer: str | MakeOptimizer | None) -> str:
    if optimizer is None or isinstance(optimizer, str):
        return optimizer or ""
    return getattr(optimizer, "__name__", type(optimizer).__name__)
