"""The load of a served ensemble: what its /metrics counts now; the page keeps the course, and makes rates of it."""

import json
import re
import time
import urllib.request
from http.client import HTTPException
from typing import Any
from urllib.parse import quote, urlsplit

from trainwright.errors import InputError

__all__ = ["ServerLoad"]

_TIMEOUT_SECONDS, _MOST_BYTES = 2.0, 4_000_000
_LINE = re.compile(r'^trainwright_(\w+)(?:\{(?:endpoint="infer",)?\w+="([^"]*)"\})? ([0-9.eE+-]+)$', re.MULTILINE)


class ServerLoad:
    """A server at `url`, such as http://127.0.0.1:8000, whose ensemble is called `ensemble` there."""

    def __init__(self, url: str, *, ensemble: str = "ensemble", token: str | None = None) -> None:
        # Other schemes could read files of this machine.
        parts = urlsplit(url)
        if parts.scheme not in {"http", "https"} or not parts.hostname or parts.query or parts.fragment:
            raise InputError(f"--server: got {url!r}; allowed: the address of a server, such as http://127.0.0.1:8000")
        self.url = url.rstrip("/")
        self._ensemble, self._token = ensemble, token
        # No proxy and no redirect: the token goes to the named server only.
        self._opener = urllib.request.build_opener(urllib.request.ProxyHandler({}), _NoRedirect())

    def content(self) -> dict[str, Any]:
        """Ask the server, and return its address, its ensemble and what it has counted so far, or why it cannot be."""
        content: dict[str, Any] = {"url": self.url, "at": time.time(), "error": None}
        try:
            # Counts by their one label, such as the status of requests for inference.
            found = {
                (name, label): float(value)
                for name, label, value in _LINE.findall(self._get("/metrics").decode("utf-8", "replace"))
            }
        except (OSError, ValueError, HTTPException) as error:
            return {**content, "error": f"{self.url} does not answer: {getattr(error, 'reason', None) or error}"}
        try:
            about = json.loads(self._get(f"/v2/ensembles/{quote(self._ensemble, safe='')}"))
        except (OSError, ValueError, HTTPException):
            # The ensemble has another name there; its counts are shown all the same.
            about = {}
        return {
            **content,
            **{name: about.get(name) for name in ("name", "ready", "members", "state") if isinstance(about, dict)},
            "requests": {label: value for (name, label), value in found.items() if name == "requests_total"},
            "rows": found.get(("rows_total", "")),
            "waiting": found.get(("waiting_rows", "")),
            "answer_seconds": found.get(("phase_seconds_sum", "answer")),
            "answers": found.get(("phase_seconds_count", "answer")),
        }

    def _get(self, path: str) -> bytes:
        request = urllib.request.Request(self.url + path)  # noqa: S310 -- http and https only, see the constructor
        if self._token is not None:
            request.add_header("Authorization", f"Bearer {self._token}")
        with self._opener.open(request, timeout=_TIMEOUT_SECONDS) as answer:
            # One byte more than allowed shows that there is more, without reading all of it.
            content: bytes = answer.read(_MOST_BYTES + 1)
        if len(content) > _MOST_BYTES:
            raise ValueError("its answer is too long")
        return content


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    """A token is for the server that was named, and for no other."""

    def redirect_request(self, *_: Any, **__: Any) -> None:
        return None
