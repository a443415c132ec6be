"""Metric values as plain numbers."""

from typing import Any

__all__ = ["as_number"]


def as_number(value: Any) -> float | None:
    """Return a number of any library, such as a tensor of one element, as a float; None if it is no number."""
    if isinstance(value, str | bytes):
        return None
    try:
        return float(value.detach() if hasattr(value, "requires_grad") else value)
    except (TypeError, ValueError, OverflowError, RuntimeError):  # the last is torch's word for more than one element
        return None
