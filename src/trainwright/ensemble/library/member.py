"""A library member: writes and reads the folder of one model's predictions, and verifies its files.

`member.json` describes; `<split>.f32` holds predictions [N, C] or [N, T, 2], rows in ascending row id,
`<split>.true.f32` the probability of the true class [N], `<split>.targets.i32` or `.f32` the targets,
`<split>.rows.i64` the ids if given. What predicts is `model.onnx`, or a factory with `weights.safetensors` or with what
lies in `files/`, which is never read by us.
"""

import hashlib
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, cast

import numpy as np

from trainwright.ensemble.library.callables import FILES
from trainwright.ensemble.library.predictions import Output
from trainwright.ensemble.metrics import Array
from trainwright.errors import EnsembleError
from trainwright.publishing import FileLayer, make_folder, new_file, publish

__all__ = [
    "MEMBER_FILE",
    "PROGRAM_FILE",
    "SCHEMA",
    "WEIGHTS_FILE",
    "Member",
    "Split",
    "read_member",
    "write_folder",
]

SCHEMA = 2
MEMBER_FILE = "member.json"
WEIGHTS_FILE = "weights.safetensors"
PROGRAM_FILE = "model.onnx"
_ROW_NUMBERS = 1 << 30  # of one row of an input


@dataclass(frozen=True, kw_only=True, slots=True)
class Split:
    """What a member says about one split; equal digests mean the same rows and targets in the same order."""

    rows: int
    columns: int
    digest: str
    source: str | None = None  # the split of which these rows are a part, if they have no files of their own
    source_rows: int = 0  # how many rows that one has
    places: Array | None = field(default=None, compare=False, repr=False)  # which of them are meant


@dataclass(frozen=True, kw_only=True, eq=False)
class Member:
    """One trial's kept predictions and costs. Reading compares digests, and opens nothing that is not asked for."""

    trial: int
    epoch: int
    output: Output
    splits: Mapping[str, Split]
    folder: Path
    digests: Mapping[str, str] = field(repr=False)
    params: Mapping[str, Any] = field(default_factory=dict)
    device: str | None = None  # on which the seconds were measured
    seconds_per_row: float | None = None  # at batch 128; None if not measured
    weight_bytes: int | None = None
    parameter_count: int | None = None
    data: str | None = None  # name of the data set
    factory: str | None = None  # "module:function" that builds the network from params, if one was given
    link: str = "identity"  # what makes predictions of the network's output
    input_shape: tuple[int, ...] | None = None  # of one row of the network's input; None if no sample batch was left
    input_dtype: str | None = None  # such as "float32"
    columns: int | None = None  # classes, or outputs, of its predictions
    classes: tuple[str, ...] | None = None  # their names in the columns' order, if given
    snapshots: int = 1  # of its trial that are members, the newest first

    def predictions(self, split: str) -> Array:
        """Return the predictions [N, C] or [N, T, 2] of a split as they lie on disk, memory-mapped read-only."""
        known = self._find_split(split)
        self._verify_file(f"{known.source or split}.f32")
        return self.mapped(split)

    def mapped(self, split: str) -> Array:
        """Return the same without verifying it again; an open map holds a file open, so keep few."""
        known = self._find_split(split)
        rows = known.source_rows or known.rows
        stored: Array = np.memmap(
            self.folder / f"{known.source or split}.f32",
            dtype="<f4",
            mode="r",
            shape=(rows, known.columns, 2) if self.output == "moments" else (rows, known.columns),
        )
        return stored if known.places is None else stored[known.places]

    def true(self, split: str) -> Array:
        """Return the probability of the true class [N] in float32."""
        return self._read_column(split, "true.f32")

    def targets(self, split: str) -> Array:
        """Return the targets of a split: classes [N] in int32, or values [N, C] in float32."""
        if self.output == "classes":
            return self._read_column(split, "targets.i32")
        return self._read_column(split, "targets.f32", self._find_split(split).columns)

    def row_ids(self, split: str) -> Array | None:
        """Return the row ids [N] of a split, ascending; None if the trial left none."""
        known = self._find_split(split)
        left = f"{known.source or split}.rows.i64" in self.digests
        return self._read_column(split, "rows.i64") if left else None

    @property
    def predicts(self) -> bool:
        """Whether the trial left what predicts."""
        # Weights without a factory are told apart when the network is built, which says what is missing.
        return bool(self.model_digests)

    @property
    def model_digests(self) -> dict[str, str]:
        """The digests of all files that predict, by name."""
        known = (WEIGHTS_FILE, PROGRAM_FILE)
        return {name: digest for name, digest in self.digests.items() if name in known or name.startswith(FILES)}

    def model_files(self) -> dict[str, bytes]:
        """Return the content of all files that predict, verified, by name."""
        if not self.predicts:
            raise EnsembleError(
                f"trial {self.trial}: left no weights, so it cannot predict; allowed: members whose training function "
                "gives model= and factory= (or export=True, or an ONNX file) to tw.ensemble.leave"
            )
        return {name: self._verify_file(name).read_bytes() for name in sorted(self.model_digests)}

    def weights(self) -> bytes:
        """Return the network's weights as the bytes of a safetensors file."""
        return self._verify_file(WEIGHTS_FILE).read_bytes()

    def program(self) -> bytes | None:
        """Return the bytes of the member's ONNX file, which needs no factory; None without one."""
        return self._verify_file(PROGRAM_FILE).read_bytes() if PROGRAM_FILE in self.digests else None

    def files_folder(self) -> Path | None:
        """Return the folder of the files that were left for the factory, verified; None if there are none."""
        names = [name for name in self.digests if name.startswith(FILES)]
        for name in names:
            self._verify_file(name)
        return self.folder / FILES if names else None

    @staticmethod
    def digest_of(content: bytes) -> str:
        """Return the BLAKE2b-128 of a file's content, as digests of entries are."""
        return _digest(content).hexdigest()

    def _read_column(self, split: str, what: str, columns: int | None = None) -> Array:
        """Return a split's rows of one of its files, whose ending names the type."""
        known = self._find_split(split)
        # As numpy says it: "<f2" is "f16".
        dtype = f"<{what[-3]}{int(what[-2:]) // 8}"
        stored = np.fromfile(self._verify_file(f"{known.source or split}.{what}"), dtype=dtype)
        stored = stored if columns is None else stored.reshape(-1, columns)
        return stored if known.places is None else stored[known.places]

    def _find_split(self, name: str) -> Split:
        if name not in self.splits:
            raise EnsembleError(
                f"split: got {name!r}; allowed: {', '.join(self.splits) or 'none'}; trial {self.trial} left no other"
            )
        return self.splits[name]

    def _verify_file(self, name: str) -> Path:
        path = self.folder / name
        try:
            with path.open("rb") as file:
                found = hashlib.file_digest(file, _digest).hexdigest()
        except OSError as error:
            raise EnsembleError(f"{path}: cannot be read ({error.strerror}); run the trial again") from error
        if found != self.digests.get(name):
            raise EnsembleError(f"{path}: its content differs from the digest in the ledger; run the trial again")
        return path


_digest = partial(hashlib.blake2b, digest_size=16)


def write_folder(parent: Path, name: str, files: Mapping[str, Array | bytes]) -> tuple[Path, dict[str, str]]:
    """Write files into `parent / name` so that a crash at any moment leaves all of them or no such folder.

    Returns the folder and the BLAKE2b-128 of each file. A folder that already lies there may be what the ledger points
    to, so it stays and the new one gets the next free name: `name-2`, `name-3`.
    """
    make_folder(parent)
    # An existing folder may be what the ledger points to: never replace it.
    target, copy = parent / name, 1
    while target.exists():
        copy += 1
        target = parent / f"{name}-{copy}"
    with publish(target, replace=False) as scratch:
        scratch.mkdir()
        digests = {file: _write_file(scratch / file, content) for file, content in files.items()}
    return target, digests


def _write_file(path: Path, content: Array | bytes) -> str:
    buffer = content if isinstance(content, bytes) else np.ascontiguousarray(content).reshape(-1).data
    path.parent.mkdir(parents=True, exist_ok=True)
    files = FileLayer()
    with new_file(files, path) as handle:
        files.write(handle, memoryview(buffer).cast("B"))
    return _digest(buffer).hexdigest()


def read_member(folder: Path, digests: Mapping[str, str], *, trial: int) -> Member:
    """Return the member in a folder, or raise EnsembleError saying what is missing, damaged or not as `leave` writes.

    Of other files only their presence and size are checked here; `Member` verifies their content when it reads them.
    """
    path = folder / MEMBER_FILE
    try:
        content = path.read_bytes()
    except OSError as error:
        raise EnsembleError(f"{path}: cannot be read ({error.strerror}); run the trial again") from error
    if Member.digest_of(content) != digests.get(MEMBER_FILE):
        raise EnsembleError(f"{path}: its content differs from the digest in the ledger; run the trial again")
    try:
        return _member_of(folder, json.loads(content, parse_constant=_refuse_constant), digests, trial=trial)
    except (ValueError, KeyError, TypeError, AttributeError, IndexError, ArithmeticError, RecursionError) as error:
        raise EnsembleError(f"{path}: is no description of a member ({error!r:.200}); run the trial again") from error


def _refuse_constant(constant: str) -> None:
    raise ValueError(f"the number {constant}")


def _member_of(folder: Path, table: Any, digests: Mapping[str, str], *, trial: int) -> Member:
    path = folder / MEMBER_FILE
    if table["schema"] > SCHEMA:
        raise EnsembleError(
            f"{path}: got schema {table['schema']}; allowed: up to {SCHEMA}; install a newer Trainwright"
        )
    for name, size in table["files"].items():
        # A description from elsewhere must not reach files outside of its folder.
        if name.removeprefix(FILES) != Path(name).name:
            raise ValueError(f"a file named {name!r}")
        found = (folder / name).stat().st_size if (folder / name).is_file() else None
        if found != size:
            state = "is missing" if found is None else f"has {found} bytes instead of {size}"
            raise EnsembleError(f"{folder / name}: {state}; run the trial again")
    cost = table["cost"]
    shape = tuple(cost[0]["input_shape"]) if cost and cost[0].get("input_shape") else None
    if shape is not None and not all(isinstance(size, int) and size > 0 for size in shape):
        raise ValueError(f"an input of shape {shape}")
    # An honest input row is far smaller; this would exhaust memory when a batch is made.
    if shape is not None and math.prod(shape) > _ROW_NUMBERS:
        raise ValueError(f"an input of {math.prod(shape)} numbers")
    return Member(
        trial=trial,
        epoch=table["epoch"],
        output=cast(Output, table["output"]),
        splits={name: Split(**split) for name, split in table["splits"].items()},
        folder=folder,
        digests=dict(digests),
        params=table["params"],
        device=cost[0]["device"] if cost else None,
        seconds_per_row=cost[0]["seconds"] / cost[0]["rows"] if cost else None,
        weight_bytes=table["weight_bytes"],
        parameter_count=table["parameter_count"],
        data=table["data"],
        factory=table.get("factory"),
        link=table.get("link", "identity"),
        input_shape=shape,
        input_dtype=cost[0].get("input_dtype") if cost else None,
        columns=table.get("columns"),
        classes=tuple(table["classes"]) if table.get("classes") else None,
        snapshots=table.get("snapshots", 1),
    )
