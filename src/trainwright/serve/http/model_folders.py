"""Finds models in folders: an export by itself, or several by name, each an export or one for each of its versions."""

import hashlib
from collections.abc import Callable, Mapping
from pathlib import Path

from trainwright.errors import ServeConfigError
from trainwright.serve.service import Service

__all__ = ["FIRST_VERSION", "ModelFolders"]

_MANIFEST = "manifest.json"
FIRST_VERSION = "1"  # of an export without versions


class ModelFolders:
    """The models below a folder: it is an export, served as `name`, or has exports as NAME or NAME/VERSION, a number.

    `make` starts the service of an export. What was loaded before is kept while its manifest is the same, so loading a
    model again starts what is new: another version, or another export in its place.
    """

    def __init__(self, folder: Path, make: Callable[[Path], Service], *, name: str = "ensemble") -> None:
        self._folder, self._make, self._name = folder, make, name
        # What each running version was loaded from.
        self._digests: dict[tuple[str, str], str] = {}

    def names(self) -> list[str]:
        """Return the names of all models in the folder now."""
        # An empty folder, or none, is for the ensemble to refuse.
        if (self._folder / _MANIFEST).exists() or not self._folder.is_dir():
            return [self._name]
        found = [one.name for one in sorted(self._folder.iterdir()) if one.is_dir() and self._find_versions(one)]
        return found or [self._name]

    def load(self, name: str, running: Mapping[str, Service]) -> Mapping[str, Service]:
        """Return the services of a model by version; those of `running` that are unchanged as they are."""
        place = self._folder if (self._folder / _MANIFEST).exists() else self._folder / name
        folders = self._find_versions(place) or {FIRST_VERSION: self._folder}
        found: dict[str, Service] = {}
        digests: dict[tuple[str, str], str] = {}
        try:
            for version, folder in folders.items():
                # What tells an export from another one in its place.
                manifest = folder / _MANIFEST
                digest = hashlib.blake2b(manifest.read_bytes()).hexdigest() if manifest.exists() else ""
                unchanged = version in running and self._digests.get((name, version)) == digest
                found[version] = running[version] if unchanged else self._make(folder)
                digests[name, version] = digest
        except BaseException:
            # Nothing changes: what was started for this is ended.
            for version, service in found.items():
                if running.get(version) is not service:
                    service.drain(0.0)
            raise
        self._digests |= digests
        return found

    def _find_versions(self, folder: Path) -> dict[str, Path]:
        """Return the exports of a model by version."""
        if (folder / _MANIFEST).exists():
            return {FIRST_VERSION: folder}
        if not folder.is_dir():
            raise ServeConfigError(f"{folder}: is no folder; allowed: an export, or one with exports as NAME/VERSION")
        return {one.name: one for one in sorted(folder.iterdir()) if one.name.isdigit() and (one / _MANIFEST).exists()}
