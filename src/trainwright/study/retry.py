"""Retry what a full disk refused (ENOSPC, EDQUOT) until there is room, or until the time for retries is over."""

import time
from collections.abc import Callable
from typing import TypeVar

from trainwright.errors import LedgerFull, TrainwrightError

__all__ = ["RetryOnFullDisk"]

_T = TypeVar("_T")

_FIRST_PAUSE_SECONDS = 0.5
_LONGEST_PAUSE_SECONDS = 30.0
_LOOK_SECONDS = 0.5


class RetryOnFullDisk:
    """Waits for room for `give_up_seconds` in all, from the first failure to the next success; then never again.

    Whoever waits stands still, and so do the trials that wait for their reports to be taken: nothing that they did is
    lost, and nothing is done in vain. Ctrl-C ends the waiting, and so does `interrupted`.
    """

    def __init__(self, give_up_seconds: float = 0.0, say: Callable[[str], None] = print) -> None:
        self._give_up_seconds = give_up_seconds
        self._say = say
        self.interrupted: Callable[[], bool] = lambda: False
        """Whether the process was told to leave."""
        self._since: float | None = None
        self._pause = _FIRST_PAUSE_SECONDS

    def __call__(self, write: Callable[[], _T]) -> _T:
        """Return what `write` returns; raises `LedgerFull` when the time is up."""
        while True:
            try:
                done = write()
            except LedgerFull as error:
                self.wait(error)
                continue
            self.found_room()
            return done

    def found_room(self) -> None:
        """Take note of a success."""
        if self._since is not None:
            self._since, self._pause = None, _FIRST_PAUSE_SECONDS
            self._say("there is room again: going on")

    def wait(self, error: TrainwrightError) -> None:
        """Wait a while after a failure, longer after each; raise it when the time is up."""
        now = time.monotonic()
        if self._since is None:
            self._since = now
            if self._give_up_seconds:
                self._say(f"waiting {self._give_up_seconds:g} s for room, then giving up: {error}")
        # Counted from the first failure of the series, not from each.
        left = self._since + self._give_up_seconds - now
        if left <= 0:
            raise error
        until = now + min(self._pause, left)
        try:
            while (rest := until - time.monotonic()) > 0:
                if self.interrupted():
                    raise KeyboardInterrupt
                time.sleep(min(_LOOK_SECONDS, rest))
        except KeyboardInterrupt:
            self._give_up_seconds = 0.0
            raise
        self._pause = min(2 * self._pause, _LONGEST_PAUSE_SECONDS)
