"""A checkpoint format: named tensors and text, written and read bit for bit."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from trainwright.checkpoint.save.shard_file import CODES
from trainwright.errors import (
    CheckpointCorruptError,
    CheckpointFormatError,
    CheckpointMismatchError,
    CheckpointNotFoundError,
    TrainwrightError,
    closest,
    first_line,
)
from trainwright.plugins import Registry
from trainwright.publishing import publish

if TYPE_CHECKING:
    from torch import Tensor

__all__ = [
    "DTYPES",
    "FORMATS",
    "Format",
    "Stored",
    "TensorInfo",
    "as_bytes",
    "check_dtypes",
    "equal_bits",
    "escape",
    "first_entry",
    "format_named",
    "format_of",
    "head",
    "infos_of",
    "plain",
    "unescape",
]


DTYPES = frozenset({*CODES, "complex128"})
"""Every dtype that checkpoints hold, as torch names them."""


@dataclass(frozen=True, kw_only=True, slots=True)
class TensorInfo:
    """What is known of a stored tensor without reading it; `tied` is the name that it shares its memory with."""

    # As torch names it: "float32", "bfloat16", "float8_e4m3fn".
    dtype: str
    shape: tuple[int, ...]
    tied: str | None = None


@dataclass(frozen=True, kw_only=True)
class Stored(Mapping[str, "Tensor"]):
    """An open checkpoint: a mapping whose tensors are read when they are asked for, each time anew."""

    infos: Mapping[str, TensorInfo]
    metadata: Mapping[str, str]
    fetch: Callable[[str], "Tensor"]
    # Entries of a foreign file that are neither tensors nor JSON values.
    lost: tuple[str, ...] = field(default=())

    def __getitem__(self, name: str) -> "Tensor":
        if name not in self.infos:
            raise CheckpointMismatchError(
                f"tensor: got {name!r}, which the checkpoint does not hold; allowed: one of its {len(self.infos)} "
                f"names{closest(name, self.infos)}"
            )
        return self.fetch(self.infos[name].tied or name)

    def __iter__(self) -> Iterator[str]:
        return iter(self.infos)

    def __len__(self) -> int:
        return len(self.infos)


class Format(ABC):
    """A file format: it has to say how its bytes are written and opened, and no more."""

    name: ClassVar[str]
    """What the format is called in settings and on the command line."""
    suffix: ClassVar[str]
    """How its files end, with the dot."""
    dtypes: ClassVar[frozenset[str]]
    """The dtypes that it can hold, as torch names them."""

    @abstractmethod
    def recognises(self, path: Path) -> bool:
        """Tell by content, not by name, whether `path` looks like this format."""

    @abstractmethod
    def _write(
        self,
        path: Path,
        tensors: "Mapping[str, Tensor]",
        infos: Mapping[str, TensorInfo],
        metadata: Mapping[str, str],
    ) -> list[Path]:
        """Write what `infos` lists; return the files, which need not be synced."""

    @abstractmethod
    def _opened(self, path: Path) -> AbstractContextManager[Stored]:
        """Open a path that looks like this format; errors of the library below may come through."""

    def write(
        self, path: Path, tensors: "Mapping[str, Tensor]", metadata: Mapping[str, str] | None = None
    ) -> list[Path]:
        """Write and fsync a checkpoint at a path where nothing is; return its files."""
        if path.exists():
            raise CheckpointFormatError(f"write: got {path}, which exists; allowed: a path where nothing is")
        infos = dict(tensors.infos if isinstance(tensors, Stored) else infos_of(tensors))
        check_dtypes(infos, self.dtypes, self.name)
        # A crash leaves a temporary file, never half a checkpoint under its name.
        with publish(path, replace=False) as temporary:
            files = [file.relative_to(temporary) for file in self._write(temporary, tensors, infos, metadata or {})]
        return [path / file for file in files]

    @contextmanager
    def open(self, path: Path) -> Iterator[Stored]:
        """Open a checkpoint for reading; what is not this format, or truncated, raises a `CheckpointError`."""
        if not path.exists():
            raise CheckpointNotFoundError(f"checkpoint: got {path}, which is not there; allowed: a checkpoint's path")
        if not self.recognises(path):
            raise CheckpointFormatError(
                f"checkpoint: got {path}, which is no {self.name} file (or lost its beginning); allowed: a file that "
                f"the format {self.name!r} wrote"
            )
        with ExitStack() as stack:
            with self._translated(path):
                stored = stack.enter_context(self._opened(path))

            def fetch(name: str) -> "Tensor":
                with self._translated(path, name):
                    return stored.fetch(name)

            # Outside: what the caller raises is none of this file's damage.
            yield replace(stored, fetch=fetch)

    def read(self, path: Path) -> "dict[str, Tensor]":
        """Return all tensors, on the CPU; tied names give one tensor, as they did when they were saved."""
        with self.open(path) as stored:
            whole = {name: stored[name] for name, info in stored.infos.items() if info.tied is None}
            return {name: whole[info.tied or name] for name, info in stored.infos.items()}

    @contextmanager
    def _translated(self, path: Path, name: str | None = None) -> Iterator[None]:
        try:
            yield
        except TrainwrightError:
            raise
        except Exception as error:
            # On damaged bytes the readers raise anything, MemoryError and IndexError too.
            where = "" if name is None else f", tensor {name!r}"
            raise CheckpointCorruptError(
                f"checkpoint {path}{where}: truncated or damaged, as its {self.name} reader says: "
                f"{first_line(error)}; restore an older one"
            ) from error


FORMATS: Mapping[str, Format] = Registry("format", CheckpointFormatError)
"""Every format by name, with its default settings."""


def format_named(name: str) -> Format:
    """Return the format of that name."""
    if name not in FORMATS:
        raise CheckpointFormatError(f"format: got {name!r}; allowed: {', '.join(FORMATS)}{closest(name, FORMATS)}")
    return FORMATS[name]


def format_of(path: Path) -> Format:
    """Return the format that a file or folder is in, told by its content."""
    if not path.exists():
        raise CheckpointNotFoundError(f"checkpoint: got {path}, which is not there; allowed: a checkpoint's path")
    for one in FORMATS.values():
        if one.recognises(path):
            return one
    raise CheckpointFormatError(
        f"checkpoint: got {path}, whose beginning is of no known format; allowed: {', '.join(FORMATS)}"
    )


def head(path: Path, count: int) -> bytes:
    """Return the first bytes of a file; none for a folder."""
    if path.is_dir():
        return b""
    try:
        with path.open("rb") as file:
            return file.read(count)
    except OSError as error:
        raise CheckpointNotFoundError(
            f"checkpoint: got {path}, which cannot be read ({(error.strerror or str(error)).lower()}); allowed: a "
            "readable file"
        ) from error


def first_entry(path: Path) -> str | None:
    """Return the name of the first entry of a zip file; None for what is none."""
    start = head(path, 1024)
    if start[:4] != b"PK\x03\x04" or len(start) < 30:
        return None
    length = int.from_bytes(start[26:28], "little")
    return start[30 : 30 + length].decode("utf-8", "replace")


def as_bytes(tensor: "Tensor") -> "Tensor":
    """Return the bytes of a tensor in row-major order, flat; a view if they lie so."""
    import torch

    flat = tensor.contiguous().reshape(-1)
    # A single value may have any stride, which a view as bytes may not.
    if flat.numel() < 2:
        flat = flat.clone(memory_format=torch.contiguous_format).as_strided(flat.shape, (1,))
    return flat.view(torch.uint8)


def plain(tensor: "Tensor") -> "Tensor":
    """Return the tensor on the CPU, contiguous, without gradient, and with no memory but its own.

    Writing a view would otherwise write all of the storage that it looks into.
    """
    own = tensor.detach().cpu().resolve_conj().resolve_neg().contiguous()
    whole = own.untyped_storage().nbytes() == own.nbytes
    # One without values may lie where another begins.
    return own if whole and own.numel() else own.clone()


def equal_bits(one: "Tensor", other: "Tensor") -> bool:
    """Tell whether two tensors have one dtype, one shape and the same bits: NaN equals NaN, 0 is not -0."""
    import torch

    same = one.dtype == other.dtype and one.shape == other.shape
    return same and torch.equal(as_bytes(one), as_bytes(other))


def check_dtypes(infos: Mapping[str, TensorInfo], dtypes: frozenset[str], format_name: str) -> None:
    """Refuse tensors of other dtypes than a format can hold, and names that are no Unicode."""
    for name, info in infos.items():
        try:
            name.encode()
        except UnicodeEncodeError:
            raise CheckpointFormatError(
                f"write, name: got {name!r}; allowed: Unicode text without lone surrogates"
            ) from None
        if info.dtype not in dtypes:
            # Not the list of formats: they import this module.
            allowed = (
                "one of the formats that hold every dtype, such as 'torch'"
                if info.dtype in DTYPES
                else "dense dtypes without quantisation parameters"
            )
            raise CheckpointFormatError(
                f"write, {name!r}: got dtype {info.dtype}, which the format {format_name!r} cannot hold; "
                f"allowed: {allowed}"
            )


def infos_of(tensors: "Mapping[str, Tensor]") -> dict[str, TensorInfo]:
    """Return what tensors are; of those that are one memory, the later names are tied to the first."""
    return dict(_looked_at(tensors))


def _looked_at(tensors: "Mapping[str, Tensor]") -> Iterator[tuple[str, TensorInfo]]:
    import torch

    first: dict[tuple[object, ...], str] = {}
    for name, tensor in tensors.items():
        if not isinstance(tensor, torch.Tensor) or tensor.layout != torch.strided or tensor.is_meta:
            kind = f"a {tensor.layout} tensor" if isinstance(tensor, torch.Tensor) else type(tensor).__name__
            raise CheckpointFormatError(
                f"write, {name!r}: got {kind}; allowed: dense tensors that hold values; make it dense first"
            )
        shape = tuple(tensor.shape)
        place = (tensor.device, tensor.data_ptr(), tensor.dtype, shape, tensor.stride(), tensor.is_conj())
        # Tensors without values may have the same address by chance.
        tied = first.setdefault(place, name) if tensor.numel() else name
        yield (
            name,
            TensorInfo(
                dtype=str(tensor.dtype).removeprefix("torch."), shape=shape, tied=None if tied == name else tied
            ),
        )


def escape(name: str) -> str:
    """Return the name under which a format keeps a tensor that takes any name but its own "__metadata__" and "%..."."""
    return f"%{name}" if name.startswith("%") or name == "__metadata__" else name


def unescape(name: str) -> str:
    """Undo `escape`."""
    return name[1:] if name.startswith("%%") or name == "%__metadata__" else name
