"""A worker process: computes the members of its unit on slots of shared memory until its connection ends.

The main thread reads the line and cuts tasks to its batch. Another one waits for the line's end and nothing else, so
that this ends the process at once, whatever it computes, and work is heard without a thread in between.
"""

import contextlib
import importlib
import os
import select
import signal
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from multiprocessing.connection import Connection
from typing import Any, NoReturn

import numpy as np

from trainwright.ensemble.library.cost import time_calls
from trainwright.serve.runtime.arena import Arena, ArenaShape, SlotReport, SlotTask, receive_message, send_message
from trainwright.serve.runtime.member_runners import Runner

__all__ = ["main"]

_ALIVE_SECONDS = 0.5  # between reports of a worker that computes
_START_SECONDS = 0.2  # for which a worker times its batch before it says that it is there
_BROKEN = 3  # exit status of a process that cannot go on


def main(argv: Sequence[str]) -> NoReturn:
    """Serve with the descriptors of connection and memory given as arguments."""
    # Sent to a whole group: the front decides when workers leave.
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    line: Connection[Any, Any] = Connection(int(argv[0]))
    arena = Arena(int(argv[1]))
    start = _receive_or_exit(line)
    threading.Thread(target=_exit_with, args=(line,), daemon=True).start()
    try:
        runner, built = _load_members(start)
    except Exception as error:  # noqa: BLE001 - whatever stops a member from loading is the front's to tell
        _send_or_ignore(line, {"refused": f"{type(error).__name__}: {error}"})
        os._exit(_BROKEN)
    _send_or_ignore(line, {"built": built})
    arena.map(ArenaShape(**_receive_or_exit(line)["map"]))
    _Worker(line=line, arena=arena, runner=runner, start=start).serve()


class _Worker:
    def __init__(self, *, line: "Connection[Any, Any]", arena: Arena, runner: Runner, start: Mapping[str, Any]) -> None:
        self._line, self._arena, self._runner = line, arena, runner
        # Rows of a batch at most, and the positions in the ensemble of the unit's members.
        self._batch: int = start["batch"]
        self._places: list[int] = start["places"]
        self._reported = time.monotonic()

    def serve(self) -> NoReturn:
        while True:
            self._compute_task(SlotTask(*_receive_or_exit(self._line)))

    def _compute_task(self, task: SlotTask) -> None:
        x = self._arena.inputs(task.slot)[: task.rows]
        left = set(task.members)
        try:
            # Tasks larger than the batch are cut; between the parts the worker says that it is alive.
            for start in range(0, len(x), self._batch):
                part = slice(start, min(start + self._batch, len(x)))
                begun = time.perf_counter()
                for k, found in self._runner(x[part], task.members):
                    member = self._places[k]
                    self._arena.predictions(task.slot, member)[part] = found
                    seconds, begun = time.perf_counter() - begun, time.perf_counter()
                    if part.stop == len(x):
                        left.discard(k)
                        self._send_report(SlotReport(task.slot, task.generation, member, seconds))
                    elif time.monotonic() > self._reported + _ALIVE_SECONDS:
                        self._send_report(())
        except Exception as error:  # noqa: BLE001 - a member that refuses these rows must not end the others' requests
            broken = isinstance(error, MemoryError) or "CUDA" in str(error)
            failure = {
                "failed": [task.slot, task.generation],
                "members": [self._places[k] for k in sorted(left)],
                "why": f"{type(error).__name__}: {error}"[:500],
                "broken": broken,
            }
            _send_or_ignore(self._line, failure)
            if broken:
                os._exit(_BROKEN)

    def _send_report(self, report: "SlotReport | tuple[()]") -> None:
        """Send a report; an empty one says that the worker is alive."""
        self._reported = time.monotonic()
        _send_or_ignore(self._line, report)


def _receive_or_exit(line: "Connection[Any, Any]") -> Any:
    """Return the next message, or end with the connection."""
    try:
        return receive_message(line)
    except (EOFError, OSError):
        os._exit(0)


def _exit_with(line: "Connection[Any, Any]") -> NoReturn:
    # A hang-up is reported without any events asked for, and no data is taken from the main thread.
    end = select.poll()
    end.register(line, 0)
    while not end.poll():
        pass
    os._exit(0)


def _load_members(start: Mapping[str, Any]) -> tuple[Runner, dict[str, Any]]:
    """Load the members and compute batches of zeros, which say what they answer and how long they take."""
    if start["cores"] and hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, start["cores"])
    sys.path[:] = start["path"]
    module, name = start["runner"].split(":")
    make: Callable[[Mapping[str, Any]], Runner] = getattr(importlib.import_module(module), name)
    # A runner of one's own may replace the networks, as tests do without torch.
    runner = make(start)
    # A batch of zeros pays for what is set up at first use, and tells the output's shape.
    x = np.zeros((start["batch"], *start["input_shape"]), start["input_dtype"])
    wanted = range(len(start["places"]))
    shapes = {found.shape[1:] for _, found in runner(x, wanted)}
    [seconds] = time_calls([lambda: list(runner(x, wanted))], _START_SECONDS)
    if len(shapes) > 1:
        raise ValueError(f"members answer with different shapes: {', '.join(str(shape) for shape in sorted(shapes))}")
    return runner, {"output_shape": list(*shapes), "seconds": seconds, "rows": start["batch"]}


def _send_or_ignore(line: "Connection[Any, Any]", message: Any) -> None:
    # If the serving process is gone, the end of the connection ends this one.
    with contextlib.suppress(OSError):
        send_message(line, message)


if __name__ == "__main__":
    main(sys.argv[1:])
