"""Exports an ensemble as one folder: `manifest.json`, and in `members/trial-<trial>-epoch-<epoch>` each model.

That is `model.onnx`, or what needs a factory: `weights.safetensors`, or `files/`, which are not read here. The manifest
holds the digests of every other file and, over all the rest of itself, its own.
"""

import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trainwright.ensemble.export.onnx_file import export_network
from trainwright.ensemble.library.cost import BATCH_ROWS
from trainwright.ensemble.library.member import (
    MEMBER_FILE,
    PROGRAM_FILE,
    WEIGHTS_FILE,
    Member,
    read_member,
    write_folder,
)
from trainwright.ensemble.library.networks import build_network
from trainwright.errors import EnsembleError, ExportError
from trainwright.files import read_json
from trainwright.publishing import publish

if TYPE_CHECKING:
    import torch

__all__ = ["MANIFEST_FILE", "manifest_digest", "read_export", "write_export"]

MANIFEST_FILE = "manifest.json"
_SCHEMA = 2  # 1 had no digest of the manifest itself
_KEYS = ("members", "output", "weights", "rule", "calibration", "threshold", "report", "digest")


def write_export(
    directory: Path,
    members: Sequence[Member],
    content: Mapping[str, Any],
    *,
    self_contained: bool = False,
    replace: bool = False,
) -> Path:
    """Write members and manifest into a new folder, which appears whole or not at all; returns it.

    With `replace` it takes the place of an earlier export there.
    """
    # Only a folder that is an export may be replaced: --out may name any other by mistake.
    if directory.exists() and not (replace and (directory / MANIFEST_FILE).is_file()):
        what = "is no exported ensemble" if replace else "exists already"
        raise ExportError(f"{directory}: {what}; allowed: a new folder; give another name or remove it")
    files: dict[str, bytes] = {}
    listed = []
    for member in members:
        member_files = member.model_files()
        if self_contained and PROGRAM_FILE not in member_files:
            member_files = {PROGRAM_FILE: _export_member(member)}
        table = json.loads((member.folder / MEMBER_FILE).read_bytes())
        table |= {"splits": {}, "files": {file: len(one) for file, one in member_files.items()}}
        member_files[MEMBER_FILE] = json.dumps(table, indent=1, allow_nan=False).encode()
        name = f"members/trial-{member.trial:06d}-epoch-{member.epoch:06d}"
        files |= {f"{name}/{file}": one for file, one in member_files.items()}
        digests = {file: member.digest_of(one) for file, one in member_files.items()}
        listed.append({"trial": member.trial, "folder": name, "digests": digests})
    manifest = {"schema": _SCHEMA, **content, "members": listed}
    manifest["digest"] = manifest_digest(manifest)
    files[MANIFEST_FILE] = json.dumps(manifest, indent=1, allow_nan=False).encode()
    parent, name = directory.absolute().parent, directory.name
    if not replace:
        return write_folder(parent, name, files)[0]
    with publish(directory) as temporary:
        write_folder(parent, temporary.name, files)
    return directory


def read_export(directory: Path) -> tuple[tuple[Member, ...], Mapping[str, Any]]:
    """Return the members, their files verified, and the rest of the manifest."""
    path = directory / MANIFEST_FILE
    if not directory.is_dir():
        raise ExportError(
            f"ensemble {str(directory)!r}: there is no such folder; allowed: one that Ensemble.save wrote"
        )
    table = read_json(path, "ensemble", allowed="a folder that Ensemble.save wrote", error=ExportError)
    _check_manifest(path, table)
    try:
        return _read_members(directory, path, table["members"]), table
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise _no_manifest(path, repr(error)[:200]) from error


def _read_members(directory: Path, path: Path, listed: Any) -> tuple[Member, ...]:
    members = []
    for one in listed:
        folder = directory / one["folder"]
        # A manifest from elsewhere must not name folders outside of its own.
        if not folder.resolve().is_relative_to(directory.resolve()):
            raise ExportError(
                f"{path}: got the folder {one['folder']!r} of trial {one['trial']}, which lies outside of {directory}; "
                "allowed: folders in it; export the ensemble again"
            )
        try:
            member = read_member(folder, one["digests"], trial=one["trial"])
            member.model_files()
        except ExportError:
            raise
        except EnsembleError as error:
            text = str(error).replace("differs from the digest in the ledger", "differs from the manifest's digest")
            raise ExportError(text.replace("run the trial again", "export the ensemble again")) from error
        members.append(member)
    return tuple(members)


def manifest_digest(manifest: Mapping[str, Any]) -> str:
    """Return the BLAKE2b-128 of a manifest's content, its own digest left out; spaces and order do not count."""
    rest = {key: value for key, value in manifest.items() if key != "digest"}
    return Member.digest_of(json.dumps(rest, sort_keys=True, separators=(",", ":")).encode())


def _check_manifest(path: Path, table: Any) -> None:
    if not isinstance(table, dict) or not isinstance(table.get("schema"), int):
        raise _no_manifest(path)
    if table["schema"] > _SCHEMA:
        raise ExportError(f"{path}: got schema {table['schema']}; allowed: {_SCHEMA}; install a newer Trainwright")
    if table["schema"] < _SCHEMA:
        raise ExportError(f"{path}: got schema {table['schema']}; allowed: {_SCHEMA}; export the ensemble again")
    if any(key not in table for key in _KEYS) or not isinstance(table["members"], list) or not table["members"]:
        raise _no_manifest(path)
    found = manifest_digest(table)
    if found != table["digest"]:
        raise ExportError(
            f"{path}: was changed after it was written: its digest is {found}, expected {table['digest']}; "
            "export the ensemble again"
        )
    weights = table["weights"]
    if not isinstance(weights, list) or not all(isinstance(one, int | float) for one in weights):
        raise _no_manifest(path, "weights that are no numbers")
    if len(weights) != len(table["members"]) or not all(one >= 0 for one in weights) or not 0 < sum(weights) < math.inf:
        raise _no_manifest(path, f"{len(weights)} weights of {len(table['members'])} members: {weights!r:.100}")


def _no_manifest(path: Path, why: str = "") -> ExportError:
    reason = f" ({why})" if why else ""
    return ExportError(f"{path}: is no manifest of an ensemble{reason}; allowed: a folder that Ensemble.save wrote")


def _export_member(member: Member) -> bytes:
    """Return the program of a member that was left with a factory alone, by an example input of its kind."""
    whose = f"Ensemble.save, self_contained: trial {member.trial}"
    shape, dtype = member.input_shape, member.input_dtype
    if shape is None or dtype is None:
        raise ExportError(
            f"{whose}: left no sample, which shows the input's shape; allowed: members whose training function gives "
            "sample= to tw.ensemble.leave"
        )

    def example() -> "torch.Tensor":
        import torch

        kind: torch.dtype = getattr(torch, dtype)
        draws = torch.randn(BATCH_ROWS, *shape, generator=torch.Generator().manual_seed(0))
        return draws.to(kind) if kind.is_floating_point else torch.zeros_like(draws, dtype=kind)

    if WEIGHTS_FILE not in member.digests:
        raise ExportError(
            f"{whose}: is loaded by its factory from its own files; allowed: torch networks; leave an ONNX file of "
            "it, or save without self_contained"
        )
    return export_network(build_network(member), example, whose=whose)
