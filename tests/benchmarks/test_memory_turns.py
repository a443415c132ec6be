"""Steps timed in turns: each follows each of the others, and an interval of the median that knows its own width."""

from itertools import pairwise

import numpy as np
import pytest
from benchmarks.memory.turns import over, seconds_in_turns


def test_each_step_runs_in_every_turn_and_after_each_other() -> None:
    ran: list[str] = []
    steps = {name: lambda name=name: ran.append(name) for name in "abc"}
    found = seconds_in_turns(steps, 12)
    assert {name: len(seconds) for name, seconds in found.items()} == dict.fromkeys("abc", 12)
    turns = [tuple(ran[start : start + 3]) for start in range(0, len(ran), 3)]
    assert len(turns) == 13
    assert len(set(turns)) == 6
    assert {(one, next_) for turn in turns for one, next_ in pairwise(turn)} == {
        (one, other) for one in "abc" for other in "abc" if one != other
    }


def test_the_interval_of_the_median_covers_as_often_as_it_says() -> None:
    generator = np.random.default_rng(0)
    inside = 0
    for _ in range(1000):
        ratios = generator.lognormal(0.1, 0.3, 24)  # the median is exp(.1)
        _, (low, high) = over(ratios, np.ones(24))
        inside += low <= np.exp(0.1) - 1 <= high
    assert 0.94 <= inside / 1000 <= 0.99


@pytest.mark.parametrize("turns", [1, 2, 5])
def test_few_turns_give_all_that_was_seen(turns: int) -> None:
    median, interval = over([1.0 + each for each in range(turns)], [1.0] * turns)
    assert median == (turns - 1) / 2
    assert interval == (0.0, turns - 1.0)
