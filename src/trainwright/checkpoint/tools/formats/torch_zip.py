"""torch's zip files: what `torch.save` writes, read with `weights_only=True` and mapped into memory.

A file of ours is a plain state dict, so `torch.load` and `load_state_dict` take it as it is; metadata is an entry more.
A file of others may nest: its tensors get dotted names, its other values become metadata in JSON.
"""

import json
import pickle
import zipfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from trainwright.checkpoint.tools.formats.format import (
    DTYPES,
    Format,
    Stored,
    TensorInfo,
    check_dtypes,
    escape,
    first_entry,
    infos_of,
    plain,
    unescape,
)
from trainwright.errors import CheckpointFormatError

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["TorchZip", "load_values"]

# Names that begin with % get another one, so nothing can be called this.
_METADATA = "%metadata"


@dataclass(frozen=True, kw_only=True, slots=True)
class TorchZip(Format):
    """`torch.save` and `torch.load`; a pickle that would run code is refused."""

    name: ClassVar[str] = "torch"
    suffix: ClassVar[str] = ".pt"
    dtypes: ClassVar[frozenset[str]] = DTYPES

    def recognises(self, path: Path) -> bool:
        """Tell whether `path` is a zip file that begins as torch's do: with a pickle."""
        return (first_entry(path) or "").endswith("/data.pkl")

    def _write(
        self, path: Path, tensors: "Mapping[str, Tensor]", infos: Mapping[str, TensorInfo], metadata: Mapping[str, str]
    ) -> list[Path]:
        import torch

        state: dict[str, Any] = {}
        for name, info in infos.items():
            state[escape(name)] = plain(tensors[name]) if info.tied is None else state[escape(info.tied)]
        if metadata:
            state[_METADATA] = dict(metadata)
        # Given a path, torch would write the file's name into it.
        with path.open("xb") as file:
            torch.save(state, file)
        return [path]

    @contextmanager
    def _opened(self, path: Path) -> Iterator[Stored]:
        state = load_values(path)
        # A state dict of others may nest; tensors get dotted names.
        found = _Found()
        if isinstance(state, dict) and isinstance(state.get(_METADATA), dict):
            found.metadata.update(state.pop(_METADATA))
        found.gather(state, "")
        infos = infos_of(found.tensors)
        check_dtypes(infos, self.dtypes, self.name)
        yield Stored(
            infos=infos,
            metadata=found.metadata,
            fetch=lambda name: found.tensors[name].detach(),
            lost=tuple(found.lost),
        )


def load_values(path: Path) -> Any:
    """Return what `torch.save` wrote, tensors as views of the file; a pickle that would run code is refused."""
    import torch

    if zipfile.is_zipfile(path):
        with zipfile.ZipFile(path) as entries:
            # torch would map the compressed bytes as values, and unpack a pickle of any size.
            if any(entry.compress_type for entry in entries.infolist()):
                raise CheckpointFormatError(
                    f"checkpoint: got {path} with compressed entries; allowed: as torch saves it"
                )
    try:
        with torch.serialization.safe_globals(_numpy_globals()):
            return torch.load(path, map_location="cpu", mmap=True, weights_only=True)
    except pickle.UnpicklingError as error:
        raise CheckpointFormatError(
            f"checkpoint: got {path}, whose pickle asks for code to be executed or is damaged; allowed: tensors and "
            "plain values"
        ) from error


def _numpy_globals() -> list[Any]:
    """Return what a pickle needs for NumPy's numbers and arrays of numbers: it makes values and calls nothing else."""
    import numpy as np

    # What a pickle calls, under the names before NumPy's version 2 and since.
    makers: list[Any] = [value.__reduce__()[0] for value in (np.float64(), np.empty(0))]
    rooms = ("numpy.core.multiarray", "numpy._core.multiarray")
    named = [(maker, f"{room}.{maker.__name__}") for room in rooms for maker in makers]
    kinds = {type(np.dtype(code)) for code in np.typecodes["AllInteger"] + np.typecodes["AllFloat"] + "?Mm"}
    return [np.ndarray, np.dtype, *named, *kinds]


@dataclass(slots=True)
class _Found:
    """What a nested state holds, by dotted name."""

    tensors: "dict[str, Tensor]" = field(default_factory=dict)
    metadata: dict[str, str] = field(default_factory=dict)
    lost: list[str] = field(default_factory=list)

    def gather(self, value: Any, name: str) -> None:
        import torch

        if isinstance(value, torch.Tensor):
            if name in self.tensors:
                raise CheckpointFormatError(
                    f"checkpoint, {name!r}: got two tensors that have this dotted name; allowed: names that stay "
                    "different when nested keys are joined with dots"
                )
            self.tensors[name] = value
        elif isinstance(value, Mapping) and (value or not name):
            for key, inner in value.items():
                self.gather(inner, f"{name}.{key}" if name else unescape(str(key)))
        elif isinstance(value, list | tuple) and value:
            for place, inner in enumerate(value):
                self.gather(inner, f"{name}.{place}" if name else str(place))
        else:
            try:
                self.metadata[name] = json.dumps(value)
            except (TypeError, ValueError):
                self.lost.append(name)
