"""Limits of what one request, and all of them together, may take of the server."""

import math
from dataclasses import dataclass, fields

from trainwright.errors import RequestError, ServeConfigError

__all__ = ["Limits", "TooLarge"]


class TooLarge(RequestError):
    """A request of more bytes or rows than the limits allow; status 413."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Limits:
    """Each is refused with the limit in the answer: 413 for bytes and rows, 400 for depth, 408, 503."""

    body_bytes: int = 64 * 2**20
    rows: int = 8192  # of one request
    json_depth: int = 32  # brackets within brackets
    connections: int = 1024  # open ones; the next are turned away with 503
    body_seconds: float = 30.0  # from the headers to the last byte of a body

    def __post_init__(self) -> None:
        for each in fields(self):
            value = getattr(self, each.name)
            if not (value >= 1 and math.isfinite(value)):
                raise ServeConfigError(f"Limits.{each.name}: got {value}; allowed: a number >= 1")
