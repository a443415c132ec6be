"""A checkpoint format of your own: one header in JSON, then the bytes of each tensor, one after another."""

import hashlib
import json
import struct
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from math import prod
from pathlib import Path
from typing import ClassVar

import torch
from torch import Tensor

from trainwright.checkpoint.tools.formats.format import (
    DTYPES,
    Format,
    Stored,
    TensorInfo,
    as_bytes,
    head,
    plain,
)

__all__ = ["Plain"]

_MAGIC = b"PLAIN01\n"


class Plain(Format):
    """The magic, the header's length and its hash, the header, the tensors; a tensor is read without the others."""

    name: ClassVar[str] = "plain"
    suffix: ClassVar[str] = ".plain"
    dtypes: ClassVar[frozenset[str]] = DTYPES

    def recognises(self, path: Path) -> bool:
        """Tell by the first bytes."""
        return head(path, len(_MAGIC)) == _MAGIC

    def _write(
        self, path: Path, tensors: Mapping[str, Tensor], infos: Mapping[str, TensorInfo], metadata: Mapping[str, str]
    ) -> list[Path]:
        header = document(infos, metadata)
        with path.open("xb") as file:
            file.write(_MAGIC + struct.pack("<Q", len(header)) + hashlib.sha256(header).digest() + header)
            for name, info in infos.items():
                if info.tied is None:
                    file.write(as_bytes(plain(tensors[name])).numpy().data)
        return [path]

    @contextmanager
    def _opened(self, path: Path) -> Iterator[Stored]:
        with path.open("rb") as file:
            (length,) = struct.unpack("<Q", file.read(len(_MAGIC) + 8)[len(_MAGIC) :])
            digest, header = file.read(32), file.read(length)
            if hashlib.sha256(header).digest() != digest:
                raise ValueError("the header is not what was written")
            infos, text = read_document(header)
            places, end = {}, file.tell()
            for name, info in infos.items():
                if info.tied is None:
                    size = prod(info.shape) * getattr(torch, info.dtype).itemsize
                    places[name], end = (end, size), end + size
            if path.stat().st_size != end:
                raise ValueError(f"{path.stat().st_size} bytes, where the header tells of {end}")

            def fetch(name: str) -> Tensor:
                place, size = places[name]
                file.seek(place)
                dtype = getattr(torch, infos[name].dtype)
                content = bytearray(file.read(size))
                flat = torch.frombuffer(content, dtype=dtype) if content else torch.empty(0, dtype=dtype)
                return flat.reshape(infos[name].shape)

            yield Stored(infos=infos, metadata=text, fetch=fetch)


def document(infos: Mapping[str, TensorInfo], metadata: Mapping[str, str]) -> bytes:
    """Return what a file keeps beside its arrays: dtype, shape and tie of every tensor, and the metadata."""
    tensors = {name: [info.dtype, info.shape, info.tied] for name, info in infos.items()}
    return json.dumps({"tensors": tensors, "metadata": dict(metadata)}).encode()


def read_document(content: bytes) -> tuple[dict[str, TensorInfo], dict[str, str]]:
    """Return the tensors and the metadata that `document` kept."""
    kept = json.loads(content)
    infos = {
        name: TensorInfo(dtype=dtype, shape=tuple(shape), tied=tied)
        for name, (dtype, shape, tied) in kept["tensors"].items()
    }
    return infos, kept["metadata"]
