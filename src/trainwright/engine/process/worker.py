"""The worker process of the Local engine: `python -m trainwright.engine.process.worker FD TERMINATING PARENT`.

It takes assignments from a socket, runs each with its output in the trial's log, and dies with its driver. It ignores
the signals of a launcher: a SIGTERM is the driver's own only when there is a byte in the pipe TERMINATING.
"""

import contextlib
import ctypes
import faulthandler
import gc
import importlib
import os
import signal
import sys
import time
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from trainwright.checkpoint.save.snapshot import Buffer
from trainwright.engine.function_reference import IN_WORKER, LOADING, FunctionReference
from trainwright.engine.process.run_assignment import run_assignment
from trainwright.engine.process.supervisor import LEAVE
from trainwright.ledger import Record
from trainwright.signals import ignore_launcher

__all__ = ["main"]

_PR_SET_PDEATHSIG = 1
_ASK_SECONDS = 0.02


class _DriverChannel:
    """The channel of a trial whose ledger is kept by the driver."""

    def __init__(self, connection: "Connection[Any, Any]") -> None:
        self._connection = connection
        self._leaves = False
        self._asked_at = 0.0

    def exchange(self, records: list[Record]) -> bool:
        self._connection.send(("facts", records))
        while (answer := self._connection.recv()) == LEAVE:
            self._leaves = True
        return bool(answer)

    def leaves(self) -> bool:
        # Asked at each step: a look at the line takes longer than a look at the clock.
        if not self._leaves and (now := time.monotonic()) - self._asked_at > _ASK_SECONDS:
            self._asked_at = now
            self._leaves = self._connection.poll() and self._connection.recv() == LEAVE
        return self._leaves


def main(descriptor: int, terminating: int, parent: int) -> None:
    """Serve assignments until the driver closes the connection or dies."""
    _die_with(parent)
    # A crash leaves the lines of Python that led to it in the trial's log.
    faulthandler.enable()
    # Read inside a signal handler, which must not wait.
    os.set_blocking(terminating, False)
    ignore_launcher(ends=lambda: _has_byte(terminating))
    connection: Connection[Any, Any] = Connection(descriptor)
    functions: dict[FunctionReference, Any] = {}
    home, buffer = Path.cwd(), Buffer()
    while True:
        try:
            message = connection.recv()
        except (EOFError, OSError):
            return
        # The trial before has ended without hearing it.
        if message == LEAVE:
            continue
        # Paths and arguments as in the driver, so that modules are found and scripts see theirs.
        sys.path[:], sys.argv[:], reference, assignment, log, gpu = message
        # The trial before may have changed the directory.
        os.chdir(home)
        if log is not None:
            _redirect_output(Path(log))
        try:
            if reference not in functions:
                os.environ[IN_WORKER] = LOADING
                functions[reference] = reference.load()
            train = functions[reference]
        except BaseException as error:  # noqa: BLE001 -- a module that does not import fails the trial, with its reason
            train = partial(_raise_error, error)
        if assignment is None:
            with contextlib.suppress(ImportError):  # what ranks need takes seconds to import; they say what is missing
                importlib.import_module("trainwright.train.parallel.setup")
            continue
        # Lets a study inside a trial run; only processes that the trial spawns stop at its `study.run`.
        os.environ[IN_WORKER] = str(os.getpid())
        buffer.keep_for(assignment.trial)
        outcome = run_assignment(train, assignment, _DriverChannel(connection), gpu=gpu, buffer=buffer)
        _free_memory()
        # Imported objects stay for good: the collector need not visit them after every trial.
        if not gc.get_freeze_count():
            gc.freeze()
        sys.stdout.flush()
        sys.stderr.flush()
        try:
            connection.send(("exited", outcome))
        except (BrokenPipeError, ConnectionResetError):
            return


def _free_memory() -> None:
    """Let go of models and batches before the next trial."""
    if (torch := sys.modules.get("torch")) is not None:
        gc.collect()
        if torch.cuda.is_initialized():
            torch.cuda.empty_cache()


def _raise_error(error: BaseException, _trial: object) -> None:
    raise error


def _die_with(parent: int) -> None:
    """Ask the kernel to kill this process when its driver is gone, and look whether it is gone already."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    # The driver may have died before the kernel was asked.
    if os.getppid() != parent:
        os._exit(1)


def _has_byte(pipe: int) -> bool:
    with contextlib.suppress(BlockingIOError):
        return bool(os.read(pipe, 1))
    return False


def _redirect_output(log: Path) -> None:
    log.parent.mkdir(parents=True, exist_ok=True)
    # This flushes them, too.
    for stream in (sys.stdout, sys.stderr):
        stream.reconfigure(line_buffering=True)  # type: ignore[union-attr]  # text files on descriptors 1 and 2
    # Appended, since a lease may run twice; by descriptor, so that output of C code is caught too.
    handle = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    os.dup2(handle, 1)
    os.dup2(handle, 2)
    os.close(handle)


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
