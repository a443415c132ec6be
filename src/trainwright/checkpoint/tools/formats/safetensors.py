"""safetensors: a JSON header and raw bytes; read with the library, written here tensor by tensor.

The library's own writer wants every tensor in memory at once; the layout is eight bytes of header length, the header,
and the data without holes.
"""

import json
import struct
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from trainwright.checkpoint.save.shard_file import CODES
from trainwright.checkpoint.tools.formats.format import (
    Format,
    Stored,
    TensorInfo,
    as_bytes,
    escape,
    head,
    plain,
    unescape,
)
from trainwright.errors import MissingExtra

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["SafeTensors"]

_DTYPES = {code: dtype for dtype, code in CODES.items()}
_TIES = "trainwright.ties"


@dataclass(frozen=True, kw_only=True, slots=True)
class SafeTensors(Format):
    """Weights for exchange: mapped into memory when read, nothing in it that could run."""

    name: ClassVar[str] = "safetensors"
    suffix: ClassVar[str] = ".safetensors"
    dtypes: ClassVar[frozenset[str]] = frozenset(CODES)

    def recognises(self, path: Path) -> bool:
        """Tell whether `path` begins with the length of a header and the header's brace."""
        start = head(path, 9)
        return len(start) == 9 and start[8:] == b"{" and struct.unpack("<Q", start[:8])[0] < 100_000_000

    def _write(
        self, path: Path, tensors: "Mapping[str, Tensor]", infos: Mapping[str, TensorInfo], metadata: Mapping[str, str]
    ) -> list[Path]:
        import torch

        # Wide dtypes first: every tensor then starts at a multiple of its element size, which mapped reads need.
        sizes = {name: getattr(torch, info.dtype).itemsize for name, info in infos.items() if info.tied is None}
        order = sorted(sizes, key=lambda name: -sizes[name])
        header: dict[str, Any] = {}
        ties = {name: info.tied for name, info in infos.items() if info.tied is not None}
        text = {**metadata, **({_TIES: json.dumps(ties)} if ties else {})}
        if text:
            header["__metadata__"] = text
        end = 0
        for name in order:
            info = infos[name]
            begin, end = end, end + prod(info.shape) * sizes[name]
            header[escape(name)] = {"dtype": CODES[info.dtype], "shape": info.shape, "data_offsets": [begin, end]}
        spelled = json.dumps(header, ensure_ascii=False).encode()
        spelled += b" " * (-len(spelled) % 8)
        with path.open("xb") as file:
            file.write(struct.pack("<Q", len(spelled)) + spelled)
            for name in order:
                file.write(as_bytes(plain(tensors[name])).numpy().data)
        return [path]

    @contextmanager
    def _opened(self, path: Path) -> Iterator[Stored]:
        with MissingExtra.instead_of_import_error("the format 'safetensors'", "safetensors", "torch"):
            import safetensors
        with safetensors.safe_open(path, framework="pt") as file:
            text = dict(file.metadata() or {})
            ties = json.loads(text.pop(_TIES, "{}"))
            infos = {}
            for name in file.keys():  # noqa: SIM118 -- no mapping, in spite of the method
                part = file.get_slice(name)
                infos[unescape(name)] = TensorInfo(dtype=_DTYPES[part.get_dtype()], shape=tuple(part.get_shape()))

            def fetch(name: str) -> "Tensor":
                tensor: Tensor = file.get_tensor(escape(name))
                return tensor

            tied = {name: replace(infos[home], tied=home) for name, home in ties.items()}
            yield Stored(infos={**infos, **tied}, metadata=text, fetch=fetch)
