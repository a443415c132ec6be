"""Peaks of traced models beside those of real training steps on this processor: tracked bytes, and the allocator's.

Each configuration (model, batch, optimizer, precision) is traced without running a kernel; then a training loop,
written as anybody writes one and apart from the tracer, takes real steps. Its second step is tracked by storage, its
third by the events of torch's allocator, which also sees what kernels take and give back inside an operation; what the
allocator held before is counted by hand. A verdict "fits" is false if the real step needs more than the traced peak
and its margin of 3 %.
"""

import os
import sys
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from trainwright.model.profile import Profile
from trainwright.model.trace.storages import StorageTracker

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "examples"))

from models import alexnet, cosmoflow, densenet, gpt, inception, mlp, resnet, unet, vgg, vit

__all__ = ["CONFIGURATIONS", "MARGIN", "Configuration", "Row", "measure", "row_of"]

MARGIN = 0.03
MODELS: dict[str, tuple[Callable[[], nn.Module], Callable[[int], tuple[Tensor, ...]]]] = {
    "alexnet": (lambda: alexnet.alexnet(10, hidden=256), lambda n: alexnet.sample(n, 96)),
    "cosmoflow": (lambda: cosmoflow.cosmoflow(16, width=8), lambda n: cosmoflow.sample(n, 16)),
    "densenet": (densenet.densenet_small, lambda n: densenet.sample(n, 64)),
    "gpt": (lambda: gpt.gpt("tiny", vocabulary=997, length=64), lambda n: gpt.sample(n, 64, 997)),
    "inception": (lambda: inception.inception(10, width=4), lambda n: inception.sample(n, 64)),
    "mlp": (lambda: mlp.mlp(256, 512, 4, dropout=0.1), lambda n: mlp.sample(8 * n, 256)),
    "resnet18": (lambda: resnet.resnet18(10, width=16), lambda n: resnet.sample(n, 64)),
    "resnet50": (lambda: resnet.resnet50(10, width=16), lambda n: resnet.sample(n, 64)),
    "unet": (lambda: unet.unet(width=8, levels=2), lambda n: unet.sample(n, 64)),
    "vgg16": (lambda: vgg.vgg16(10, width=8, hidden=128), lambda n: vgg.sample(n, 64)),
    "vit": (lambda: vit.vit_tiny(32), lambda n: vit.sample(n, 32)),
}
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


@dataclass(frozen=True, kw_only=True)
class Row:
    """Peak bytes of a configuration's step: traced, tracked in a real one, and the allocator's."""

    configuration: Configuration
    traced_bytes: int
    tracked_bytes: int
    allocator_bytes: int

    @property
    def error(self) -> float:
        """Relative error of the traced peak."""
        return abs(self.traced_bytes / self.tracked_bytes - 1)

    @property
    def false_fit(self) -> bool:
        """Whether a budget exists that the verdict takes for enough and the step breaks."""
        return self.traced_bytes * (1 + MARGIN) < self.tracked_bytes


WAYS = (("sgd", "fp32"), ("momentum", "bf16"), ("adamw", "fp32"), ("adamw", "amp-bf16"))
CONFIGURATIONS = [
    Configuration(model=model, batch=batch, optimizer=optimizer, precision=precision)
    for model in MODELS
    for batch in (2, 8)
    for optimizer, precision in (WAYS if batch == 8 else WAYS[::2])
]


def measure(configurations: list[Configuration] | None = None) -> dict[str, Any]:
    """Return the rows of all configurations, the worst errors and the numbers of false verdicts."""
    rows = [row_of(configuration) for configuration in configurations or CONFIGURATIONS]
    below = [row.traced_bytes / row.allocator_bytes - 1 for row in rows]
    return {
        "configurations": len(rows),
        "peak_error_worst": max(row.error for row in rows),
        "false_fits": sum(row.false_fit for row in rows),
        "allocator_below_worst": -min(below),
        "allocator_false_fits": sum(row.traced_bytes * (1 + MARGIN) < row.allocator_bytes for row in rows),
        "rows": [
            asdict(row.configuration)
            | {
                "traced_bytes": row.traced_bytes,
                "tracked_bytes": row.tracked_bytes,
                "allocator_bytes": row.allocator_bytes,
                "error": row.error,
            }
            for row in rows
        ],
    }


def row_of(configuration: Configuration) -> Row:
    """Trace a configuration, then train with it for three steps."""
    torch.manual_seed(0)
    make, sample = MODELS[configuration.model]
    model, batch = make(), sample(configuration.batch)
    traced = Profile.trace(
        model, batch, loss=_loss, optimizer=configuration.optimizer, precision=configuration.precision
    )
    tracked, allocator = _train(model, batch, configuration)
    assert traced.peak_bytes is not None
    return Row(
        configuration=configuration,
        traced_bytes=traced.peak_bytes,
        tracked_bytes=tracked,
        allocator_bytes=allocator,
    )


def _loss(model: nn.Module, batch: tuple[Tensor, ...]) -> Tensor:
    out: Tensor = model(*batch)
    return out.float().square().mean()


def _train(model: nn.Module, batch: tuple[Tensor, ...], configuration: Configuration) -> tuple[int, int]:
    """Return the peak bytes of a second training step by storage, and of a third by the allocator's events."""
    if configuration.precision == "bf16":
        model = model.bfloat16()
        batch = tuple(x.bfloat16() if x.is_floating_point() else x for x in batch)
    optimizer = OPTIMIZERS[configuration.optimizer](model.parameters())

    def step() -> None:
        with torch.autocast("cpu", torch.bfloat16, enabled=configuration.precision == "amp-bf16"):
            value = _loss(model, batch)
        value.backward()
        optimizer.step()
        optimizer.zero_grad()

    step()
    state = [value for states in optimizer.state.values() for value in states.values() if isinstance(value, Tensor)]
    held = [*model.parameters(), *model.buffers(), *batch, *state]
    tracker = StorageTracker()
    tracker.watch(held, "held")
    with tracker:
        step()
    return tracker.peak_bytes, _allocated(step, held)


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
