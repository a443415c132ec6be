"""torch.distributed.checkpoint: a folder that many ranks may have written; read and written here by one process.

No process group is needed. `.metadata` is a pickle: it is read by an unpickler that knows the dozen names that DCP puts
there and refuses all others. DCP promises nothing across versions of torch, so the version is kept beside the tensors.
"""

import io
import json
import pickle
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from trainwright.checkpoint.tools.formats.format import Format, Stored, document, read_document
from trainwright.checkpoint.tools.formats.tensors import DTYPES, TensorInfo, escape, plain, torch_dtype, unescape
from trainwright.errors import CheckpointFormatError

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["Dcp"]

# Names that begin with % get another one, so nothing can be called this.
_DOCUMENT = "%document"


@dataclass(frozen=True, kw_only=True, slots=True)
class Dcp(Format):
    """Sharded state: any slice of a tensor is put together from the shards that it touches."""

    name: ClassVar[str] = "dcp"
    suffix: ClassVar[str] = ".dcp"
    dtypes: ClassVar[frozenset[str]] = DTYPES

    def recognises(self, path: Path) -> bool:
        """Tell whether `path` is a folder with DCP's metadata."""
        return (path / ".metadata").is_file()

    def _write(
        self, path: Path, tensors: "Mapping[str, Tensor]", infos: Mapping[str, TensorInfo], metadata: Mapping[str, str]
    ) -> list[Path]:
        import torch
        from torch.distributed.checkpoint.default_planner import DefaultSavePlanner
        from torch.distributed.checkpoint.filesystem import FileSystemWriter

        class OneByOne(DefaultSavePlanner):
            """Plans with tensors that hold nothing and reads each when its turn to be written comes."""

            def lookup_object(self, index: Any) -> Any:
                found = super().lookup_object(index)
                return plain(tensors[unescape(index.fqn)]) if found.is_meta else found

        kept = bytearray(document(infos, metadata, torch=torch.__version__))
        state = {
            escape(name): torch.empty(info.shape, dtype=torch_dtype(info.dtype), device="meta")
            for name, info in infos.items()
            if info.tied is None
        }
        _save(
            {**state, _DOCUMENT: torch.frombuffer(kept, dtype=torch.uint8)},
            OneByOne(flatten_state_dict=False),
            FileSystemWriter(path, single_file_per_rank=True, sync_files=True),
        )
        return sorted(file for file in path.iterdir() if file.is_file())

    @contextmanager
    def _opened(self, path: Path) -> Iterator[Stored]:
        from torch.distributed.checkpoint.metadata import TensorStorageMetadata

        reader, held = _reader(path)

        def fetch(name: str) -> "Tensor":
            return _read_tensor(reader, held, escape(name))

        if _DOCUMENT in held:
            infos, text = read_document(_read_tensor(reader, held, _DOCUMENT).numpy().tobytes())
            yield Stored(infos=infos, metadata=text, fetch=fetch)
            return
        infos, values = {}, {}
        for name, entry in held.items():
            if isinstance(entry, TensorStorageMetadata):
                dtype = str(entry.properties.dtype).removeprefix("torch.")
                infos[unescape(name)] = TensorInfo(dtype=dtype, shape=tuple(entry.size))
            else:
                values[name] = _read_value(reader, held, name)
        text = {name: value for name, value in values.items() if value is not None}
        yield Stored(infos=infos, metadata=text, fetch=fetch, lost=tuple(values.keys() - text.keys()))


class _Unpickler(pickle.Unpickler):
    """Knows what DCP's metadata is made of, and nothing else."""

    def find_class(self, module: str, name: str) -> Any:
        # Anything that is not on the list might run code while it is unpickled.
        known = name in _KNOWN.get(module, ())
        # Dtypes are pickled as names of the module.
        if not known and module == "torch":
            import torch

            known = isinstance(getattr(torch, name, None), torch.dtype | torch.layout)
        if not known:
            raise CheckpointFormatError(
                f"checkpoint, .metadata: got a pickle that asks for {module}.{name}, which is not executed; allowed: "
                "the records of torch.distributed.checkpoint"
            )
        return super().find_class(module, name)


_KNOWN: Mapping[str, tuple[str, ...]] = {
    "torch.distributed.checkpoint.metadata": (
        "BytesStorageMetadata",
        "ChunkStorageMetadata",
        "Metadata",
        "MetadataIndex",
        "StorageMeta",
        "TensorProperties",
        "TensorStorageMetadata",
        "_MEM_FORMAT_ENCODING",
    ),
    "torch.distributed.checkpoint.filesystem": ("_StorageInfo",),
    "torch.serialization": ("_get_layout",),
    "torch": ("Size",),
    "pathlib": ("Path", "PosixPath"),
    "pathlib._local": ("Path", "PosixPath"),
    "collections": ("OrderedDict",),
}


def _save(state: "dict[str, Tensor]", planner: Any, writer: Any) -> None:
    """Do what `torch.distributed.checkpoint.save` does for one process, which it does not do without a warning."""
    planner.set_up_planner(state_dict=state, storage_meta=writer.storage_meta(), is_coordinator=True)
    writer.set_up_storage_writer(is_coordinator=True)
    plans, metadata = planner.create_global_plan([writer.prepare_local_plan(planner.create_local_plan())])
    (plan,) = writer.prepare_global_plan(plans)
    written = writer.write_data(planner.finish_plan(plan), planner)
    written.wait()
    writer.finish(metadata, [written.value()])


def _reader(path: Path) -> tuple[Any, Mapping[str, Any]]:
    """Return DCP's reader of a folder and the records of its tensors and values by name."""
    from torch.distributed.checkpoint.filesystem import FileSystemReader

    with (path / ".metadata").open("rb") as file:
        metadata = _Unpickler(file).load()
    reader = FileSystemReader(path)
    reader.set_up_storage_reader(metadata, is_coordinator=True)
    return reader, metadata.state_dict_metadata


@dataclass(slots=True)
class _Sink:
    """Takes what DCP's reader reads: slices go where they belong in `target`, values are kept as bytes."""

    target: "Tensor"
    values: list[bytes] = field(default_factory=list)

    def resolve_tensor(self, item: Any) -> "Tensor":
        place = self.target
        # Narrow the target to where the shard belongs; the reader writes through the view.
        for dim, (offset, length) in enumerate(zip(item.dest_offsets, item.lengths, strict=True)):
            place = place.narrow(dim, offset, length)
        return place

    def commit_tensor(self, _: Any, __: "Tensor") -> None:
        """Do nothing: the slice was a view of the target."""

    def load_bytes(self, _: Any, value: io.BytesIO) -> None:
        self.values.append(value.getvalue())


def _read_tensor(reader: Any, held: Mapping[str, Any], name: str) -> "Tensor":
    """Return a tensor, put together from all its shards."""
    import torch
    from torch.distributed.checkpoint.metadata import ChunkStorageMetadata
    from torch.distributed.checkpoint.planner import LoadPlan
    from torch.distributed.checkpoint.planner_helpers import create_read_items_for_chunk_list

    entry = held[name]
    target = torch.empty(entry.size, dtype=entry.properties.dtype)
    whole = ChunkStorageMetadata(torch.Size([0] * target.ndim), target.size())
    reader.read_data(LoadPlan(create_read_items_for_chunk_list(name, entry, [whole])), _Sink(target)).wait()
    return target


def _read_value(reader: Any, held: Mapping[str, Any], name: str) -> str | None:
    """Return a value that is no tensor as JSON; None where it has none or would need code to be read."""
    import torch
    from torch.distributed.checkpoint.planner import LoadPlan
    from torch.distributed.checkpoint.planner_helpers import _create_read_items

    sink = _Sink(torch.empty(0))
    reader.read_data(LoadPlan(_create_read_items(name, held[name], None)), sink).wait()
    try:
        return json.dumps(torch.load(io.BytesIO(sink.values[0]), weights_only=True))
    except (pickle.UnpicklingError, TypeError, ValueError):
        return None
