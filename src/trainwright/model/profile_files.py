"""Profiles as JSON files: with a schema number, the version of torch that traced them, and a hash of what they say."""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict
from importlib import metadata
from pathlib import Path
from typing import Any

from trainwright.errors import ProfileError
from trainwright.files import read_json, write_text
from trainwright.model.layer import ProfileFields
from trainwright.model.records import check_schema, read_record

__all__ = ["SCHEMA", "hash_profile", "profile_to_json", "read_profile", "write_profile"]

SCHEMA = 2
_TIMES = {
    "forward_seconds", "backward_seconds", "update_seconds", "framework_seconds", "origin", "torch_version",
    "smaller_batches", "smaller_forward_seconds", "smaller_backward_seconds", "smaller_framework_seconds",
}  # fmt: skip
_RETRACE = "; trace the model again: Profile.trace(model, sample).save(path)"


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
    where = f"profile {str(path)!r}"
    content = check_schema(document, SCHEMA, where, ProfileError, _RETRACE)
    values = {name: value for name, value in content.items() if name not in {"schema", "hash"}}
    profile = read_record(ProfileFields, values, where, ProfileError, _RETRACE)
    installed = _installed_torch()
    # Another torch may save other tensors: its bytes would be wrong, so the profile is refused.
    if profile.torch_version and installed and profile.torch_version.split("+")[0] != installed.split("+")[0]:
        raise ProfileError(f"{where}: traced by torch {profile.torch_version}, here is torch {installed}{_RETRACE}")
    # A file that was edited by hand no longer describes the model that was traced.
    if document.get("hash") != hash_profile(profile):
        raise ProfileError(f"{where}: its hash {document.get('hash')!r} is not that of its content{_RETRACE}")
    return profile


def _without_times(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _without_times(item) for key, item in value.items() if key not in _TIMES}
    return [_without_times(item) for item in value] if isinstance(value, list | tuple) else value


def _installed_torch() -> str:
    try:
        return metadata.version("torch")
    except metadata.PackageNotFoundError:
        return ""  # a login node: the profile is only read
