"""What all formats share: reading through `open`, refusals, syncing, and the errors of libraries."""

import json
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from trainwright.checkpoint.tools.formats.protocol import Capabilities, Slices, Stored, TensorInfo
from trainwright.checkpoint.tools.formats.tensors import infos_of
from trainwright.errors import CheckpointCorruptError, CheckpointFormatError, CheckpointNotFoundError, TrainwrightError
from trainwright.publishing import publish

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["BaseFormat", "document", "first_entry", "head", "read_document"]


class BaseFormat(ABC):
    """A format that has to say how its bytes are written and opened, and no more."""

    name: ClassVar[str]
    suffix: ClassVar[str]
    capabilities: ClassVar[Capabilities]

    @abstractmethod
    def recognises(self, path: Path) -> bool:
        """Tell by content whether `path` looks like this format."""

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
        infos = infos_of(tensors, self.capabilities, self.name)
        # A crash leaves a temporary file, never half a checkpoint under its name.
        with publish(path, replace=False) as temporary:
            files = [file.relative_to(temporary) for file in self._write(temporary, tensors, infos, metadata or {})]
        return [path / file for file in files]

    @contextmanager
    def open(self, path: Path) -> Iterator[Stored]:
        """Open a checkpoint for reading; each tensor is read when it is asked for."""
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

            def fetch(name: str, slices: Slices | None) -> "Tensor":
                with self._translated(path, name):
                    return stored.fetch(name, slices)

            # Outside: what the caller raises is none of this file's damage.
            yield replace(stored, fetch=fetch)

    def names(self, path: Path) -> dict[str, TensorInfo]:
        """Return dtype and shape of every tensor, without reading any."""
        with self.open(path) as stored:
            return dict(stored.infos)

    def read(
        self, path: Path, names: Iterable[str] | None = None, slices: Mapping[str, Slices] | None = None
    ) -> "dict[str, Tensor]":
        """Return the named tensors (default: all) on the CPU, cut where `slices` names them."""
        with self.open(path) as stored:
            return stored.read(names, slices)

    def metadata(self, path: Path) -> dict[str, str]:
        """Return the text that was written beside the tensors."""
        with self.open(path) as stored:
            return dict(stored.metadata)

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
                f"{_first_line(error)}; restore an older one"
            ) from error


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


def document(infos: Mapping[str, TensorInfo], metadata: Mapping[str, str], **more: str) -> bytes:
    """Return what a file keeps beside its arrays: dtype, shape and tie of every tensor, and the metadata."""
    tensors = {name: [info.dtype, info.shape, info.tied] for name, info in infos.items()}
    return json.dumps({"tensors": tensors, "metadata": dict(metadata), **more}).encode()


def read_document(content: bytes) -> tuple[dict[str, TensorInfo], dict[str, str]]:
    """Return the tensors and the metadata that `document` kept."""
    kept = json.loads(content)
    infos = {
        name: TensorInfo(dtype=dtype, shape=tuple(shape), tied=tied)
        for name, (dtype, shape, tied) in kept["tensors"].items()
    }
    return infos, kept["metadata"]


def _first_line(error: Exception) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0]
