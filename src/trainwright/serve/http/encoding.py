"""Compressed bodies: requests inflated up to a limit, replies compressed for whoever asks."""

import zlib

from trainwright.errors import RequestError
from trainwright.serve.http.limits import TooLarge

__all__ = ["ENCODINGS", "accepted", "compressed", "inflated"]

ENCODINGS = ("gzip", "deflate")
_WINDOW = {"gzip": 16 + zlib.MAX_WBITS, "deflate": zlib.MAX_WBITS}
_LEVEL = 1  # replies are numbers: more effort gains little
_WORTH_BYTES = 1024  # a shorter reply is sent as it is


def inflated(body: bytes | bytearray, encoding: str, most: int) -> bytearray:
    """Return what a body holds that was compressed by "gzip" or "deflate", never more than `most` bytes of it.

    Raises `RequestError` for one that is no such stream, is cut off, or goes on behind its end, and `TooLarge`.
    """
    # Without zlib's header.
    bare = encoding == "deflate" and (body[:1] or b"\0")[0] & 0x0F != zlib.DEFLATED
    stream = zlib.decompressobj(-zlib.MAX_WBITS if bare else _WINDOW[encoding])
    try:
        found = stream.decompress(body, most + 1)
    except zlib.error:
        raise RequestError(f"body: is no valid {encoding}; allowed: what Content-Encoding says") from None
    if len(found) > most:
        raise TooLarge(f"body: is too large once inflated; allowed: up to {most} bytes")
    if not stream.eof:
        raise RequestError(f"body: ends within its {encoding}; allowed: the whole of it")
    if stream.unused_data:
        raise RequestError(f"body: got {len(stream.unused_data)} bytes behind its {encoding}; allowed: none")
    return bytearray(found)


def accepted(header: str | None) -> str | None:
    """Return the encoding for a reply to whoever sent this Accept-Encoding; None: as it is."""
    if not header:
        return None
    wanted = {}
    for part in header.lower().split(","):
        name, _, weight = part.partition(";")
        wanted[name.strip()] = weight.replace(" ", "").removeprefix("q=") not in {"0", "0.0", "0.00", "0.000"}
    return next((name for name in ENCODINGS if wanted.get(name, wanted.get("*", False))), None)


def compressed(body: bytes, encoding: str | None) -> bytes | None:
    """Return a reply's body compressed; None if it stays as it is, for nobody asked or it is short."""
    if encoding is None or len(body) < _WORTH_BYTES:
        return None
    stream = zlib.compressobj(_LEVEL, zlib.DEFLATED, _WINDOW[encoding])
    return stream.compress(body) + stream.flush()
