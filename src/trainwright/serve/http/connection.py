"""HTTP/1.1 connections: requests with limits in, replies out, in order, without a task or a thread for each.

The parser is llhttp, by httptools. A general web server between it and the application takes as long as a small
network's batch, so the application is called with each `HttpExchange` here, and may reply at any time later. Deadlines
are looked at twice a second for all connections instead of a timer each.
"""

import asyncio
from collections import deque
from collections.abc import Callable
from email.utils import formatdate
from http import HTTPStatus
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

import httptools

from trainwright.http_security import AccessRules

if TYPE_CHECKING:
    from trainwright.serve.http.app import Application

__all__ = ["Connections", "HttpExchange"]

_HEAD_BYTES = 2**16
_HEAD_SECONDS = 10.0
_BODY_RATE = 2**20  # bytes a second: a body that comes as fast may take longer
_IDLE_SECONDS = 60.0  # of a connection between two requests
_LINGER_SECONDS = 2.0  # for which what still comes is read and dropped, so that the client reads the refusal
_TICK_SECONDS = 0.5
_PIPELINED = 8  # requests behind the one that is answered, beyond which a connection is not read
_REASONS = {status.value: f"HTTP/1.1 {status.value} {status.phrase}\r\n".encode() for status in HTTPStatus}


class HttpExchange:
    """One request, and the way to its reply."""

    __slots__ = ("_body", "_connection", "abandoned", "headers", "keep_alive", "method", "refusal", "size", "target")

    def __init__(self, connection: "_Connection") -> None:
        self._connection = connection
        self.method = ""
        self.target = b""
        self.headers: list[tuple[bytes, bytes]] = []
        self._body: list[bytes] = []
        self.size = 0
        self.keep_alive = True
        self.refusal: tuple[int, str, dict[str, str]] | None = None
        # Called if the client leaves before the reply.
        self.abandoned: Callable[[], object] | None = None

    @property
    def path(self) -> str:
        """The path that was asked, unquoted."""
        return unquote(self.target.partition(b"?")[0].decode("latin-1"))

    @property
    def body(self) -> bytes:
        """The whole body."""
        return self._body[0] if len(self._body) == 1 else b"".join(self._body)

    def header(self, name: bytes) -> str | None:
        """Return the first header of this name, which is in lower case."""
        return next((value.decode("latin-1") for key, value in self.headers if key == name), None)

    def take(self, part: bytes) -> None:
        """Append a part of the body, unless the request is refused anyway."""
        self.size += len(part)
        if self.refusal is None:
            self._body.append(part)

    def scope(self, server: Any) -> dict[str, Any]:
        """Return the request as the rules of access read it."""
        path, _, query = self.target.partition(b"?")
        return {
            "method": self.method,
            "path": self.path,
            "raw_path": path,
            "query_string": query,
            "headers": self.headers,
            "server": server,
        }

    def reply(self, status: int, body: bytes, headers: bytes) -> None:
        """Send the reply: `headers` are whole lines; none is sent to a client that has gone."""
        self._connection.send_reply(self, status, body, headers)


class Connections:
    """All connections of a listener."""

    def __init__(self, application: "Application", *, rules: AccessRules, most: int, body_seconds: float) -> None:
        self.application, self.rules, self.most, self.body_seconds = application, rules, most, body_seconds
        self.open: dict[_Connection, None] = {}  # in the order in which they came
        self.loop = asyncio.get_running_loop()
        self.fixed_headers = b"".join(name + b": " + value + b"\r\n" for name, value in rules.headers)
        self.common_headers = b""
        self._tick()

    def make_connection(self) -> asyncio.Protocol:
        """Return the protocol of a new connection."""
        return _Connection(self)

    def make_room(self, newcomer: "_Connection") -> bool:
        """End the oldest connection of which no whole head has come, so that slow clients shut nobody out."""
        oldest = next((one for one in self.open if one is not newcomer and one.awaits_head()), None)
        if oldest is not None:
            oldest.abort()
        return oldest is not None

    async def close(self, seconds: float) -> None:
        """Close what is idle at once, and the others after their replies, or after so many seconds."""
        self._timer.cancel()
        until = self.loop.time() + seconds
        while self.open and self.loop.time() < until:
            for connection in list(self.open):
                connection.close_idle()
            await asyncio.sleep(0.005)
        for connection in list(self.open):
            connection.abort()
        # Lets the transports say that they are closed.
        await asyncio.sleep(0)

    def _tick(self) -> None:
        """Refresh the date, and end what took too long."""
        self.common_headers = f"date: {formatdate(usegmt=True)}\r\n".encode() + self.fixed_headers
        now = self.loop.time()
        for connection in list(self.open):
            connection.check_deadline(now)
        self._timer = self.loop.call_later(_TICK_SECONDS, self._tick)


class _Connection(asyncio.Protocol):
    """One connection; the methods that begin with `on_` are called by the parser."""

    def __init__(self, connections: Connections) -> None:
        self._all = connections
        self._parser = httptools.HttpRequestParser(self)
        self._transport: asyncio.Transport
        # The request that is being read, the one that is answered, and those behind it.
        self._incoming: HttpExchange | None = None
        self._current: HttpExchange | None = None
        self._waiting: deque[HttpExchange] = deque()
        # The head of the last request that was allowed: one that equals it is allowed too.
        self._allowed: tuple[Any, ...] | None = None
        self._in_head, self._head_bytes = True, 0
        self._ending = False
        self._server: Any = None
        self._deadline = connections.loop.time() + _HEAD_SECONDS

    # From the event loop.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport  # type: ignore[assignment]  # a stream's
        self._server = transport.get_extra_info("sockname")
        self._all.open[self] = None
        if len(self._all.open) > self._all.most and not self._all.make_room(self):
            self._refuse_all(503, "too many connections are open here", {"retry-after": "1"})
            transport.close()

    def connection_lost(self, _error: Exception | None) -> None:
        self._all.open.pop(self, None)
        if self._incoming is not None and not self._in_head and not self._ending:
            self._all.application.metrics.counts["disconnected"] += 1
        self._ending = True
        for exchange in (self._current, *self._waiting):
            if exchange is not None and exchange.abandoned is not None:
                exchange.abandoned()

    def data_received(self, data: bytes) -> None:
        if self._ending:
            return
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserUpgrade:
            self._refuse_all(400, "upgrade: to another protocol is not possible here", {})
        except httptools.HttpParserError as error:
            self._refuse_all(400, f"request: is no valid HTTP ({error})", {})
        # Afterwards: a head that began in it has set them to 0.
        self._head_bytes += len(data)
        if self._in_head and self._head_bytes > _HEAD_BYTES:
            self._refuse_all(400, f"headers: are too large; allowed: up to {_HEAD_BYTES} bytes", {})

    def pause_writing(self) -> None:
        self._transport.pause_reading()

    def resume_writing(self) -> None:
        self._transport.resume_reading()

    # From the parser.

    def on_message_begin(self) -> None:
        self._incoming = HttpExchange(self)
        self._in_head, self._head_bytes = True, 0
        self._deadline = self._all.loop.time() + _HEAD_SECONDS

    def on_url(self, url: bytes) -> None:
        if self._incoming is not None:
            self._incoming.target += url

    def on_header(self, name: bytes, value: bytes) -> None:
        if self._incoming is not None:
            self._incoming.headers.append((name.lower(), value))

    def on_headers_complete(self) -> None:
        exchange = self._incoming
        if exchange is None:
            return
        self._in_head = False
        exchange.method = self._parser.get_method().decode("latin-1")
        exchange.keep_alive = self._parser.should_keep_alive()
        self._deadline = self._all.loop.time() + self._all.body_seconds
        head = (exchange.method, exchange.target, exchange.headers)
        if head != self._allowed:
            exchange.refusal = self._all.rules.refuse_request(exchange.scope(self._server))
            self._allowed = head if exchange.refusal is None else None
        if exchange.refusal is not None and exchange.refusal[0] == 413:
            self._refuse_all(*exchange.refusal)
        elif exchange.refusal is None and (exchange.header(b"expect") or "").lower() == "100-continue":
            self._transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")

    def on_body(self, body: bytes) -> None:
        exchange = self._incoming
        if exchange is None or self._ending:
            return
        exchange.take(body)
        # A large body may take longer, as long as it comes fast enough.
        self._deadline += len(body) / _BODY_RATE
        if exchange.size > self._all.rules.max_body_bytes:
            self._refuse_all(413, self._all.rules.too_large, {})

    def on_message_complete(self) -> None:
        exchange, self._incoming = self._incoming, None
        if exchange is None or self._ending:
            return
        if self._current is None:
            self._begin(exchange)
            return
        self._waiting.append(exchange)
        if len(self._waiting) >= _PIPELINED:
            self._transport.pause_reading()

    # Replies.

    def send_reply(self, exchange: HttpExchange, status: int, body: bytes, headers: bytes) -> None:
        """Send a reply, and continue with the next request."""
        if exchange is not self._current or self._transport.is_closing():
            return
        self._current = None
        common = self._all.common_headers
        if not exchange.keep_alive:
            common += b"connection: close\r\n"
        content = b"" if exchange.method == "HEAD" else body
        length = b"content-length: %d\r\n" % len(body)
        self._transport.write(b"".join([_REASONS[status], length, common, headers, b"\r\n", content]))
        self._deadline = self._all.loop.time() + _IDLE_SECONDS
        if not exchange.keep_alive:
            self._ending = True
            self._transport.close()
        elif self._waiting:
            # Not at once, or a client that sends many would hold up all others.
            self._all.loop.call_soon(self._begin_next)

    def check_deadline(self, now: float) -> None:
        """End a connection that took too long: to send a head or a body, or to begin another request."""
        if now < self._deadline or self._current is not None:
            return
        if self._ending or self._incoming is None or self._in_head:
            self._transport.abort()
        else:
            self._refuse_all(408, f"body: did not come within {self._all.body_seconds:g} s", {})

    def awaits_head(self) -> bool:
        """Whether no request is being answered, and none has a whole head."""
        return self._current is None and not self._waiting and (self._incoming is None or self._in_head)

    def close_idle(self) -> None:
        """Close it unless a request is being answered."""
        if self._current is None and not self._waiting:
            self._transport.close()

    def abort(self) -> None:
        """Close it, even during a request."""
        self._transport.abort()

    def _begin(self, exchange: HttpExchange) -> None:
        self._current = exchange
        if exchange.refusal is None:
            self._all.application.handle(exchange)
        else:
            self._all.application.refuse(exchange, *exchange.refusal)

    def _begin_next(self) -> None:
        if self._waiting and self._current is None and not self._ending:
            if len(self._waiting) == _PIPELINED:
                self._transport.resume_reading()
            self._begin(self._waiting.popleft())

    def _refuse_all(self, status: int, text: str, headers: dict[str, str]) -> None:
        """Send a refusal as the last reply, and drop whatever still comes until the client has read it."""
        if self._ending:
            return
        self._ending = True
        self._waiting.clear()
        if self._current is not None:
            # The reply to the request before it is the last one.
            self._current.keep_alive = False
            return
        self._current = exchange = self._incoming or HttpExchange(self)
        exchange.refusal = status, text, headers
        exchange.keep_alive = True  # or the connection would be closed before the client has read the reply
        self._all.application.refuse(exchange, status, text, {**headers, "connection": "close"})
        if self._transport.can_write_eof():
            self._transport.write_eof()
        self._deadline = self._all.loop.time() + _LINGER_SECONDS
