"""Plans compared by running them here: rows a second under load, and of one client that sends single rows.

What it takes to hand rows to another process and to wake it, and what processes side by side take from each other, is
in no time table.
"""

import statistics
import time
from collections import deque
from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field, replace

import numpy as np

from trainwright.ensemble import Ensemble
from trainwright.errors import ServeError
from trainwright.serve.deployment import Deployment
from trainwright.serve.placement.deployment_plan import DeploymentPlan
from trainwright.serve.service import DeploymentSettings, Response

__all__ = ["fastest_plan"]

_TURNS = 3
_WINDOW_SECONDS = 0.2  # for which a plan is loaded in each turn
_LIMIT_SECONDS = 60.0  # of one answer
_LEAST_GAIN, _LEAST_SINGLE, _GREAT_GAIN = 1.1, 0.9, 3.0  # of worker processes over none, see `fastest_plan`


@dataclass(kw_only=True)
class _Measured:
    """A plan, started once, and its rows a second in each turn."""

    plan: DeploymentPlan
    service: Deployment
    loaded: list[float] = field(default_factory=list)
    single: list[float] = field(default_factory=list)


def fastest_plan(ensemble: Ensemble, plans: Sequence[DeploymentPlan]) -> DeploymentPlan:
    """Return the plan with most rows a second of those that run, with what was `measured`.

    Worker processes are chosen if they answer more under load, unless a lone client's single rows would take longer
    than without them; several times as much under load outweighs that. Raises ServeError if no plan runs.
    """
    # A plan whose workers end even once is none to choose, and a queue without a limit refuses no load.
    settings = DeploymentSettings(start_seconds=120.0, queue_rows=1_000_000, failures=1, move=False)
    every = [_Measured(plan=plan, service=Deployment(ensemble, plan, settings=settings)) for plan in plans]
    failure: ServeError | None = None
    try:
        # In turns, so that what disturbs the machine disturbs all alike; the others are idle meanwhile.
        running = []
        for one in every:
            try:
                one.service.start()
                # Warms up, and finds members that fail only under load.
                _measure_loaded(one.service)
                running.append(one)
            except (ServeError, TimeoutError) as error:
                failure = ServeError(f"allocate: no plan runs here ({error}); allowed: an ensemble that does")
        for _ in range(_TURNS):
            for one in running:
                one.loaded.append(_measure_loaded(one.service))
                one.single.append(_measure_single(one.service))
    finally:
        for one in every:
            one.service.drain(0.0)
    if not running:
        raise failure or ServeError("allocate: got no plans")
    # The best of those with workers, if any runs.
    best = max(running, key=lambda one: statistics.median(one.loaded) * (not one.plan.in_process))
    measured = {"value": statistics.median(best.loaded)}
    for inside in (one for one in running if one.plan.in_process):
        measured["in_process"] = statistics.median(inside.loaded)
        # Under load workers may use more cores; single rows show what handing over costs.
        gain = measured["value"] / measured["in_process"]
        single = statistics.median(best.single) / statistics.median(inside.single)
        if gain <= _LEAST_GAIN or (single <= _LEAST_SINGLE and gain <= _GREAT_GAIN):
            return replace(inside.plan, measured={**measured, "value": measured["in_process"]})
    return replace(best.plan, measured=measured)


def _measure_loaded(service: Deployment) -> float:
    """Return rows a second while there is always more to do."""
    rows = service.settings.segment_rows
    x = np.zeros((rows, *service.input_shape), dtype=service.input_dtype)
    # So many requests at once that no instance waits for the next one.
    waiting: deque[Future[Response]] = deque(service.submit(x) for _ in range(4 + 2 * len(service.plan.instances)))
    done, started = 0, time.monotonic()
    while (taken := time.monotonic() - started) < _WINDOW_SECONDS or not done:
        waiting.popleft().result(timeout=_LIMIT_SECONDS)
        done += rows
        waiting.append(service.submit(x))
    for future in waiting:
        future.result(timeout=_LIMIT_SECONDS)
    return done / taken


def _measure_single(service: Deployment) -> float:
    """Return the requests a second of one client that sends a row at a time."""
    x = np.zeros((1, *service.input_shape), dtype=service.input_dtype)
    done, started = 0, time.monotonic()
    while (taken := time.monotonic() - started) < _WINDOW_SECONDS / 2 or not done:
        service.submit(x).result(timeout=_LIMIT_SECONDS)
        done += 1
    return done / taken
