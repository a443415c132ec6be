"""Pipelines of PipeDream's measured layer graphs: where to cut and place them, and in which order to run them.

    python benchmarks/memory/pipelines.py --data DIR --results benchmarks/results/memory_pipelines.json

For each graph, on 4 and 8 devices over links of 12 GB a second, four micro-batches a device, with memories between the
least that any partition needs (0 %) and what GPipe needs to recompute nothing (100 %): the throughput of a step under
each schedule of `tw.memory.pipeline`, beside GPipe, 1F1B and zero-bubble that recompute nothing or everything,
whichever is faster and fits. Shares are of the work of a step without recomputation over all devices, the most that is
possible. Nothing is timed: all of it is simulated from the graphs' measured times. Then MadPipe on random short chains,
beside the least valid periods of all placements (an integer programme): a pattern of period T carries out m
micro-batches in m T and the time in which it fills and empties.
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
from benchmarks.memory.patterns import PatternWork, least_period
from benchmarks.memory.period import valid_period
from benchmarks.memory.pipeline_checks import simulate_schedule

from trainwright.errors import InfeasibleBudget
from trainwright.memory import Chain, Stage, pipeline
from trainwright.plan.pipeline.partition import (
    PATTERNS,
    SCHEDULES,
    Cost,
    StagePart,
    WeightBytes,
    partition_chain,
    parts_of,
    stage_holding,
    training_ways,
)
from trainwright.plan.pipeline.pipeline_search import PipelineProblem

__all__ = ["all_placements", "best_period", "drawn_problem", "graph", "optimality"]

_LINK = 12e9
_SHARES = (1.0, 0.5, 0.25, 0.1)
_NAMES = (*SCHEDULES, *PATTERNS)
_PEERS = ("gpipe", "1f1b", "zero-bubble")
_HEADER = ("graph, devices", "memory", *_NAMES, *(f"{name}, all or nothing" for name in _PEERS))


def main() -> None:
    """Run both parts and print them."""
    parser = argparse.ArgumentParser(description=__doc__)
    add_arguments(parser)
    parser.add_argument("--data", type=Path, required=True, help="folder of PipeDream graph files (.txt)")
    parser.add_argument("--chains", type=int, default=100, help="random chains beside all placements")
    arguments = parser.parse_args()
    rows = [row for path in sorted(arguments.data.glob("*.txt")) for row in graph(path)]
    small = optimality(arguments.chains)
    shown = [_shown(row) for row in rows]
    print(table(_HEADER, shown))
    print(f"\n{small['chains']} random chains: MadPipe's steps take {small['over_bound_median'] - 1:.1%} more than the "
          f"least period alone in the median, {small['over_bound_worst'] - 1:.1%} at worst")  # fmt: skip
    gains = [row["steps"]["madpipe"] / row["steps"]["1f1b-star"] - 1 for row in rows if row["steps"]["madpipe"]]
    best = [max(filter(None, row["steps"].values())) for row in rows]
    peers = [max(filter(None, row["peers"].values()), default=math.nan) for row in rows]
    summary = {
        "lost_to_peers": sum(ours < theirs * (1 - 1e-9) for ours, theirs in zip(best, peers, strict=True)),
        "gain_over_best_peer_mean": float(np.nanmean(np.array(best) / np.array(peers))) - 1,
        "madpipe_gain_mean": float(np.mean(gains)),
        "madpipe_gain_best": max(gains),
        "short_chains": small,
    }
    finish({"benchmark": "memory_pipelines", "environment": environment(), "summary": summary, "rows": rows,
            "table": {"header": _HEADER, "rows": shown}}, arguments)  # fmt: skip


def graph(path: Path) -> Iterator[dict[str, Any]]:
    """Plan a graph's pipelines at all memories; throughputs are shares of the possible."""
    chain = read_graph(path)
    for devices in (4, 8):
        microbatches = 4 * devices
        ideal = chain.plain_seconds / devices * microbatches
        settings: dict[str, Any] = {"stages": devices, "microbatches": microbatches, "bandwidth": _LINK}
        whole = stage_holding(chain, 1, len(chain.steps), weights=WeightBytes())
        full = whole.fixed + microbatches * whole.each + whole.temporary
        with_least = _refused(chain, **settings)
        for share in _SHARES:
            progress(f"{path.stem}, {devices} devices, {share:.0%}")
            memory = with_least + int(share * (full // devices - with_least))
            plan = pipeline(chain, memory=memory, **settings)
            peers = {name: _flushed(chain, name, memory, stages=devices, microbatches=microbatches) for name in _PEERS}
            steps = {name: ideal / each.seconds for name, each in plan.timelines.items()}
            yield {
                "graph": path.stem,
                "devices": devices,
                "memory_share": share,
                "memory_bytes": memory,
                "schedule": plan.schedule,
                "steps": {name: steps.get(name) for name in _NAMES},
                "peers": {name: ideal / each if math.isfinite(each) else None for name, each in peers.items()},
                "stages": [(part.first, part.last, device)
                           for part, device in zip(plan.partition.parts, plan.devices, strict=True)],
            }  # fmt: skip


def _refused(chain: Chain, **settings: Any) -> int:
    """Return the least bytes of a device with a partition."""
    try:
        pipeline(chain, memory=1, **settings)
    except InfeasibleBudget as refused:
        return refused.minimal_bytes
    raise AssertionError("a partition fits into one byte")


def _flushed(chain: Chain, schedule: str, memory: int, *, stages: int, microbatches: int) -> float:
    """Return the seconds of a step with a stage a device that recomputes nothing, or everything."""
    costs = training_ways(chain, memory, weights=WeightBytes(), microbatches=microbatches)
    best = math.inf
    for way in ("none", "full"):
        cost = _holding_all(costs[way], microbatches) if schedule == "gpipe" else costs[way]
        found = partition_chain(chain, stages, cost, way=way, bandwidth=_LINK, microbatches=microbatches)
        if found is not None:
            forward = [part.forward_seconds for part in found.parts]
            back = [part.seconds - part.forward_seconds for part in found.parts]
            links = [part.link_seconds / 2 for part in found.parts]
            step = simulate_schedule(schedule, forward, back, microbatches=microbatches, link_seconds=links)
            best = min(best, step.seconds)
    return best


def _holding_all(cost: Cost, microbatches: int) -> Cost:
    return lambda first, last, _: cost(first, last, microbatches)


def _shown(row: dict[str, Any]) -> tuple[str, ...]:
    return (
        f"{row['graph']}, {row['devices']}",
        f"{row['memory_bytes'] / 2**30:.2f} GiB ({row['memory_share']:.0%})",
        *("-" if each is None else f"{100 * each:.1f} %" for each in (*row["steps"].values(), *row["peers"].values())),
    )


def optimality(count: int) -> dict[str, Any]:
    """Compare MadPipe's steps on chains of 4 to 7 layers, 2 or 3 devices, with the least valid period anywhere."""
    over, contiguous = [], []
    for seed in range(count):
        if seed % 10 == 0:
            progress(f"optimality: {seed} of {count}")
        problem, memory = drawn_problem(seed)
        least = min((best_period(problem, *placed, memory) for placed in all_placements(problem)), default=math.inf)
        found = problem.best(memory)
        if "madpipe" in found and math.isfinite(least):
            bound = problem.microbatches * least
            over.append(found["madpipe"].timeline.seconds / bound)
            if "1f1b-star" in found:
                contiguous.append(found["1f1b-star"].timeline.seconds / bound)
    return {
        "chains": len(over),
        "over_bound_median": float(np.median(over)),
        "over_bound_worst": max(over),
        "contiguous_over_bound_median": float(np.median(contiguous)),
        "contiguous_over_bound_worst": max(contiguous),
    }


def drawn_problem(seed: int) -> tuple[PipelineProblem, int]:
    """Draw a chain of whole numbers that recomputes nothing, and a memory in which each layer fits alone."""
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
    problem = _PlainProblem(
        chain, stages=2 + seed % 2, microbatches=24, bandwidth=float(rng.choice([2, 5, 50])), weights=weights
    )
    return problem, memory


class _PlainProblem(PipelineProblem):
    """Stages recompute nothing."""

    def costs(self, memory_bytes: int) -> dict[Any, Cost]:
        found = super().costs(memory_bytes)
        return dict.fromkeys(found, found["none"])


def all_placements(problem: PipelineProblem) -> Iterator[tuple[tuple[StagePart, ...], tuple[int, ...]]]:
    """Yield stages and their devices, of which one may have several stages apart from each other."""
    layers, devices = len(problem.chain.stages), problem.stages
    cost = problem.costs(1 << 62)["none"]
    for count in range(1, layers + 1):
        for inner in combinations(range(1, layers), count - 1):
            parts = parts_of(problem.chain, (*inner, layers), cost, [1] * count, problem.bandwidth)
            for kinds in product((False, True), repeat=count):
                if kinds.count(False) >= devices or any(one and other for one, other in pairwise(kinds)):
                    continue
                assert parts is not None  # everything fits
                yield parts, tuple(devices - 1 if kind else kinds[:at].count(False) for at, kind in enumerate(kinds))


def best_period(problem: PipelineProblem, parts: tuple[StagePart, ...], devices: tuple[int, ...], memory: int) -> float:
    """Return the least valid period of a placement in a memory; infinite if there is none."""
    layers = len(problem.chain.stages)
    held = [
        stage_holding(problem.chain, p.first, layers + 1 if p.last == layers else p.last, weights=problem.weights)
        for p in parts
    ]
    works = [
        PatternWork(
            device=device, forward_seconds=part.forward_seconds, backward_seconds=part.seconds - part.forward_seconds,
            each=own.each,
        )
        for part, device, own in zip(parts, devices, held, strict=True)
    ]  # fmt: skip
    rooms = [
        memory
        - sum(own.fixed for own, of in zip(held, devices, strict=True) if of == device)
        - max((own.temporary for own, of in zip(held, devices, strict=True) if of == device), default=0)
        for device in range(1 + max(devices))
    ]
    if len(set(devices)) == len(devices):
        loads, links = [part.seconds for part in parts], [part.link_seconds for part in parts[:-1]]
        found = least_period(loads, links, lambda at, many: many * held[at].each <= rooms[devices[at]])
        return math.inf if found is None else found[0]
    pattern = valid_period(works, [part.link_seconds / 2 for part in parts[:-1]], rooms).pattern
    return math.inf if pattern is None else pattern.period_seconds


if __name__ == "__main__":
    main()
