"""Open-loop load at 80 % of what the service can do: whether its memory grows, and what the tails are.

Capacity is the answers a second that the same sender gets when it sends 1.5 times what a closed loop achieved. Then
requests of 1 to 32 rows are sent at Poisson moments drawn beforehand for `seconds`; latency counts from the moment at
which a request was due. Resident memory of the front and the worker is read after the first tenth and at the end; the
claim is made with --seconds 600.
"""

import argparse
import os
import tempfile
import threading
import time
from collections import deque
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from benchmarks._report import progress, table
from benchmarks.serve._ensembles import INPUTS, ensemble, plan

__all__ = ["run"]

_SHARE = 0.8
_MOST_ROWS = 32
_WAITING = 64


def run(options: argparse.Namespace) -> dict[str, Any]:
    """Measure."""
    from trainwright.serve import Deployment, DeploymentSettings

    seconds = 3.0 if options.quick else options.seconds
    draws = np.random.default_rng(options.seed)
    with tempfile.TemporaryDirectory() as folder:
        found = ensemble(Path(folder), [{"width": 256, "depth": 3}] * 3)
        with Deployment(found, plan(found), settings=DeploymentSettings(queue_rows=1_000_000)) as service:
            rate = _SHARE * _capacity(service, draws, min(10.0, seconds))
            told = _open_loop(service, draws, rate, seconds)
    p50, p99 = (1e3 * float(np.nanquantile(told.latencies, q)) for q in (0.5, 0.99))
    progress(f"{rate:.0f} requests a second asked for, {len(told.latencies)} requests, {told.refused} refused")
    print(
        table(["", "value"], [["p50 ms", f"{p50:.1f}"], ["p99 ms", f"{p99:.1f}"], ["memory", f"{told.grown:+.2f} %"]])
    )
    return {
        "summary": {
            "memory_growth_percent": round(told.grown, 2),
            "endurance_minutes": round(told.seconds / 60, 2),
            "lost_requests": int(np.isnan(told.latencies).sum()) - told.refused,
            "endurance_p50_ms": round(p50, 2),
            "endurance_p99_ms": round(p99, 2),
        },
        "seconds": told.seconds,
        "requests": len(told.latencies),
        "refused": told.refused,
        "requests_per_second": rate,
    }


@dataclass(frozen=True, slots=True)
class _Told:
    latencies: Any  # seconds, NaN for what had no whole answer
    refused: int
    grown: float  # percent, of the resident memory after a tenth
    seconds: float  # in which they were to be sent
    rate: float  # answers a second while they were sent


def _capacity(service: Any, draws: np.random.Generator, seconds: float) -> float:
    """Return the answers a second that the open loop's sender gets when it asks for more than can be done."""
    rows = np.zeros((_MOST_ROWS, INPUTS), np.float32)
    answers, done, begun = deque[Any](), 0, time.monotonic()
    while time.monotonic() < begun + seconds / 2:  # a closed loop: nothing waits for a moment, so this is too much
        answers.append(service.submit(rows[: draws.integers(1, _MOST_ROWS + 1)]))
        if len(answers) >= _WAITING:
            answers.popleft().result()
            done += 1
    return _open_loop(service, draws, 1.5 * done / (time.monotonic() - begun), seconds / 2).rate


def _open_loop(service: Any, draws: np.random.Generator, rate: float, seconds: float) -> _Told:
    """Send requests of 1 to 32 rows at Poisson moments, so many a second, and wait for all answers."""
    from trainwright.errors import Overloaded

    x = draws.normal(size=(_MOST_ROWS, INPUTS)).astype(np.float32)
    sizes = draws.integers(1, _MOST_ROWS + 1, size=max(10, int(rate * seconds)))
    due = np.cumsum(draws.exponential(1 / rate, size=len(sizes)))
    pids = [os.getpid(), *(one["pid"] for one in service.state()["instances"])]
    latencies, refused, answered, left, warm = np.full(len(sizes), np.nan), 0, 0, threading.Semaphore(0), 0
    begun = time.monotonic()
    for number, (size, moment) in enumerate(zip(sizes.tolist(), due.tolist(), strict=True)):
        time.sleep(max(0.0, begun + moment - time.monotonic()))
        if number == len(sizes) // 10:
            warm = _resident(pids)

        def done(answer: Any, number: int = number, moment: float = moment) -> None:
            nonlocal answered
            answered += 1
            if answer.exception() is None and not answer.result().degraded:
                latencies[number] = time.monotonic() - begun - moment
            left.release()

        try:
            service.submit(x[:size]).add_done_callback(done)
        except Overloaded:
            refused += 1
    rate = answered / (time.monotonic() - begun)
    for _ in range(len(sizes) - refused):
        left.acquire()
    return _Told(latencies, refused, 100.0 * (_resident(pids) / warm - 1.0), float(due[-1]), rate)


def _resident(pids: list[int]) -> int:
    """Bytes of resident memory of processes."""
    pages = sum(int(Path(f"/proc/{pid}/statm").read_text().split()[1]) for pid in pids)
    return pages * os.sysconf("SC_PAGE_SIZE")
