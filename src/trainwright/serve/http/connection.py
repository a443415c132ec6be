"""Connections with limits that uvicorn has none for: how many are open, how long and how large a head may be."""

import asyncio
from typing import Any

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

__all__ = ["bounded"]

_HEAD_BYTES = 2**16
_HEAD_SECONDS = 30.0
_FULL = (
    b"HTTP/1.1 503 Service Unavailable\r\ncontent-type: application/json\r\ncontent-length: 47\r\nretry-after: 1\r\n"
    b'connection: close\r\n\r\n{"error": "too many connections are open here"}'
)


def bounded(most: int) -> type[HttpToolsProtocol]:
    """Return uvicorn's protocol for at most so many connections; the next are answered 503 and closed."""

    class Bounded(HttpToolsProtocol):
        _head_bytes = 0
        _in_head = False

        def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as uvicorn's own
            super().connection_made(transport)
            if len(self.connections) > most:
                transport.write(_FULL)
                transport.close()
            else:
                self.loop.call_later(_HEAD_SECONDS, self._late)

        def data_received(self, data: bytes) -> None:
            super().data_received(data)
            self._head_bytes += len(data)  # afterwards: a head that began in it has set them to 0
            if self._in_head and self._head_bytes > _HEAD_BYTES and not self.transport.is_closing():
                self.send_400_response("The head of the request is too large.")

        def on_message_begin(self) -> None:
            self._head_bytes, self._in_head = 0, True
            super().on_message_begin()

        def on_headers_complete(self) -> None:
            self._in_head = False
            super().on_headers_complete()

        def _late(self) -> None:
            none_yet: Any = self.cycle is None
            if none_yet and not self.transport.is_closing():
                self.transport.close()

    return Bounded
