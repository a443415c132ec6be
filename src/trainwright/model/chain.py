"""Chain: a model as a row of stages with times and bytes, which profiles, memory plans and pipelines are made of.

Conventions, everywhere in this package (Beaumont et al., arXiv 1911.13214, with the sizes of gradients kept apart):

- Stages are counted from 1; behind the last stands the loss stage, whose output has no gradient to keep.
- `output_bytes` is a^l, what the next stage reads; a^0 is the chain's input, held by the caller and always alive.
- `saved_bytes` is everything that autograd holds for one stage *with* its own output a^l and *without* its input
  a^{l-1} and without parameters.
- `gradient_bytes` is the gradient of a^l, alive from the backward of stage l+1 to the end of the backward of l, and
  whatever else is alive just then; that of the loss stage what is from the start of the step to its backward's end.
- `parameter_gradient_bytes` are the gradients of a stage's parameters, alive from its backward to the end of the step;
  less, or negative, where what lies beside the stages goes with that backward.
- What a stage makes for others behind the next rides along with the outputs in between, which share it: it is among
  what is fixed, and its gradient part of their `gradient_bytes`.
- Temporaries come on top of inputs, outputs and everything else that is alive: while a stage runs backward, its saved
  bytes, the gradient that arrives and the gradient that it makes are all alive and are not part of the temporaries.
- The temporaries of a backward may be negative: one that frees what it has read while it makes its gradients needs
  less than all of it together, and its output has gone before unless its own graph holds it.
- What does not change during a step (parameters, gradients that are there when it begins, buffers, optimizer state,
  constants shared by stages, a reserve for libraries) is `fixed`, bytes by owner, and part of every budget.
"""

import hashlib
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from trainwright.errors import ChainError
from trainwright.files import read_json, write_text
from trainwright.records import fail_with, read_record
from trainwright.validators import check, integer, number

__all__ = ["NOT_ALL_AT_ONCE", "NO_LOSS", "SCHEMA", "Chain", "Option", "Stage", "with_least_peaks"]

SCHEMA = 1
_BYTE_COUNT, _ANY_BYTES = integer(minimum=0, of="bytes"), integer(of="bytes")
NOT_ALL_AT_ONCE = "not all at once"
"""Whose bytes are below 0 in `fixed`: a step was seen to take so much less than its parts together."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Option:
    """One way to run a stage forward with gradients: what it keeps, and what its backward then takes.

    `backward_seconds` holds whatever this way recomputes inside the stage, `backward_temporary_bytes` its peak.
    """

    name: str = ""
    forward_seconds: float
    backward_seconds: float
    saved_bytes: int
    forward_temporary_bytes: int = 0
    backward_temporary_bytes: int = 0
    remade: tuple[int, ...] = ()
    """Operations of its forward, by their numbers without views from 0, that its backward does again."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Stage:
    """The part between two neighbouring cuts of a model; the module's docstring says what its sizes hold.

    A cut is a place of the forward pass where exactly one storage that carries gradients is live from what has run to
    the rest, and is not written any more. The stage's own numbers are option 0, save everything; a traced profile has
    no seconds for its stages but for their layers.
    """

    name: str = ""
    forward_seconds: float
    backward_seconds: float
    output_bytes: int
    saved_bytes: int
    gradient_bytes: int | None = None
    """None: as many as the output has."""
    forward_temporary_bytes: int = 0
    backward_temporary_bytes: int = 0
    no_grad_forward_seconds: float | None = None
    """Forward without gradients, which keeps only the output; None: the same time."""
    no_grad_forward_temporary_bytes: int | None = None
    """None: the same bytes."""
    parameter_gradient_bytes: int = 0
    """What its backward leaves until the end of the step; 0 where `fixed` has it; below 0 where it frees more."""
    parameter_bytes: int = 0
    """Used by pipelines, which place parameters; a plan for one device has them in the chain's `fixed`."""
    layers: int = 0
    """How many of a block's layers are this stage's, in a profile."""
    options: tuple[Option, ...] = ()
    """Further ways to run it."""

    @property
    def output_gradient_bytes(self) -> int:
        """Bytes of the gradient of the output."""
        return self.output_bytes if self.gradient_bytes is None else self.gradient_bytes

    @property
    def no_grad_seconds(self) -> float:
        """Seconds of a forward without gradients."""
        return self.forward_seconds if self.no_grad_forward_seconds is None else self.no_grad_forward_seconds

    @property
    def no_grad_temporary_bytes(self) -> int:
        """Temporaries of a forward without gradients."""
        plain = self.no_grad_forward_temporary_bytes
        return self.forward_temporary_bytes if plain is None else plain

    @property
    def choices(self) -> tuple[Option, ...]:
        """All ways to run it with gradients; the first is the stage's own."""
        return (
            Option(
                name="save all",
                forward_seconds=self.forward_seconds,
                backward_seconds=self.backward_seconds,
                saved_bytes=self.saved_bytes,
                forward_temporary_bytes=self.forward_temporary_bytes,
                backward_temporary_bytes=self.backward_temporary_bytes,
            ),
            *self.options,
        )


NO_LOSS = Stage(name="loss", forward_seconds=0.0, backward_seconds=0.0, output_bytes=0, saved_bytes=0)


@dataclass(frozen=True, kw_only=True)
class Chain:
    """Stages 1..L, the loss stage L+1, and the bytes that never change. Refuses impossible numbers by name."""

    stages: tuple[Stage, ...]
    loss: Stage = NO_LOSS
    """Without one, the output's gradient arrives from outside at no cost, and the loss's own peak is not planned."""
    input_bytes: int = 0
    input_gradient_bytes: int = 0
    """Other than 0 only if the input wants a gradient."""
    fixed: Mapping[str, int] = field(default_factory=dict)
    """Bytes that are alive throughout, by owner."""
    name: str = ""
    plain_peak_bytes: int | None = None
    """Peak of a step of the model as it is, where that was measured: autograd lets go of some gradients sooner than a
    row of stages does."""

    def __post_init__(self) -> None:
        if not self.stages:
            raise ChainError("chain, stages: got none; allowed: at least one stage")
        # What a stage's backward makes: the gradient of the output below it.
        below = self.input_gradient_bytes
        for place, stage in enumerate(self.steps, start=1):
            _check_stage(place, stage, below)
            below = stage.output_gradient_bytes
        if self.loss.gradient_bytes is None and self.loss.output_bytes:
            raise ChainError(
                f"chain, loss, gradient_bytes: got none, with output_bytes={self.loss.output_bytes}; allowed: "
                "gradient_bytes=0, for nothing comes after the loss, or what is alive until its backward"
            )
        if self.plain_peak_bytes is not None:
            check(self.plain_peak_bytes, _BYTE_COUNT, "chain, plain_peak_bytes", ChainError)
        check(self.input_bytes, _BYTE_COUNT, "chain, input_bytes", ChainError)
        check(self.input_gradient_bytes, _BYTE_COUNT, "chain, input_gradient_bytes", ChainError)
        for owner, count in self.fixed.items():
            check(count, _ANY_BYTES if owner == NOT_ALL_AT_ONCE else _BYTE_COUNT, f"chain, fixed, {owner}", ChainError)

    @property
    def steps(self) -> tuple[Stage, ...]:
        """All stages with the loss stage at the end; operations count them from 1."""
        return (*self.stages, self.loss)

    @property
    def fixed_bytes(self) -> int:
        """Bytes that are alive throughout, the input included."""
        return sum(self.fixed.values()) + self.input_bytes

    @property
    def plain_seconds(self) -> float:
        """Seconds of a step in which nothing is recomputed: the least of any plan if no option is faster."""
        return math.fsum(stage.forward_seconds + stage.backward_seconds for stage in self.steps)

    @cached_property
    def digest(self) -> str:
        """Hash of everything that a plan depends on: all but the names of chain, stages and loss."""
        content = self.to_json()
        for part in (content, *content["stages"], content["loss"]):
            part.pop("name", None)
        return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:16]

    def to_json(self) -> dict[str, Any]:
        """Return the chain as a JSON object."""
        return {"schema": SCHEMA, **asdict(self)}

    @classmethod
    def from_json(cls, content: Any) -> "Chain":
        """Return the chain that `to_json` has written; raise ChainError with stage, field and value if it is none."""
        if not isinstance(content, Mapping) or "stages" not in content:
            raise ChainError("chain: got no object with 'stages'; allowed: what Chain.to_json writes")
        if content.get("schema", SCHEMA) != SCHEMA:
            raise ChainError(f"chain, schema: got {content['schema']!r}; allowed: {SCHEMA}")
        values = {name: content[name] for name in content if name != "schema"}
        return read_record(cls, values, fail_with("chain", ChainError))

    def save(self, path: str | Path) -> None:
        """Write the chain as a JSON file."""
        write_text(path, "chain file", json.dumps(self.to_json(), indent=1) + "\n", error=ChainError)

    @classmethod
    def load(cls, path: str | Path) -> "Chain":
        """Read a chain from a JSON file."""
        allowed = "a chain file (.json), which Chain.save wrote"
        return cls.from_json(read_json(path, "chain file", allowed=allowed, error=ChainError))


def with_least_peaks(stages: Sequence[Stage]) -> list[Stage]:
    """Return stages whose backward peak is not below what is there when it has ended.

    A stage with several outputs never has all their gradients at a time, nor those of its parameters and its input
    beside them, so that its temporaries, beside what a chain counts, may come out as less than none.
    """
    found: list[Stage] = []
    for stage in stages:
        below = found[-1].output_gradient_bytes if found else 0
        least = -(below + stage.parameter_gradient_bytes + stage.output_bytes)
        found.append(replace(stage, backward_temporary_bytes=max(stage.backward_temporary_bytes, least)))
    return found


def _check_stage(place: int, stage: Stage, below: int) -> None:
    where = f"chain, stage {place}" + (f" ({stage.name})" if stage.name else "")
    given = below, stage.parameter_gradient_bytes, stage.output_bytes
    least = -sum(each for each in given if isinstance(each, int))
    _check_fields(where, stage, least)
    if stage.saved_bytes < stage.output_bytes:
        raise ChainError(
            f"{where}, saved_bytes: got {stage.saved_bytes}; allowed: at least its output_bytes, {stage.output_bytes}, "
            "for what autograd saves of a stage counts its output"
        )
    for position, option in enumerate(stage.options, start=1):
        _check_fields(f"{where}, option {position}", option, least)
        if option.saved_bytes < stage.output_bytes:
            raise ChainError(
                f"{where}, option {position}, saved_bytes: got {option.saved_bytes}; allowed: at least the stage's "
                f"output_bytes, {stage.output_bytes}"
            )


def _check_fields(where: str, record: Stage | Option, least: int = 0) -> None:
    """Refuse seconds below 0, and bytes too: those on top of a backward below `least`."""
    for each in fields(record):
        value = getattr(record, each.name)
        if value is None and each.default is None:
            continue
        if each.name.endswith("_seconds"):
            check(value, number(minimum=0, of="seconds"), f"{where}, {each.name}", ChainError)
        elif each.name.endswith("_bytes"):
            signed = {"backward_temporary_bytes": least, "parameter_gradient_bytes": None}
            kind = integer(minimum=signed.get(each.name, 0), of="bytes")
            check(value, kind, f"{where}, {each.name}", ChainError)
