"""The studies under a folder, by short names: names from a browser are looked up, never used as paths."""

import hashlib
import os
import threading
import time
from collections.abc import Mapping
from pathlib import Path

from trainwright.errors import InputError
from trainwright.ledger import open_ledger
from trainwright.ledger.opening import is_url
from trainwright.ui.study_follower import StudyFollower

__all__ = ["StudyRegistry"]

_DEPTH, _MOST = 3, 500
_LOOK_SECONDS = 3.0
_NO_STUDIES = frozenset({"ledger", "checkpoints", "library", "logs", "stages", "__pycache__"})


class StudyRegistry:
    """The studies at `where`: one study's directory or URL, or a folder with studies up to three folders down."""

    def __init__(self, where: str | Path) -> None:
        self.where = where
        self._followers: dict[str, StudyFollower] = {}
        self._lock = threading.Lock()
        self._looked = -_LOOK_SECONDS
        self._single = is_url(where) or _is_study(Path(where))
        if is_url(where):
            # Refuses a URL behind which there is no study.
            open_ledger(where).close()
        elif not Path(where).is_dir():
            raise InputError(f"{where}: there is no such directory; give a study's directory, or a folder of studies")
        if not self.studies():
            raise InputError(
                f"{where}: no study in it, nor up to {_DEPTH} folders down; allowed: a study's directory (it has a "
                "folder ledger/), a folder of studies, or redis://HOST:PORT/0?study=NAME"
            )

    @property
    def single(self) -> bool:
        """Whether this is one study, and no folder of them."""
        return self._single

    def studies(self) -> Mapping[str, StudyFollower]:
        """Return the studies that are there, by short names; one that vanished stays, to tell that it did."""
        with self._lock:
            now = time.monotonic()
            if now - self._looked >= _LOOK_SECONDS:
                self._looked = now
                for name, place in self._find_places():
                    # Addresses use a digest of the path, which may have any characters.
                    key = hashlib.blake2b(str(place).encode(), digest_size=6).hexdigest()
                    if key not in self._followers:
                        self._followers[key] = StudyFollower(place, name)
            return dict(self._followers)

    def find(self, key: str) -> StudyFollower | None:
        """Return the study of a short name, None if there is none, and have it followed."""
        follower = self._followers.get(key) or self.studies().get(key)
        if follower is not None:
            follower.want()
        return follower

    def close(self) -> None:
        """End all readers."""
        for follower in self._followers.values():
            follower.close()

    def _find_places(self) -> list[tuple[str, str | Path]]:
        if is_url(self.where):
            text = str(self.where)
            return [(text.rpartition("study=")[2] or "study", text)]
        root = Path(self.where)
        if self._single:
            return [(root.resolve().name, root)]
        found: list[tuple[str, str | Path]] = []
        # Folders that cannot be read are passed over.
        for folder, names, _ in os.walk(root):
            here = Path(folder)
            depth = len(here.relative_to(root).parts)
            if _is_study(here):
                found.append((str(here.relative_to(root)), here))
                # A study has no studies in its folders.
                names.clear()
            elif depth >= _DEPTH:
                names.clear()
            else:
                names[:] = sorted(name for name in names if name not in _NO_STUDIES and not name.startswith("."))
            if len(found) >= _MOST:
                break
        return found


def _is_study(folder: Path) -> bool:
    return any((folder / "ledger" / name).is_file() for name in ("study.json", "url"))
