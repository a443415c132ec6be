"""Sends the heartbeat of a driver, from a thread: trials may run in this process and take long."""

import threading
from contextlib import suppress
from typing import Self

from trainwright.errors import LedgerFull
from trainwright.ledger import Ledger

__all__ = ["Heartbeat"]

_BEATS = 12  # in the time after which a silent writer is held dead


class Heartbeat:
    """Sends a heartbeat to the ledger every few seconds while entered; `check` raises what one could not do."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._send_heartbeats, name="trainwright-beat", daemon=True)
        self._trouble: Exception | None = None

    def __enter__(self) -> Self:
        self._ledger.heartbeat()
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    def _send_heartbeats(self) -> None:
        # Several beats within a lease, so that a slow file system may swallow some of them.
        while not self._stop.wait(self._ledger.lease_seconds / _BEATS):
            try:
                self._ledger.heartbeat()
            except LedgerFull:
                # The next write will fail as well, and is retried until there is room.
                continue
            except Exception as error:  # noqa: BLE001 -- whatever it is: without beats others hold us dead
                # The driver raises it by `check`; the next heartbeat may succeed.
                self._trouble = error

    def check(self) -> None:
        """Raise the error of the last beat, if it failed."""
        if self._trouble is not None:
            trouble, self._trouble = self._trouble, None
            with suppress(Exception):
                self._ledger.heartbeat()
                # The error was temporary.
                return
            raise trouble
