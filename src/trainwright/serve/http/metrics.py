"""Writes Prometheus metrics: what a server counts and times, in the text exposition format."""

from bisect import bisect_left
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from trainwright.serve.http.models import ServedModel

__all__ = ["CONTENT_TYPE", "SECONDS", "Histogram", "PrometheusMetrics"]

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
SECONDS = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
_ROWS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 4096)
_COUNTS = {
    "rows": "Rows that were answered.",
    "degraded": "Answers that lack a member that was asked for.",
    "disconnected": "Requests whose client left before the answer.",
}


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
    """Counters of one server, and the text that tells of it and of its models."""

    def __init__(self) -> None:
        self.requests: Counter[tuple[str, int]] = Counter()  # by endpoint and status
        self.counts: Counter[str] = Counter(dict.fromkeys(_COUNTS, 0))
        self.request_rows = Histogram(_ROWS)

    def text(self, models: Sequence["ServedModel"]) -> bytes:
        """Return all of it, the seconds of each model's requests, and the numbers in its state as gauges."""
        return ("\n".join(self._lines(models)) + "\n").encode()

    def _lines(self, models: Sequence["ServedModel"]) -> Iterator[str]:
        yield from _heading("requests_total", "counter", "Requests by endpoint and status.")
        for (endpoint, status), count in sorted(self.requests.items()):
            yield f'trainwright_requests_total{{endpoint="{endpoint}",status="{status}"}} {count}'
        for name, words in _COUNTS.items():
            yield from _heading(f"{name}_total", "counter", words)
            yield f"trainwright_{name}_total {self.counts[name]}"
        words = "Seconds of a request: parse, answer (waiting and computing), reply; fail: of a refused one."
        yield from _heading("phase_seconds", "histogram", words)
        labels = [f'model="{model.name}",version="{model.version}"' for model in models]
        for model, label in zip(models, labels, strict=True):
            for phase, seconds in model.seconds.items():
                yield from seconds.lines("trainwright_phase_seconds", f'phase="{phase}",{label}')
        yield from _heading("request_rows", "histogram", "Rows of a request.")
        yield from self.request_rows.lines("trainwright_request_rows")
        # Gauges are read when they are asked for, and cost requests nothing.
        states = [model.service.state() for model in models]
        numbers = [{name: one for name, one in state.items() if isinstance(one, int | float)} for state in states]
        for name in sorted({name for found in numbers for name in found}):
            yield from _heading(name, "gauge", "Of the model's state.")
            for found, label in zip(numbers, labels, strict=True):
                if name in found:
                    yield f"trainwright_{name}{{{label}}} {float(found[name])}"


def _heading(name: str, kind: str, words: str) -> Iterator[str]:
    yield f"# HELP trainwright_{name} {words}"
    yield f"# TYPE trainwright_{name} {kind}"
