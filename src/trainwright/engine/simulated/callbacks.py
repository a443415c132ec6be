"""The two callbacks by which a simulated study uses a searcher: ask for parameters, report results."""

from collections.abc import Callable, Mapping
from typing import Any

__all__ = ["Configure", "Told"]

Configure = Callable[[int], Mapping[str, Any] | None]
"""Returns the parameters of a new trial; None for none."""

Told = Callable[[int, int, tuple[float, ...], bool], None]
"""Hears trial, epoch, losses (none if it failed), and whether the trial rests now, ended or paused.

A trial that was promoted tells its last report again, and that it does not rest any more.
"""
