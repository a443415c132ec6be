"""Certificates of plans with copies: which bound on all of them is asked for, and in which part of the time."""

import time
from dataclasses import dataclass

from benchmarks.memory.event_bound import bound_by_events, small_share
from benchmarks.memory.moment_bound import bound_by_moments

from trainwright.model.chain import Chain
from trainwright.plan.memory.operations import Link

__all__ = ["Certificate", "certify"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Certificate:
    """What is proven of all plans with copies."""

    lower_seconds: float
    finished: bool
    """Whether the integer programme of all events was solved, so that more time gives no better bound."""


def certify(
    chain: Chain, budget_bytes: int, link: Link, *, known_seconds: float, limit_seconds: float = 60.0
) -> Certificate:
    """Return a lower bound on the seconds of all plans within a budget, given those of one, by HiGHS in a time limit.

    A bound equal to the known seconds proves that plan the best. Chains of up to about 15 stages get the programme of
    all events, solved in seconds. Longer ones get those of a few moments first, for half of the time, or for all of it
    where the events are too many even with small values taken for nothing.
    """
    until, lower, finished = time.monotonic() + limit_seconds, 0.0, False
    small = small_share(chain, budget_bytes)
    if small != 0:
        share = 1.0 if small is None else 0.5
        lower = bound_by_moments(
            chain, budget_bytes, link, known_seconds=known_seconds, limit_seconds=share * limit_seconds
        )
    if small is not None:
        left = max(0.0, until - time.monotonic())
        found, finished = bound_by_events(
            chain, budget_bytes, link, small=small, known_seconds=known_seconds, limit_seconds=left
        )
        lower = max(lower, found)
    return Certificate(lower_seconds=lower, finished=finished)
