"""Layout: what to run. Degrees of parallelism, micro-batches, recomputation, memory budget, stages and precision.

A layout is all that training reads of a plan. What it should cost, and why, is in the `Forecast` that the oracle makes
of it; a plan's file holds both, and `Layout.load` reads the layout alone.
"""

import json
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Self, TypeVar

from trainwright.errors import InputError
from trainwright.files import read_json, write_text
from trainwright.plan.parallel.mesh import RECOMPUTE, SCHEDULES
from trainwright.plan.parallel.strategies.registry import AXES
from trainwright.plan.runnable import refusal_of
from trainwright.records import check_schema, fail_with, read_record
from trainwright.settings import Settings
from trainwright.validators import check, flag, integer, one_of

__all__ = ["Degrees", "Layout"]

_SCHEMA = 2
_ADVICE = "; make it again: trainwright plan MODEL ... --out FILE"
_Class = TypeVar("_Class", bound=type)


def _with_axes(cls: _Class) -> _Class:
    """Give a class one field for each axis that a strategy declares: `tensor: int = 1`, and so on."""
    # Plug-ins add axes, so the fields cannot be written down here.
    for axis in AXES:
        cls.__annotations__[axis.name] = int
        setattr(cls, axis.name, 1)
    return cls


@dataclass(frozen=True, kw_only=True, slots=True)
@_with_axes
class Degrees:
    """Into how many parts each axis divides; axes that are not named have one part.

    tensor: matrices of transformer blocks; context: the sequence; filter, channel: output and input channels of
    convolutions; spatial: height and width; expert: experts; data: samples; pipeline: the chain of blocks. Ranks are
    laid out with the first axis changing fastest, so that it stays inside a node.
    """

    if TYPE_CHECKING:  # the fields are those that strategies declare

        def __init__(self, **degrees: int) -> None: ...

        def __getattr__(self, axis: str) -> int: ...

    def __post_init__(self) -> None:
        for axis in AXES:
            check(getattr(self, axis.name), integer(minimum=1), f"degrees, {axis.name}")

    @property
    def devices(self) -> int:
        """All devices."""
        return math.prod(getattr(self, axis.name) for axis in AXES)


@dataclass(frozen=True, kw_only=True, slots=True)
class Layout(Settings, error=InputError):
    """How a model is trained on several devices: what `trial.prepare(plan=...)` and `parallelise` carry out."""

    strategy: str
    """What divides something, joined by "+", such as "fsdp+tensor", or "serial"."""
    degrees: Degrees
    batch: Annotated[int, integer(minimum=1)]
    """Samples of an iteration over all devices."""
    micro_batch: Annotated[int, integer(minimum=1)]
    """Samples that one device (or one pipeline) works on at a time."""
    microbatches: Annotated[int, integer(minimum=1)] = 1
    """Micro-batches of an iteration: pipeline slots, or steps of accumulation."""
    zero: Annotated[int, one_of(0, 1, 2, 3)] = 0
    """0: state replicated; 1: optimizer state divided; 2: gradients too; 3: weights too (FSDP)."""
    shard: Annotated[int, integer(minimum=1)] = 1
    """Devices over which `zero` divides: all of degrees.data, fewer if hybrid, or those of degrees.context too."""
    sequence: Annotated[bool, flag()] = False
    """Whether the tensor-parallel ranks divide the sequence outside attention and feed-forward."""
    recompute: Annotated[str, one_of(*RECOMPUTE)] = "none"
    """"none"; "selective": attention is run again in the backward pass; "full": whole blocks; "operators": all of them
    but attention and every second product; "offload": nothing is, what blocks save waits in the host's memory."""
    recomputed: tuple[str, ...] = ()
    """Paths of the modules that a full recomputation runs again; (): those of the model's lists of blocks."""
    memory: Any = None
    """Memory budget of a device ("8 GiB", bytes, a share of what a step takes, or a plan of `tw.memory`), which decides
    what is run again in the place of `recompute`; None: no budget."""
    schedule: Annotated[str, one_of(*SCHEDULES)] = ""
    """Of a pipeline: "gpipe", "1f1b", "interleaved" or "zero-bubble"."""
    chunks: Annotated[int, integer(minimum=1)] = 1
    """Model chunks of a pipeline stage (interleaved)."""
    stages: tuple[int, ...] = ()
    """Blocks of each pipeline stage, in order, repeated blocks counted as often as they run."""
    cuts: tuple[str, ...] = ()
    """Paths of the modules that these stages but the first begin with; () where the profile does not say them."""
    placement: tuple[int, ...] = ()
    """Pipeline rank of each stage, which need not be neighbours; (): one after the other, in rounds."""
    order: tuple[str, ...] = ()
    """Each pipeline rank's forwards and backwards, as stage, F or B, micro-batch ("0F0,0B0"); (): by `schedule`."""
    precision: str = "fp32"
    compile: Annotated[str, one_of("", "inductor", "aot_eager")] = ""
    """The backend of torch.compile for the model's blocks; "": none."""

    @property
    def devices(self) -> int:
        """Devices that the layout uses."""
        return self.degrees.devices

    @property
    def refusal(self) -> str:
        """Why `trial.prepare(plan=...)` does not set this layout up, whatever the model; "" where it does."""
        return refusal_of(self)

    @property
    def layout(self) -> "Layout":
        """The layout alone, without what a forecast adds."""
        return Layout(**{field.name: getattr(self, field.name) for field in fields(Layout)})

    def save(self, path: str | Path) -> None:
        """Write a JSON file: training reads its layout with `Layout.load`, a report all of it with `Forecast.load`.

        Raises `InputError` where none can be written.
        """
        if not isinstance(self.memory, str | int | float | None):
            raise InputError("plan, memory: got a memory plan; allowed in a file: a budget, such as '8 GiB'")
        layout = asdict(self.layout)
        forecast = {name: value for name, value in asdict(self).items() if name not in layout}
        content = {"schema": _SCHEMA, "layout": layout, "forecast": forecast}
        write_text(path, "plan", json.dumps(content, indent=1) + "\n")

    @classmethod
    def load(cls, path: str | Path) -> Self:
        """Return what a file holds that `save` or `trainwright plan --out` wrote. Raises `InputError` for others."""
        document = read_json(path, "plan", allowed="a file that `trainwright plan MODEL ... --out FILE` wrote")
        fail = fail_with(f"plan {str(path)!r}", advice=_ADVICE)
        content = check_schema(document, _SCHEMA, fail)
        values = content.get("layout")
        if cls is not Layout and isinstance(values, Mapping):
            values = {**values, **(content.get("forecast") or {})}
        return read_record(cls, values, fail)
