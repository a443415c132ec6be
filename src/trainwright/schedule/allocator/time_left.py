"""How much time a budget leaves: of the wall clock, and of all devices together."""

import math

__all__ = ["seconds_left"]


def seconds_left(
    wall_seconds: float | None, device_seconds: float | None, *, at: float, spent: float, devices: int
) -> float:
    """Return the seconds until one of two budgets is used, inf if there is none.

    `at` seconds of the wall clock and `spent` device seconds are gone, and `devices` are busy from now on.
    """
    wall = math.inf if wall_seconds is None else wall_seconds - at
    shared = math.inf if device_seconds is None or not devices else (device_seconds - spent) / devices
    return max(0.0, min(wall, shared))
