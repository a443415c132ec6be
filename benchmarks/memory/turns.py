"""Steps timed in turns, and what one takes over another: the median turn, with an interval free of distributions."""

import itertools
import statistics
import time
from collections.abc import Callable, Mapping, Sequence

from scipy.stats import binom

__all__ = ["over", "seconds_in_turns"]


def seconds_in_turns(steps: Mapping[str, Callable[[], object]], turns: int) -> dict[str, list[float]]:
    """Return seconds of the processor of each step in each turn; the first turn warms up.

    Turns go through all orders: what a step leaves behind it (caches, freed pages) meets each of the others as often.
    """
    found: dict[str, list[float]] = {name: [] for name in steps}
    orders = itertools.cycle(itertools.permutations(steps))
    for turn, order in zip(range(turns + 1), orders, strict=False):
        for name in order:
            start = time.process_time()
            steps[name]()
            if turn:
                found[name].append(time.process_time() - start)
    return found


def over(seconds: Sequence[float], others: Sequence[float]) -> tuple[float, tuple[float, float]]:
    """Return how much longer one took than another in the median turn, and the interval of 95 % of that median.

    What slows the machine slows both of a turn. The interval is between two of the sorted turns (the sign test's);
    fewer than six do not reach 95 %: it is all that was seen, then.
    """
    ratios = sorted(own / other - 1 for own, other in zip(seconds, others, strict=True))
    rank = int(binom.ppf(0.025, len(ratios), 0.5))
    return statistics.median(ratios), (ratios[max(rank - 1, 0)], ratios[min(len(ratios) - rank, len(ratios) - 1)])
