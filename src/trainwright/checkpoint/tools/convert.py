"""Converts a checkpoint to another format: written tensor by tensor, read back, compared, renamed into place."""

from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from trainwright.checkpoint.tools.formats.format import Format, Stored, equal_bits, format_named
from trainwright.checkpoint.tools.sources import open_source
from trainwright.checkpoint.tools.to_manager import write_manager
from trainwright.errors import CheckpointCorruptError, CheckpointFormatError, CheckpointSpaceError
from trainwright.publishing import is_disk_full, publish

__all__ = ["Conversion", "convert"]

_SHOWN = 5


@dataclass(frozen=True, kw_only=True, slots=True)
class Conversion:
    """What was written and compared bit by bit; `lost` names what the format could not hold."""

    source: str
    target: str
    format: str
    tensors: int
    bytes: int
    lost: tuple[str, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """Return it as plain values."""
        return asdict(self)


def convert(source: Path | str, target: Path | str, to: str | Format, *, allow_lossy: bool = False) -> Conversion:
    """Write the checkpoint at `source`, of any kind, to `target` in the format `to`; compare every tensor afterwards.

    "manager" writes a folder that a `Manager` restores, of a file of `torch.save` or a Hugging Face folder.

    Memory is that of the largest tensor, but for the format "torch", which is written in one piece. Tensors of a dtype
    that the format cannot hold, and values that are neither tensors nor JSON, are refused; with `allow_lossy` they are
    left out. Raises `CheckpointFormatError`,
    `CheckpointSpaceError` if there is no room, `CheckpointCorruptError` if what was written is not what was read.
    """
    target = Path(target)
    if target.exists():
        raise CheckpointFormatError(f"convert, target: got {target}, which exists; allowed: a path where nothing is")
    if to == "manager":
        count, size = write_manager(Path(source), target)
        return Conversion(source=str(source), target=str(target), format="manager", tensors=count, bytes=size)
    kind = format_named(to) if isinstance(to, str) else to
    # Tensors are read one by one, if the target format writes them so.
    with open_source(source) as opened:
        kept, lost = _select_kept(opened.stored, kind, allow_lossy=allow_lossy)
        try:
            with publish(target, replace=False) as temporary:
                files = kind.write(temporary, kept, kept.metadata)
                size = sum(file.stat().st_size for file in files)
                # Before the rename: a file that came out wrong never appears under its name.
                _compare_written(kept, temporary, kind)
        except OSError as error:
            reason = (error.strerror or str(error)).lower()
            mend = "free some" if is_disk_full(error) else "give another path"
            raise CheckpointSpaceError(f"convert, target: cannot write {target}: {reason}; {mend}") from error
    return Conversion(
        source=str(source), target=str(target), format=kind.name, tensors=len(kept), bytes=size, lost=lost
    )


def _select_kept(stored: Stored, kind: Format, *, allow_lossy: bool) -> tuple[Stored, tuple[str, ...]]:
    """Return what the format can hold, and the names of the rest."""
    infos = {name: info for name, info in stored.infos.items() if info.dtype in kind.dtypes}
    lost = (*(name for name in stored.infos if name not in infos), *stored.lost)
    if lost and not allow_lossy:
        shown = ", ".join(
            f"{name!r} ({stored.infos[name].dtype if name in stored.infos else 'no tensor'})" for name in lost[:_SHOWN]
        )
        raise CheckpointFormatError(
            f"convert: the format {kind.name!r} cannot hold {shown}{', ...' if len(lost) > _SHOWN else ''}; leave it "
            "out with allow_lossy (--allow-lossy), or choose another format"
        )
    return replace(stored, infos=infos), lost


def _compare_written(stored: Stored, path: Path, kind: Format) -> None:
    with kind.open(path) as written:
        same = written.infos.keys() == stored.infos.keys() and dict(written.metadata) == dict(stored.metadata)
        wrong = next((name for name in stored if not equal_bits(stored[name], written[name])), None) if same else ""
    if wrong is not None:
        raise CheckpointCorruptError(
            f"convert: {wrong or 'names or metadata'} in the {kind.name} file came out differently; nothing was kept"
        )
