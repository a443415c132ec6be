"""What instances at once on one device do, over what each does alone there, measured with a pair of processes.

The processes stand still but for windows that the front opens: each alone in turn, then both at once. The sum of
their rates at once, each over its rate alone, is 1 if they share the device's time without loss, less if they slow each
other further, more if one alone leaves part of the device idle. Run as a module it is such a process: it loads a member
from a request on a line, and answers each window, {batch, seconds}, with its batches a second.
"""

import contextlib
import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from multiprocessing.connection import Connection
from typing import Any, Self

import numpy as np

from trainwright.ensemble.metrics import Array
from trainwright.errors import ServeError
from trainwright.serve.placement.repeated_timing import ENOUGH, interval
from trainwright.serve.runtime.messages import send_json

__all__ = ["measure_interference"]

_ROUNDS, _ENOUGH_SECONDS = 3, 0.6  # at least, and when to stop
_WINDOW_SECONDS, _WINDOW_BATCHES = 0.05, 4  # of a window at least
_LONGEST_SECONDS = 0.5  # of a batch that is measured


def measure_interference(
    pair: Sequence[Mapping[str, Any]], environment: Mapping[str, str], seconds: Array, most: int, threads: Sequence[int]
) -> tuple[Array, float]:
    """Return what 1 to `most` instances at once do over what one does [instances, batches], by a pair of requests.

    Then how far off that may be, as a part of it. At once each of the pair has `threads` of its own, alone all that its
    request says.
    `seconds` [2, batches] of each alone choose the windows. The smallest, a middle and the largest batch that is quick
    enough are measured, the others interpolated over the logarithm of their rows. Of n instances that slow each other
    1 / (1 + c (n - 1)) is taken, with c of the pair; of those that gain, what the pair gains. Raises ServeError if a
    process fails.
    """
    batches = pair[0]["batches"]
    found = np.ones((most, len(batches)))
    quick = [place for place in range(len(batches)) if (seconds[:, place] <= _LONGEST_SECONDS).all()]
    if most < 2 or not quick:
        return found, 0.0
    # Three batch sizes suffice, because the gain changes slowly with the size.
    chosen = sorted({quick[0], quick[len(quick) // 2], quick[-1]})
    with contextlib.ExitStack() as stack:
        pair_processes = [stack.enter_context(_PairProcess(request, environment)) for request in pair]
        for process in pair_processes:
            # That it is loaded.
            process.receive()
        told = [
            _measure_gain(pair_processes, batches[place], float(seconds[:, place].max()), threads) for place in chosen
        ]
    # Between measured sizes the gain is interpolated over the logarithm of the rows.
    gain = np.interp(np.log(batches), np.log([batches[place] for place in chosen]), [median for median, _ in told])
    others = np.arange(most)[:, None]
    table = np.where(others == 0, 1.0, np.where(gain < 1, 1 / (1 + (1 / gain - 1) * others), gain))
    return table, max(spread for _, spread in told)


def _measure_gain(
    pair_processes: "Sequence[_PairProcess]", batch: int, seconds: float, threads: Sequence[int]
) -> tuple[float, float]:
    """Return the sum of rates at once over rates alone, the median of rounds, and half of its interval over it."""
    window = max(_WINDOW_SECONDS, _WINDOW_BATCHES * seconds)
    found: list[float] = []
    begun = time.perf_counter()
    while True:
        # Warms them up, too.
        alone = [rate for process in pair_processes for rate in _measure_rates([process], batch, window, [0])]
        at_once = _measure_rates(pair_processes, batch, window * len(pair_processes), threads)
        found.append(sum(one / other for one, other in zip(at_once, alone, strict=True)))
        median, spread = interval(found)
        late = time.perf_counter() - begun > _ENOUGH_SECONDS
        if len(found) >= _ROUNDS and (spread <= ENOUGH or late):
            return median, spread


def _measure_rates(
    pair_processes: "Sequence[_PairProcess]", batch: int, seconds: float, threads: Sequence[int]
) -> list[float]:
    for process, own in zip(pair_processes, threads, strict=True):
        process.send({"batch": batch, "seconds": seconds, "threads": own})
    return [process.receive() for process in pair_processes]


class _PairProcess:
    """A process that computes one member when it is told to."""

    def __init__(self, request: Mapping[str, Any], environment: Mapping[str, str]) -> None:
        ours, theirs = socket.socketpair()
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "trainwright.serve.placement.interference", str(theirs.fileno())],
                stdin=subprocess.DEVNULL,
                stderr=subprocess.PIPE,
                env=dict(environment),
                pass_fds=[theirs.fileno()],
                text=True,
            )
        self._line: Connection[Any, Any] = Connection(ours.detach())
        self.send(request)

    def send(self, told: Mapping[str, Any]) -> None:
        # It has ended, as `heard` will say.
        with contextlib.suppress(OSError):
            send_json(self._line, told)

    def receive(self) -> float:
        try:
            return float(json.loads(self._line.recv_bytes()))
        except (EOFError, OSError):
            self._process.kill()
            said = self._process.communicate()[1].strip().splitlines()
            raise ServeError(
                f"allocate: members could not be timed beside each other: {said[-1] if said else 'a process ended'}"
            ) from None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_exception: object) -> None:
        self._line.close()
        self._process.kill()
        self._process.communicate()


def _run_process() -> None:
    import torch

    from trainwright.serve.runtime.member_runners import runner_of

    line: Connection[Any, Any] = Connection(int(sys.argv[1]))
    request = json.loads(line.recv_bytes())
    if request["cores"] and hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, request["cores"])
    runner = runner_of({**request, "kind": "process"})
    line.send_bytes(b"0")
    with contextlib.suppress(EOFError, OSError):
        while True:
            told = json.loads(line.recv_bytes())
            torch.set_num_threads(told["threads"] or request["threads"])
            x = np.zeros((told["batch"], *request["shape"]), dtype=request["dtype"])
            done, begun = 0, time.perf_counter()
            while (taken := time.perf_counter() - begun) < told["seconds"]:
                list(runner(x, [0]))
                done += 1
            line.send_bytes(json.dumps(done / taken).encode())


if __name__ == "__main__":
    _run_process()
