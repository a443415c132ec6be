"""Memory plans on the accelerator: peaks by its allocator, gradients, overhead, copies beside work, largest batch.

And beside four ways by hand: `torch.utils.checkpoint` around every block, around every second one, by its selective
contexts that keep matrix products, convolutions and attention, and `save_on_cpu` with pinned memory. The plan's budget
is then the peak that the way by hand had.
"""

import argparse
import itertools
import statistics
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from benchmarks._report import progress
from benchmarks.gpu._training import Subject, peak_of, reserved_peak, seconds_of, subjects
from torch import nn
from torch.utils.checkpoint import CheckpointPolicy, checkpoint, create_selective_checkpoint_contexts

from trainwright import memory
from trainwright.errors import InputError
from trainwright.plan.memory.planning import full_bytes, minimal_bytes
from trainwright.train.parallel.recompute.measure import measure_chain

__all__ = ["run"]

_SHARES = (1.0, 0.6, 0.4, 0.0)
_CAPS = (16e9, 40e9)
_WAYS = ("every block", "every second block", "selective", "save_on_cpu")
_ROOM = 0.04  # of a cap, for the allocator's fragments and the libraries' workspaces


def run(options: argparse.Namespace) -> dict[str, Any]:
    """Carry plans out; on CUDA, then look for the largest batch."""
    torch.backends.cudnn.benchmark = False
    torch.backends.cudnn.deterministic = True
    rows: list[dict[str, Any]] = []
    by_hand: list[dict[str, Any]] = []
    for name, make in subjects(options.device, quick=options.quick).items():
        rows += _budgets(name, make, options)
        by_hand += _by_hand(name, make, options)
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
            "gpu_plan_over_hand_worst": max(
                (row["plan_seconds"] / row["seconds"] for row in by_hand if row["plan_seconds"]), default=None
            ),
            **{f"gpu_largest_batch_{name}": found for name, found in batches.items()},
        },
        "rows": rows,
        "by_hand": by_hand,
    }


def _budgets(name: str, make: Callable[[], Subject], options: argparse.Namespace) -> list[dict[str, Any]]:
    model, batch = make()
    chain = measure_chain(model, batch)
    full, least = full_bytes(chain), minimal_bytes(chain)
    repeats = 2 if options.quick else 5
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
                "reserved_bytes": reserved_peak(options.device),
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


def _by_hand(name: str, make: Callable[[], Subject], options: argparse.Namespace) -> list[dict[str, Any]]:
    """Train as people write it by hand, and by a plan within the peak that this had; in turns."""
    repeats = 2 if options.quick else 5
    rows = []
    for way in _WAYS:
        progress(f"recomputing: {name}, by hand: {way}")
        model, batch = make()
        chain = measure_chain(model, batch)
        act = partial(_step_by_hand, way, model, batch)
        peak = peak_of(act, options.device) if options.device == "cuda" else minimal_bytes(chain)
        seconds = seconds_of(act, options.device, repeats)
        row = {"model": name, "way": way, "measured_bytes": peak, "reserved_bytes": reserved_peak(options.device)}
        try:
            link: dict[str, Any] = {"offload": True, "bandwidth": memory.measure_link(options.device, size=1 << 26)}
            plan = memory.plan(chain, budget=peak, **(link if way == "save_on_cpu" else {}))
            planned = memory.apply(model, plan)
        except InputError as error:
            rows.append({**row, "seconds": seconds, "plan_seconds": None, "why": str(error)})
            continue
        planned_act = partial(_step, planned, batch)
        ours = seconds_of(planned_act, options.device, repeats)
        seconds, ours = (
            statistics.median((seconds, seconds_of(act, options.device, repeats))),
            statistics.median((ours, seconds_of(planned_act, options.device, repeats))),
        )
        rows.append(
            {**row, "seconds": seconds, "plan_seconds": ours, "plan_bytes": peak_of(planned_act, options.device)}
        )
    return rows


def _step_by_hand(way: str, model: nn.Module, batch: torch.Tensor) -> None:
    """Take a step with activations kept as one of the ways does."""
    if way == "save_on_cpu":
        with torch.autograd.graph.save_on_cpu(pin_memory=batch.is_cuda):
            _step(model, batch)
        return
    settings: dict[str, Any] = {"use_reentrant": False}
    if way == "selective":
        settings["context_fn"] = partial(create_selective_checkpoint_contexts, _policy)
    sites = [child for part in model.modules() if isinstance(part, nn.Sequential)
             for child in part if any(True for _ in child.children())]  # fmt: skip
    chosen = sites[:: 2 if way == "every second block" else 1]
    for site in chosen:
        site.forward = partial(checkpoint, type(site).forward.__get__(site), **settings)
    try:
        _step(model, batch)
    finally:
        for site in chosen:
            del site.forward


def _policy(_: object, operation: object, *__: object, **___: object) -> CheckpointPolicy:
    name = str(operation)
    kept = any(part in name for part in ("mm.", "convolution.", "scaled_dot_product", "addmm"))
    return CheckpointPolicy.MUST_SAVE if kept else CheckpointPolicy.PREFER_RECOMPUTE


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
