"""Measures the inference cost of a member: seconds per row at a fixed batch, parameters and bytes; adds up members."""

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from trainwright.ensemble.metrics import Array
from trainwright.errors import EnsembleError
from trainwright.randomness import rng

if TYPE_CHECKING:
    import torch

__all__ = [
    "BATCH_ROWS",
    "MemberCost",
    "evaluation_mode",
    "make_batch",
    "measure",
    "measure_callable",
    "sample_rows",
    "time_calls",
    "time_quartiles",
    "unwrap_ddp",
]

BATCH_ROWS = 128
_WARM_UP, _ENOUGH_SECONDS = 3, 0.2  # calls before, and seconds of timed calls
_LEAST_ROUNDS, _MOST_ROUNDS = 5, 200


@dataclass(frozen=True, kw_only=True, slots=True)
class MemberCost:
    """One model's footprint and, if a sample was given, its measured time for one batch on one kind of device."""

    parameter_count: int | None  # None of what is no torch module
    weight_bytes: int | None  # parameters and buffers, or the files that are kept instead
    device: str  # "cpu" or the accelerator's name
    rows: int = BATCH_ROWS
    seconds: float | None = None  # median for one batch of `rows`
    input_shape: tuple[int, ...] | None = None  # of one row of the sample
    input_dtype: str | None = None


def measure_callable(
    predict: Callable[[Array], Array], sample: object | Callable[[], object] | None, weight_bytes: int | None
) -> MemberCost:
    """Measure what predicts arrays on the CPU; see `measure`. Floats of the sample are handed on as float32."""
    timing: dict[str, Any] = {}
    if sample is not None:
        rows = sample_rows(sample)
        timing = {
            "seconds": _time_call(lambda: predict(rows)),
            "input_shape": tuple(rows.shape[1:]),
            "input_dtype": rows.dtype.name,
        }
    return MemberCost(parameter_count=None, weight_bytes=weight_bytes, device="cpu", **timing)


def sample_rows(sample: object | Callable[[], object]) -> Array:
    """Return a sample as an array of 128 rows; floats as float32."""
    import torch

    return np.asarray(make_batch(sample, torch.device("cpu"), torch.float32).numpy())


def measure(model: object, sample: object | Callable[[], object] | None) -> MemberCost:
    """Measure a torch module in evaluation mode without gradients; its modes and the random state are put back.

    `sample` is a batch [rows, ...] (tensor or array; tiled or cut to 128 rows, moved to the model's device) or a
    function that returns one. Without it only parameters and bytes are counted.
    """
    import torch

    if not isinstance(model, torch.nn.Module):
        raise EnsembleError(f"leave, model: got {type(model).__name__}; allowed: a torch.nn.Module, or None")
    module = unwrap_ddp(model)
    tensors = [*module.parameters(), *module.buffers()]
    # A network without parameters is timed where torch makes tensors by default.
    first = next(module.parameters(), None)
    device = torch.device("cpu") if first is None else first.device
    dtype = torch.get_default_dtype() if first is None else first.dtype
    timing: dict[str, Any] = {}
    if sample is not None:
        batch = make_batch(sample, device, dtype)
        timing = {
            "seconds": _time_module(module, batch, device),
            "input_shape": tuple(batch.shape[1:]),
            "input_dtype": str(batch.dtype).removeprefix("torch."),
        }
    return MemberCost(
        parameter_count=sum(tensor.numel() for tensor in module.parameters()),
        weight_bytes=sum(tensor.numel() * tensor.element_size() for tensor in tensors),
        device=torch.cuda.get_device_name(device) if device.type == "cuda" else device.type,
        **timing,
    )


def unwrap_ddp(model: "torch.nn.Module") -> "torch.nn.Module":
    """Return the module inside a data-parallel wrapper, whose forward would speak to other ranks."""
    import torch

    while isinstance(model, torch.nn.parallel.DistributedDataParallel):
        model = model.module
    return model


@contextmanager
def evaluation_mode(model: "torch.nn.Module") -> Iterator[None]:
    """Hold a module in evaluation mode; afterwards each of its modules is in its own mode again."""
    modes = [(module, module.training) for module in model.modules()]  # one by one: some may be frozen in evaluation
    try:
        model.eval()
        yield
    finally:
        for module, training in modes:
            module.training = training


def make_batch(sample: object | Callable[[], object], device: "torch.device", dtype: "torch.dtype") -> "torch.Tensor":
    """Return a sample, or what the function of it returns, as a batch of 128 rows on a device; floats in `dtype`."""
    import torch

    sample = sample() if callable(sample) else sample
    if isinstance(sample, torch.Tensor):
        batch = sample.detach()
    elif isinstance(sample, np.ndarray):
        batch = torch.as_tensor(sample)
        batch = batch.to(dtype) if batch.is_floating_point() else batch  # numpy's float64 is hardly ever the model's
    else:
        raise EnsembleError(
            f"leave, sample: got {type(sample).__name__}; allowed: a tensor, an array, or a function of one"
        )
    if batch.ndim == 0 or len(batch) == 0:
        raise EnsembleError(f"leave, sample: got shape {tuple(batch.shape)}; allowed: a batch of at least one row")
    return batch[torch.arange(BATCH_ROWS, device=batch.device) % len(batch)].to(device)


def _time_module(model: "torch.nn.Module", batch: "torch.Tensor", device: "torch.device") -> float:
    import torch

    def call() -> None:
        model(batch)
        # Kernels run asynchronously on accelerators; without this only their launch would be timed.
        if device.type != "cpu":
            torch.accelerator.synchronize(device)

    # Dropout or sampling layers may draw numbers; the trial's own random state is put back.
    forked = [device] if device.type == "cuda" else []
    with evaluation_mode(model), torch.no_grad(), torch.random.fork_rng(forked):  # must not shift the trial's own draws
        return _time_call(call)


def _time_call(call: Callable[[], object]) -> float:
    for _ in range(_WARM_UP):
        call()
    return time_calls([call], _ENOUGH_SECONDS)[0]


def time_calls(
    calls: Sequence[Callable[[], object]], seconds: float, clock: Callable[[], float] = time.perf_counter
) -> list[float]:
    """Return the median seconds of each call; see `time_quartiles`."""
    return [median for _, median, _ in time_quartiles(calls, seconds, clock)]


def time_quartiles(
    calls: Sequence[Callable[[], object]], seconds: float, clock: Callable[[], float] = time.perf_counter
) -> list[tuple[float, float, float]]:
    """Return the quartiles of each call's seconds, over rounds that take so many seconds in all; 5 to 200 rounds.

    A disturbance of the machine affects all calls alike, because each round calls them in an order of its own.
    """
    found: list[list[float]] = [[] for _ in calls]
    begun = clock()
    for number in range(_MOST_ROUNDS):
        if number >= _LEAST_ROUNDS and clock() - begun > seconds:
            break
        # Else what comes and goes hits the same.
        for place in rng(0, "timing", number).permutation(len(calls)):
            started = clock()
            calls[place]()
            found[place].append(clock() - started)
    return [tuple(map(float, np.quantile(one, (0.25, 0.5, 0.75)))) for one in found]  # type: ignore[misc]
