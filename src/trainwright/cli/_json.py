"""The last line of a command that was asked for JSON."""

import json
from collections.abc import Mapping
from typing import Any

from trainwright.strict_json import plain

__all__ = ["print_json"]


def print_json(content: Mapping[str, Any]) -> None:
    """Print one JSON object on one line; NaN and infinities become null, for JSON has none."""
    print(json.dumps(plain(content), default=str))
