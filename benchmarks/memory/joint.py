"""Joint plans of recomputation and copies to the host: how far from the optimum, and on measured layer graphs.

Random chains of 2 to 4 stages, numbers as in `run`, a link of 1 or 3 bytes a second, budgets even between the least
with copies and that of keeping everything, beside the fastest of all schedules (an exact search); such chains of 5 to
8 stages beside the bound of an integer programme (HiGHS). PipeDream's layer graphs with a link of 16 GB/s each way,
within shares of their activation memory, beside recomputation alone and the bound of integer programmes within a limit
of time, of all plans. Where a share is less than the
largest stage needs for itself, within the least budget that there is.
"""

import argparse
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
sys.path.insert(1, str(Path(__file__).resolve().parents[2] / "src"))

from benchmarks._report import add_arguments, environment, finish, progress, table
from benchmarks.memory.baselines import best_baseline
from benchmarks.memory.certificates import certify
from benchmarks.memory.exact_copies import solve_exact_with_copies
from benchmarks.memory.graphs import read_graph

from trainwright.errors import InfeasibleBudget
from trainwright.memory import Chain, Link, Plan, Stage
from trainwright.plan.memory.known_plans import lowest_with_copies, stage_needs
from trainwright.plan.memory.planning import full_bytes, minimal_bytes, plan_chain
from trainwright.plan.memory.simulate import simulate

__all__ = ["certified", "graph_row", "joint_optimality", "layer_graphs", "share", "show", "small_chain", "summary_of"]

_LINK = 16e9
_SHARES = (0.5, 0.25)
_STATES = 3_000_000
_SAME = 1e-9
_PROVEN = 2e-4
"""HiGHS ends at a gap of 1e-4."""
_MULTIPLES = (1.0, 2.0)

Rows = Sequence[dict[str, Any]]


def main() -> None:
    """Run both parts and print them."""
    parser = argparse.ArgumentParser(description=__doc__)
    add_arguments(parser)
    parser.add_argument("--chains", type=int, default=300, help="random chains")
    parser.add_argument("--data", type=Path, required=True, help="folder of PipeDream graph files (.txt)")
    parser.add_argument("--limit", type=float, default=60.0, help="seconds of an integer programme")
    arguments = parser.parse_args()
    graphs = list(layer_graphs(arguments.data, arguments.limit))
    copies = joint_optimality(arguments.chains)
    proofs = certified(arguments.chains // 5, arguments.limit)
    show(copies, proofs, graphs)
    result = {"benchmark": "memory_joint", "environment": environment(), "summary": summary_of(copies, proofs, graphs),
              "joint": copies, "certified": proofs, "graphs": graphs,
              "table": {"header": _GRAPHS, "rows": [_graph_row(row) for row in graphs]}}  # fmt: skip
    finish(result, arguments)


def show(copies: dict[str, Any], proofs: dict[str, Any], graphs: Rows) -> None:
    """Print what the parts have found."""
    print(f"\n{table(_JOINT, [_joint_row('2-4', copies), _joint_row('5-8', proofs)])}")
    if graphs:
        print(f"\n{table(_GRAPHS, [_graph_row(row) for row in graphs])}")


def summary_of(copies: dict[str, Any], proofs: dict[str, Any], graphs: Rows) -> dict[str, Any]:
    """Return the numbers that are kept of all."""

    def overheads(rows: Rows) -> dict[str, float]:
        return {f"{_graph_name(row)}, {share(row['budget_share'])}": row["joint_overhead"] for row in rows}

    planned = [row for row in graphs if row["joint_overhead"] is not None]
    return {
        **{f"joint_{name}": copies[name] for name in ("optimal_share", "mean_gap", "max_gap", "chains", "unfinished")},
        **{f"joint_certified_{name}": proofs[name] for name in ("optimal_share", "mean_gap", "max_gap", "chains")},
        "joint_violations": copies["violations"] + proofs["violations"] + sum(row["violations"] for row in graphs),
        "joint_gap": {f"{_graph_name(row)}, {share(row['budget_share'])}": row["joint_gap"] for row in planned},
        "joint_overhead_at_a_quarter": overheads([row for row in planned if row["budget_share"] == min(_SHARES)]),
        "joint_overhead_at_the_least_budget": overheads([row for row in planned if row["least"]]),
        "joint_processor_seconds_worst": max((row["processor_seconds"] for row in planned), default=None),
    }


_JOINT = ("chains", "optimal", "mean gap", "max gap", "not searched to the end")
_GRAPHS = ("graph", "saved", "budget", "remat", "joint", "bound of joint", "gap", "best baseline",
           "least budget", "its owner")  # fmt: skip


def _joint_row(stages: str, part: dict[str, Any]) -> tuple[str, ...]:
    return (
        f"{part['chains']} of {stages} stages",
        share(part["optimal_share"]),
        share(part["mean_gap"]),
        share(part["max_gap"]),
        str(part["unfinished"]),
    )


def _graph_name(row: dict[str, Any]) -> str:
    return f"{row['graph']}, {row['saved_multiple']:g} x"


def _graph_row(row: dict[str, Any]) -> tuple[str, ...]:
    return (
        row["graph"],
        f"{row['saved_multiple']:g} x",
        share(row["budget_share"]),
        share(row["remat_overhead"]),
        share(row["joint_overhead"]),
        share(row["joint_bound"]),
        "optimal" if row["joint_gap"] is not None and row["joint_gap"] < _PROVEN else share(row["joint_gap"]),
        share(row["baseline_overhead"]),
        share(row["least_with_copies_share"]),
        row["largest_need"],
    )


def layer_graphs(folder: Path, limit: float) -> Iterator[dict[str, Any]]:
    """Plan every graph file of a folder within shares of its activation memory."""
    for path in sorted(folder.glob("*.txt")):
        progress(f"graph: {path.name}")
        for multiple in _MULTIPLES:
            chain = read_graph(path, saved_multiple=multiple)
            least = (lowest_with_copies(chain)[1] - chain.fixed_bytes) / _activations(chain)
            for part in (*_SHARES, *([least] if min(_SHARES) < least else [])):
                yield graph_row(path, multiple, part, limit)


def graph_row(path: Path, multiple: float, part: float, limit: float) -> dict[str, Any]:
    """Plan a measured graph within a share of its activation memory, without and with copies over the link."""
    chain = read_graph(path, saved_multiple=multiple)
    activations, least = _activations(chain), lowest_with_copies(chain)[1]
    needs = stage_needs(chain)[0]
    largest = needs.index(max(needs))
    lowest = part == (least - chain.fixed_bytes) / activations
    budget = least if lowest else chain.fixed_bytes + int(part * activations)
    link = Link(to_host=_LINK, to_device=_LINK)
    remat = _plan(chain, budget, offload=False)
    start = time.process_time()
    joint = _plan(chain, budget, offload=True)
    seconds = time.process_time() - start
    lower, solved = None, False
    if joint is not None:
        proof = certify(chain, budget, link, known_seconds=joint.seconds, limit_seconds=limit)
        lower, solved = max(joint.lower_seconds, proof.lower_seconds), proof.finished
    return {
        "graph": path.stem,
        "saved_multiple": multiple,
        "stages": len(chain.stages),
        "budget_share": part,
        "least": lowest,
        "remat_overhead": remat and remat.overhead,
        "joint_overhead": joint and joint.overhead,
        "joint_bound": lower and lower / chain.plain_seconds - 1,
        "joint_gap": joint and lower and joint.seconds / lower - 1,
        "bound_solved": solved,
        "baseline_overhead": _finite(best_baseline(chain, budget)[1] / chain.plain_seconds - 1),
        "least_share": (minimal_bytes(chain) - chain.fixed_bytes) / activations,
        "least_with_copies_share": (least - chain.fixed_bytes) / activations,
        "largest_need": f"{largest}, {chain.steps[largest - 1].name}",
        "processor_seconds": seconds,
        "violations": sum(
            not simulate(chain, plan.operations, budget_bytes=budget, link=link).fits
            for plan in (remat, joint)
            if plan is not None
        ),
    }


def _activations(chain: Chain) -> int:
    return sum(step.saved_bytes for step in chain.steps)


def certified(count: int, limit: float) -> dict[str, Any]:
    """Compare plans of chains of 5 to 8 stages with the bound of an integer programme."""

    def bound(chain: Chain, budget: int, bandwidth: int, plan: Plan) -> tuple[float, bool]:
        proof = certify(chain, budget, Link.of(bandwidth), known_seconds=plan.seconds, limit_seconds=limit)
        return max(plan.lower_seconds, proof.lower_seconds), proof.finished

    return _gaps("joint certificates", [_linked(seed, 5, 8) for seed in range(count)], bound, proven=_PROVEN)


def joint_optimality(count: int) -> dict[str, Any]:
    """Compare plans with copies over a link of 1 or 3 bytes a second to the fastest schedule of tiny chains."""

    def bound(chain: Chain, budget: int, bandwidth: int, plan: Plan) -> tuple[float, bool]:
        best = solve_exact_with_copies(chain, budget, bandwidth, better_than_seconds=plan.seconds, states=_STATES)
        return (min(best.seconds, plan.seconds) if best.finished else best.lower_seconds), best.finished

    return _gaps("joint optimality", [_linked(seed, 2, 4) for seed in range(count)], bound, proven=_SAME)


def _gaps(
    name: str,
    problems: Sequence[tuple[Chain, int, int]],
    bound: Callable[[Chain, int, int, Plan], tuple[float, bool]],
    *,
    proven: float,
) -> dict[str, Any]:
    """Plan chains within budgets over links, and say how far above their bounds, as shares, the plans are."""
    gaps: list[float] = []
    unfinished = violations = 0
    for number, (chain, budget, bandwidth) in enumerate(problems):
        if number % 20 == 0:
            progress(f"{name}: {number} of {len(problems)}")
        plan = plan_chain(chain, budget=budget, offload=True, bandwidth=bandwidth)
        violations += not simulate(chain, plan.operations, budget_bytes=budget, link=Link.of(bandwidth)).fits
        lower, finished = bound(chain, budget, bandwidth, plan)
        gaps.append(plan.seconds / lower - 1)
        unfinished += not finished
    return {
        "chains": len(gaps),
        "unfinished": unfinished,
        "optimal_share": float(np.mean([gap < proven for gap in gaps])),
        "mean_gap": float(np.mean(gaps)),
        "max_gap": float(np.max(gaps)),
        "violations": violations,
    }


def _linked(seed: int, least: int, most: int) -> tuple[Chain, int, int]:
    """Draw a chain, a budget between the least with copies and keeping everything, and the bandwidth of a link."""
    chain, _ = small_chain(seed, least, most)
    budget = int(np.random.default_rng((8, seed)).integers(lowest_with_copies(chain)[1], full_bytes(chain) + 1))
    return chain, budget, (1, 3)[seed % 2]


def _plan(chain: Chain, budget: int, *, offload: bool) -> Plan | None:
    """Return a plan; None if there is none."""
    try:
        return plan_chain(chain, budget=budget, offload=offload, bandwidth=_LINK)
    except InfeasibleBudget:
        return None


def share(value: float | None) -> str:
    """Return a share in percent."""
    return "-" if value is None else f"{100 * value:.2f} %"


def _finite(value: float) -> float | None:
    return value if np.isfinite(value) else None


def small_chain(seed: int, least: int, most: int) -> tuple[Chain, int]:
    """Draw a chain of whole numbers and a budget between its least and keeping everything."""
    rng = np.random.default_rng((least, seed))
    stages = []
    for _ in range(int(rng.integers(least, most + 1))):
        output = int(rng.integers(1, 7))
        forward, back = (float(each) for each in rng.integers(1, 10, 2))
        temporary, back_temporary = (int(each) for each in rng.integers(0, 3, 2))
        stages.append(
            Stage(
                forward_seconds=forward,
                backward_seconds=back,
                output_bytes=output,
                saved_bytes=output + int(rng.integers(0, 7)),
                forward_temporary_bytes=temporary,
                backward_temporary_bytes=back_temporary,
            )
        )
    chain = Chain(stages=tuple(stages), input_bytes=int(rng.integers(1, 7)))
    return chain, int(rng.integers(minimal_bytes(chain), full_bytes(chain) + 1))


if __name__ == "__main__":
    main()
