"""1F1B*: how many micro-batches each stage must hold for a period T, and the least period within the memory.

Links count as stages. From the last stage on, consecutive stages and links go greedily into one group while their
loads add up to at most T; a stage in the g-th group from the end holds g micro-batches (Beaumont et al., MadPipe,
IPDPS 2022, recalled from the paper; contiguous stages, no flush).
"""

from collections.abc import Callable, Sequence

__all__ = ["groups", "least_period"]


def groups(loads: Sequence[float], links: Sequence[float], period: float) -> list[int] | None:
    """Return the micro-batches that each stage holds, or None if a stage or link is longer than the period.

    `links[i]` stands between stages i and i + 1.
    """
    slack = period * (1 + 1e-12)
    held = [0] * len(loads)
    group, total = 1, 0.0
    for stage in range(len(loads) - 1, -1, -1):
        for load, owner in ((loads[stage], stage), *([(links[stage - 1], -1)] if stage else [])):
            if load > slack:
                return None
            if total + load > slack:
                group, total = group + 1, 0.0
            total += load
            if owner >= 0:
                held[owner] = group
    return held


def least_period(
    loads: Sequence[float], links: Sequence[float], fits: Callable[[int, int], bool]
) -> tuple[float, list[int]] | None:
    """Return the least period whose groups fit, and what each stage holds; None if not even one at a time fits.

    `fits(stage, held)` says whether a stage can hold so many. Groups change only where T is a sum of consecutive
    loads and links, so these are all periods that need be tried.
    """
    row = [loads[0]]
    for link, load in zip(links, loads[1:], strict=False):
        row += [link, load]
    periods = sorted({sum(row[begin:end]) for begin in range(len(row)) for end in range(begin + 1, len(row) + 1)})
    for period in periods:
        held = groups(loads, links, period)
        if held is not None and all(fits(stage, count) for stage, count in enumerate(held)):
            return period, held
    return None
