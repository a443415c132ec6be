"""Workers and fronts that die under load: whether a request is lost, an answer wrong, anything left behind.

1. For `seconds`, four threads ask for 1 to 300 rows at a time while a worker is killed about every second.
2. The service is drained and another one started under the same load; clients ask again when they are told to.
3. A front is killed with requests under way.
An answer is wrong if a row differs from in-process prediction by more than 1e-6 and the answer does not say that it is
degraded. A request is lost if it was admitted and has no answer within a minute. What is left is the number of
processes, this one included, that still have a service's shared memory after its end.
"""

import argparse
import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import TimeoutError as Waited
from pathlib import Path
from typing import Any

import numpy as np
from benchmarks._report import progress, table
from benchmarks.serve._ensembles import INPUTS, ensemble, plan

__all__ = ["front", "run"]

_CLIENTS = 4
_MOST_ROWS = 300
_PARAMS = [{"width": 64, "depth": 2}] * 2


def run(options: argparse.Namespace) -> dict[str, Any]:
    """Measure."""
    from trainwright.serve import Deployment, DeploymentSettings
    from trainwright.serve.placement.units import Unit

    seconds = 3.0 if options.quick else options.seconds
    units = [Unit(members=(0,)), Unit(members=(1,))]
    settings = DeploymentSettings(backoff_seconds=0.05, failures=10_000, queue_rows=20_000)
    counts: Counter[str] = Counter()
    with tempfile.TemporaryDirectory() as folder:
        found = ensemble(Path(folder), _PARAMS)
        x = np.random.default_rng(options.seed).normal(size=(4096, INPUTS)).astype(np.float32)
        expected = found.predict(x)

        def make() -> Any:
            return Deployment(found, plan(found, batch=64, units=units), settings=settings).start()

        service = make()
        memories = _memories()
        with _Load(lambda: service, x, expected, counts):
            end = time.monotonic() + seconds
            while time.monotonic() < end:
                time.sleep(1.0)
                counts["kills"] += _kill(service, counts["kills"] % 2)
        counts["restarts"] = service.state()["restarts"]
        progress(f"kills: {dict(counts)}")
        with _Load(lambda: service, x, expected, counts):
            time.sleep(0.5)
            old, service = service, make()
            memories |= _memories()
            old.drain(60.0)
            time.sleep(0.5)
        service.drain(60.0)
        counts["left"] = _holders(memories)
        counts["left_after_front_killed"] = _front_killed(folder)
    print(table(["of requests", "count"], [[name, counts[name]] for name in sorted(counts)]))
    return {
        "summary": {
            "wrong_answers": counts["wrong"],
            "lost_requests": counts["lost"],
            "shared_memory_left": counts["left"] + counts["left_after_front_killed"],
            "kills": counts["kills"],
            "requests_under_faults": counts["answered"] + counts["degraded"],
        },
        "counts": dict(counts),
    }


class _Load:
    """Clients that ask as long as the block lasts."""

    def __init__(self, service: Callable[[], Any], x: Any, expected: Any, counts: Counter[str]) -> None:
        self._service, self._x, self._expected, self._counts = service, x, expected, counts
        self._over = threading.Event()
        self._lock = threading.Lock()
        self._threads = [threading.Thread(target=self._ask, args=(number,)) for number in range(_CLIENTS)]

    def __enter__(self) -> None:
        for thread in self._threads:
            thread.start()

    def __exit__(self, *_: object) -> None:
        self._over.set()
        for thread in self._threads:
            thread.join()

    def _ask(self, number: int) -> None:
        from trainwright.errors import Overloaded

        draws = np.random.default_rng(number)
        while not self._over.is_set():
            rows = int(draws.integers(1, _MOST_ROWS))
            first = int(draws.integers(0, len(self._x) - rows))
            part = slice(first, first + rows)
            try:
                asked = self._service().submit(self._x[part])
            except Overloaded as refused:
                self._count("refused")
                self._over.wait(min(0.1, refused.retry_after_seconds))
                continue
            try:
                answer = asked.result(60.0)
            except (Waited, Exception) as error:  # noqa: BLE001 - whatever it is, the request has no answer
                self._count("lost")
                progress(f"lost: {type(error).__name__}: {error}")
                continue
            if answer.degraded:
                self._count("degraded")
            elif np.abs(answer.prediction - self._expected[part]).max() > 1e-6:
                self._count("wrong")
            else:
                self._count("answered")

    def _count(self, what: str) -> None:
        with self._lock:
            self._counts[what] += 1


def front(folder: str) -> None:
    """Serve until killed: the front that is."""
    from trainwright.serve import Deployment
    from trainwright.serve.placement.units import Unit

    found = ensemble(Path(folder), _PARAMS)
    with Deployment(found, plan(found, units=[Unit(members=(0,)), Unit(members=(1,))])) as service:
        print(json.dumps(sorted(_memories())), flush=True)
        x = np.zeros((2000, INPUTS), np.float32)
        while True:
            service.predict(x)


def _front_killed(folder: str) -> int:
    code = f"import sys; sys.path[:0] = {sys.path[:2]!r}; from benchmarks.serve.faults import front; front(sys.argv[1])"
    with tempfile.TemporaryDirectory(dir=folder) as own:
        process = subprocess.Popen([sys.executable, "-c", code, own], stdout=subprocess.PIPE, text=True)
        with process:
            assert process.stdout is not None
            memories = {tuple(one) for one in json.loads(process.stdout.readline())}
            process.send_signal(signal.SIGKILL)
        time.sleep(5.0)
        return _holders(memories)


def _kill(service: Any, which: int) -> int:
    pid = service.state()["instances"][which]["pid"]
    if pid is None:
        return 0
    os.kill(pid, signal.SIGKILL)
    return 1


def _memories() -> set[tuple[int, ...]]:
    """Name the shared memory that this process has: (device, inode)."""
    return {found for _, found in _shared("self/fd/*")}


def _holders(memories: set[tuple[int, ...]]) -> int:
    """Count the processes that have one of these."""
    return len({process for process, found in _shared("[0-9]*/fd/*") if found in memories})


def _shared(pattern: str) -> Iterator[tuple[str, tuple[int, ...]]]:
    """Yield (process, shared memory of a service that it has)."""
    for descriptor in Path("/proc").glob(pattern):
        with contextlib.suppress(OSError):  # it was closed meanwhile
            if "memfd:trainwright-serve" in str(descriptor.readlink()):
                status = descriptor.stat()
                yield descriptor.parts[2], (status.st_dev, status.st_ino)
