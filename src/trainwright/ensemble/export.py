"""An ensemble as one folder: `manifest.json` and `members/<trial>/{member.json,weights.safetensors}`; no pickle."""

import json
from collections.abc import Mapping, Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

from trainwright.ensemble.entry import MEMBER_FILE, WEIGHTS_FILE, Member, read_member, write_folder
from trainwright.errors import EnsembleError, ExportError

__all__ = ["MANIFEST_FILE", "read_export", "write_export"]

MANIFEST_FILE = "manifest.json"
_SCHEMA = 1
_KEYS = ("members", "output", "weights", "rule", "calibration", "threshold", "report")


def write_export(directory: Path, members: Sequence[Member], content: Mapping[str, Any]) -> Path:
    """Write members and manifest into a new folder, which appears whole or not at all; returns it."""
    if directory.exists():
        raise ExportError(f"{directory}: exists already; allowed: a new folder; give another name or remove it")
    files: dict[str, bytes] = {}
    listed = []
    for member in members:
        weights = member.weights()
        told = json.loads((member.folder / MEMBER_FILE).read_bytes())
        told |= {"splits": {}, "files": {WEIGHTS_FILE: len(weights)}}
        name = f"members/trial-{member.trial:06d}"
        files[f"{name}/{MEMBER_FILE}"] = json.dumps(told, indent=1, allow_nan=False).encode()
        files[f"{name}/{WEIGHTS_FILE}"] = weights
        digests = {file: member.digest_of(files[f"{name}/{file}"]) for file in (MEMBER_FILE, WEIGHTS_FILE)}
        listed.append({"trial": member.trial, "folder": name, "digests": digests})
    manifest = {"schema": _SCHEMA, **content, "members": listed, "versions": _versions()}
    files[MANIFEST_FILE] = json.dumps(manifest, indent=1, allow_nan=False).encode()
    folder, _ = write_folder(directory.absolute().parent, directory.name, files)
    return folder


def read_export(directory: Path) -> tuple[tuple[Member, ...], Mapping[str, Any]]:
    """Return the members, their weights verified, and the rest of the manifest."""
    path = directory / MANIFEST_FILE
    try:
        told = json.loads(path.read_bytes())
    except OSError as error:
        raise ExportError(
            f"{path}: cannot be read ({error.strerror}); allowed: a folder that Ensemble.save wrote"
        ) from error
    except ValueError as error:
        raise ExportError(f"{path}: is no valid JSON ({error}); export the ensemble again") from error
    if not isinstance(told, dict) or any(key not in told for key in ("schema", *_KEYS)):
        raise ExportError(f"{path}: is no manifest of an ensemble; allowed: a folder that Ensemble.save wrote")
    if told["schema"] > _SCHEMA:
        raise ExportError(f"{path}: got schema {told['schema']}; allowed: up to {_SCHEMA}; install a newer Trainwright")
    members = []
    for one in told["members"]:
        try:
            member = read_member(directory / one["folder"], one["digests"], trial=one["trial"])
            member.weights()
        except EnsembleError as error:
            text = str(error).replace("differs from the digest in the ledger", "differs from the manifest's digest")
            raise ExportError(text.replace("run the trial again", "export the ensemble again")) from error
        members.append(member)
    return tuple(members), told


def _versions() -> dict[str, str]:
    found = {}
    for name in ("trainwright", "torch", "safetensors", "numpy"):
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return found
