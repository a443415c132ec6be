"""A `model.pt2` read by ourselves: the graph as JSON, weights and constants as tensors; torch's own reader is not used.

torch's reader takes more than that from a file: pickles, shared libraries (`data/aotinductor`), expressions that are
evaluated as Python. Here every entry of the archive is on a short list, and only JSON and raw numbers are read.
"""

import io
import json
import re
import stat
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from trainwright.ensemble.export.operators import NeedsTrust
from trainwright.errors import ExportError

if TYPE_CHECKING:
    import torch

__all__ = ["Archive", "Weight", "find_dtype", "read_archive", "read_size", "read_text"]

_ENTRY = re.compile(
    r"archive/(byteorder|archive_format|archive_version|\.data/version|\.data/serialization_id|\.format_version"
    r"|\.storage_alignment|models/model\.json|data/sample_inputs/model\.pt|data/weights/model_weights_config\.json"
    r"|data/constants/model_constants_config\.json|data/weights/weight_\d{1,6}|data/constants/tensor_\d{1,6})"
)
_ENTRIES = 20_000
_RECORD = re.compile(r"(weight|tensor)_\d{1,6}")
_MOST = 1 << 40  # of one size or stride
_ALL_BYTES_OVER = 1 << 26  # that a tensor may span beyond its own bytes, as an expanded one does
_ENCRYPTED = 1

# ScalarType of torch/_export/serde/schema.py; torch adds numbers to it and changes none.
_DTYPES = {
    1: "uint8", 2: "int8", 3: "int16", 4: "int32", 5: "int64", 6: "float16", 7: "float32", 8: "float64",
    10: "complex64", 11: "complex128", 12: "bool", 13: "bfloat16",
}  # fmt: skip


@dataclass(frozen=True, kw_only=True, slots=True)
class Weight:
    """One tensor of a program; those that share bytes in the file share memory here."""

    tensor: "torch.Tensor"
    is_param: bool


@dataclass(frozen=True, kw_only=True, slots=True)
class Archive:
    """What a `model.pt2` holds."""

    program: Mapping[str, Any]  # models/model.json
    weights: Mapping[str, Weight]  # parameters and buffers, by their names in the network
    constants: Mapping[str, Weight]


def read_archive(content: bytes) -> Archive:
    """Return the content of a `model.pt2`; raises ExportError, or what reading damaged JSON comes to raise."""
    files, program = read_text(content)
    return Archive(
        program=program,
        weights=_read_tensors(files, "data/weights/", "model_weights_config.json"),
        constants=_read_tensors(files, "data/constants/", "model_constants_config.json"),
    )


def read_text(content: bytes) -> tuple[Mapping[str, bytes], Mapping[str, Any]]:
    """Return the files of a `model.pt2` by name, each checked to be one that belongs there, and the graph's JSON."""
    with zipfile.ZipFile(io.BytesIO(content)) as archive:
        _check_entries(archive.infolist(), len(content))
        files = {entry.filename.removeprefix("archive/"): archive.read(entry) for entry in archive.infolist()}
    # A pickle may run any code when it is read; ours has none.
    if files.get("data/sample_inputs/model.pt"):
        raise NeedsTrust("holds data/sample_inputs/model.pt as a pickle")
    if files.get("byteorder", b"little") != b"little":
        raise ExportError(f"has bytes in the order {files['byteorder'][:20]!r}; allowed: little")
    program = json.loads(files["models/model.json"])
    return files, program


def _check_entries(entries: list[zipfile.ZipInfo], size: int) -> None:
    """Refuse what `export_network` does not write: other or equal names, links, compressed or overlapping entries."""
    if len(entries) > _ENTRIES:
        raise ExportError(f"has {len(entries)} entries; allowed: {_ENTRIES:,}")
    seen = set()
    for entry in entries:
        name = entry.filename
        # Names are a fixed list of patterns, so that no entry can leave the archive's folder.
        if _ENTRY.fullmatch(name) is None:
            text = f"holds {name[:100]!r}, which is no part of a graph and its weights"
            # Compiled libraries and extra files are honest uses of the format, beyond what is read here.
            raise NeedsTrust(text) if name.startswith(("archive/data/", "archive/extra/")) else ExportError(text)
        if name in seen:
            raise ExportError(f"holds {name!r} twice; allowed: each entry once")
        seen.add(name)
        if stat.S_ISLNK(entry.external_attr >> 16) or entry.flag_bits & _ENCRYPTED:
            raise ExportError(f"holds {name!r} as a link or encrypted; allowed: plain entries")
        if entry.compress_type != zipfile.ZIP_STORED:
            raise ExportError(f"holds {name!r} compressed; allowed: entries as they are, as torch.export writes them")
    # Overlapping entries are how a small file unpacks into a huge one.
    if sum(entry.file_size for entry in entries) > size:
        raise ExportError("has entries that are larger than the file; allowed: entries that do not overlap")


def _read_tensors(files: Mapping[str, bytes], folder: str, config: str) -> dict[str, Weight]:
    import torch

    bases: dict[str, torch.Tensor] = {}
    found = {}
    for name, table in json.loads(files[folder + config])["config"].items():
        record = table["path_name"]
        if table["use_pickle"] is not False:
            raise NeedsTrust(f"holds {name!r} as a pickle")
        if not isinstance(record, str) or _RECORD.fullmatch(record) is None:
            raise ExportError(f"holds {name!r} in {record!r:.100}; allowed: an entry of the archive")
        meta = table["tensor_meta"]
        kind = find_dtype(meta["dtype"])
        data = files[folder + record]
        if record not in bases:
            bases[record] = torch.frombuffer(bytearray(data), dtype=torch.uint8) if data else torch.empty(0, dtype=kind)
        base = bases[record].view(kind) if data else bases[record]
        sizes = [read_size(one["as_int"], _MOST) for one in meta["sizes"]]
        strides = [read_size(one["as_int"], _MOST) for one in meta["strides"]]
        offset = read_size(meta["storage_offset"]["as_int"], _MOST)
        _check_extent(name, sizes, strides, offset, base)
        tensor = torch.as_strided(base, sizes, strides, offset) if data else torch.empty(sizes, dtype=kind)
        found[name] = Weight(tensor=tensor, is_param=table["is_param"] is True)
    return found


def _check_extent(name: str, sizes: list[int], strides: list[int], offset: int, base: "torch.Tensor") -> None:
    count = 1
    for size in sizes:
        count *= size
    last = offset + sum((size - 1) * stride for size, stride in zip(sizes, strides, strict=True))
    if count and last >= base.numel():
        raise ExportError(f"has a tensor {name!r} that reaches beyond its bytes in the file")
    if count * base.element_size() > base.nbytes + _ALL_BYTES_OVER:
        raise ExportError(f"has a tensor {name!r} of {count} numbers, far more than it has bytes in the file")


def find_dtype(number: Any) -> "torch.dtype":
    """Return the torch dtype of a number of the format, refusing others."""
    import torch

    if isinstance(number, bool) or number not in _DTYPES:
        raise NeedsTrust(f"uses the data type {number!r}")
    found: torch.dtype = getattr(torch, _DTYPES[number])
    return found


def read_size(value: Any, most: int) -> int:
    """Return a whole number from 0 to `most`, refusing anything else."""
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= most:
        raise ExportError(f"has a size of {str(value)[:40]}; allowed: whole numbers from 0 to {most}")
    return value
