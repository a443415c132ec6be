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
from trainwright.settings import Settings
from trainwright.validators import check, flag, integer, one_of

__all__ = ["Degrees", "Layout", "read_plan", "read_record", "write_plan"]

_SCHEMA = 2
_TUPLES = ("stages", "cuts", "recomputed", "placement", "order")
_ADVICE = "make it again: trainwright plan MODEL ... --out FILE"
_Class = TypeVar("_Class", bound=type)
_Record = TypeVar("_Record")


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
    """"none"; "selective": attention is run again in the backward pass; "full": whole blocks;
    "operators": all of them but attention and every second product."""
    recomputed: tuple[str, ...] = ()
    """Paths of the modules that a full recomputation runs again; (): those of the model's lists of blocks."""
    memory: Any = None
    """Memory budget of a device ("8 GiB", bytes, a share of what a step takes, or a plan of `tw.memory`), which decides
    what is run again in the place of `recompute`; None: no budget."""
    schedule: Annotated[str, one_of(*SCHEDULES)] = ""
    """Of a pipeline: "gpipe", "1f1b" or "interleaved"."""
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
    def layout(self) -> "Layout":
        """The layout alone, without what a forecast adds."""
        return Layout(**{field.name: getattr(self, field.name) for field in fields(Layout)})

    def save(self, path: str | Path) -> None:
        """Write a JSON file, from which `load` makes the layout again. Raises `InputError` where none can be."""
        write_plan(path, self, {})

    @classmethod
    def load(cls, path: str | Path) -> Self:
        """Return the layout of a file that `save` or `trainwright plan --out` wrote. Raises `InputError` for others."""
        layout, _ = read_plan(path)
        return cls(**layout)


def write_plan(path: str | Path, layout: Layout, forecast: Mapping[str, Any]) -> None:
    """Write the file of a layout and of its forecast, {} for none."""
    if not isinstance(layout.memory, str | int | float | None):
        raise InputError("plan, memory: got a memory plan; allowed in a file: a budget, such as '8 GiB'")
    content = {"schema": _SCHEMA, "layout": asdict(layout.layout), "forecast": forecast}
    write_text(path, "plan", json.dumps(content, indent=1) + "\n")


def read_plan(path: str | Path) -> tuple[dict[str, Any], Mapping[str, Any]]:
    """Return the fields of the layout in a plan's file, and the forecast's part of the document as it is."""
    document = read_json(path, "plan", allowed="a file that `trainwright plan MODEL ... --out FILE` wrote")
    where = f"plan {str(path)!r}"
    if not isinstance(document, Mapping):
        raise InputError(f"{where}: got {type(document).__name__}; allowed: an object; {_ADVICE}")
    if document.get("schema") != _SCHEMA:
        raise InputError(f"{where}, schema: got {document.get('schema')!r}; allowed: {_SCHEMA}; {_ADVICE}")
    values = document.get("layout")
    degrees = values.get("degrees", {}) if isinstance(values, Mapping) else {}
    if isinstance(values, Mapping):
        tuples = {name: tuple(values[name]) for name in _TUPLES if name in values}
        values = {**values, **tuples, "degrees": read_record(Degrees, degrees, f"{where}, degrees")}
    layout = read_record(Layout, values, where)
    return {field.name: getattr(layout, field.name) for field in fields(Layout)}, document.get("forecast") or {}


def read_record(kind: type[_Record], values: Any, where: str) -> _Record:
    """Return a dataclass made of a JSON object. Raises `InputError` for unknown, missing and wrong fields."""
    known = [field.name for field in fields(kind)]  # type: ignore[arg-type]  # only dataclasses are asked for
    if not isinstance(values, Mapping) or set(values) - set(known):
        extra = min(set(values) - set(known)) if isinstance(values, Mapping) else type(values).__name__
        raise InputError(f"{where}: got {extra!r}; allowed: {', '.join(known)}; {_ADVICE}")
    try:
        return kind(**values)
    except (TypeError, InputError) as error:
        raise InputError(f"{where}: {error}; {_ADVICE}") from error
