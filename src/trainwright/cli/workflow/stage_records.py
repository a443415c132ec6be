"""Records of finished workflow stages in the study's folder, by which unchanged stages are skipped.

`DIR/stages/NAME.json` holds a digest of each input of the stage, the digest of each file that it wrote, and what it
said. A stage is unchanged while all of them are the same; one that was killed has no record of it, and runs again.
"""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from trainwright.errors import StudyError
from trainwright.publishing import write_file
from trainwright.strict_json import plain

__all__ = ["FOLDER", "StageRecord", "StageRecords", "digest_of"]

FOLDER = "stages"


@dataclass(frozen=True, kw_only=True, slots=True)
class StageRecord:
    """One finished stage."""

    inputs: Mapping[str, str]  # name of an input → digest
    outputs: Mapping[str, str] = field(default_factory=dict)  # path of a file below the study's folder → digest
    content: Mapping[str, Any] = field(default_factory=dict)  # what the stage said, as JSON


@dataclass(frozen=True, slots=True)
class StageRecords:
    """The records of the stages of the study in `directory`."""

    directory: Path

    def read(self, name: str) -> StageRecord | None:
        """Return the record of a stage; None if it never ended, or if its record cannot be read."""
        try:
            record = json.loads((self.directory / FOLDER / f"{name}.json").read_bytes())
            return StageRecord(inputs=record["inputs"], outputs=record["outputs"], content=record["content"])
        except (OSError, ValueError, TypeError, KeyError):
            # A record that cannot be read is none: the stage runs again.
            return None

    def changed(self, name: str, inputs: Mapping[str, Any]) -> str | None:
        """Return why a stage has to run with these inputs, such as "library changed"; None if it need not."""
        record = self.read(name)
        if record is None:
            return "not done yet"
        # Digests are compared, so that a record stays small whatever a stage rests on.
        now = _digest_inputs(inputs)
        differing = sorted(key for key in {*now, *record.inputs} if now.get(key) != record.inputs.get(key))
        if differing:
            return f"{', '.join(differing)} changed"
        # A file that was removed or edited since is made again.
        for path, digest in record.outputs.items():
            if _file_digest(self.directory / path) != digest:
                return f"{path} is missing or was changed"
        return None

    def write(
        self, name: str, inputs: Mapping[str, Any], *, outputs: tuple[str, ...] = (), content: Mapping[str, Any]
    ) -> StageRecord:
        """Record that a stage has ended; `outputs` are the files that it wrote, relative to the study's folder."""
        record = StageRecord(
            inputs=_digest_inputs(inputs),
            outputs={path: _file_digest(self.directory / path) or "" for path in outputs},
            content=plain(content),
        )
        path = self.directory / FOLDER / f"{name}.json"
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            write_file(path, json.dumps(asdict(record), indent=1, allow_nan=False, default=str))
        except OSError as error:
            raise StudyError(f"cannot write {path}: {(error.strerror or str(error)).lower()}") from error
        return record


def digest_of(value: Any) -> str:
    """Return the BLAKE2b-128 of a value of JSON, whatever the order of its keys; other objects count as their text."""
    text = json.dumps(value, sort_keys=True, default=str)
    return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()


def _digest_inputs(inputs: Mapping[str, Any]) -> dict[str, str]:
    return {name: digest_of(value) for name, value in inputs.items()}


def _file_digest(path: Path) -> str | None:
    try:
        return hashlib.blake2b(path.read_bytes(), digest_size=16).hexdigest()
    except OSError:
        return None
