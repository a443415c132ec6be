"""torch.distributed.checkpoint: a folder that many ranks may have written; read and written here by one process.

No process group is needed. `.metadata` is a pickle: it is read by an unpickler that knows the dozen names that DCP puts
there and refuses all others. DCP promises nothing across versions of torch, so the version is kept beside the tensors.
"""

import pickle
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from trainwright.checkpoint.tools.formats.format import (
    DTYPES,
    Format,
    Stored,
    TensorInfo,
    document,
    escape,
    plain,
    read_document,
    unescape,
)
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
            escape(name): torch.empty(info.shape, dtype=getattr(torch, info.dtype), device="meta")
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
        import torch
        from torch.distributed.checkpoint.default_planner import DefaultLoadPlanner
        from torch.distributed.checkpoint.filesystem import FileSystemReader
        from torch.distributed.checkpoint.metadata import TensorStorageMetadata

        with (path / ".metadata").open("rb") as file:
            records = _Unpickler(file).load()
        held = records.state_dict_metadata
        reader = FileSystemReader(path)
        reader.set_up_storage_reader(records, is_coordinator=True)

        def read(name: str) -> "Tensor":
            """Return a tensor, put together from all its shards."""
            target = torch.empty(held[name].size, dtype=held[name].properties.dtype)
            planner = DefaultLoadPlanner()
            planner.set_up_planner({name: target}, records, is_coordinator=True)
            reader.read_data(planner.finish_plan(planner.create_local_plan()), planner).wait()
            return target

        def fetch(name: str) -> "Tensor":
            return read(escape(name))

        if _DOCUMENT in held:
            infos, text = read_document(read(_DOCUMENT).numpy().tobytes())
            yield Stored(infos=infos, metadata=text, fetch=fetch)
            return
        infos = {
            unescape(name): TensorInfo(
                dtype=str(entry.properties.dtype).removeprefix("torch."), shape=tuple(entry.size)
            )
            for name, entry in held.items()
            if isinstance(entry, TensorStorageMetadata)
        }
        # Other values of foreign checkpoints are pickled, and not read.
        lost = tuple(name for name in held if unescape(name) not in infos)
        yield Stored(infos=infos, metadata={}, fetch=fetch, lost=lost)


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
