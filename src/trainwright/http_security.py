"""Authenticates HTTP requests (bearer token, Host and Origin checks), and chooses the address that a server binds.

The rules: loopback unless told otherwise; anything else needs a token; a request must name a host that is this one
(else a page of another site, whose name was made to point here, could read the answers: DNS rebinding), and must not
come from a page of another origin; bodies have a limit. `Guard` carries them out in front of any ASGI application, and
the ensemble server in its own connections.
"""

import hashlib
import hmac
import ipaddress
import os
import re
import secrets
import socket
from collections.abc import Awaitable, Callable, Collection, Mapping, MutableMapping
from http.cookies import CookieError, SimpleCookie
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, urlencode, urlsplit

from trainwright.errors import InputError, ListenError

__all__ = ["AccessRules", "Guard", "bind", "is_loopback", "token_for"]

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
Application = Callable[[MutableMapping[str, Any], Receive, Send], Awaitable[None]]

_TOKEN = re.compile(r"[A-Za-z0-9_-]{16,256}")
_LARGEST_TOKEN_FILE = 4096
_HEADERS = {
    "content-security-policy": "default-src 'none'; frame-ancestors 'none'",
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",  # an address may hold the token
    "cross-origin-resource-policy": "same-origin",
}


def is_loopback(host: str) -> bool:
    """Return whether a name or an address, as it stands in a URL or in `--host`, means this machine alone."""
    bare = host.strip("[]").lower()
    if bare in {"localhost", "localhost."}:
        return True
    address = _address(bare)
    return address is not None and address.is_loopback


def token_for(host: str, token_file: str | Path | None = None) -> str | None:
    """Return the token that a listener on `host` asks for: the file's, else a new one; None on loopback without file.

    A token has 16 to 256 letters, digits, '-' and '_'; `InputError` names a file that holds none, or that others may
    read.
    """
    if token_file is not None:
        return _read_token(Path(token_file))
    return None if is_loopback(host) else secrets.token_urlsafe(32)


def bind(host: str, port: int) -> socket.socket:
    """Return a listening TCP socket; port 0 takes any that is free. `ListenError` says why it cannot be had."""
    if not 0 <= port <= 65535:
        raise InputError(f"--port: got {port}; allowed: 0 (any that is free) to 65535")
    try:
        found = socket.getaddrinfo(host.strip("[]"), port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except (socket.gaierror, UnicodeError):
        raise InputError(f"--host: got {host!r}; allowed: a name or an address of this machine") from None
    family, kind, protocol, _, address = found[0]
    listener = socket.socket(family, kind, protocol)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
        listener.listen(128)
    except OSError as error:
        listener.close()
        raise ListenError(
            f"cannot listen on {host}:{port}: {(error.strerror or str(error)).lower()}; give another --port, or 0 for "
            "any that is free"
        ) from None
    return listener


class AccessRules:
    """Which requests are allowed: by the host that they name, the page that sent them, the token, and their size.

    `token=None` asks for none. A request may name loopback, `host` and `names`; one to a listener beyond loopback may
    also name any address, for DNS rebinding needs a name, and this machine's name. `headers` are added to, and
    override, those that forbid every kind of embedding. A token may come as `Authorization: Bearer TOKEN`, or once as
    `?token=TOKEN`, which is answered by a cookie and a redirection to the same place without it; the paths in
    `open_paths` need none. Tokens are compared in constant time; a cookie holds a digest of the token. Refusals: 400
    for the host, 401 for the token, 403 for the origin, 413 for the size. A request is what ASGI calls a scope.
    """

    def __init__(
        self,
        *,
        host: str,
        token: str | None,
        names: Collection[str] = (),
        headers: Mapping[str, str] | None = None,
        max_body_bytes: int = 0,
        open_paths: Collection[str] = (),
    ) -> None:
        self.max_body_bytes = max_body_bytes
        self.headers = [(k.encode(), v.encode()) for k, v in {**_HEADERS, **(headers or {})}.items()]
        self._open_paths, self._token = frozenset(open_paths), token
        self._loopback_only = is_loopback(host)
        machine = () if self._loopback_only else (socket.gethostname(),)
        self._names = {"localhost", *(name.lower().rstrip(".") for name in (host, *machine, *names))}

    def refuse_request(self, scope: Mapping[str, Any]) -> tuple[int, str, dict[str, str]] | None:
        """Return status, sentence and headers of a refusal, or of the way on from an address that holds the token."""
        hosts = _values(scope, b"host")
        # Of two host names a proxy may have judged the other one.
        if len(hosts) != 1 or not self._is_own(hosts[0]):
            return 400, "this host name is not one of this server's", {}
        origins = _values(scope, b"origin")
        if any(urlsplit(origin).netloc.lower() != hosts[0].lower() for origin in origins):
            return 403, "a page of another origin asked", {}
        place = self._strip_token(scope)
        if place is None and not self._is_authorized(scope):
            return 401, "a token is needed: open the address that was printed", {"www-authenticate": "Bearer"}
        lengths = _values(scope, b"content-length")
        if any(not length.isdigit() or int(length) > self.max_body_bytes for length in lengths):
            return 413, self.too_large, {}
        return None if place is None else (303, "", {"location": place, "set-cookie": self._cookie(scope)})

    @property
    def too_large(self) -> str:
        """The sentence for a body beyond the limit."""
        return f"body: is too large; allowed: up to {self.max_body_bytes} bytes"

    def _is_own(self, host: str) -> bool:
        name = _hostname(host)
        if name in self._names:
            return True
        address = _address(name)
        return address is not None and (address.is_loopback or not self._loopback_only)

    def _is_authorized(self, scope: Mapping[str, Any]) -> bool:
        if self._token is None or scope["path"] in self._open_paths:
            return True
        given = [line[7:].strip() for line in _values(scope, b"authorization") if line[:7].lower() == "bearer "]
        if any(_equal_secrets(each, self._token) for each in given):
            return True
        name, wanted = _cookie_name(scope), _digest(self._token)
        return any(_equal_secrets(each, wanted) for line in _values(scope, b"cookie") for each in _cookies(line, name))

    def _strip_token(self, scope: Mapping[str, Any]) -> str | None:
        """Return the place to go on to if the address holds the token, without it; None if it does not."""
        if self._token is None or scope["method"] not in {"GET", "HEAD"}:
            return None
        query = parse_qsl(scope.get("query_string", b"").decode("latin-1"), keep_blank_values=True)
        if not any(name == "token" and _equal_secrets(value, self._token) for name, value in query):
            return None
        rest = urlencode([pair for pair in query if pair[0] != "token"])
        raw: bytes = scope.get("raw_path") or scope["path"].encode()
        # To a browser, a place that begins with two slashes is another host.
        path = "/" + raw.decode("latin-1").lstrip("/\\")
        return path + (f"?{rest}" if rest else "")

    def _cookie(self, scope: Mapping[str, Any]) -> str:
        return f"{_cookie_name(scope)}={_digest(self._token or '')}; HttpOnly; SameSite=Strict; Path=/"


class Guard:
    """ASGI middleware: refuses what its `AccessRules` forbid, and adds their headers to every answer."""

    def __init__(self, application: Application, **rules: Any) -> None:
        self._application, self._rules = application, AccessRules(**rules)

    async def __call__(self, scope: MutableMapping[str, Any], receive: Receive, send: Send) -> None:
        """Pass on what is allowed."""
        if scope["type"] == "lifespan":
            await self._application(scope, receive, send)
            return
        headed = self._with_headers(send)
        if scope["type"] != "http":  # nothing here speaks WebSocket; a close before the handshake is a 403
            await send({"type": "websocket.close", "code": 1008})
            return
        refused = self._rules.refuse_request(scope)
        if refused is not None:
            await self._answer(headed, *refused)
        else:
            await self._application(scope, receive, headed)

    async def _answer(self, send: Send, status: int, text: str, headers: Mapping[str, str]) -> None:
        content = f"{text}\n".encode() if text else b""
        fields = {
            "content-type": "text/plain; charset=utf-8",
            "content-length": str(len(content)),
            "cache-control": "no-store",
            **headers,
        }
        pairs = [(name.encode(), value.encode("latin-1")) for name, value in fields.items()]
        await send({"type": "http.response.start", "status": status, "headers": pairs})
        await send({"type": "http.response.body", "body": content})

    def _with_headers(self, send: Send) -> Send:
        async def headed(message: Message) -> None:
            if message["type"] == "http.response.start":
                own = list(message.get("headers", []))
                known = {name.lower() for name, _ in own}
                rest = [pair for pair in self._rules.headers if pair[0] not in known]
                message = {**message, "headers": [*own, *rest]}
            await send(message)

        return headed


def _read_token(path: Path) -> str:
    try:
        with path.open("rb") as file:
            text = file.read(_LARGEST_TOKEN_FILE).decode("ascii", "replace").strip()
            found = path.stat()
    except OSError as error:
        raise InputError(f"--token-file: cannot read {path}: {(error.strerror or str(error)).lower()}") from None
    # A secret that an orchestrator mounts belongs to another user, and is read by its group.
    if os.name == "posix" and (found.st_mode & 0o004 or (found.st_mode & 0o040 and found.st_uid == os.geteuid())):
        raise InputError(f"--token-file: others may read {path}; run: chmod 600 {path}")
    if not _TOKEN.fullmatch(text):
        raise InputError(
            f"--token-file: {path} holds no token; allowed: 16 to 256 letters, digits, '-' and '_', on one line"
        )
    return text


def _address(name: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        return ipaddress.ip_address(name.partition("%")[0])
    except ValueError:
        return None


def _hostname(host: str) -> str:
    """Return the name in a Host header, without port and brackets; "" if it is none."""
    found = re.fullmatch(r"(\[[0-9A-Fa-f:.]+\]|[^\[\]:/@?#\s]+)(:\d{1,5})?", host)
    return found[1].strip("[]").lower().rstrip(".") if found else ""


def _values(scope: Mapping[str, Any], name: bytes) -> list[str]:
    return [value.decode("latin-1") for key, value in scope["headers"] if key.lower() == name]


def _cookies(line: str, name: str) -> list[str]:
    try:
        found = SimpleCookie(line).get(name)
    except CookieError:
        return []
    return [] if found is None else [found.value]


def _cookie_name(scope: Mapping[str, Any]) -> str:
    """Return a name of this port's own, since browsers share cookies between the ports of a host."""
    server = scope.get("server")
    return f"trainwright-{server[1] if server else 0}"


def _digest(token: str) -> str:
    return hmac.new(token.encode(), b"trainwright cookie", hashlib.sha256).hexdigest()


def _equal_secrets(one: str, other: str) -> bool:
    return hmac.compare_digest(one.encode(), other.encode())
