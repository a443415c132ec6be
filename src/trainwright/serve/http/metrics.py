"""What a server counts and times, in Prometheus's text format."""

from bisect import bisect_left
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

__all__ = ["CONTENT_TYPE", "Histogram", "PrometheusMetrics"]

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
_SECONDS = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
_ROWS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 4096)
_COUNTS = {
    "rows": "Rows that were answered.",
    "degraded": "Answers that lack a member that was asked for.",
    "disconnected": "Requests whose client left before the answer.",
}
PHASES = ("parse", "answer", "reply")


class Histogram:
    """Observations counted by upper bounds; for one thread."""

    def __init__(self, bounds: Sequence[float]) -> None:
        self._bounds, self._counts = bounds, [0] * (len(bounds) + 1)
        self.sum, self.count = 0.0, 0

    def observe(self, value: float) -> None:
        """Count a value."""
        self._counts[bisect_left(self._bounds, value)] += 1
        self.sum += value
        self.count += 1

    def lines(self, name: str, labels: str = "") -> Iterator[str]:
        """Yield the samples: how many were at most each bound, their sum and count."""
        total = 0
        for bound, count in zip([*map(str, map(float, self._bounds)), "+Inf"], self._counts, strict=True):
            total += count
            yield f'{name}_bucket{{{labels}{"," * bool(labels)}le="{bound}"}} {total}'
        plain = f"{{{labels}}}" if labels else ""
        yield f"{name}_sum{plain} {self.sum}"
        yield f"{name}_count{plain} {self.count}"


class PrometheusMetrics:
    """Counters and histograms of one server."""

    def __init__(self) -> None:
        self.requests: Counter[tuple[str, int]] = Counter()  # by endpoint and status
        self.counts: Counter[str] = Counter(dict.fromkeys(_COUNTS, 0))
        self.parse, self.answer, self.reply = (Histogram(_SECONDS) for _ in PHASES)
        self.request_rows = Histogram(_ROWS)

    def by_status(self) -> dict[str, int]:
        """Return the inference requests so far, by status."""
        return {str(status): count for (endpoint, status), count in self.requests.items() if endpoint == "infer"}

    def text(self, states: Mapping[tuple[str, str], Mapping[str, Any]]) -> bytes:
        """Return all of it, and the numbers in the states of the models, by name and version, as gauges."""
        return ("\n".join(self._lines(states)) + "\n").encode()

    def _lines(self, states: Mapping[tuple[str, str], Mapping[str, Any]]) -> Iterator[str]:
        yield from _heading("trainwright_requests_total", "counter", "Requests by endpoint and status.")
        for (endpoint, status), count in sorted(self.requests.items()):
            yield f'trainwright_requests_total{{endpoint="{endpoint}",status="{status}"}} {count}'
        for name, words in _COUNTS.items():
            yield from _heading(f"trainwright_{name}_total", "counter", words)
            yield f"trainwright_{name}_total {self.counts[name]}"
        words = "Seconds of a request: parse, answer (waiting and computing), reply."
        yield from _heading("trainwright_phase_seconds", "histogram", words)
        for phase in PHASES:
            yield from getattr(self, phase).lines("trainwright_phase_seconds", f'phase="{phase}"')
        yield from _heading("trainwright_request_rows", "histogram", "Rows of a request.")
        yield from self.request_rows.lines("trainwright_request_rows")
        # Gauges are read when they are asked for, and cost requests nothing.
        names = {name for state in states.values() for name, value in state.items() if _is_number(value)}
        for name in sorted(names):
            yield from _heading(f"trainwright_{name}", "gauge", "Of the model's state.")
            for (model, version), state in states.items():
                if _is_number(state.get(name)):
                    yield f'trainwright_{name}{{model="{model}",version="{version}"}} {float(state[name])}'


def _heading(name: str, kind: str, words: str) -> Iterator[str]:
    yield f"# HELP {name} {words}"
    yield f"# TYPE {name} {kind}"


def _is_number(value: object) -> bool:
    return isinstance(value, bool | int | float)
