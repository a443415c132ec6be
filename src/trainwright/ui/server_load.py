"""The load of a served ensemble: its /metrics asked every second, kept for ten minutes, told as rates."""

import json
import re
import threading
import time
import urllib.request
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from http.client import HTTPException
from itertools import pairwise
from typing import Any
from urllib.parse import quote, urlsplit

from trainwright.errors import InputError

__all__ = ["ServerLoad", "parse_metrics"]

_SECONDS, _KEPT, _LONGEST, _MOST_BYTES = 1.0, 600, 2.0, 4_000_000
_LINE = re.compile(r"^([a-zA-Z_:][\w:]*)(\{[^}]*\})? ([^ ]+)")
_LABEL = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)"')

Metrics = Mapping[str, list[tuple[Mapping[str, str], float]]]


@dataclass(frozen=True, slots=True)
class _Sample:
    at: float
    requests: Mapping[str, float]  # by status, so far
    rows: float
    waiting: float | None
    answers: tuple[float, float]  # seconds and number of answers so far


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
        self._samples: deque[_Sample] = deque(maxlen=_KEPT)
        self._about: Mapping[str, Any] = {}
        self._error: str | None = "it was not asked yet"
        self._lock = threading.Lock()
        self._ending = threading.Event()
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Ask every second, from now on."""
        self._thread = threading.Thread(target=self._ask_repeatedly, name="watch the server", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Ask no more."""
        self._ending.set()
        if self._thread is not None:
            self._thread.join(2 * _LONGEST)

    def ask(self) -> None:
        """Ask once; what cannot be had is kept as a sentence."""
        try:
            metrics = parse_metrics(self._get("/metrics").decode("utf-8", "replace"))
            sample = _read_sample(metrics, time.time())
            about: Mapping[str, Any] = {}
            try:
                table = json.loads(self._get(f"/v2/ensembles/{quote(self._ensemble, safe='')}"))
                about = table if isinstance(table, dict) else {}
            except (OSError, ValueError, HTTPException):
                # The ensemble has another name there; its counts are shown all the same.
                about = {}
            with self._lock:
                self._samples.append(sample)
                self._about, self._error = about, None
        except (OSError, ValueError, HTTPException) as error:
            with self._lock:
                self._error = f"{self.url} does not answer: {getattr(error, 'reason', None) or error}"

    def content(self) -> dict[str, Any]:
        """Return the address, what went wrong, the ensemble, and rates between samples, oldest first."""
        with self._lock:
            samples, about, error = list(self._samples), self._about, self._error
        state = about.get("state") if isinstance(about.get("state"), dict) else {}
        return {
            "url": self.url,
            "error": error,
            "name": about.get("name"),
            "ready": about.get("ready"),
            "members": about.get("members", []),
            "state": state,
            "requests": dict(samples[-1].requests) if samples else {},
            "rows": samples[-1].rows if samples else 0,
            "course": [_rates_between(before, after) for before, after in pairwise(samples)],
        }

    def _ask_repeatedly(self) -> None:
        while not self._ending.is_set():
            self.ask()
            self._ending.wait(_SECONDS)

    def _get(self, path: str) -> bytes:
        request = urllib.request.Request(self.url + path)  # noqa: S310 -- http and https only, see the constructor
        if self._token is not None:
            request.add_header("Authorization", f"Bearer {self._token}")
        with self._opener.open(request, timeout=_LONGEST) as answer:
            # One byte more than allowed shows that there is more, without reading all of it.
            content: bytes = answer.read(_MOST_BYTES + 1)
        if len(content) > _MOST_BYTES:
            raise ValueError("its answer is too long")
        return content


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    """A token is for the server that was named, and for no other."""

    def redirect_request(self, *_: Any, **__: Any) -> None:
        return None


def parse_metrics(text: str) -> Metrics:
    """Return the samples of Prometheus' exposition format by name: labels and value of each."""
    found: dict[str, list[tuple[Mapping[str, str], float]]] = {}
    for line in text.splitlines():
        match = _LINE.match(line)
        if match is None or line.startswith("#"):
            continue
        name, labels, value = match.groups()
        try:
            number = float(value)
        except ValueError:
            continue
        found.setdefault(name, []).append((dict(_LABEL.findall(labels or "")), number))
    return found


def _read_sample(metrics: Metrics, at: float) -> _Sample:
    requests: dict[str, float] = {}
    for labels, value in metrics.get("trainwright_requests_total", []):
        if labels.get("endpoint", "infer") == "infer":
            status = labels.get("status", "?")
            requests[status] = requests.get(status, 0.0) + value
    waiting = [value for _, value in metrics.get("trainwright_waiting_rows", [])]
    return _Sample(
        at=at,
        requests=requests,
        rows=_sum_metric(metrics, "trainwright_rows_total"),
        waiting=sum(waiting) if waiting else None,
        answers=(
            _sum_metric(metrics, "trainwright_phase_seconds_sum", "answer"),
            _sum_metric(metrics, "trainwright_phase_seconds_count", "answer"),
        ),
    )


def _sum_metric(metrics: Metrics, name: str, phase: str = "") -> float:
    return sum(value for labels, value in metrics.get(name, []) if not phase or labels.get("phase") == phase)


def _rates_between(before: _Sample, after: _Sample) -> dict[str, Any]:
    """Return what happened between two samples; a server that was started anew counts from 0 again."""
    seconds = max(after.at - before.at, 1e-3)
    # Counters only grow, so a rate is the growth between two samples.
    good = _growth_of(before.requests.get("200", 0.0), after.requests.get("200", 0.0))
    every = _growth_of(sum(before.requests.values()), sum(after.requests.values()))
    answers = _growth_of(before.answers[1], after.answers[1])
    return {
        "at": after.at,
        "requests_per_second": good / seconds,
        "refused_per_second": max(every - good, 0.0) / seconds,
        "rows_per_second": _growth_of(before.rows, after.rows) / seconds,
        "answer_ms": 1000 * _growth_of(before.answers[0], after.answers[0]) / answers if answers else None,
        "waiting": after.waiting,
    }


def _growth_of(before: float, after: float) -> float:
    return after - before if after >= before else after
