"""Files that a user names: read or written, or one sentence about why they cannot be."""

import json
import math
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from trainwright.errors import InputError
from trainwright.publishing import write_file

__all__ = ["plain", "read_json", "read_text", "read_toml", "write_text"]


def read_text(path: str | Path, what: str, *, allowed: str, error: type[InputError] = InputError) -> str:
    """Return the text of a file that is not empty; else raise `error`: what the file is to be, its path, the reason."""
    try:
        text = Path(path).read_text(encoding="utf-8")
    except FileNotFoundError:
        reason = "there is no such file"
    except IsADirectoryError:
        reason = "it is a folder"
    except UnicodeDecodeError:
        reason = "it is no text"
    except OSError as failure:
        reason = f"it cannot be read ({_of(failure)})"
    else:
        if text.strip():
            return text
        reason = "it is empty"
    raise error(f"{what} {str(path)!r}: {reason}; allowed: {allowed}")


def read_json(path: str | Path, what: str, *, allowed: str, error: type[InputError] = InputError) -> Any:
    """Return what a file of JSON says; raises as `read_text`, and where it is no JSON."""
    text = read_text(path, what, allowed=allowed, error=error)
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as failure:
        raise error(f"{what} {str(path)!r}: it is no JSON ({failure}); allowed: {allowed}") from None


def read_toml(path: str | Path, what: str, *, allowed: str) -> dict[str, Any]:
    """Return what a file of TOML says; raises as `read_text`, and where it is no TOML."""
    text = read_text(path, what, allowed=allowed)
    try:
        return tomllib.loads(text)
    except (ValueError, RecursionError) as failure:
        raise InputError(f"{what} {str(path)!r}: it is no valid TOML ({failure}); allowed: {allowed}") from None


def write_text(path: str | Path, what: str, text: str, *, error: type[InputError] = InputError) -> None:
    """Publish a file; raise `error` where it cannot be written: what the file is to be, its path, the reason."""
    try:
        write_file(path, text)
    except OSError as failure:
        raise error(f"{what} {str(path)!r}: it cannot be written ({_of(failure)}); give another place") from None


def _of(failure: OSError) -> str:
    return (failure.strerror or str(failure)).lower()


def plain(value: Any) -> Any:
    """Return what strict JSON can hold: None for numbers not finite, dicts for mappings, lists for sequences."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    return value
