"""Compiled steps within budgets, beside torch's own knob (`torch._functorch.config.activation_memory_budget`).

The knob is a share of what forward saves, not of the peak: each setting is compiled and its peak of live allocations
measured. That peak is then our budget. Peaks are seen at the allocator, for both alike; steps are timed in turns, in
seconds of the processor, overheads are over the compiled step without a budget. Last, the least peak that our search
finds, where no setting of the knob goes. One thread; `aot_eager` runs the same graphs operation by operation, for
machines without a C++ compiler.
"""

import functools
import statistics
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
import torch._functorch.config as functorch_config
from benchmarks._report import progress, table
from benchmarks.memory.turns import over, seconds_in_turns
from torch import nn

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "examples"))

from models import gpt, resnet
from trainwright import memory
from trainwright.errors import InfeasibleBudget
from trainwright.memory.compiled_plan import Compiler
from trainwright.memory.execute.allocated import allocated_bytes
from trainwright.memory.execute.counted import total_bytes
from trainwright.memory.execute.measure import train_once

__all__ = ["HEADER", "MODELS", "compare", "row_of", "show", "summary_of"]

_KNOBS = (0.7, 0.5, 0.3, 0.15, 0.0)
_TRIES = 4

HEADER = ("model", "torch's budget", "peak", "ours", "overhead", "ours", "ours / torch, seconds (95 %)")


def _mlp() -> tuple[nn.Module, torch.Tensor]:
    rows = [(nn.Linear(256, 256), nn.BatchNorm1d(256), nn.GELU(), nn.Dropout(0.1)) for _ in range(8)]
    return nn.Sequential(*(layer for row in rows for layer in row)), torch.randn(2048, 256)


MODELS: dict[str, Callable[[], tuple[nn.Module, torch.Tensor]]] = {
    "MLP": _mlp,
    "GPT": lambda: (gpt.GPT((4, 4, 128), 1000, 128, dropout=0.1), torch.randint(1000, (8, 128))),
    "ResNet-18": lambda: (resnet.resnet18(10, 16), torch.randn(8, 3, 128, 128)),
}


def compare(names: Sequence[str], turns: int, compiler: Compiler) -> Iterator[dict[str, Any]]:
    """Yield a record per model and setting of the knob, and one for the least peak."""
    torch.set_num_threads(1)
    for name in names:
        torch.manual_seed(0)
        model, batch = MODELS[name]()
        fixed = total_bytes([*model.parameters(), *model.buffers(), batch], 64)
        free = _by_knob(model, batch, 1.0, compiler)
        full = fixed + _peak(free, model, batch)
        seen: list[tuple[int, Any, float]] = []
        for knob in _KNOBS:
            progress(f"compiled: {name}, torch's budget {knob}")
            run = _by_knob(model, batch, knob, compiler)
            seen.append((fixed + _peak(run, model, batch), run, knob))
        for peak, run, knob in seen:
            progress(f"compiled: {name}, ours within {peak} bytes")
            yield _record(name, model, batch, free, full, peak, run, knob, turns, compiler)
        try:
            memory.fit(model, batch, budget=fixed, backend="compile", compiler=compiler, tries=1)
        except InfeasibleBudget as below:
            least = below.minimal_bytes
            progress(f"compiled: {name}, the least, {least} bytes")
            yield _record(name, model, batch, free, full, least, None, None, turns, compiler)


def _record(  # noqa: PLR0917  one place where it is made
    name: str, model: nn.Module, batch: torch.Tensor, free: Any, full: int, budget: int, run: Any, knob: float | None,
    turns: int, compiler: Compiler,
) -> dict[str, Any]:  # fmt: skip
    try:
        ours = memory.fit(model, batch, budget=budget, backend="compile", compiler=compiler, tries=_TRIES)
    except InfeasibleBudget as error:
        ours, said = None, str(error)
    else:
        said = ""
    timed = {"free": free, "torch": run, "ours": ours}
    steps = {key: functools.partial(_step, each, model, batch) for key, each in timed.items() if each is not None}
    seconds = seconds_in_turns(steps, turns)
    overheads = {key: over(each, seconds["free"])[0] for key, each in seconds.items()}
    compared = None if run is None or ours is None else over(seconds["ours"], seconds["torch"])
    return {
        "model": name,
        "compiler": compiler,
        "knob": knob,
        "full_bytes": full,
        "torch_bytes": None if run is None else budget,
        "budget_bytes": budget,
        "our_bytes": None if ours is None else ours.plan.peak_bytes,
        "refusal": said,
        "torch_overhead": overheads.get("torch"),
        "our_overhead": overheads.get("ours"),
        "ratio": compared and 1 + compared[0],
        "ratio_interval": compared and tuple(1 + each for each in compared[1]),
        "seconds": {key: statistics.quantiles(each, n=4) for key, each in seconds.items()},
    }


def _by_knob(model: nn.Module, batch: torch.Tensor, knob: float, compiler: Compiler) -> Callable[..., Any]:
    """Return the model's forward as torch compiles it at a setting of its knob."""

    def forward(given: torch.Tensor) -> Any:
        return type(model).forward(model, given)

    forward.__code__ = forward.__code__.replace(co_name="free_forward")  # torch counts compilations by code
    run: Callable[..., Any] = torch.compile(forward, backend=compiler, fullgraph=True, dynamic=False)
    with functorch_config.patch(activation_memory_budget=knob):
        _step(run, model, batch)
    return run


def _peak(run: Callable[..., Any], model: nn.Module, batch: torch.Tensor) -> int:
    model.zero_grad()
    return allocated_bytes(lambda: train_once(run, batch, None), cuda=False)


def _step(run: Callable[..., Any], model: nn.Module, batch: torch.Tensor) -> None:
    model.zero_grad()
    train_once(run, batch, None)


def row_of(record: dict[str, Any]) -> tuple[str, ...]:
    """Return a record as a row under `HEADER`; peaks are shares of that without a budget."""

    def part(value: float | None, form: str) -> str:
        return "-" if value is None else format(value, form)

    ratio = record["ratio"]
    full = record["full_bytes"]
    return (
        f"{record['model']}, {record['compiler']}",
        part(record["knob"], "g"),
        "-" if record["torch_bytes"] is None else f"{record['torch_bytes'] / full:.1%}",
        "-" if record["our_bytes"] is None else f"{record['our_bytes'] / full:.1%}",
        part(record["torch_overhead"], ".1%"),
        part(record["our_overhead"], ".1%"),
        "-" if ratio is None else "{:.3f} ({:.3f} to {:.3f})".format(ratio, *record["ratio_interval"]),
    )


def show(records: Sequence[dict[str, Any]]) -> None:
    """Print the records."""
    print(table(HEADER, [row_of(record) for record in records]))


def summary_of(records: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Return the claim's numbers: times at equal peak, and how far down each goes."""
    ratios = [record["ratio"] for record in records if record["ratio"] is not None]
    least = [
        min(each["our_bytes"] for each in own if each["our_bytes"]) / min(
            each["torch_bytes"] for each in own if each["torch_bytes"])
        for name in dict.fromkeys(record["model"] for record in records)
        if (own := [each for each in records if each["model"] == name])
    ]  # fmt: skip
    return {
        "compiled_over_torch_worst": max(ratios),
        "compiled_over_torch_median": statistics.median(ratios),
        "compiled_peaks_not_kept": sum(
            record["our_bytes"] is None or record["our_bytes"] > record["budget_bytes"] for record in records
        ),
        "compiled_least_peak_over_torchs_worst": max(least),
    }
