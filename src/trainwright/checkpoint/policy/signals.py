"""Handles SIGTERM and other signals before the end of an allocation: a flag, a forced exit, the requeue of a job.

Batch systems send a signal some time before they kill. Its handler sets a flag, which the training loop reads at a step
boundary. A thread sees the signal too, by way of `signal.set_wakeup_fd`, which works while the main thread hangs in a
collective or in other code that never comes back to Python: it ends the process shortly before the batch system would.
"""

import contextlib
import math
import os
import select
import signal
import subprocess
import threading
import time
import warnings
import weakref
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import FrameType
from typing import Annotated, Any, Protocol, Self

from trainwright.errors import CheckpointConfigError, closest
from trainwright.settings import Settings
from trainwright.validators import integer
from trainwright.validators import number as number_within

__all__ = ["FORCED_EXIT", "Hook", "SignalFlag", "SlurmRequeue", "check_signals", "end_of_allocation"]

FORCED_EXIT = 75
"""The exit status of a forced exit: EX_TEMPFAIL, to be tried again."""

_SPARE_SECONDS = 5.0
"""How long before the end of the grace a process leaves by force."""

_ECHO_SECONDS = 1.0
"""Within it the same signal counts once: launchers pass on what their steps were sent as well."""

# No signal has this number.
_CLOSE = b"\0"


DEFAULT_SIGNALS = ("SIGTERM", "SIGUSR1")


class SignalFlag:
    """Remembers that one of `signals` came. To be made and closed in the main thread; elsewhere it warns and sees none.

    Handlers that were there before are called as well, and put back at `close`. What they raise is held back until
    `raise_held`, so that no step is torn. `grace_seconds` less 5 after the first signal the process leaves with
    `os._exit(75)`; None: it may take its time. A second signal ends it at once. Forked children have the earlier
    handlers.
    """

    def __init__(self, signals: Sequence[str] = DEFAULT_SIGNALS, *, grace_seconds: float | None = None) -> None:
        check_signals(signals, grace_seconds)
        self.received: str | None = None
        """The name of the first signal that came, or None."""
        self._numbers = [int(signal.Signals[name]) for name in signals]
        self._patience = math.inf if grace_seconds is None else grace_seconds - _SPARE_SECONDS
        self._earlier: dict[int, Any] = {}
        self._watching = False
        self._pending: BaseException | None = None
        self._pipe = (-1, -1)
        # Whether the interpreter itself writes to our pipe.
        self._woken = False
        if threading.current_thread() is not threading.main_thread():
            warnings.warn(
                "signals are not watched: handlers can be set in the main thread only; make the Manager there",
                stacklevel=3,
            )
        elif self._numbers:
            self._start_watching()

    def _start_watching(self) -> None:
        read, write = self._pipe = os.pipe()
        os.set_blocking(write, False)
        # The interpreter writes the signal's number to this pipe even while the main thread hangs in C code.
        before = signal.set_wakeup_fd(write, warn_on_full_buffer=False)
        self._woken = before == -1
        # Another library has set its own descriptor: leave it, and let our handler write to our pipe.
        if not self._woken:
            signal.set_wakeup_fd(before, warn_on_full_buffer=False)
        self._earlier = {number: signal.getsignal(number) for number in self._numbers}
        self._watching = True
        for number in self._numbers:
            signal.signal(number, self._handle_signal)
        self._watcher = threading.Thread(
            target=_watch_pipe,
            args=(read, frozenset(self._numbers), self._patience),
            name="trainwright signals",
            daemon=True,
        )
        self._watcher.start()
        # A forked child must not react to signals as its parent does; a weak reference lets this object die.
        kept = weakref.WeakMethod(self._stop_in_child)
        os.register_at_fork(after_in_child=lambda: (method := kept()) is not None and method())

    def raise_pending(self) -> None:
        """Raise what an earlier handler raised when the signal came, if it did."""
        if self._pending is not None:
            raise self._pending

    def close(self) -> None:
        """Put the earlier handlers back and end the watch. A second call does nothing."""
        if not self._watching:
            return
        self._restore_handlers()
        os.write(self._pipe[1], _CLOSE)
        self._watcher.join()
        for end in self._pipe:
            os.close(end)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _handle_signal(self, number: int, frame: FrameType | None) -> None:
        if self._watching:
            self.received = self.received or signal.Signals(number).name
            if not self._woken:
                with contextlib.suppress(BlockingIOError):
                    os.write(self._pipe[1], bytes([number]))
        earlier = self._earlier[number]
        # A handler that was there before is still called: a library may depend on it.
        if callable(earlier):
            try:
                earlier(number, frame)
            except BaseException as error:  # noqa: BLE001  raised at the next step boundary, by raise_held
                self._pending = error

    def _restore_handlers(self) -> None:
        for number, handler in self._earlier.items():
            # A handler that was set later may call ours, so it stays; ours then only passes the signal on.
            if signal.getsignal(number) == self._handle_signal:
                signal.signal(number, signal.SIG_DFL if handler is None else handler)
        if self._woken:
            found = signal.set_wakeup_fd(-1)
            if found != self._pipe[1]:
                signal.set_wakeup_fd(found)
        self._watching = False

    def _stop_in_child(self) -> None:
        if self._watching:
            self._restore_handlers()


def check_signals(signals: Sequence[str], grace_seconds: float | None) -> None:
    """Refuse names that are no signals that can be handled, and a grace that is too short to leave before its end."""
    known = {item.name for item in signal.Signals if item not in {signal.SIGKILL, signal.SIGSTOP}}
    for name in signals:
        if name not in known:
            raise CheckpointConfigError(
                f"signals: got {name!r}; allowed: names such as 'SIGUSR1'{closest(str(name), known)}"
            )
    if grace_seconds is not None and not (math.isfinite(grace_seconds) and grace_seconds > _SPARE_SECONDS):
        raise CheckpointConfigError(
            f"grace_seconds: got {grace_seconds!r}; allowed: a number of seconds > {_SPARE_SECONDS:g} (the process "
            f"leaves {_SPARE_SECONDS:g} s before its end), or None"
        )


def _watch_pipe(read: int, numbers: frozenset[int], patience: float) -> None:
    first = deadline = math.inf
    while True:
        left = deadline - time.monotonic()
        ready, _, _ = select.select([read], [], [], None if math.isinf(left) else max(0.0, left))
        if not ready:
            _exit_by_force(f"{patience:g} s after the signal the step is not over")
        for number in os.read(read, 512):
            now = time.monotonic()
            if number == _CLOSE[0]:
                return
            if number not in numbers:
                continue
            # The first signal starts the clock. The same signal again within a second is an echo of the launcher; a
            # later one means that the user wants out at once.
            if math.isinf(first):
                first, deadline = now, now + patience
            elif now - first > _ECHO_SECONDS:
                _exit_by_force(f"a second signal, {signal.Signals(number).name}")


def _exit_by_force(why: str) -> None:
    with contextlib.suppress(OSError):
        os.write(2, f"trainwright: forced exit: {why}; the newest checkpoint committed is intact\n".encode())
    os._exit(FORCED_EXIT)


class Hook(Protocol):
    """Called once, on the first rank, when the last checkpoint is committed; its answer is the exit status."""

    def __call__(self) -> int:
        """Do it, and return the exit status: 0 if training will go on elsewhere."""


@dataclass(frozen=True, kw_only=True, slots=True)
class SlurmRequeue(Settings, error=CheckpointConfigError):
    """Puts the job back into Slurm's queue: `scontrol requeue $SLURM_JOB_ID`.

    The batch script asks for a warning and passes it on to its steps:

        #SBATCH --requeue --signal=B:USR1@120
        trap 'kill -USR1 "$(jobs -p)"' USR1
        srun python train.py & wait; wait

    A job that was requeued `max_restarts` times is not requeued again: it warns, and the status is 75, as for a
    requeue that Slurm refuses.
    """

    max_restarts: Annotated[int, integer(minimum=0), "requeues of one job at most"] = 100
    timeout_seconds: Annotated[float, number_within(above=0), "how long `scontrol` may take"] = 30.0

    def __call__(self) -> int:
        """Requeue the job that this process belongs to."""
        job = os.environ.get("SLURM_JOB_ID")
        if job is None:
            return _warn_refused("this is no Slurm job (SLURM_JOB_ID is not set)")
        restarts = int(os.environ.get("SLURM_RESTART_COUNT", "0"))
        if restarts >= self.max_restarts:
            return _warn_refused(f"job {job} was requeued {restarts} times, max_restarts is {self.max_restarts}")
        status, said = _run_command(["scontrol", "requeue", job], self.timeout_seconds)
        return 0 if status == 0 else _warn_refused(f"`scontrol requeue {job}` says: {said}")


def end_of_allocation(environment: Mapping[str, str]) -> float | None:
    """Return when the allocation ends, in seconds since 1970, as Slurm sets it at a job's start; None if unknown."""
    try:
        return float(environment["SLURM_JOB_END_TIME"])
    except (KeyError, ValueError):
        return None


def _run_command(command: Sequence[str], timeout: float) -> tuple[int, str]:
    """Return the exit status and what the command said; 75 if it cannot be run or takes too long."""
    try:
        done = subprocess.run(list(command), capture_output=True, text=True, check=False, timeout=timeout)
    except OSError as error:
        return FORCED_EXIT, (error.strerror or str(error)).lower()
    except subprocess.TimeoutExpired:
        return FORCED_EXIT, f"nothing within {timeout:g} s"
    return done.returncode, (done.stdout + done.stderr).strip()


def _warn_refused(why: str) -> int:
    warnings.warn(f"the job is not requeued: {why}; submit it again to continue", stacklevel=3)
    return FORCED_EXIT
