"""A pattern: a pipeline's micro-batches one after the other, each a period after the one before, on the same path.

A stage is forwards and backwards on a device, devices may have several stages. Every border between stages has a link
of its own, which carries one message at a time, either way; a pattern says when each piece of work of micro-batch 0
starts, and micro-batch i does the same i periods later (the 1-periodic patterns of Beaumont et al., Euro-Par 2021).

1F1B* is the pattern of stages on devices of their own, where links count as stages. From the last stage on, consecutive
stages and links go greedily into one group while their loads add up to at most T; a stage in the g-th group from the
end holds g micro-batches, and no pattern of that period holds fewer (the tests compare with `period`). In a group all
forwards run in a row; backwards run g - 1 periods after the group's last forward has ended.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from trainwright.plan.pipeline.schedules import candidate_periods, group_row, group_stages, stage_row

__all__ = [
    "Pattern",
    "PatternWork",
    "least_period",
    "one_forward_one_backward",
]


@dataclass(frozen=True, kw_only=True, slots=True)
class PatternWork:
    """What a stage does for one micro-batch, and holds of it from its forward's start to its backward's end."""

    device: int
    forward_seconds: float
    backward_seconds: float
    each: int
    """In units of the device's room: bytes, or 1 where the room is a number of micro-batches."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Pattern:
    """Stages in order, one-way seconds of the links between them, the period, and starts of micro-batch 0's work."""

    works: tuple[PatternWork, ...]
    links: tuple[float, ...]
    period_seconds: float
    forward_starts: tuple[float, ...]
    send_starts: tuple[float, ...]
    """Of outputs, over the link behind each stage but the last."""
    return_starts: tuple[float, ...]
    """Of gradients, over the same links."""
    backward_starts: tuple[float, ...]

    def orders(self, microbatches: int) -> list[list[tuple[str, int, int]]]:
        """Return by device the forwards and backwards (kind, stage, micro-batch) of a step, in their order.

        Work begins no earlier than what it needs has ended, whatever floating point has made of its start, and what
        begins and ends at one time, as work of no time does, is in the order in which a micro-batch needs it: so no
        device waits for another that waits for it.
        """
        devices = 1 + max(work.device for work in self.works)
        lanes: list[list[tuple[float, float, int, int, tuple[str, int, int]]]] = [[] for _ in range(devices)]
        count, latest = len(self.works), 0.0
        for place in range(2 * count):
            # A micro-batch goes through all stages, and back.
            stage = place if place < count else 2 * count - 1 - place
            kind, work = "F" if place < count else "B", self.works[stage]
            begin = max(latest, self.forward_starts[stage] if kind == "F" else self.backward_starts[stage])
            latest = begin + (work.forward_seconds if kind == "F" else work.backward_seconds)
            for batch in range(microbatches):
                at = batch * self.period_seconds
                lanes[work.device].append((begin + at, latest + at, place, batch, (kind, stage, batch)))
        return [[piece for *_, piece in sorted(lane)] for lane in lanes]


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


def one_forward_one_backward(works: Sequence[PatternWork], links: Sequence[float], period: float) -> Pattern:
    """Return the 1F1B* pattern of a period that is at least every load; `links` are one way."""
    forward = stage_row([work.forward_seconds for work in works], links)
    back = stage_row([work.backward_seconds for work in works], links)
    number = group_row([work.forward_seconds + work.backward_seconds for work in works], [2 * x for x in links], period)
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
