"""Limits of what one request, and all of them together, may take of the server."""

from dataclasses import dataclass
from typing import Annotated

from trainwright.errors import RequestError, ServeConfigError
from trainwright.settings import Settings
from trainwright.validators import integer, number

__all__ = ["Limits", "TooLarge"]


class TooLarge(RequestError):
    """A request of more bytes or rows than the limits allow; status 413."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Limits(Settings, error=ServeConfigError):
    """Each is refused with the limit in the response: 413 for bytes and rows, 408, 503."""

    body_bytes: Annotated[int, integer(minimum=1), "of a request's body"] = 64 * 2**20
    rows: Annotated[int, integer(minimum=1), "of one request"] = 8192
    connections: Annotated[int, integer(minimum=1), "open ones; the next are refused with 503"] = 1024
    body_seconds: Annotated[float, number(minimum=1), "from the headers to the last byte of a body"] = 30.0
