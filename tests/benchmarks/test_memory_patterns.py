"""Patterns of pipelines: least valid periods equal brute force, 1F1B* is optimal where stages are contiguous."""

import math
from dataclasses import replace

import numpy as np
import pytest
from benchmarks.memory.patterns import Pattern, PatternWork, least_period, one_forward_one_backward
from benchmarks.memory.period import busiest_seconds, valid_period
from benchmarks.memory.pipeline_checks import pattern_breaches


def drawn(seed, devices, *, longest=9):
    """Draw stages on given devices, with links and rooms."""
    rng = np.random.default_rng(seed)
    works = [
        PatternWork(device=device, forward_seconds=float(f), backward_seconds=float(b), each=int(each))
        for device, f, b, each in zip(
            devices, *rng.integers(1, longest + 1, (2, len(devices))), rng.integers(1, 5, len(devices)), strict=True
        )
    ]
    links = [float(each) for each in rng.integers(0, longest // 2 + 1, len(devices) - 1)]
    return works, links, [int(each) for each in rng.integers(4, 15, 1 + max(devices))]


@pytest.mark.parametrize("seed", range(12))
def test_one_forward_one_backward_is_optimal(seed):
    """With a stage a device no valid pattern has a shorter period, and its own keeps what the groups say."""
    works, links, rooms = drawn(seed, range(2 + seed % 3))
    loads, both = [work.forward_seconds + work.backward_seconds for work in works], [2 * each for each in links]
    found = least_period(loads, both, lambda stage, held: held * works[stage].each <= rooms[stage])
    valid = valid_period(works, links, rooms)
    assert valid.finished
    if found is None:
        assert valid.pattern is None
        return
    assert valid.pattern.period_seconds == pytest.approx(found[0], rel=1e-5)
    assert valid.lower_seconds == pytest.approx(found[0], rel=1e-5)
    tight = [held * work.each for held, work in zip(found[1], works, strict=True)]
    assert not pattern_breaches(one_forward_one_backward(works, links, found[0]), tight)


def brute_force(works, rooms, most):
    """Return the least whole period with a valid pattern of whole starts, links taking no time."""
    for period in range(math.ceil(busiest_seconds(works, [])), most):
        for starts in placed(works, period):
            count = len(works)
            pattern = Pattern(
                works=tuple(works),
                links=(0.0,) * (count - 1),
                period_seconds=float(period),
                forward_starts=tuple(starts[:count]),
                send_starts=tuple(starts[1:count]),
                return_starts=tuple(reversed(starts[count + 1 :])),
                backward_starts=tuple(reversed(starts[count:])),
            )
            if not pattern_breaches(pattern, rooms):
                return period
    return None


def placed(works, period):
    """Yield starts of forwards, then backwards in their order: all places in the period, each as early as can be."""
    row = [(work.device, int(work.forward_seconds)) for work in works]
    row += [(work.device, int(work.backward_seconds)) for work in reversed(works)]

    def extended(starts, now, taken):
        if len(starts) == len(row):
            yield starts
            return
        device, seconds = row[len(starts)]
        for wait in range(period if starts else 1):
            cells = {(device, (now + wait + each) % period) for each in range(seconds)}
            if not cells & taken:
                yield from extended([*starts, float(now + wait)], now + wait + seconds, taken | cells)

    yield from extended([], 0, frozenset())


@pytest.mark.parametrize("seed", [0, 1, 2, 3, 5, 6])
def test_least_period_equals_brute_force(seed):
    """Two devices, one with the first and the last of three stages; the programme's periods need not be whole."""
    works, _, rooms = drawn(seed, (0, 1, 0), longest=2)
    rooms = [each // 2 + 3 for each in rooms]
    valid = valid_period(works, [0.0, 0.0], rooms)
    alone = sum(work.forward_seconds + work.backward_seconds for work in works)
    least = brute_force(works, rooms, int(alone) + 1)
    assert valid.finished
    if least is None:
        assert valid.pattern is None
    else:
        assert math.ceil(valid.pattern.period_seconds - 1e-6) == least
        assert not pattern_breaches(valid.pattern, rooms)


def test_more_room_and_limits():
    """Room shortens the period down to the busiest device's load; too little room, or a limit, gives none."""
    works, links, _ = drawn(5, (0, 1, 0, 2, 0))
    periods = [valid_period(works, links, [room] * 3) for room in (8, 12, 16, 30, 60)]
    found = [math.inf if each.pattern is None else each.pattern.period_seconds for each in periods]
    assert found == sorted(found, reverse=True)
    assert found[-1] == pytest.approx(busiest_seconds(works, links), rel=1e-6)
    assert valid_period(works, links, [3] * 3).pattern is None
    assert valid_period(works, links, [60] * 3, better_than=found[-1] * 0.999).pattern is None


def test_what_is_no_pattern():
    """Overlaps, what starts too early and too many bytes are named."""
    works, links, _ = drawn(3, (0, 1, 0))
    pattern = valid_period(works, links, [99, 99]).pattern
    assert not pattern_breaches(pattern, [99, 99])
    assert any("holds" in each for each in pattern_breaches(pattern, [1, 1]))
    assert any("begins before" in each for each in pattern_breaches(replace(pattern, period_seconds=3.0), [999, 999]))
    late = replace(pattern, backward_starts=(0.0, *pattern.backward_starts[1:]))
    assert any("backward of stage 0" in each for each in pattern_breaches(late, [99, 99]))
