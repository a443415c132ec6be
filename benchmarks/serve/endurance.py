"""Open-loop load at 80 % of what the service can do: whether its memory grows, and what the tails are.

Capacity is measured first, in requests of the same sizes (1 to 32 rows), with more asked than can be done. Then such
requests are sent at Poisson moments drawn beforehand for `seconds`; latency counts from the moment at which a request
was due. Resident memory of the front and the worker is read after the first tenth and at the end; the claim is made
with --seconds 600.
"""

import argparse
import os
import tempfile
import threading
import time
from collections import deque
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
    from trainwright.errors import Overloaded
    from trainwright.serve import Deployment, Settings

    seconds = 3.0 if options.quick else options.seconds
    draws = np.random.default_rng(options.seed)
    x = draws.normal(size=(_MOST_ROWS, INPUTS)).astype(np.float32)
    with tempfile.TemporaryDirectory() as folder:
        found = ensemble(Path(folder), [{"width": 256, "depth": 3}] * 3)
        with Deployment(found, plan(found), settings=Settings(queue_rows=1_000_000)) as service:
            pids = [os.getpid(), *(one["pid"] for one in service.state()["instances"])]
            rate = _capacity(service, x, draws, min(10.0, seconds)) * _SHARE
            sizes = draws.integers(1, _MOST_ROWS + 1, size=max(10, int(rate * seconds)))
            due = np.cumsum(draws.exponential(1 / rate, size=len(sizes)))
            latencies, refused, left, warm = np.full(len(sizes), np.nan), 0, threading.Semaphore(0), 0
            begun = time.monotonic()
            for number, (size, moment) in enumerate(zip(sizes.tolist(), due.tolist(), strict=True)):
                time.sleep(max(0.0, begun + moment - time.monotonic()))
                if number == len(sizes) // 10:
                    warm = _resident(pids)

                def done(answer: Any, number: int = number, moment: float = moment) -> None:
                    if answer.exception() is None and not answer.result().degraded:
                        latencies[number] = time.monotonic() - begun - moment
                    left.release()

                try:
                    service.submit(x[:size]).add_done_callback(done)
                except Overloaded:
                    refused += 1
            for _ in range(len(sizes) - refused):
                left.acquire()
            grown = 100.0 * (_resident(pids) / warm - 1.0)
    p50, p99 = (1e3 * float(np.nanquantile(latencies, q)) for q in (0.5, 0.99))
    progress(f"{rate:.0f} requests a second asked for, {len(sizes)} requests, {refused} refused")
    print(table(["", "value"], [["p50 ms", f"{p50:.1f}"], ["p99 ms", f"{p99:.1f}"], ["memory", f"{grown:+.2f} %"]]))
    return {
        "summary": {
            "memory_growth_percent": round(grown, 2),
            "endurance_minutes": round(float(due[-1]) / 60, 2),
            "lost_requests": int(np.isnan(latencies).sum()) - refused,
            "endurance_p50_ms": round(p50, 2),
            "endurance_p99_ms": round(p99, 2),
        },
        "seconds": float(due[-1]),
        "requests": len(sizes),
        "refused": refused,
        "requests_per_second": rate,
    }


def _capacity(service: Any, x: Any, draws: np.random.Generator, seconds: float) -> float:
    """Return requests a second, of the sizes that are sent later, while as many wait as fill every segment."""
    answers, done, begun = deque[Any](), 0, time.monotonic()
    while time.monotonic() < begun + seconds:
        answers.append(service.submit(x[: draws.integers(1, _MOST_ROWS + 1)]))
        if len(answers) >= _WAITING:
            answers.popleft().result()
            done += 1
    return done / (time.monotonic() - begun)


def _resident(pids: list[int]) -> int:
    """Bytes of resident memory of processes."""
    pages = sum(int(Path(f"/proc/{pid}/statm").read_text().split()[1]) for pid in pids)
    return pages * os.sysconf("SC_PAGE_SIZE")
