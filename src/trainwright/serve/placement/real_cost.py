"""The value of a placement by running it in worker processes of its own, which are started and ended each time.

Running out of memory, a crash and a start that takes too long are results too: minus infinity, with the reason.
"""

import math
import statistics
import time
from collections import deque
from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from functools import partial

import numpy as np

from trainwright.ensemble import Ensemble
from trainwright.ensemble.metrics import Array
from trainwright.errors import AllocationError, ServeError
from trainwright.serve.deployment import Deployment
from trainwright.serve.placement.cost import Measurement, PlacementCost
from trainwright.serve.placement.deployment_plan import DeploymentPlan, digest_of
from trainwright.serve.placement.devices import Device
from trainwright.serve.placement.objectives import P99, Objective, Throughput
from trainwright.serve.placement.placement import Placement
from trainwright.serve.runtime.settings import DeploymentSettings
from trainwright.serve.service import Response

__all__ = ["Rates", "RealCost", "Screened"]

_PARTS = 4  # of a measurement, whose spread tells its error
_QUANTILE = 0.99
_LEAST_REQUESTS = 100
_RESOLUTION = 0.05


@dataclass(kw_only=True)
class RealCost:
    """Value of placements on devices that are here; `seconds` is how long each is loaded, after as long a warm-up.

    Requests of zeros are sent: what a network computes takes as long for them as for others.
    """

    ensemble: Ensemble
    devices: tuple[Device, ...]
    objective: Objective = field(default_factory=Throughput)
    seconds: float = 1.0
    start_seconds: float = 120.0  # that a placement may take to start
    sample: Array | None = None  # a batch, if the members do not remember their input
    measured: int = field(default=0, init=False)  # how many placements were started

    noisy = True

    def measure(self, placements: Sequence[Placement], floor: float = -math.inf) -> list[Measurement]:  # noqa: ARG002
        """Return the measurement of each, one after the other."""
        return [self._measure_one(placement) for placement in placements]

    def in_turns(self, placements: Sequence[tuple[Placement, bool]], rounds: int) -> list["Rates"]:
        """Return the rates of each (placement, whether it computes in this process); all are started beforehand.

        Medians of windows in turns, so that what disturbs the machine disturbs all of them alike; the others are idle
        meanwhile. One that fails has 0.
        """
        services = [self._make_service(placement, in_process=in_process) for placement, in_process in placements]
        loaded: list[list[float]] = [[] for _ in services]
        single: list[list[float]] = [[] for _ in services]
        failed: set[int] = set()
        try:
            for turn in range(rounds):
                for place, service in enumerate(services):
                    try:
                        if not turn:
                            service.start()
                        if place not in failed:
                            loaded[place] += _measure_saturated(
                                service, self.seconds, time.monotonic() + self._limit_seconds
                            )
                            single[place].append(_single_rows(service, self.seconds / 2))
                    except (ServeError, TimeoutError):
                        failed.add(place)
        finally:
            for service in services:
                service.drain(0.0)
        return [
            Rates(loaded=0.0, single=0.0)
            if place in failed
            else Rates(loaded=statistics.median(loaded[place]), single=statistics.median(single[place]))
            for place in range(len(services))
        ]

    @property
    def _limit_seconds(self) -> float:
        return 10.0 * self.seconds + 60.0

    def _make_service(self, placement: Placement, *, in_process: bool = False) -> Deployment:
        plan = DeploymentPlan(
            ensemble=digest_of(self.ensemble),
            devices=self.devices,
            units=placement.units,
            matrix=placement.matrix,
            in_process=in_process,
        )
        self.measured += 1
        settings = DeploymentSettings(start_seconds=self.start_seconds, queue_rows=1_000_000, failures=1, move=False)
        return Deployment(self.ensemble, plan, sample=self.sample, settings=settings)

    def _measure_one(self, placement: Placement) -> Measurement:
        service = self._make_service(placement)
        try:
            service.start()
            return self._judge_service(service, time.monotonic() + self._limit_seconds)
        except AllocationError:
            raise
        except (ServeError, TimeoutError) as error:
            return Measurement.failure(str(error) or type(error).__name__)
        finally:
            service.drain(0.0)

    def _judge_service(self, service: Deployment, ends: float) -> Measurement:
        rates = _measure_saturated(service, self.seconds, ends)
        error = float(np.std(rates, ddof=1)) / math.sqrt(len(rates))
        goal, rate = self.objective, float(np.mean(rates))
        if isinstance(goal, P99):
            return Measurement(value=-_measure_p99(service, goal.rate, goal.rows, self.seconds, ends))
        if goal.slo_ms is None:
            return Measurement(value=rate, spread=error)
        low, high = 0.0, rate / goal.rows
        while high - low > _RESOLUTION * high:
            middle = (low + high) / 2
            within = _measure_p99(service, middle, goal.rows, self.seconds, ends) <= 1e-3 * goal.slo_ms
            low, high = (middle, high) if within else (low, middle)
        return Measurement(value=low * goal.rows, spread=_RESOLUTION * low * goal.rows)


@dataclass(frozen=True, kw_only=True, slots=True)
class Rates:
    """Rows a second: under load, and of one client that sends single rows."""

    loaded: float
    single: float


@dataclass(kw_only=True)
class Screened:
    """A dear cost that measures only what a cheap one expects most of; the rest counts as worse."""

    cost: PlacementCost
    by: PlacementCost
    most: int = 4

    @property
    def noisy(self) -> bool:
        """Whether the dear cost is noisy."""
        return self.cost.noisy

    def measure(self, placements: Sequence[Placement], floor: float = -math.inf) -> list[Measurement]:
        """Return measurements of the most promising, and minus infinity for those that were not measured."""
        if len(placements) <= self.most:
            return self.cost.measure(placements, floor)
        expected = [one.value for one in self.by.measure(placements)]
        chosen = sorted(range(len(placements)), key=lambda place: -expected[place])[: self.most]
        found = [Measurement.failure("not measured: others are expected to be faster") for _ in placements]
        for place, one in zip(chosen, self.cost.measure([placements[place] for place in chosen], floor), strict=True):
            found[place] = one
        return found


def _zero_rows(service: Deployment, count: int) -> Array:
    return np.zeros((count, *service.input_shape), dtype=service.input_dtype)


def _measure_saturated(service: Deployment, seconds: float, ends: float) -> list[float]:
    """Return rows a second in each part of a time in which there was always more to do, after a warm-up as long."""
    rows = service.settings.segment_rows
    x = _zero_rows(service, rows)
    waiting: deque[Future[Response]] = deque(service.submit(x) for _ in range(4 + 2 * len(service.plan.instances)))
    found = []
    for part in range(2 * _PARTS):
        done, started = 0, time.monotonic()
        while time.monotonic() - started < seconds / _PARTS or not done:
            waiting.popleft().result(timeout=max(0.0, ends - time.monotonic()))
            done += rows
            waiting.append(service.submit(x))
        if part >= _PARTS:
            found.append(done / (time.monotonic() - started))
    for future in waiting:
        future.result(timeout=max(0.0, ends - time.monotonic()))
    return found


def _single_rows(service: Deployment, seconds: float) -> float:
    """Return the requests a second of one client that sends a row at a time."""
    x, done, started = _zero_rows(service, 1), 0, time.monotonic()
    while (taken := time.monotonic() - started) < seconds or not done:
        service.submit(x).result(timeout=60.0)
        done += 1
    return done / taken


def _measure_p99(service: Deployment, rate: float, rows: int, seconds: float, ends: float) -> float:
    """Return the latency that 99 of 100 requests stay within, from the time at which each was to be sent."""
    from trainwright.serve.placement.queueing_simulation import arrival_times

    count = max(_LEAST_REQUESTS, int(rate * seconds))
    x = _zero_rows(service, rows)
    due = time.monotonic() + arrival_times(rate, count, 0)
    answered = np.full(count, math.inf)
    futures = []
    for number, when in enumerate(due):
        time.sleep(max(0.0, when - time.monotonic()))
        future = service.submit(x)
        future.add_done_callback(partial(_note_time, answered, number))
        futures.append(future)
    for future in futures:
        future.result(timeout=max(0.0, ends - time.monotonic()))
    return float(np.quantile(answered - due, _QUANTILE))


def _note_time(times: Array, number: int, _future: "Future[Response]") -> None:
    times[number] = time.monotonic()
