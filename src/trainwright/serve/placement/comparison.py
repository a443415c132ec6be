"""Plans compared by running them here: rows a second under load, and of one client that sends single rows.

What it takes to hand rows to another process and to wake it, and what processes side by side take from each other, is
in no time table.
"""

import time
from collections import deque
from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import replace

import numpy as np

from trainwright.ensemble import Ensemble
from trainwright.errors import ServeError
from trainwright.serve.deployment import Deployment
from trainwright.serve.placement.deployment_plan import DeploymentPlan
from trainwright.serve.service import DeploymentSettings, Response

__all__ = ["fastest_plan"]

_TURNS = 3
_LOADED_ROWS = 128  # of a request under load
_WINDOW_SECONDS = 0.2  # for which a plan is loaded in each turn
_LIMIT_SECONDS = 60.0  # of one answer
_LEAST_GAIN, _LEAST_SINGLE, _GREAT_GAIN = 1.1, 0.9, 3.0  # of worker processes over none, see `fastest_plan`


def fastest_plan(ensemble: Ensemble, plans: Sequence[DeploymentPlan]) -> DeploymentPlan:
    """Return the plan with most rows a second of those that run, with what was `measured`.

    Worker processes are chosen if they answer more under load, unless a lone client's single rows would take longer
    than without them; several times as much under load outweighs that. Raises ServeError if no plan runs.
    """
    # A plan whose workers end even once is none to choose, and a queue without a limit refuses no load.
    settings = DeploymentSettings(start_seconds=120.0, queue_rows=1_000_000, failures=1, move=False)
    services = [(plan, Deployment(ensemble, plan, settings=settings)) for plan in plans]
    running: list[tuple[DeploymentPlan, Deployment]] = []
    failure: Exception | None = None
    try:
        for plan, service in services:
            try:
                service.start()
                # Warms up, and finds members that fail only under load.
                _measure_loaded(service)
                running.append((plan, service))
            except (ServeError, TimeoutError) as error:
                failure = error
        # In turns, so that what disturbs the machine disturbs all alike; the others are idle meanwhile.
        turns = [[(_measure_loaded(one), _measure_single(one)) for _, one in running] for _ in range(_TURNS)]
    finally:
        for _, service in services:
            service.drain(0.0)
    if not running:
        raise ServeError(f"allocate: no plan runs here ({failure}); allowed: an ensemble that does")
    rates = np.median(turns, axis=0).tolist()
    # The best of those with workers, if any runs.
    best = max(range(len(running)), key=lambda place: rates[place][0] * (not running[place][0].in_process))
    plan, (loaded, single) = running[best][0], rates[best]
    measured = {"value": loaded}
    for (other, _), (other_loaded, other_single) in zip(running, rates, strict=True):
        if other.in_process:
            measured["in_process"] = other_loaded
            # Under load workers may use more cores; single rows show what handing over costs.
            gain = loaded / other_loaded
            if gain <= _LEAST_GAIN or (single / other_single <= _LEAST_SINGLE and gain <= _GREAT_GAIN):
                return replace(other, measured={**measured, "value": other_loaded})
    return replace(plan, measured=measured)


def _measure_loaded(service: Deployment) -> float:
    """Return rows a second while there is always more to do."""
    x = np.zeros((_LOADED_ROWS, *service.input_shape), dtype=service.input_dtype)
    # So many requests at once that no instance waits for the next one.
    waiting: deque[Future[Response]] = deque(service.submit(x) for _ in range(4 + 2 * len(service.plan.instances)))
    done, started = 0, time.monotonic()
    while (taken := time.monotonic() - started) < _WINDOW_SECONDS or not done:
        waiting.popleft().result(timeout=_LIMIT_SECONDS)
        done += _LOADED_ROWS
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
