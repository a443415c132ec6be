"""Compares two checkpoints: names, dtypes, shapes and values."""

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trainwright.checkpoint.tools.formats.format import Stored, as_bytes
from trainwright.checkpoint.tools.sources import open_source
from trainwright.errors import CheckpointConfigError
from trainwright.validators import check, number

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["ChangedTensor", "Diff", "DifferentTensor", "diff"]

# Values compared at a time.
_PIECE = 1 << 20
# Metadata that no two saves share.
_OF_ONE_SAVE = frozenset({"checkpoint"})


@dataclass(frozen=True, kw_only=True, slots=True)
class ChangedTensor:
    """A tensor of another dtype or shape: each as "float32 (3, 4)"."""

    name: str
    a: str
    b: str


@dataclass(frozen=True, kw_only=True, slots=True)
class DifferentTensor:
    """A tensor of other values: how many of them, and how far they are apart.

    `max_abs` and `max_rel` are over all values that are numbers on both sides.
    """

    name: str
    values: int
    different: int
    max_abs: float
    max_rel: float


@dataclass(frozen=True, kw_only=True, slots=True)
class Diff:
    """In what `b` differs from `a`; `metadata` names the plain values that do."""

    a: str
    b: str
    tolerance: float
    compared: int
    only_a: tuple[str, ...] = ()
    only_b: tuple[str, ...] = ()
    changed: tuple[ChangedTensor, ...] = ()
    different: tuple[DifferentTensor, ...] = ()
    metadata: tuple[str, ...] = ()

    @property
    def same(self) -> bool:
        """Whether nothing differs."""
        return not (self.only_a or self.only_b or self.changed or self.different or self.metadata)

    @property
    def first(self) -> str | None:
        """The first tensor of `a` with other values; None if there is none."""
        return self.different[0].name if self.different else None

    def to_json(self) -> dict[str, Any]:
        """Return it as plain values."""
        return {**asdict(self), "same": self.same, "first": self.first}


def diff(a: Path | str, b: Path | str, tolerance: float = 0.0) -> Diff:
    """Compare two checkpoints of any kind, tensor by tensor: bit by bit, or up to an absolute `tolerance` > 0.

    With a tolerance, NaN equals NaN and 0 equals -0. Raises `CheckpointConfigError` for a tolerance below 0.
    """
    check(tolerance, number(minimum=0), "diff, tolerance", CheckpointConfigError)
    with open_source(a) as one, open_source(b) as other:
        return _compare_stored(str(one.path), one.stored, str(other.path), other.stored, tolerance)


def _compare_stored(path_a: str, a: Stored, path_b: str, b: Stored, tolerance: float) -> Diff:
    changed, different, compared = [], [], 0
    for name, info in a.infos.items():
        if name not in b.infos:
            continue
        now = b.infos[name]
        # Values of other dtypes or shapes are not compared: there is no pair for each of them.
        if (info.dtype, info.shape) != (now.dtype, now.shape):
            shown = [f"{one.dtype} {one.shape}" for one in (info, now)]
            changed.append(ChangedTensor(name=name, a=shown[0], b=shown[1]))
            continue
        compared += 1
        found = _tensor_diff(name, a[name], b[name], tolerance)
        if found is not None:
            different.append(found)
    # Times and digests differ between any two saves and say nothing about the training.
    texts = (a.metadata.keys() | b.metadata.keys()) - _OF_ONE_SAVE
    return Diff(
        a=path_a,
        b=path_b,
        tolerance=tolerance,
        compared=compared,
        only_a=tuple(name for name in a.infos if name not in b.infos),
        only_b=tuple(name for name in b.infos if name not in a.infos),
        changed=tuple(changed),
        different=tuple(different),
        metadata=tuple(sorted(name for name in texts if a.metadata.get(name) != b.metadata.get(name))),
    )


def _tensor_diff(name: str, a: "Tensor", b: "Tensor", tolerance: float) -> DifferentTensor | None:
    import torch

    count, max_abs, max_rel = 0, 0.0, 0.0
    # Piece by piece, so that memory stays small beside that of the tensors.
    for one, other in zip(a.reshape(-1).split(_PIECE), b.reshape(-1).split(_PIECE), strict=True):
        # In double precision, so that the differences of small floats do not overflow.
        wide = [piece.to(torch.complex128 if piece.is_complex() else torch.float64) for piece in (one, other)]
        apart = (wide[0] - wide[1]).abs()
        # A tolerance compares values; without one all bits count, so that 0 and -0 differ.
        if tolerance:
            equal = (apart <= tolerance) | (one == other) | (wide[0].isnan() & wide[1].isnan())
        else:
            size = one.element_size()
            equal = (as_bytes(one).view(-1, size) == as_bytes(other).view(-1, size)).all(dim=1)
        if equal.all():
            continue
        count += int((~equal).sum())
        # Relative to the larger of the two, so that it does not matter which checkpoint comes first.
        scale = torch.maximum(wide[0].abs(), wide[1].abs())
        max_abs = max(max_abs, float(apart.nan_to_num(0.0, posinf=0.0).max()))
        max_rel = max(max_rel, float((apart / scale).nan_to_num(0.0, posinf=0.0).max()))
    if not count:
        return None
    return DifferentTensor(name=name, values=a.numel(), different=count, max_abs=max_abs, max_rel=max_rel)
