"""JSON as its standard has it, which knows no NaN and no infinities: they become null."""

import math
from collections.abc import Mapping
from typing import Any

__all__ = ["plain"]


def plain(value: Any) -> Any:
    """Return `value` with None for each number that is not finite, dicts for mappings and lists for sequences."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    return value
