"""Profiles as JSON files: with a schema number, the version of torch that traced them, and a hash of what they say."""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, fields
from importlib import metadata
from pathlib import Path
from typing import Any

from trainwright.errors import ProfileError
from trainwright.files import read_json, write_text
from trainwright.model.chain import Stage
from trainwright.model.layer import Block, Layer, ProfileFields, Transformer

__all__ = ["SCHEMA", "hash_profile", "profile_from_json", "profile_to_json", "read_profile", "write_profile"]

SCHEMA = 2
_TIMES = {
    "forward_seconds", "backward_seconds", "update_seconds", "framework_seconds", "origin", "torch_version",
    "smaller_batches", "smaller_forward_seconds", "smaller_backward_seconds", "smaller_framework_seconds",
}  # fmt: skip
_RETRACE = "trace the model again: Profile.trace(model, sample).save(path)"


def hash_profile(profile: ProfileFields) -> str:
    """Return a hash of a profile's chain, its work and its bytes; times and versions have no part in it."""
    text = json.dumps(_without_times(asdict(profile)), sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def profile_to_json(profile: ProfileFields) -> dict[str, Any]:
    """Return a profile as a JSON object."""
    return {"schema": SCHEMA, "hash": hash_profile(profile), **asdict(profile)}


def write_profile(profile: ProfileFields, path: str | Path) -> None:
    """Write a profile to a file."""
    write_text(path, "profile", json.dumps(profile_to_json(profile), indent=1) + "\n", error=ProfileError)


def read_profile(path: str | Path) -> ProfileFields:
    """Read a profile from a file. Raises ProfileError for what is none, or of another schema or version of torch."""
    document = read_json(
        path, "profile", allowed="a file that Profile.trace(model, sample).save(path) wrote", error=ProfileError
    )
    return profile_from_json(document, f"profile {str(path)!r}")


def profile_from_json(document: Any, where: str = "profile") -> ProfileFields:
    """Return the profile that a JSON object holds."""
    if not isinstance(document, Mapping):
        raise ProfileError(f"{where}: got {type(document).__name__}; allowed: an object; {_RETRACE}")
    if document.get("schema") != SCHEMA:
        raise ProfileError(f"{where}, schema: got {document.get('schema')!r}; allowed: {SCHEMA}; {_RETRACE}")
    values = {key: value for key, value in document.items() if key not in {"schema", "hash"}}
    blocks = [
        _read_record(Block, _read_block(block, f"{where}, block {i}"), f"{where}, block {i}")
        for i, block in enumerate(values.get("blocks", ()))
    ]
    values["blocks"] = tuple(blocks)
    profile: ProfileFields = _read_record(ProfileFields, values, where)
    installed = _installed_torch()
    # Another torch may save other tensors: its bytes would be wrong, so the profile is refused.
    if profile.torch_version and installed and profile.torch_version.split("+")[0] != installed.split("+")[0]:
        raise ProfileError(f"{where}: traced by torch {profile.torch_version}, here is torch {installed}; {_RETRACE}")
    # A file that was edited by hand no longer describes the model that was traced.
    if document.get("hash") != hash_profile(profile):
        raise ProfileError(f"{where}: its hash {document.get('hash')!r} is not that of its content; {_RETRACE}")
    return profile


def _read_block(block: Any, where: str) -> dict[str, Any]:
    if not isinstance(block, Mapping):
        raise ProfileError(f"{where}: got {type(block).__name__}; allowed: an object; {_RETRACE}")
    values = dict(block)
    for name, kind in (("layers", Layer), ("stages", Stage)):
        values[name] = tuple(_read_record(kind, part, f"{where}, {name}") for part in values.get(name, ()))
    if values.get("transformer") is not None:
        values["transformer"] = _read_record(Transformer, values["transformer"], f"{where}, transformer")
    return values


def _read_record(kind: type[Any], values: Any, where: str) -> Any:
    allowed = {field.name for field in fields(kind)}
    if not isinstance(values, Mapping) or (set(values) - allowed):
        wrong = sorted(set(values) - allowed) if isinstance(values, Mapping) else type(values).__name__
        raise ProfileError(f"{where}: got {wrong}; allowed: {', '.join(sorted(allowed))}; {_RETRACE}")
    try:
        return kind(**{name: tuple(value) if isinstance(value, list) else value for name, value in values.items()})
    except TypeError as error:  # a field without default is missing
        raise ProfileError(f"{where}: {error}; {_RETRACE}") from error


def _without_times(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _without_times(item) for key, item in value.items() if key not in _TIMES}
    return [_without_times(item) for item in value] if isinstance(value, list | tuple) else value


def _installed_torch() -> str:
    try:
        return metadata.version("torch")
    except metadata.PackageNotFoundError:
        return ""  # a login node: the profile is only read
