"""Memory plans on the accelerator: peaks by its allocator, gradients, overhead, copies beside work, largest batch."""

import argparse
import itertools
from collections.abc import Callable
from typing import Any

import torch
from benchmarks._report import progress
from benchmarks.gpu._training import Subject, peak_of, seconds_of, subjects
from torch import nn

from trainwright import memory
from trainwright.errors import InputError
from trainwright.plan.memory.planning import full_bytes, minimal_bytes
from trainwright.train.parallel.recompute.fitting import chain_of

__all__ = ["run"]

_SHARES = (1.0, 0.7, 0.5, 0.35, 0.0)
_CAPS = (16e9, 24e9, 40e9)
_ROOM = 0.04  # of a cap, for the allocator's fragments and the libraries' workspaces


def run(options: argparse.Namespace) -> dict[str, Any]:
    """Carry plans out; on CUDA, then look for the largest batch."""
    torch.backends.cudnn.benchmark = False
    torch.backends.cudnn.deterministic = True
    rows = []
    for name, make in subjects(options.device, quick=options.quick).items():
        rows += _budgets(name, make, options)
        if options.device == "cuda":
            torch.cuda.empty_cache()
    batches = {} if options.device == "cpu" else _largest(options)
    known = [row for row in rows if row["measured_bytes"]]
    copying = [row for row in rows if row["copy_seconds"]]
    return {
        "summary": {
            "gpu_gradient_mismatches": sum(row["gradient_mismatches"] for row in rows),
            "gpu_violations": sum(row["measured_bytes"] > row["budget_bytes"] for row in known),
            "gpu_peak_error_worst": max(
                (abs(row["predicted_bytes"] / row["measured_bytes"] - 1) for row in known), default=None
            ),
            "gpu_overhead_worst": max(row["overhead"] for row in rows if not row["copy_seconds"]),
            "gpu_overhead_of_copies_worst": max((row["overhead"] for row in copying), default=None),
            "gpu_copies_hidden_least": min((row["copies_hidden"] for row in copying), default=None),
            **{f"gpu_largest_batch_{name}": found for name, found in batches.items()},
        },
        "rows": rows,
    }


def _budgets(name: str, make: Callable[[], Subject], options: argparse.Namespace) -> list[dict[str, Any]]:
    model, batch = make()
    chain = chain_of(model, batch)
    full, least = full_bytes(chain), minimal_bytes(chain)
    repeats = 2 if options.quick else 10
    expected = _gradients(model, batch)
    plain = seconds_of(lambda: _step(model, batch), options.device, repeats)
    link = memory.measure_link(options.device, size=1 << (20 if options.quick else 28))
    rows = []
    for budget, offload in itertools.product(
        dict.fromkeys(max(int(share * full), least) for share in _SHARES), (False, True)
    ):
        progress(f"recomputing: {name}, {budget / full:.2f} of {full} bytes, copies: {offload}")
        plan = memory.plan(chain, budget=budget, offload=offload, bandwidth=link)
        planned = memory.apply(model, plan)
        found = _gradients(planned, batch)
        seconds = seconds_of(lambda: _step(planned, batch), options.device, repeats)  # noqa: B023 -- called now
        simulation = plan.simulation
        busy = {"compute": 0.0, "to host": 0.0, "to device": 0.0}
        for each in simulation.spans:
            busy[each.lane] += each.end_seconds - each.start_seconds
        copying = busy["to host"] + busy["to device"]
        # What a step takes beyond its work, told by what the plain step takes beside its plan, waits for copies.
        waiting = max(0.0, seconds - plain * busy["compute"] * (1 + plan.overhead) / simulation.seconds)
        rows.append(
            {
                "model": name,
                "budget_bytes": budget,
                "budget_share": budget / full,
                "predicted_bytes": plan.peak_bytes,
                "measured_bytes": peak_of(lambda: _step(planned, batch), options.device),  # noqa: B023
                "planned_overhead": plan.overhead,
                "overhead": seconds / plain - 1,
                "copy_seconds": copying,
                "copies_hidden": 1 - min(1.0, waiting / copying) if copying else None,
                "gradient_mismatches": sum(
                    not torch.equal(one, other) for one, other in zip(expected, found, strict=True)
                ),
            }
        )
        model.zero_grad()
    return rows


def _largest(options: argparse.Namespace) -> dict[str, dict[str, int]]:
    """Return, by cap and model, the largest batch that trains as it is and within a plan: powers of the root of 2."""
    total = torch.cuda.get_device_properties(0).total_memory
    found: dict[str, dict[str, int]] = {}
    for cap in _CAPS[:1] if options.quick else _CAPS:
        torch.cuda.set_per_process_memory_fraction(min(1.0, cap / total))
        for name in subjects(options.device, quick=options.quick):
            sizes = {}
            for way in ("plain", "planned"):
                power = 0
                while power < 20 and (rows := _trains(name, way, 2 ** (power / 2), cap, options)):
                    sizes[way], power = rows, power + 1
            found[f"{name}_{cap / 1e9:.0f}gb"] = sizes
            progress(f"recomputing: {name} within {cap / 1e9:.0f} GB: {sizes}")
    torch.cuda.set_per_process_memory_fraction(1.0)
    return found


def _trains(name: str, way: str, scale: float, cap: float, options: argparse.Namespace) -> int:
    """Return the samples of a batch if a step with it can be trained within a cap, else 0."""
    torch.cuda.empty_cache()
    try:
        model, batch = subjects(options.device, quick=options.quick, scale=scale)[name]()
        trained = model if way == "plain" else memory.fit(model, batch, budget=(1 - _ROOM) * cap)
        for _ in range(2):
            _step(trained, batch)
    except (torch.cuda.OutOfMemoryError, InputError):
        return 0
    return len(batch)


def _step(model: nn.Module, batch: torch.Tensor) -> None:
    model.zero_grad()
    model(batch).float().square().mean().backward()


def _gradients(model: nn.Module, batch: torch.Tensor) -> list[torch.Tensor]:
    torch.manual_seed(1)
    _step(model, batch)
    found = [torch.zeros(()) if each.grad is None else each.grad.clone() for each in model.parameters()]
    model.zero_grad()
    return found
