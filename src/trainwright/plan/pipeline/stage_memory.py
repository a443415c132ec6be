"""What a pipeline's stage holds: weights by scheme, what micro-batches in flight have saved, buffers of its borders."""

from dataclasses import dataclass
from typing import Literal

from trainwright.errors import PipelineError
from trainwright.model.chain import Chain
from trainwright.validators import check, one_of

__all__ = [
    "PATTERNS",
    "PLANNED",
    "SCHEDULES",
    "Schedule",
    "StageHolding",
    "WeightBytes",
    "check_schedule",
    "in_flight",
    "stage_bytes",
    "stage_holding",
]

Schedule = Literal["gpipe", "1f1b", "interleaved", "zero-bubble"]
SCHEDULES = ("gpipe", "1f1b", "interleaved", "zero-bubble")
PATTERNS = ("1f1b-star", "madpipe")
"""Orders that are patterns of a period (1F1B*, MadPipe), which have placements of their own."""
PLANNED = ("auto", *SCHEDULES, *PATTERNS)
"""Schedules that a plan may be for."""


@dataclass(frozen=True, kw_only=True, slots=True)
class WeightBytes:
    """Copies of the parameters' bytes that a stage holds, and a divisor where others share them (ZeRO)."""

    copies: float = 2.0
    """Flush schedules 2 (weight and gradient), weight stashing 3; an optimizer adds its own (Adam 2 in fp32)."""
    shared_by: int = 1


def check_schedule(name: str, known: tuple[str, ...] = SCHEDULES) -> None:
    """Raise PipelineError for an unknown schedule."""
    check(name, one_of(*known), "schedule", PipelineError)


def in_flight(schedule: str, *, stage: int, stages: int, microbatches: int) -> int:
    """Return the micro-batches whose saved values a stage (from 0) holds at its worst, one chunk a stage."""
    check_schedule(schedule)
    return microbatches if schedule == "gpipe" else min(microbatches, stages - stage)


@dataclass(frozen=True, kw_only=True, slots=True)
class StageHolding:
    """Bytes of a stage that recomputes nothing: always there, of each micro-batch in flight, while a backward runs."""

    fixed: int
    """Weights, and the buffers to receive and send on both borders (two each)."""
    each: int
    """Saved values and the input."""
    temporary: int
    """The largest temporaries of a backward, which stages of one device need one at a time."""


def stage_holding(chain: Chain, first: int, last: int, *, weights: WeightBytes) -> StageHolding:
    """Return what layers first..last (from 1) hold; the loss is one more layer."""
    layers = chain.steps[first - 1 : last]
    borders = 2 * (input_bytes(chain, first) + (layers[-1].output_bytes if last < len(chain.stages) else 0))
    return StageHolding(
        fixed=weight_bytes(chain, first, last, weights) + borders,
        each=sum(layer.saved_bytes for layer in layers) + input_bytes(chain, first),
        temporary=max(0, *(layer.backward_temporary_bytes for layer in layers)),
    )


def stage_bytes(chain: Chain, first: int, last: int, *, flying: int, weights: WeightBytes) -> int:
    """Return the peak bytes of layers first..last (from 1) with `flying` micro-batches, nothing recomputed."""
    held = stage_holding(chain, first, last, weights=weights)
    return held.fixed + flying * held.each + held.temporary


def weight_bytes(chain: Chain, first: int, last: int, weights: WeightBytes) -> int:
    """Return the bytes of parameters, gradients and optimizer state of layers first..last."""
    parameters = sum(layer.parameter_bytes for layer in chain.steps[first - 1 : last])
    return int(-(-weights.copies * parameters // weights.shared_by))


def input_bytes(chain: Chain, first: int) -> int:
    """Return the bytes that the stage that begins at a layer receives; none for the first, whose input is loaded."""
    return chain.steps[first - 2].output_bytes if first > 1 else 0
