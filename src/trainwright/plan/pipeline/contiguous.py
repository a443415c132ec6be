"""1F1B*: how many micro-batches each stage must hold for a period T, and the least period within the memory.

One stage a device; links count as stages. From the last stage on, consecutive stages and links go greedily into one
group while their loads add up to at most T; a stage in the g-th group from the end holds g micro-batches, and no
pattern of that period holds fewer (Beaumont et al., Euro-Par 2021; the tests compare with `period`). In a group all
forwards run in a row; backwards run g - 1 periods after the group's last forward has ended.
"""

from collections.abc import Callable, Sequence

from trainwright.plan.pipeline.patterns import Pattern, PatternWork

__all__ = ["candidate_periods", "group_stages", "least_period", "one_forward_one_backward"]


def group_stages(loads: Sequence[float], links: Sequence[float], period: float) -> list[int] | None:
    """Return the micro-batches that each stage holds, or None if a stage or link is longer than the period.

    `links[i]` is the load of the link between stages i and i + 1, both ways together.
    """
    found = _group_row(loads, links, period)
    return None if found is None else found[::2]


def least_period(
    loads: Sequence[float], links: Sequence[float], fits: Callable[[int, int], bool]
) -> tuple[float, list[int]] | None:
    """Return the least period whose groups fit, and what each stage holds; None if not even one at a time fits.

    `fits(stage, held)` says whether a stage can hold so many. Groups change only where T is a sum of consecutive
    loads and links, so these are all periods that need be tried.
    """
    for period in candidate_periods(loads, links):
        held = group_stages(loads, links, period)
        if held is not None and all(fits(stage, count) for stage, count in enumerate(held)):
            return period, held
    return None


def candidate_periods(loads: Sequence[float], links: Sequence[float]) -> list[float]:
    """Return the periods at which groups change, ascending: sums of consecutive loads and links."""
    row = _stage_row(loads, links)
    return sorted({sum(row[begin:end]) for begin in range(len(row)) for end in range(begin + 1, len(row) + 1)})


def one_forward_one_backward(works: Sequence[PatternWork], links: Sequence[float], period: float) -> Pattern:
    """Return the 1F1B* pattern of a period that is at least every load; `links` are one way."""
    forward = _stage_row([work.forward_seconds for work in works], links)
    back = _stage_row([work.backward_seconds for work in works], links)
    number = _group_row(
        [work.forward_seconds + work.backward_seconds for work in works], [2 * x for x in links], period
    )
    if number is None:
        raise ValueError(f"period: got {period}, less than a stage or link takes")
    starts = [sum(forward[:place]) for place in range(len(forward) + 1)]
    returns = [0.0] * len(forward)
    for place in range(len(forward) - 1, -1, -1):
        if place + 1 < len(forward) and number[place + 1] == number[place]:
            returns[place] = returns[place + 1] + back[place + 1]
        else:  # the group's first backward
            returns[place] = starts[place + 1] + (number[place] - 1) * period
    return Pattern(
        works=tuple(works),
        links=tuple(links),
        period_seconds=period,
        forward_starts=tuple(starts[:-1:2]),
        send_starts=tuple(starts[1:-1:2]),
        return_starts=tuple(returns[1::2]),
        backward_starts=tuple(returns[::2]),
    )


def _stage_row(stages: Sequence[float], links: Sequence[float]) -> list[float]:
    """Return stages and the links between them in turn."""
    row = [stages[0]]
    for link, stage in zip(links, stages[1:], strict=True):
        row += [link, stage]
    return row


def _group_row(loads: Sequence[float], links: Sequence[float], period: float) -> list[int] | None:
    """Return the group, from the end, of each stage and link."""
    slack = period * (1 + 1e-12)
    group, total = 1, 0.0
    found = []
    for load in reversed(_stage_row(loads, links)):
        if load > slack:
            return None
        if total + load > slack:
            group, total = group + 1, 0.0
        total += load
        found.append(group)
    return found[::-1]
