"""The protocol of a checkpoint format: named tensors and text, written and read bit for bit."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Protocol, runtime_checkable

from trainwright.errors import CheckpointFormatError, CheckpointMismatchError, closest

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["Capabilities", "Format", "Slices", "Stored", "TensorInfo", "bounded_slices"]

Slices = tuple[slice, ...]
"""A slice of a tensor: a slice of step 1 for each of its leading dims."""


@dataclass(frozen=True, kw_only=True, slots=True)
class TensorInfo:
    """What is known of a stored tensor without reading it; `tied` is the name that it shares its memory with."""

    # As torch names it: "float32", "bfloat16", "float8_e4m3fn".
    dtype: str
    shape: tuple[int, ...]
    tied: str | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Capabilities:
    """What a format can do; what it cannot hold it refuses, naming the formats that can."""

    dtypes: frozenset[str]
    # A slice of a tensor is read without the rest of it.
    partial: bool
    # Writing holds one tensor at a time.
    streams: bool


@dataclass(frozen=True, kw_only=True)
class Stored(Mapping[str, "Tensor"]):
    """An open checkpoint: a mapping whose tensors are read when they are asked for, each time anew."""

    infos: Mapping[str, TensorInfo]
    metadata: Mapping[str, str]
    fetch: Callable[[str, Slices | None], "Tensor"]
    # Entries of a foreign file that are neither tensors nor JSON values.
    lost: tuple[str, ...] = field(default=())

    def __getitem__(self, name: str) -> "Tensor":
        return self.tensor(name)

    def __iter__(self) -> Iterator[str]:
        return iter(self.infos)

    def __len__(self) -> int:
        return len(self.infos)

    def tensor(self, name: str, slices: Slices | None = None) -> "Tensor":
        """Return one tensor, or the slice of it that `slices` cut out; only the slice is read where the format can."""
        if name not in self.infos:
            raise CheckpointMismatchError(
                f"tensor: got {name!r}, which the checkpoint does not hold; allowed: one of its {len(self.infos)} "
                f"names{closest(name, self.infos)}"
            )
        info = self.infos[name]
        return self.fetch(info.tied or name, None if slices is None else bounded_slices(name, info.shape, slices))

    def read(
        self, names: Iterable[str] | None = None, slices: Mapping[str, Slices] | None = None
    ) -> "dict[str, Tensor]":
        """Return the named tensors (default: all), cut where `slices` names them; tied names give one tensor."""
        cuts = dict(slices or {})
        wanted = list(self.infos if names is None else names)
        found: dict[str, Tensor] = {}
        whole: dict[str, Tensor] = {}
        for name in wanted:
            if name in cuts or name not in self.infos:
                found[name] = self.tensor(name, cuts.get(name))
                continue
            # Tied names share one tensor, as they did when they were saved.
            home = self.infos[name].tied or name
            if home not in whole:
                whole[home] = self.tensor(home)
            found[name] = whole[home]
        return found


@runtime_checkable
class Format(Protocol):
    """A file format; stateless, so one object serves all threads."""

    @property
    def name(self) -> str:
        """What the format is called in settings and on the command line."""
        ...

    @property
    def suffix(self) -> str:
        """How its files end, with the dot."""
        ...

    @property
    def capabilities(self) -> Capabilities:
        """What it can hold and do."""
        ...

    def recognises(self, path: Path) -> bool:
        """Tell by content, not by name, whether `path` looks like this format."""
        ...

    def write(
        self, path: Path, tensors: "Mapping[str, Tensor]", metadata: Mapping[str, str] | None = None
    ) -> list[Path]:
        """Write and fsync a checkpoint at a path where nothing is; return its files."""
        ...

    def open(self, path: Path) -> AbstractContextManager[Stored]:
        """Open a checkpoint for reading; what is not this format, or truncated, raises a `CheckpointError`."""
        ...

    def names(self, path: Path) -> dict[str, TensorInfo]:
        """Return dtype and shape of every tensor, without reading any."""
        ...

    def read(
        self, path: Path, names: Iterable[str] | None = None, slices: Mapping[str, Slices] | None = None
    ) -> "dict[str, Tensor]":
        """Return the named tensors (default: all) on the CPU, cut where `slices` names them."""
        ...

    def metadata(self, path: Path) -> dict[str, str]:
        """Return the text that was written beside the tensors."""
        ...


def bounded_slices(name: str, shape: tuple[int, ...], slices: Slices) -> Slices:
    """Return slices with every bound spelled out, one for each dim of `shape`; steps and extra dims are refused."""
    if len(slices) > len(shape) or any(cut.step not in {None, 1} for cut in slices):
        raise CheckpointFormatError(
            f"slices[{name!r}]: got {slices} for shape {shape}; allowed: at most {len(shape)} slices of step 1"
        )
    bounds = [cut.indices(size) for cut, size in zip(slices, shape, strict=False)]
    bounds += [(0, size, 1) for size in shape[len(slices) :]]
    return tuple(slice(low, max(low, high)) for low, high, _ in bounds)
