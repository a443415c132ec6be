"""Converts a checkpoint to another format: written tensor by tensor, read back, compared, renamed into place.

What other tools saved, a file of `torch.save` or a Hugging Face folder, becomes a folder that a `Manager` restores.
Weights become the item "model", under their names without what wrappers put in; the optimizer's state gets the names of
parameters; every other entry of a `torch.save` file becomes an item of its name, with its types as they are.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from numbers import Integral
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from trainwright.checkpoint.config import CheckpointConfig
from trainwright.checkpoint.manager import Manager
from trainwright.checkpoint.state.captured import RESERVED, canonical_names
from trainwright.checkpoint.tools.formats.format import Format, Stored, equal_bits, format_named, format_of
from trainwright.checkpoint.tools.formats.torch_zip import load_values
from trainwright.checkpoint.tools.sources import open_source
from trainwright.errors import CheckpointCorruptError, CheckpointFormatError, CheckpointSpaceError
from trainwright.publishing import is_disk_full, publish

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["Conversion", "convert", "write_manager"]

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


_MODEL = ("model", "state_dict", "model_state_dict")
_OPTIMIZER = ("optimizer", "optimizer_state_dict", "optim")
_STEP = ("step", "global_step")
# Of a Hugging Face folder: the index of several files, or the one file.
_INDEX, _WHOLE = "model.safetensors.index.json", "model.safetensors"


def write_manager(source: Path, target: Path) -> tuple[int, int]:
    """Write the folder; return how many tensors of weights it has, and its bytes. Every weight is compared afterwards.

    The step is that of an entry "step" or "global_step", else 0; random state and flags are those of this process.
    """
    items, step = _read_items(source)
    with publish(target, replace=False) as temporary:
        # As objects whose states they are.
        kept: Any = {name: SimpleNamespace(state_dict=partial(dict.__getitem__, items, name)) for name in items}
        with Manager(temporary, config=CheckpointConfig(on_error="raise"), **kept) as manager:
            manager.steps = step
            manager.save(wait=True)
        with open_source(temporary) as written:
            for name, tensor in items["model"].items():
                if not equal_bits(tensor, written.stored[f"model.{name}"]):
                    raise CheckpointCorruptError(f"convert: {name!r} came out differently; nothing was kept")
        size = sum(file.stat().st_size for file in temporary.rglob("*") if file.is_file())
    return len(items["model"]), size


def _read_items(source: Path) -> tuple[dict[str, Any], int]:
    if source.is_dir():
        return {"model": _read_folder(source)}, 0
    if format_of(source).name != "torch":
        with open_source(source) as opened:
            return {"model": _canonical({name: opened.stored[name] for name in opened.stored})}, 0
    return _name_items(source, load_values(source))


def _read_folder(folder: Path) -> "dict[str, Tensor]":
    """Return the weights of a Hugging Face folder, of all its files."""
    index = folder / _INDEX
    if not index.is_file() and not (folder / _WHOLE).is_file():
        raise CheckpointFormatError(
            f"convert: got {folder}, which holds no checkpoint; allowed: a file, or a Hugging Face folder with "
            f"{_WHOLE} or {_INDEX}"
        )
    places: dict[str, str] = json.loads(index.read_text("utf-8"))["weight_map"] if index.is_file() else {}
    found: dict[str, Tensor] = {}
    for name in sorted(set(places.values())) if places else [_WHOLE]:
        # A name from a file must not lead out of its folder.
        if name != Path(name).name:
            raise CheckpointFormatError(f"convert: {index} names the file {name!r}; allowed: files of its folder")
        with open_source(folder / name) as opened:
            found |= {key: opened.stored[key] for key in opened.stored}
    if missing := sorted(places.keys() - found.keys()):
        raise CheckpointCorruptError(f"convert: {missing[0]!r} is in {index}, but in none of its files")
    return _canonical(found)


def _name_items(source: Path, content: Any) -> tuple[dict[str, Any], int]:
    """Return the items of what `torch.save` wrote, and the step."""
    import torch

    if not isinstance(content, Mapping) or not content:
        raise CheckpointFormatError(
            f"convert: got {source}, which holds {type(content).__name__}; allowed: a model's state dict, or a dict "
            f"with one under {', '.join(_MODEL)}"
        )
    if all(isinstance(value, torch.Tensor) for value in content.values()):
        return {"model": _canonical(content)}, 0
    model = next((name for name in _MODEL if isinstance(content.get(name), Mapping)), None)
    if model is None:
        raise CheckpointFormatError(
            f"convert: got {source} with the entries {', '.join(map(repr, list(content)[:5]))}; allowed: a model's "
            f"state dict under one of {', '.join(_MODEL)}"
        )
    items: dict[str, Any] = {"model": _canonical(content[model])}
    for name, value in content.items():
        if name in _OPTIMIZER and isinstance(value, Mapping) and "param_groups" in value:
            items["optimizer"] = _name_parameters(value, items["model"])
        elif name != model:
            word = str(name)
            items[f"file_{word}" if word in RESERVED or word in items or not word.isidentifier() else word] = value
    step = next((content[name] for name in _STEP if isinstance(content.get(name), Integral)), 0)
    return items, max(int(step), 0)


def _canonical(state: "Mapping[str, Tensor]") -> "dict[str, Tensor]":
    names = canonical_names(state)
    return {names[name]: value.detach() for name, value in state.items()}


def _name_parameters(optimizer: Mapping[str, Any], model: "Mapping[str, Tensor]") -> dict[str, Any]:
    """Return an optimizer's state with names for the positions of parameters, as a manager keeps it.

    A state dict lists weights in the order of the modules, as `model.parameters()` does, but has buffers between them:
    what tells them is that the state of a position has the shape of its parameter.
    """
    groups, state = optimizer["param_groups"], optimizer["state"]
    positions = [position for group in groups for position in group["params"]]
    shapes = {
        position: {tuple(value.shape) for value in state.get(position, {}).values() if getattr(value, "ndim", 0)}
        for position in positions
    }
    floating = [name for name, value in model.items() if value.is_floating_point()]
    names = [name for name in floating if not name.endswith(("running_mean", "running_var"))]
    fits = len(names) == len(positions) and all(
        not shapes[position] or tuple(model[name].shape) in shapes[position]
        for position, name in zip(positions, names, strict=True)
    )
    if not fits:
        raise CheckpointFormatError(
            f"convert: the optimizer has {len(positions)} parameters, which cannot be matched with the model's "
            f"{len(names)} weights; allowed: an optimizer of model.parameters(), in that order; save the model alone"
        )
    name_of = {position: f"model.{name}" for position, name in zip(positions, names, strict=True)}
    return {
        **optimizer,
        "state": {name_of[position]: dict(value) for position, value in state.items()},
        "param_groups": [{**group, "params": [name_of[one] for one in group["params"]]} for group in groups],
    }
