"""MadPipe: on short chains no placement with one special device is better than its own, nor below its bound."""

import math
from itertools import combinations, pairwise, product

import numpy as np
import pytest
from benchmarks.memory.pipeline_checks import pattern_breaches

from memory_chains import random_chain
from trainwright.plan.pipeline import non_contiguous
from trainwright.plan.pipeline.partition import WeightBytes, stage_holding, training_ways


def searched(seed, devices, *, way="none"):
    """Draw a chain and a memory in which each layer fits alone; return what searches it."""
    rng = np.random.default_rng(seed + 1000)
    chain = random_chain(seed, least=4, most=6)
    n, bandwidth = len(chain.stages), float(rng.choice([2, 5, 50]))
    alone = [stage_holding(chain, each, each + (each == n), weights=WeightBytes()) for each in range(1, n + 1)]
    least = max(each.fixed + each.each + each.temporary for each in alone)
    whole = stage_holding(chain, 1, n + 1, weights=WeightBytes()).each
    memory = int(rng.integers(least, least + whole * 4 // 5))
    cost = training_ways(chain, memory, weights=WeightBytes(), microbatches=100)[way]
    return non_contiguous.PlacementSearch(
        chain, cost, devices=devices, microbatches=100, memory_bytes=memory, bandwidth=bandwidth, weights=WeightBytes()
    )


def everywhere(search):
    """Yield all placements in which one device may have several stages."""
    for count in range(1, search.n + 1):
        for inner in combinations(range(1, search.n), count - 1):
            cuts = (0, *inner, search.n)
            for kinds in product((False, True), repeat=count):
                if kinds.count(False) >= search.devices or any(one and other for one, other in pairwise(kinds)):
                    continue
                yield tuple(
                    non_contiguous.PlacedStage(
                        first=cuts[place] + 1,
                        last=cuts[place + 1],
                        device=search.devices - 1 if kind else kinds[:place].count(False),
                        seconds=float(search.tables.plain[cuts[place + 1]] - search.tables.plain[cuts[place]]),
                        flying=1,
                    )
                    for place, kind in enumerate(kinds)
                )


@pytest.mark.parametrize("seed", [13, 28, 34, *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(40))])
def test_no_placement_is_better(seed):
    """The contiguous optimum, MadPipe's and its bound, beside the least valid periods of all placements."""
    search = searched(seed, 2 + seed % 2)
    contiguous = non_contiguous.place_contiguous(search)
    found = non_contiguous.place_madpipe(search, contiguous)
    best, best_contiguous = None, None
    for stages in everywhere(search):
        best = search.better(stages, best)
        if len({each.device for each in stages}) == len(stages):
            best_contiguous = search.better(stages, best_contiguous)
    periods = [
        math.inf if each is None else each.pattern.period_seconds for each in (contiguous, best_contiguous, found, best)
    ]
    assert periods[0] == pytest.approx(periods[1], rel=1e-5)
    assert periods[2] == pytest.approx(periods[3], rel=1e-5)
    assert seed not in {13, 28, 34} or periods[2] < periods[0]
    assert found is None or search.least_target(1, periods[2]) <= periods[3] * (1 + 1e-5)
    for each in (contiguous, found):
        assert each is None or not pattern_breaches(each.pattern, each.rooms)


@pytest.mark.parametrize("seed", range(6))
def test_stages_that_recompute(seed):
    """On normal devices what does not fit may be recomputed, which never makes a period longer."""
    plain, planned = searched(seed, 3), searched(seed, 3, way="planned")
    periods = []
    for search in (plain, planned):
        contiguous = non_contiguous.place_contiguous(search)
        found = non_contiguous.place_madpipe(search, contiguous)
        assert found is None or not pattern_breaches(found.pattern, found.rooms)
        periods.append([math.inf if each is None else each.pattern.period_seconds for each in (contiguous, found)])
        assert periods[-1][1] <= periods[-1][0]
    assert periods[1][0] <= periods[0][0] * (1 + 1e-6)


def test_a_coarser_grid_is_a_bound_too(monkeypatch):
    """Rounded down, the least target is at most the exact one, and what is found remains valid."""
    search = searched(3, 3)
    found = non_contiguous.place_madpipe(search, non_contiguous.place_contiguous(search))
    least = search.least_target(1, found.pattern.period_seconds)
    monkeypatch.setattr(non_contiguous, "_LABELS", ((5, 1 << 16),))
    coarse = non_contiguous.place_madpipe(search, non_contiguous.place_contiguous(search))
    assert search.least_target(1, coarse.pattern.period_seconds) <= least * (1 + 1e-5)
    assert coarse.pattern.period_seconds >= found.pattern.period_seconds * (1 - 1e-5)
    assert not pattern_breaches(coarse.pattern, coarse.rooms)
