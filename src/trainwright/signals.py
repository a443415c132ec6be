"""SIGTERM and other signals that announce the end of an allocation: noted by drivers, ignored by what they start.

Slurm's `proctrack/linuxproc`, systemd (`KillMode=control-group`) and others signal every process of a job at once. The
driver alone decides what that means: its trials end the epoch in work. So whatever it starts is deaf to these signals
from its first instruction on, and ends when its parent says so.
"""

import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Self

__all__ = ["LAUNCHER_SIGNALS", "StopSignals", "ignore_launcher", "raise_interrupt", "signals_held"]

LAUNCHER_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1, signal.SIGUSR2)
"""What batch systems, systemd, mpirun and `timeout` send before they kill; SIGUSR1 and SIGUSR2 only on request."""

_ECHO_SECONDS = 1.0
"""Within it the same signal counts once: launchers pass on what their steps were sent as well."""


def raise_interrupt(_number: int, _frame: FrameType | None) -> None:
    """Handle a signal as Python handles Ctrl-C; `StopSignals` replaces this handler."""
    raise KeyboardInterrupt


@contextmanager
def signals_held() -> Iterator[None]:
    """Hold launcher signals back in this thread: a process started meanwhile has them blocked from its start."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, LAUNCHER_SIGNALS)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def ignore_launcher(ends: Callable[[], bool] | None = None) -> None:
    """Ignore launcher signals in this process, which was started under `signals_held`, but a SIGTERM when `ends()`.

    Ignored signals stay ignored in processes that this one starts. SIGTERM is not inherited: `terminate()` has to end
    a child as ever, and only its sender could tell the two apart.
    """
    own = os.getpid()

    def terminated(number: int, _frame: FrameType | None) -> None:
        if os.getpid() != own or (ends is not None and ends()):
            _die_of(number)

    for number in LAUNCHER_SIGNALS:
        signal.signal(number, signal.SIG_IGN if number != signal.SIGTERM or ends is None else terminated)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, LAUNCHER_SIGNALS)


def _die_of(number: int) -> None:
    signal.signal(number, signal.SIG_DFL)
    signal.raise_signal(number)


class StopSignals:
    """Notes launcher signals while it is entered, so that work ends where it can be continued.

    The first sets `received` and interrupts nothing. A further one raises KeyboardInterrupt and sets `urgent`; the same
    signal within a second counts once, and so do all within a second of the interrupt. The end of a time limit set by
    `set_time_limit` interrupts likewise. Handlers that the program has set itself stay, and signals that it ignores
    stay ignored; outside of the main thread none are noted.
    """

    def __init__(self, grace_seconds: float) -> None:
        self.received: str | None = None
        """The name of the first signal."""
        self.until = float("inf")
        """When the grace after the first signal ends, by the monotonic clock."""
        self.urgent = False
        """Whether to end at once: a second signal came, or the time limit is over."""
        self._grace_seconds = grace_seconds
        self._since = 0.0
        # When it last raised KeyboardInterrupt, whose handling no signal that comes with it may interrupt.
        self._raised = float("-inf")
        self._earlier: dict[int, object] = {}
        self._pid = os.getpid()
        self._timer: threading.Timer | None = None

    def __enter__(self) -> Self:
        if threading.current_thread() is threading.main_thread():
            for number in LAUNCHER_SIGNALS:
                handler = signal.getsignal(number)
                if handler in (signal.SIG_DFL, signal.default_int_handler, raise_interrupt):
                    self._earlier[number] = handler
                    signal.signal(number, self._note)
        return self

    def __exit__(self, *_: object) -> None:
        self.lift()
        for number, handler in self._earlier.items():
            if signal.getsignal(number) == self._note:  # else the program has set one meanwhile
                signal.signal(number, handler)  # type: ignore[arg-type]  # what `getsignal` gave
        self._earlier.clear()

    def set_time_limit(self, seconds: float) -> None:
        """Raise KeyboardInterrupt in the main thread after so long: it may run a trial, and look at nothing else."""
        self.lift()
        if self._earlier:
            # Python refuses to wait for longer than this.
            self._timer = threading.Timer(min(seconds, threading.TIMEOUT_MAX), self._end)
            self._timer.daemon = True
            self._timer.start()

    def lift(self) -> None:
        """Lift the limit: whoever calls this looks at the clock."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _end(self) -> None:
        self.urgent = True
        # Any of the signals will do, because its handler raises once `urgent` is set.
        for number in list(self._earlier)[:1]:
            signal.pthread_kill(threading.main_thread().ident or 0, number)

    def _note(self, number: int, _frame: FrameType | None) -> None:
        if os.getpid() != self._pid:  # a forked child: see `ignore_launcher`
            if number == signal.SIGTERM:
                _die_of(number)
            return
        name, now = signal.Signals(number).name, time.monotonic()
        if self.received is None and not self.urgent:
            self.received, self.until, self._since = name, now + self._grace_seconds, now
            self.set_time_limit(self._grace_seconds)
        elif now - self._raised > _ECHO_SECONDS and (
            self.urgent or name != self.received or now - self._since > _ECHO_SECONDS
        ):
            self.urgent = True
            self._raised = now
            raise KeyboardInterrupt
