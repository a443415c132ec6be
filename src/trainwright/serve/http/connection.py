"""Connection limits that uvicorn lacks: how many are open, and the duration and size of a request's head."""

import asyncio

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
        # The time until which the first head has to come.
        _first: asyncio.TimerHandle | None = None

        def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as uvicorn's own
            super().connection_made(transport)
            # This one is already among them.
            if len(self.connections) > most:
                transport.write(_FULL)
                transport.close()
            else:
                self._first = self.loop.call_later(_HEAD_SECONDS, self._close_late)

        def connection_lost(self, exc: Exception | None) -> None:
            self._cancel_timer()
            super().connection_lost(exc)

        def data_received(self, data: bytes) -> None:
            super().data_received(data)
            # Afterwards: a head that began in it has set them to 0.
            self._head_bytes += len(data)
            if self._in_head and self._head_bytes > _HEAD_BYTES and not self.transport.is_closing():
                self.send_400_response("The head of the request is too large.")

        def on_message_begin(self) -> None:
            self._head_bytes, self._in_head = 0, True
            super().on_message_begin()

        def on_headers_complete(self) -> None:
            self._in_head = False
            self._cancel_timer()
            super().on_headers_complete()

        def _cancel_timer(self) -> None:
            # Else the loop would hold a connection that has long gone.
            if self._first is not None:
                self._first.cancel()
                self._first = None

        def _close_late(self) -> None:
            if not self.transport.is_closing():
                self.transport.close()

    return Bounded
