"""HDF5 through h5py: a dataset per tensor at the root; bf16 and fp8 as unsigned integers with their dtype as a tag."""

import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from trainwright.checkpoint.formats.base import BaseFormat, document, head, read_document
from trainwright.checkpoint.formats.npz import COMPRESSION_COST
from trainwright.checkpoint.formats.protocol import Capabilities, Slices, Stored, TensorInfo
from trainwright.checkpoint.formats.tensors import DTYPES, NATIVE, as_array, as_tensor, plain, quote, stand_in
from trainwright.errors import CheckpointFormatError, MissingExtra

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["Hdf5"]

_DOCUMENT = "%document"  # no quoted name begins with % and a letter
_NAMES = {dtype: name for name, dtype in NATIVE.items()}


@dataclass(frozen=True, kw_only=True, slots=True)
class Hdf5(BaseFormat):
    """Any HDF5 tool opens it; reads hyperslabs. "/" in a name is written %2F. `compress=True` deflates and warns."""

    name: ClassVar[str] = "hdf5"
    suffix: ClassVar[str] = ".h5"
    capabilities: ClassVar[Capabilities] = Capabilities(dtypes=DTYPES, partial=True, streams=True)

    compress: bool = False

    def recognises(self, path: Path) -> bool:
        """Tell whether `path` begins with HDF5's signature."""
        return head(path, 8) == b"\x89HDF\r\n\x1a\n"

    def _write(
        self, path: Path, tensors: "Mapping[str, Tensor]", infos: Mapping[str, TensorInfo], metadata: Mapping[str, str]
    ) -> list[Path]:
        if self.compress:
            warnings.warn(f"hdf5, compress: {COMPRESSION_COST}", stacklevel=3)
        with _library().File(path, "x", libver="latest") as file:
            file.create_dataset(_DOCUMENT, data=np.frombuffer(document(infos, metadata), np.uint8))
            for name, info in infos.items():
                if info.tied is not None:
                    continue
                deflate = {"compression": "gzip"} if self.compress and info.shape and 0 not in info.shape else {}
                held = file.create_dataset(quote(name, "/"), data=as_array(plain(tensors[name])), **deflate)
                if info.dtype not in NATIVE:
                    held.attrs["dtype"] = info.dtype  # for other readers; ours go by the document
        return [path]

    @contextmanager
    def _opened(self, path: Path) -> Iterator[Stored]:
        h5py = _library()
        with h5py.File(path, "r") as file:
            infos: dict[str, TensorInfo] = {}
            text: dict[str, str] = {}
            if ours := _DOCUMENT in file:
                infos, text = read_document(file[_DOCUMENT][()].tobytes())
            else:
                file.visititems(
                    lambda place, held: (
                        infos.update({place: _info(path, place, held)}) if isinstance(held, h5py.Dataset) else None
                    )
                )

            def fetch(name: str, slices: Slices | None) -> "Tensor":
                array = np.asarray(file[quote(name, "/") if ours else name][() if slices is None else slices])
                return as_tensor(array.astype(stand_in(infos[name].dtype), copy=False), infos[name].dtype)

            yield Stored(infos=infos, metadata=text, fetch=fetch)


def _info(path: Path, place: str, held: Any) -> TensorInfo:
    """Return what a dataset of another program is."""
    dtype = _NAMES.get(held.dtype.newbyteorder("="))
    if dtype is None or held.shape is None:
        raise CheckpointFormatError(
            f"checkpoint {path}, {place!r}: got a dataset of {held.dtype}, which is no tensor; allowed: datasets of "
            f"{', '.join(NATIVE)}"
        )
    return TensorInfo(dtype=dtype, shape=tuple(held.shape))


def _library() -> Any:
    try:
        import h5py
    except ImportError as error:
        raise MissingExtra.of("the format 'hdf5'", "h5py", "formats") from error
    return h5py
