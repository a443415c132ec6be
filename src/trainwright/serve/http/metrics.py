"""What a server counts and times, for Prometheus; each server has a registry of its own."""

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

__all__ = ["CONTENT_TYPE", "Metrics"]

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
_SECONDS = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
_ROWS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 4096)


class Metrics:
    """Counters and histograms of one server, and the numbers of `state()` as gauges, read when they are asked for."""

    def __init__(self, state: Callable[[], Mapping[str, Any]]) -> None:
        self._registry = CollectorRegistry()

        def counter(name: str, text: str, *labels: str) -> Counter:
            return Counter(f"trainwright_{name}", text, labels, registry=self._registry)

        phases = Histogram(
            "trainwright_phase_seconds",
            "Seconds of a request: parse, answer (waiting and computing), reply.",
            ["phase"],
            buckets=_SECONDS,
            registry=self._registry,
        )
        self._phases = {name: phases.labels(name) for name in ("parse", "answer", "reply")}
        self.parse, self.answer, self.reply = self._phases.values()
        self.request_rows = Histogram(
            "trainwright_request_rows", "Rows of a request.", buckets=_ROWS, registry=self._registry
        )
        self._requests = counter("requests", "Requests by endpoint and status.", "endpoint", "status")
        self.rows = counter("rows", "Rows that were answered.")
        self.degraded = counter("degraded", "Answers that lack a member that was asked for.")
        self.disconnected = counter("disconnected", "Requests whose client left before the answer.")
        self.refused = Histogram(
            "trainwright_refused_seconds",
            "Seconds of an inference request that was refused or failed.",
            buckets=_SECONDS,
            registry=self._registry,
        )
        # The time of the last answer, in seconds since 1970.
        self.last_seconds = 0.0
        self._registry.register(_States(state))

    def counted(self, endpoint: str, status: int) -> None:
        """Count one answered request."""
        self._requests.labels(endpoint, str(status)).inc()

    def by_status(self) -> dict[str, int]:
        """Return the inference requests so far, by status."""
        return {
            sample.labels["status"]: int(sample.value)
            for metric in self._requests.collect()
            for sample in metric.samples
            if sample.name.endswith("_total") and sample.labels["endpoint"] == "infer"
        }

    def totals(self) -> dict[str, int]:
        """Return the rows and the degraded answers so far."""
        counters = {"rows": self.rows, "degraded": self.degraded, "disconnected": self.disconnected}
        return {
            name: int(sample.value)
            for name, each in counters.items()
            for metric in each.collect()
            for sample in metric.samples
            if sample.name.endswith("_total")
        }

    def phases(self) -> dict[str, tuple[int, float]]:
        """Return how many requests were answered, and the seconds of each phase."""
        return {name: _sum_histogram(each) for name, each in self._phases.items()}

    def failed(self) -> tuple[int, float]:
        """Return how many inference requests were refused or failed, and their seconds."""
        return _sum_histogram(self.refused)

    def text(self) -> bytes:
        """Return all of it in the exposition format."""
        return generate_latest(self._registry)


def _sum_histogram(histogram: Histogram) -> tuple[int, float]:
    """Return the count and the sum of what a histogram without labels, or one of its labels, has seen."""
    found = {sample.name: sample.value for metric in histogram.collect() for sample in metric.samples}
    count = next(value for name, value in found.items() if name.endswith("_count"))
    return int(count), next(value for name, value in found.items() if name.endswith("_sum"))


class _States(Collector):
    """The numbers in a service's state: each of its names, and each name of a mapping in it, is a gauge."""

    def __init__(self, state: Callable[[], Mapping[str, Any]]) -> None:
        self._state = state

    def describe(self) -> list[GaugeMetricFamily]:
        # The names are the service's: asked for at each scrape, not at registration.
        return []

    def collect(self) -> Iterator[GaugeMetricFamily]:
        told = self._state()
        for name, value in told.items():
            if isinstance(value, bool | int | float):
                yield GaugeMetricFamily(f"trainwright_{name}", "Of the service's state.", value=float(value))
        for name, value in _list_gauges(told):
            family = GaugeMetricFamily(f"trainwright_{name}", "Of the service's state.", labels=["place"])
            for place, number in value:
                family.add_metric([place], number)
            yield family


def _list_gauges(told: Mapping[str, Any]) -> Iterator[tuple[str, list[tuple[str, float]]]]:
    """Yield per list of records in the state, such as its instances, each number by the record's place in the list."""
    for name, records in told.items():
        if not isinstance(records, list | tuple) or not all(isinstance(each, Mapping) for each in records):
            continue
        for key in sorted({key for each in records for key in each}):
            numbers = [
                (str(place), float(each[key]))
                for place, each in enumerate(records)
                if isinstance(each.get(key), bool | int | float) and key not in {"pid", "trial"}
            ]
            if numbers:
                yield f"{name.removesuffix('s')}_{key}", numbers
