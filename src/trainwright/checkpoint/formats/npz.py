"""NumPy's npz: a zip of arrays; bf16 and fp8 as unsigned integers of the same bits, their dtype in an entry more."""

import warnings
import zipfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from trainwright.checkpoint.formats.base import BaseFormat, document, first_entry, read_document
from trainwright.checkpoint.formats.protocol import Capabilities, Slices, Stored, TensorInfo
from trainwright.checkpoint.formats.tensors import DTYPES, NATIVE, as_array, as_tensor, plain, quote, stand_in
from trainwright.errors import CheckpointFormatError

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["COMPRESSION_COST", "Npz"]

COMPRESSION_COST = (
    "deflate made a checkpoint of 211 MB 8 % smaller and its writing 40 to 55 times longer (two cores, local disk); "
    "leave compress=False unless the disk is the bottleneck"
)
_DOCUMENT = "%document.json"  # no quoted name begins with % and a letter
_NAMES = {dtype: name for name, dtype in NATIVE.items()}


@dataclass(frozen=True, kw_only=True, slots=True)
class Npz(BaseFormat):
    """`numpy.load` opens it; one array is the least that is read. `compress=True` deflates and warns of the cost."""

    name: ClassVar[str] = "npz"
    suffix: ClassVar[str] = ".npz"
    capabilities: ClassVar[Capabilities] = Capabilities(dtypes=DTYPES, partial=False, streams=True)

    compress: bool = False

    def recognises(self, path: Path) -> bool:
        """Tell whether `path` is a zip file whose first entry is an array or ours."""
        return (first_entry(path) or "").endswith((".npy", _DOCUMENT))

    def _write(
        self, path: Path, tensors: "Mapping[str, Tensor]", infos: Mapping[str, TensorInfo], metadata: Mapping[str, str]
    ) -> list[Path]:
        if self.compress:
            warnings.warn(f"npz, compress: {COMPRESSION_COST}", stacklevel=3)
        kind = zipfile.ZIP_DEFLATED if self.compress else zipfile.ZIP_STORED
        with zipfile.ZipFile(path, "x", kind) as archive:
            archive.writestr(_entry(_DOCUMENT, kind), document(infos, metadata))
            for name, info in infos.items():
                if info.tied is None:
                    with archive.open(_entry(f"{quote(name, '')}.npy", kind), "w", force_zip64=True) as file:
                        np.lib.format.write_array(file, as_array(plain(tensors[name])), allow_pickle=False)
        return [path]

    @contextmanager
    def _opened(self, path: Path) -> Iterator[Stored]:
        with zipfile.ZipFile(path) as archive:
            infos: dict[str, TensorInfo]
            text: dict[str, str]
            if _DOCUMENT in {first_entry(path), *archive.namelist()}:  # either may be damaged
                infos, text = read_document(archive.read(_DOCUMENT))
                entries = {name: f"{quote(name, '')}.npy" for name in infos}
            else:
                entries = {entry[:-4]: entry for entry in archive.namelist() if entry.endswith(".npy")}
                infos, text = {name: _info(path, archive, entry) for name, entry in entries.items()}, {}

            def fetch(name: str, slices: Slices | None) -> "Tensor":
                with archive.open(entries[name]) as file:
                    array = np.lib.format.read_array(file, allow_pickle=False)
                    file.read(1)  # the end of an entry is where its checksum is compared
                native = array.astype(stand_in(infos[name].dtype), copy=False)
                return as_tensor(native if slices is None else native[slices], infos[name].dtype)

            yield Stored(infos=infos, metadata=text, fetch=fetch)


def _entry(name: str, kind: int) -> zipfile.ZipInfo:
    entry = zipfile.ZipInfo(name)  # dated 1980: equal tensors give equal files
    entry.compress_type = kind
    return entry


def _info(path: Path, archive: zipfile.ZipFile, entry: str) -> TensorInfo:
    """Return what the header of an array of another program says."""
    with archive.open(entry) as file:
        version = np.lib.format.read_magic(file)
        read = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
        shape, _, kind = read(file)
    dtype = _NAMES.get(kind.newbyteorder("="))
    if dtype is None:
        raise CheckpointFormatError(
            f"checkpoint {path}, {entry[:-4]!r}: got an array of {kind}, which is no tensor (Python objects are never "
            f"unpickled); allowed: arrays of {', '.join(NATIVE)}"
        )
    return TensorInfo(dtype=dtype, shape=shape)
