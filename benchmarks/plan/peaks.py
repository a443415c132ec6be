"""Peaks of traced models beside what torch's allocator lends in real training steps on this processor.

Each configuration (model, batch, optimizer, precision) is traced without running a kernel; then a training loop,
written as anybody writes one and apart from the tracer, takes real steps. Of the second the events of the allocator are
added up, which also sees what kernels take and give back inside an operation; what it held before is counted by hand. A
verdict "fits" is false if the real step needs more than the predicted peak and the margin of `judge`.
"""

import json
import os
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import Any

import torch
from benchmarks.plan.peak_models import MODELS
from torch import Tensor, nn

from trainwright.model.profile import Profile
from trainwright.plan.verdict import MARGIN

__all__ = ["CONFIGURATIONS", "HALF_RECURRENT", "MARGIN", "Configuration", "Row", "measure", "row_of"]

OPTIMIZERS: dict[str, Callable[[Iterator[nn.Parameter]], torch.optim.Optimizer]] = {
    "sgd": lambda parameters: torch.optim.SGD(parameters, lr=1e-4),
    "momentum": lambda parameters: torch.optim.SGD(parameters, lr=1e-4, momentum=0.9),
    "adamw": lambda parameters: torch.optim.AdamW(parameters, lr=1e-4),
}


@dataclass(frozen=True, kw_only=True)
class Configuration:
    """A model of the zoo, samples in the batch, an optimizer and a precision."""

    model: str
    batch: int
    optimizer: str
    precision: str


@dataclass(frozen=True)
class Row:
    """Peak bytes of a configuration's step: predicted, and the allocator's."""

    configuration: Configuration
    predicted_bytes: int
    allocator_bytes: int

    @property
    def error(self) -> float:
        """Relative error of the prediction."""
        return self.predicted_bytes / self.allocator_bytes - 1

    @property
    def false_fit(self) -> bool:
        """Whether a budget exists that the verdict takes for enough and the step breaks."""
        return self.predicted_bytes * (1 + MARGIN) < self.allocator_bytes


_SLOW = frozenset({"alexnet", "cosmoflow", "densenet", "inception", "resnet18", "resnet50", "unet", "vgg16"})
"""Models that take minutes in half precision on this processor."""
_RECURRENT = frozenset({"recurrent", "LSTM wide", "LSTM both ways"})
HALF_RECURRENT = torch.backends.cpu.get_cpu_capability().startswith("AVX512")
"""Whether torch can run an LSTM under autocast here: oneDNN has none in bf16 without AVX-512."""
CONFIGURATIONS = [
    Configuration(model=model, batch=8, optimizer="adamw", precision=precision)
    for model in MODELS
    for precision in ("fp32", "amp-bf16")
    if precision == "fp32" or not (model in _SLOW or (model in _RECURRENT and not HALF_RECURRENT))
]


def measure(configurations: list[Configuration] | None = None, kept: Path | None = None) -> dict[str, Any]:
    """Return the rows of all configurations, their errors and the number of false verdicts.

    Rows that an interrupted run has left in the file `kept` are not measured again.
    """
    known = {}
    if kept is not None and kept.exists():
        known = {tuple(row[0].values()): row[1:] for row in map(json.loads, kept.read_text().splitlines())}
    rows = []
    for one in configurations or CONFIGURATIONS:
        sizes = known.get(tuple(asdict(one).values()))
        row = row_of(one) if sizes is None else Row(one, *sizes)
        rows.append(row)
        if kept is not None and sizes is None:
            with kept.open("a") as file:
                file.write(json.dumps([asdict(one), row.predicted_bytes, row.allocator_bytes]) + "\n")
    return {
        "configurations": len(rows),
        "models": len({row.configuration.model for row in rows}),
        "peak_error_median": median(abs(row.error) for row in rows),
        "peak_error_worst": max(abs(row.error) for row in rows),
        "below_worst": max(0.0, -min(row.error for row in rows)),
        "false_fits": sum(row.false_fit for row in rows),
        "rows": [
            asdict(row.configuration)
            | {"predicted_bytes": row.predicted_bytes, "allocator_bytes": row.allocator_bytes, "error": row.error}
            for row in rows
        ],
    }


def row_of(configuration: Configuration) -> Row:
    """Trace a configuration, then train with it for two steps."""
    torch.manual_seed(0)
    make, sample = MODELS[configuration.model]
    model, batch = make().train(), sample(configuration.batch)
    traced = Profile.trace(
        model, batch, loss=_loss, optimizer=configuration.optimizer, precision=configuration.precision
    )
    assert traced.peak_bytes is not None
    return Row(
        configuration=configuration,
        predicted_bytes=traced.peak_bytes + traced.workspace_bytes,
        allocator_bytes=_train(model, batch, configuration),
    )


def _loss(model: nn.Module, batch: tuple[Tensor, ...]) -> Tensor:
    out: Tensor = model(*batch)
    return out.float().square().mean()


def _train(model: nn.Module, batch: tuple[Tensor, ...], configuration: Configuration) -> int:
    """Return the peak bytes of a second training step by the allocator's events."""
    optimizer = OPTIMIZERS[configuration.optimizer](model.parameters())

    def step() -> None:
        with torch.autocast("cpu", torch.bfloat16, enabled=configuration.precision == "amp-bf16"):
            value = _loss(model, batch)
        value.backward()
        optimizer.step()
        optimizer.zero_grad()

    step()
    state = [value for states in optimizer.state.values() for value in states.values() if isinstance(value, Tensor)]
    return _allocated(step, [*model.parameters(), *model.buffers(), *batch, *state])


def _allocated(step: Callable[[], None], held: list[Tensor]) -> int:
    os.environ.setdefault("KINETO_LOG_LEVEL", "5")  # read when the profiler is first used
    storages = {tensor.untyped_storage().data_ptr(): tensor.untyped_storage().nbytes() for tensor in held}
    activity = torch.profiler.ProfilerActivity.CPU
    with torch.profiler.profile(activities=[activity], profile_memory=True, acc_events=True) as profiler:
        step()
    results = profiler.profiler.kineto_results
    events = [event for event in results.events() if event.name() == "[memory]"]
    live = peak = 0
    for event in sorted(events, key=lambda event: event.start_ns()):
        live += event.nbytes()
        peak = max(peak, live)
    return peak + sum(storages.values())
