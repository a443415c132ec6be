"""Training functions that do next to nothing, in a module of their own so that worker processes import only them."""

import time
from typing import Any

__all__ = ["SLEEP_SECONDS", "nothing", "sleeping"]

SLEEP_SECONDS = 0.01


def nothing(trial: Any) -> None:
    """Report at once."""
    trial.report(loss=trial.params["x"])


def sleeping(trial: Any) -> None:
    """Sleep 10 ms, then report."""
    time.sleep(SLEEP_SECONDS)
    trial.report(loss=trial.params["x"])
