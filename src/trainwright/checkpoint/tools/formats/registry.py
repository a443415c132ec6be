"""The file formats of checkpoints by name, and which one a file is in."""

from collections.abc import Mapping
from pathlib import Path

from trainwright.checkpoint.tools.formats.protocol import Format
from trainwright.errors import CheckpointFormatError, CheckpointNotFoundError, closest
from trainwright.plugins import Registry

__all__ = [
    "FORMATS",
    "format_named",
    "format_of",
]

FORMATS: Mapping[str, Format] = Registry("format", CheckpointFormatError)
"""Every format by name, with its default settings."""


def format_named(name: str) -> Format:
    """Return the format of that name."""
    if name not in FORMATS:
        raise CheckpointFormatError(f"format: got {name!r}; allowed: {', '.join(FORMATS)}{closest(name, FORMATS)}")
    return FORMATS[name]


def format_of(path: Path) -> Format:
    """Return the format that a file or folder is in, told by its content."""
    if not path.exists():
        raise CheckpointNotFoundError(f"checkpoint: got {path}, which is not there; allowed: a checkpoint's path")
    for one in FORMATS.values():
        if one.recognises(path):
            return one
    raise CheckpointFormatError(
        f"checkpoint: got {path}, whose beginning is of no known format; allowed: {', '.join(FORMATS)}"
    )
