"""Pipelines of PipeDream's measured layer graphs: where to cut and place them, and in which order to run them.

    python benchmarks/memory/pipelines.py --data DIR --results benchmarks/results/memory_pipelines.json

For each graph, on 4 and 8 devices over links of 12 GB a second, with memories between the least that any partition
needs (0 %) and what that of least load asks for under 1F1B* (100 %): throughput in a steady state (periods) of
contiguous stages and of MadPipe, without and with recomputation, and of steps of four micro-batches a device under
GPipe, 1F1B, zero-bubble, interleaved stages and MadPipe. Peers recompute nothing or everything, whichever is faster
and fits. Shares are of the work of a step without recomputation over all devices, the most that is possible. Nothing
is timed: all of it is simulated from the graphs' measured times, and every pattern is checked by unrolling it. Then
random short chains beside all placements.
"""

import argparse
import math
import sys
from collections.abc import Iterator
from itertools import combinations, pairwise, product
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
sys.path.insert(1, str(Path(__file__).resolve().parents[2] / "src"))

from benchmarks._report import add_arguments, environment, finish, progress, table
from benchmarks.memory.graphs import read_graph
from benchmarks.memory.pipeline_checks import pattern_breaches, simulate_schedule

from trainwright.errors import InfeasibleBudget
from trainwright.memory import Chain, Stage, pipeline
from trainwright.plan.pipeline.non_contiguous import (
    PatternPlacement,
    PlacedStage,
    PlacementSearch,
    place_contiguous,
    place_madpipe,
)
from trainwright.plan.pipeline.partition import Cost, StagePart, WeightBytes, cut_chain, stage_holding, training_ways

_LINK = 12e9
_SHARES = (1.0, 0.5, 0.25, 0.1)
_HEADER = ("graph, devices", "memory", "1F1B*", "MadPipe", "its bound", "1F1B*, again", "MadPipe, again", "GPipe",
           "1F1B", "zero-bubble", "interleaved", "1F1B, again", "MadPipe, again")  # fmt: skip


def main() -> None:
    """Run both parts and print them."""
    parser = argparse.ArgumentParser(description=__doc__)
    add_arguments(parser)
    parser.add_argument("--data", type=Path, required=True, help="folder of PipeDream graph files (.txt)")
    parser.add_argument("--chains", type=int, default=400, help="random chains beside all placements")
    arguments = parser.parse_args()
    rows = [row for path in sorted(arguments.data.glob("*.txt")) for row in graph(path)]
    small = optimality(arguments.chains)
    shown = [_shown(row) for row in rows]
    print(table(_HEADER, shown))
    print(f"\n{small['chains']} random chains: {small['optimal_share']:.1%} of MadPipe's placements are optimal, "
          f"{small['worst_gap']:.2%} above the optimum at worst")  # fmt: skip
    both = [row for row in rows if row["contiguous"] and row["madpipe"]]
    gains = [row["madpipe"] / row["contiguous"] - 1 for row in both]
    again = [row["madpipe_recomputing"] / row["contiguous_recomputing"] - 1 for row in rows]
    summary = {
        "breaches": sum(row["breaches"] for row in rows) + small["breaches"],
        "madpipe_gain_mean": float(np.mean(gains)),
        "madpipe_gain_worst": min(gains),
        "madpipe_gain_best": max(gains),
        "madpipe_fits_alone": sum(row["madpipe"] is not None and row["contiguous"] is None for row in rows),
        "madpipe_of_bound_mean": float(np.mean([row["madpipe"] / row["bound"] for row in rows if row["madpipe"]])),
        "recomputing_madpipe_gain_mean": float(np.mean(again)),
        "recomputing_madpipe_gain_worst": min(again),
        "short_chains": small,
    }
    finish({"benchmark": "memory_pipelines", "environment": environment(), "summary": summary, "rows": rows,
            "table": {"header": _HEADER, "rows": shown}}, arguments)  # fmt: skip


def graph(path: Path) -> Iterator[dict[str, Any]]:
    """Plan a graph's pipelines at all memories; throughputs are shares of the possible."""
    chain = read_graph(path)
    for devices in (4, 8):
        microbatches = 4 * devices
        ideal = chain.plain_seconds / devices
        least, full = _asked(chain, devices, microbatches)
        for share in _SHARES:
            progress(f"{path.stem}, {devices} devices, {share:.0%}")
            memory = least + int(share * (full - least))
            settings: dict[str, Any] = {
                "stages": devices,
                "microbatches": microbatches,
                "memory": memory,
                "bandwidth": _LINK,
            }
            plan = pipeline(chain, **settings, schedule="madpipe")
            steps = {name: ideal * microbatches / each.seconds for name, each in plan.timelines.items()}
            planned = plan.placements
            search = _search(chain, devices, microbatches, memory)
            alone = place_contiguous(search)
            special = place_madpipe(search, alone)
            found = [each for each in (alone, special, *planned.values()) if each is not None]
            yield {
                "graph": path.stem,
                "devices": devices,
                "memory_share": share,
                "memory_bytes": memory,
                "contiguous": _of(alone, ideal),
                "madpipe": _of(special, ideal),
                "bound": ideal / search.least_target(1, special.pattern.period_seconds) if special else None,
                "contiguous_recomputing": ideal / planned["1f1b-star"].pattern.period_seconds,
                "madpipe_recomputing": ideal / planned["madpipe"].pattern.period_seconds,
                "steps": {
                    **{name: _flushed(chain, name, devices, microbatches, memory)
                       for name in ("gpipe", "1f1b", "zero-bubble")},
                    "interleaved": steps.get("interleaved"),
                    "1f1b, recomputing by table": steps["1f1b"],
                    "madpipe, recomputing": steps["madpipe"],
                },
                "stages": [(each.first, each.last, each.device) for each in planned["madpipe"].stages],
                "breaches": sum(len(pattern_breaches(each.pattern, each.rooms)) for each in found),
            }  # fmt: skip


def optimality(count: int) -> dict[str, Any]:
    """Compare MadPipe on chains of 4 to 7 layers and 2 or 3 devices with the least valid period of any placement."""
    gaps, contiguous_gaps, bounds, wrong = [], [], [], 0
    for seed in range(count):
        if seed % 50 == 0:
            progress(f"optimality: {seed} of {count}")
        search = _drawn(seed)
        alone = place_contiguous(search)
        found = place_madpipe(search, alone)
        best = None
        for stages in _everywhere(search):
            best = search.better(stages, best)
        if best is None:
            continue
        optimum = best.pattern.period_seconds
        lower = 0.0 if found is None else search.least_target(1, found.pattern.period_seconds)
        if found is None or lower > optimum * (1 + 1e-5):
            raise AssertionError(f"chain {seed}: MadPipe has no placement, or its bound is above the optimum")
        wrong += len(pattern_breaches(found.pattern, found.rooms)) + len(pattern_breaches(best.pattern, best.rooms))
        gaps.append(found.pattern.period_seconds / optimum - 1)
        bounds.append(optimum / lower - 1)
        contiguous_gaps.append(alone.pattern.period_seconds / optimum - 1 if alone else math.inf)
    finite = [each for each in contiguous_gaps if math.isfinite(each)]
    return {
        "chains": len(gaps),
        "optimal_share": float(np.mean(np.array(gaps) < 1e-5)),
        "mean_gap": float(np.mean(gaps)),
        "worst_gap": max(gaps),
        "contiguous_optimal_share": float(np.mean(np.array(contiguous_gaps) < 1e-5)),
        "contiguous_mean_gap": float(np.mean(finite)),
        "contiguous_worst_gap": max(finite),
        "bound_gap_mean": float(np.mean(bounds)),
        "bound_gap_worst": max(bounds),
        "breaches": wrong,
    }


def _asked(chain: Chain, devices: int, microbatches: int) -> tuple[int, int]:
    """Return the least bytes of a device with a partition, and those of the one of least load under 1F1B*."""
    placement = place_contiguous(_search(chain, devices, microbatches, 1 << 60))
    if placement is None:
        raise AssertionError("nothing fits into any memory")
    pattern = placement.pattern
    sizes = []
    for stage in placement.stages:
        at = stage.first - 1
        end = stage.last + (stage.last == len(chain.stages))
        span = pattern.backward_starts[stage.device] + pattern.works[stage.device].backward_seconds
        flying = math.ceil((span - pattern.forward_starts[stage.device]) / pattern.period_seconds - 1e-9)
        held = stage_holding(chain, at + 1, end, weights=WeightBytes())
        sizes.append(held.fixed + min(flying, microbatches) * held.each + held.temporary)
    try:
        pipeline(chain, stages=devices, microbatches=microbatches, memory=max(sizes) // 32)
    except InfeasibleBudget as refused:
        return refused.minimal_bytes, max(sizes)
    raise AssertionError("a partition fits into a thirty-second of the memory")


def _search(chain: Chain, devices: int, microbatches: int, memory: int) -> PlacementSearch:
    costs = training_ways(chain, memory, weights=WeightBytes(), microbatches=microbatches)
    return PlacementSearch(
        chain, costs["none"], devices=devices, microbatches=microbatches, memory_bytes=memory, bandwidth=_LINK,
        weights=WeightBytes(),
    )  # fmt: skip


def _flushed(chain: Chain, schedule: str, devices: int, microbatches: int, memory: int) -> float | None:
    """Return a schedule's throughput with a stage a device that recomputes nothing, or everything."""
    costs = training_ways(chain, memory, weights=WeightBytes(), microbatches=microbatches)
    best = math.inf
    for way in ("none", "full"):
        cost = _holding_all(costs[way], microbatches) if schedule == "gpipe" else costs[way]
        found = cut_chain(chain, devices, cost, way=way, bandwidth=_LINK, microbatches=microbatches)
        if found is not None:
            best = min(best, _step(found.parts, schedule, microbatches))
    return chain.plain_seconds / devices * microbatches / best if math.isfinite(best) else None


def _holding_all(cost: Cost, microbatches: int) -> Cost:
    return lambda first, last, _: cost(first, last, microbatches)


def _step(parts: tuple[StagePart, ...], schedule: str, microbatches: int) -> float:
    forward = [part.forward_seconds for part in parts]
    back = [part.seconds - part.forward_seconds for part in parts]
    links = [part.link_seconds / 2 for part in parts]
    return simulate_schedule(schedule, forward, back, microbatches=microbatches, link_seconds=links).seconds


def _of(placement: PatternPlacement | None, ideal: float) -> float | None:
    return None if placement is None else ideal / placement.pattern.period_seconds


def _shown(row: dict[str, Any]) -> tuple[str, ...]:
    steady = ("contiguous", "madpipe", "bound", "contiguous_recomputing", "madpipe_recomputing")
    return (
        f"{row['graph']}, {row['devices']}",
        f"{row['memory_bytes'] / 2**30:.2f} GiB ({row['memory_share']:.0%})",
        *("-" if each is None else f"{100 * each:.1f} %" for each in [*map(row.get, steady), *row["steps"].values()]),
    )


def _drawn(seed: int) -> PlacementSearch:
    """Draw a chain of whole numbers, and a memory in which each layer fits alone."""
    rng = np.random.default_rng((11, seed))
    stages = []
    for _ in range(int(rng.integers(4, 8))):
        output = int(rng.integers(1, 7))
        stages.append(
            Stage(
                forward_seconds=float(rng.integers(1, 10)),
                backward_seconds=float(rng.integers(1, 10)),
                output_bytes=output,
                saved_bytes=output + int(rng.integers(0, 7)),
                backward_temporary_bytes=int(rng.integers(0, 3)),
                parameter_bytes=int(rng.integers(0, 3)),
            )
        )
    chain = Chain(stages=tuple(stages))
    n, weights = len(stages), WeightBytes()
    alone = [stage_holding(chain, each, each + (each == n), weights=weights) for each in range(1, n + 1)]
    least = max(each.fixed + each.each + each.temporary for each in alone)
    memory = least + int(rng.random() * 0.8 * stage_holding(chain, 1, n + 1, weights=weights).each)
    cost = training_ways(chain, memory, weights=weights, microbatches=100)["none"]
    return PlacementSearch(
        chain, cost, devices=2 + seed % 2, microbatches=100, memory_bytes=memory,
        bandwidth=float(rng.choice([2, 5, 50])), weights=weights,
    )  # fmt: skip


def _everywhere(search: PlacementSearch) -> Iterator[tuple[PlacedStage, ...]]:
    """Yield all placements in which one device may have several stages apart from each other."""
    for count in range(1, search.n + 1):
        for inner in combinations(range(1, search.n), count - 1):
            cuts = (0, *inner, search.n)
            for kinds in product((False, True), repeat=count):
                if kinds.count(False) >= search.devices or any(one and other for one, other in pairwise(kinds)):
                    continue
                yield tuple(
                    PlacedStage(
                        first=begin + 1,
                        last=end,
                        device=search.devices - 1 if kind else kinds[:place].count(False),
                        seconds=float(search.tables.plain[end] - search.tables.plain[begin]),
                        flying=1,
                    )
                    for place, (kind, (begin, end)) in enumerate(zip(kinds, pairwise(cuts), strict=True))
                )


if __name__ == "__main__":
    main()
