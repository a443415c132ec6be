"""Which layouts training sets up: the oracle prices more than `trial.prepare(plan=...)` can carry out.

The rules read the layout alone, so that they hold for any model; what a model's modules do not allow is found when it
is set up.
"""

from dataclasses import fields
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from trainwright.plan.layout import Layout

__all__ = ["AGAIN", "AUTOCAST", "innermost_axis", "refusal_of"]

AGAIN = ("none", "selective", "full")
"""Recomputation that is set up."""
AUTOCAST = ("fp32", "amp-bf16")
"""Precisions that are set up."""
_BUDGETED = "data (with ZeRO if not compiled), tensor (without ZeRO) or pipeline parallelism without replicas"
_AXES = ("data", "filter", "channel", "spatial", "context", "expert", "tensor", "pipeline")
_WITH_ZERO = ("data", "tensor", "context", "expert", "pipeline", "channel")
_TOGETHER = {"tensor", "expert", "pipeline"}


def _divided_axes(layout: "Layout") -> list[str]:
    names = [field.name for field in fields(layout.degrees) if field.name != "data"]
    return [name for name in names if getattr(layout.degrees, name) > 1]


def innermost_axis(layout: "Layout") -> str:
    """Return the axis that says how a layout is set up: that beside data, of pipelines "pipeline", else "data"."""
    return (_divided_axes(layout) or ["data"])[-1]


def refusal_of(layout: "Layout") -> str:
    """Return why training does not set a layout up and what it does, "" where it does."""
    inner, name, degrees = _divided_axes(layout), innermost_axis(layout), layout.degrees
    beside = f"{name} parallelism{f' with ZeRO {layout.zero}' if layout.zero else ''}"
    both = (name == "context" and degrees.tensor > 1) or (len(inner) > 1 and degrees.expert > 1)
    # Replicas of a pipeline would each choose what to run again from times of their own.
    replicas = "replicated " if degrees.pipeline > 1 and degrees.data > 1 else ""
    # What divides tensors between layers cannot be run again by a plan.
    no_budget = (
        name not in {"data", "tensor", "pipeline"}
        or (name == "pipeline" and (layout.zero or degrees.tensor * degrees.expert > 1 or replicas))
        or (name == "tensor" and layout.zero)
        or (layout.zero and layout.compile)
    )
    rules = (
        (
            len(inner) > 1 and set(inner) != {"tensor", "context"} and not _TOGETHER.issuperset(inner),
            f"{' and '.join(inner)} together; allowed: tensor and context, or any of tensor, expert and pipeline",
        ),
        (name not in _AXES, f"there is no module for {name} parallelism; allowed: {', '.join(_AXES)}"),
        (
            layout.zero and name not in _WITH_ZERO,
            f"ZeRO {layout.zero} beside {name} parallelism; allowed: with {', '.join(_WITH_ZERO)}",
        ),
        (
            layout.zero and name == "expert" and degrees.data == 1,
            "ZeRO beside expert parallelism without data ranks; allowed: with some, over which it divides",
        ),
        (both and layout.zero, f"ZeRO {layout.zero} beside {' and '.join(inner)} parallelism; allowed: without"),
        (layout.sequence, "sequence parallelism; allowed: tensor or context parallelism without"),
        (
            layout.zero and name in {"context", "expert"} and layout.shard < degrees.data,
            f"ZeRO over {layout.shard} of {degrees.data} data ranks beside {name} parallelism; allowed: over all",
        ),
        (
            layout.memory is not None and no_budget,
            f"a memory budget beside {replicas}{beside}; allowed: {_BUDGETED}",
        ),
        (
            layout.compile and name != "data",
            f"compile={layout.compile!r} beside {beside}; allowed: on one device, and with data parallelism (ZeRO too)",
        ),
        (
            layout.schedule == "zero-bubble",
            "zero-bubble schedules, for which a backward pass is split; allowed: gpipe, 1f1b, interleaved",
        ),
        (layout.recompute not in AGAIN, f"recompute={layout.recompute!r}; allowed: {', '.join(AGAIN)}"),
        (
            layout.precision not in AUTOCAST,
            f"precision {layout.precision!r}; allowed: {', '.join(AUTOCAST)}; cast model and batches yourself",
        ),
    )
    return next((sentence for refused, sentence in rules if refused), "")
