"""What a server counts and times, for Prometheus; each server has a registry of its own."""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from prometheus_client import CollectorRegistry, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

__all__ = ["CONTENT_TYPE", "PrometheusMetrics"]

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
_SECONDS = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
_ROWS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 4096)
_COUNTS = {
    "rows": "Rows that were answered.",
    "degraded": "Answers that lack a member that was asked for.",
    "disconnected": "Requests whose client left before the answer.",
}


class PrometheusMetrics(Collector):
    """Counters and histograms of one server, and the numbers of `state()` as gauges, read when they are asked for."""

    def __init__(self, state: Callable[[], Mapping[str, Any]]) -> None:
        self._state = state
        self.requests: Counter[tuple[str, int]] = Counter()  # by endpoint and status
        self.counts: Counter[str] = Counter(dict.fromkeys(_COUNTS, 0))
        # Not the process's registry: several servers may run in one process.
        self._registry = CollectorRegistry()
        self._registry.register(self)
        phases = Histogram(
            "trainwright_phase_seconds",
            "Seconds of a request: parse, answer (waiting and computing), reply.",
            ["phase"],
            buckets=_SECONDS,
            registry=self._registry,
        )
        self.parse, self.answer, self.reply = (phases.labels(name) for name in ("parse", "answer", "reply"))
        self.request_rows = Histogram(
            "trainwright_request_rows", "Rows of a request.", buckets=_ROWS, registry=self._registry
        )

    def by_status(self) -> dict[str, int]:
        """Return the inference requests so far, by status."""
        return {str(status): count for (endpoint, status), count in self.requests.items() if endpoint == "infer"}

    def text(self) -> bytes:
        """Return all of it in the exposition format."""
        return generate_latest(self._registry)

    def describe(self) -> list[Metric]:
        """Return no names: those of the state are asked for at each scrape, not at registration."""
        return []

    def collect(self) -> Iterator[Metric]:
        """Yield the counters, and each number of the service's state."""
        requests = CounterMetricFamily(
            "trainwright_requests", "Requests by endpoint and status.", labels=["endpoint", "status"]
        )
        for (endpoint, status), count in list(self.requests.items()):
            requests.add_metric([endpoint, str(status)], count)
        yield requests
        for name, words in _COUNTS.items():
            yield CounterMetricFamily(f"trainwright_{name}", words, value=self.counts[name])
        # Gauges are read when they are asked for, and cost requests nothing.
        for name, value in self._state().items():
            if isinstance(value, bool | int | float):
                yield GaugeMetricFamily(f"trainwright_{name}", "Of the service's state.", value=float(value))
