"""The last line of a command that was asked for JSON."""

import json
import math
from collections.abc import Mapping
from typing import Any

__all__ = ["print_json"]


def print_json(content: Mapping[str, Any]) -> None:
    """Print one JSON object on one line; NaN and infinities become null, for JSON has none."""
    print(json.dumps(_plain(content), default=str))


def _plain(value: Any) -> Any:
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    return value
