"""Memory plans: how close to the optimum, whether within the budget, and how fast the solver is.

Random chains as in the protocol of the claims: 3 to 6 stages (and 7 to 10), times 1-9, outputs 1-6, saved values 0-6
more, temporaries 0-2, budgets even between the least feasible and that of keeping everything; the optimum is that of
a finished exact search. On chains of 12 to 30 stages an integer programme (HiGHS, with a time limit) is the
certificate. Baselines: none, every block, k equal segments (best k), Chen, in the same simulator. All that
is the part `chains`; `joint` has plans with copies to a host, `training` the example models trained within budgets
beside torch's checkpointing.
"""

import argparse
import json
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
sys.path.insert(1, str(Path(__file__).resolve().parents[2] / "src"))

from benchmarks._report import add_arguments, environment, finish, progress, table
from benchmarks.memory.joint import certified, joint_optimality, layer_graphs, share, show, small_chain, summary_of
from benchmarks.memory.phase_milp import solve_milp
from benchmarks.memory.training import MODELS, train

from trainwright.memory import Chain, Stage
from trainwright.plan.memory.exact import solve_exact
from trainwright.plan.memory.persistent import solve_persistent
from trainwright.plan.memory.planning import full_bytes, minimal_bytes, plan_chain
from trainwright.plan.memory.simulate import simulate

_SLOTS = 500
_LINK = 16e9
_SHARES = (0.5, 0.25)
_STATES = 3_000_000
_SAME = 1 + 1e-9
_PROVEN = 1e-5


def main() -> None:
    """Run the parts, print them, and keep them beside those that an earlier run has left in the results file."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_arguments(parser)
    parser.add_argument("--chains", type=int, default=1000, help="random chains of each kind")
    parser.add_argument("--limit", type=float, default=60.0, help="seconds of an integer programme")
    parser.add_argument("--data", type=Path, help="folder of PipeDream graph files (.txt)")
    parser.add_argument("--repeats", type=int, default=5, help="of the solver")
    parser.add_argument("--turns", type=int, default=24, help="of the steps that are compared")
    parser.add_argument(
        "--models", nargs="*", default=list(MODELS), choices=list(MODELS), help="to train within budgets"
    )
    parser.add_argument("--parts", default=",".join(PARTS), help=f"of {', '.join(PARTS)}, with commas")
    arguments = parser.parse_args()
    chosen = arguments.parts.split(",")
    if unknown := sorted(set(chosen) - set(PARTS)):
        parser.error(f"--parts: got {unknown[0]!r}; allowed: {', '.join(PARTS)}")
    kept = arguments.results is not None and arguments.results.exists()
    parts: dict[str, Any] = json.loads(arguments.results.read_text())["parts"] if kept else {}
    for name in chosen:
        parts[name] = {**PARTS[name](arguments), "environment": environment()}
    summary = {key: value for part in parts.values() for key, value in part["summary"].items()}
    summary["violations"] = sum(part["summary"].get("violations", 0) for part in parts.values())
    result = {"benchmark": "memory", "environment": environment(), "summary": summary, "parts": parts}
    if "training" in parts:
        rows = [_trained_row(row) for row in parts["training"]["rows"]]
        result |= {"table": {"header": _TRAINED, "rows": rows}, "environment": parts["training"]["environment"]}
    finish(result, arguments)


def _chains(arguments: argparse.Namespace) -> dict[str, Any]:
    """Compare plans of random chains with exact optima and certificates, and time the solver."""
    small = optimality(arguments.chains, 3, 6)
    middle = optimality(arguments.chains // 10, 7, 10)
    sound = soundness(arguments.chains)
    proven = [row for length in (12, 16, 20, 25, 30) for row in certificates(length, arguments.limit)]
    speed = {length: solver_ms(length, arguments.repeats) for length in (50, 100, 340)}
    print(table(("chains", "feasible", "optimal", "mean gap", "max gap", "dp and moves", "dp alone"),
                [(name, part["feasible"], share(part["optimal_share"]), share(part["mean_gap"]),
                  share(part["max_gap"]), share(part["optimal_share_dp_and_moves_alone"]),
                  share(part["optimal_share_dp_alone"]))
                 for name, part in (("3-6 stages", small), ("7-10 stages", middle))]))  # fmt: skip
    print(f"\n{sound['plans']} plans on {sound['chains']} random chains, {sound['violations']} over their budget\n")
    print(table(("stages", "room", "overhead of dp and moves", "of the best known", "bound", "proven"),
                [(row["stages"], share(row["room_share"]), share(row["moves_overhead"]), share(row["overhead"]),
                  share(row["bound_overhead"]), "yes" if row["proven"] else "no") for row in proven]))  # fmt: skip
    print()
    print(table(("stages", "solver ms, CPU"), [(length, f"{value:.2f}") for length, value in speed.items()]))
    summary = {
        "optimal_share": small["optimal_share"],
        "mean_gap": small["mean_gap"],
        "optimal_share_dp_and_moves_alone": small["optimal_share_dp_and_moves_alone"],
        "mean_gap_dp_and_moves_alone": small["mean_gap_dp_and_moves_alone"],
        "violations": sound["violations"] + small["violations"] + middle["violations"],
        **{f"solver_ms_{length}": value for length, value in speed.items()},
        "certified_share": float(np.mean([row["proven"] for row in proven])),
        "certificate_gap_worst": max(row["gap"] for row in proven),
        "moves_gap_to_certificate_mean": float(np.mean([row["moves_gap"] for row in proven])),
        "moves_gap_to_certificate_worst": max(row["moves_gap"] for row in proven),
        "operations": sound["operations"],
        "processor_seconds": sound["processor_seconds"],
    }
    return {"summary": summary, "small": small, "middle": middle, "certificates": proven, "soundness": sound}


def _joint(arguments: argparse.Namespace) -> dict[str, Any]:
    copies = joint_optimality(arguments.chains * 3 // 10)
    proofs = certified(arguments.chains * 3 // 50, arguments.limit)
    graphs = list(layer_graphs(arguments.data, arguments.limit)) if arguments.data else []
    show(copies, proofs, graphs)
    return {"summary": summary_of(copies, proofs, graphs), "copies": copies, "certified": proofs, "graphs": graphs}


def _training(arguments: argparse.Namespace) -> dict[str, Any]:
    # Models that were not asked for stay as an earlier run has left them.
    kept = arguments.results is not None and arguments.results.exists()
    earlier = json.loads(arguments.results.read_text())["parts"].get("training", {}).get("rows", []) if kept else []
    new = list(train(arguments.models, arguments.turns))
    rows = [row for row in earlier if "share" in row and row["model"] not in arguments.models] + new
    print(f"\n{table(_TRAINED, [_trained_row(row) for row in rows])}")
    done = [row for row in rows if "infeasible" not in row]
    compared = [row for row in done if row["best"] is not None]
    over = [row["over_best"] for row in compared]
    # Where the others lose ten per cent, recomputation is what counts.
    dominated = [row for row in compared if row["best_overhead"] > _DOMINATED]
    summary = {
        "training_rows": len(rows),
        "violations": sum(row["violation"] for row in done),
        "peak_error_worst": max(abs(row["predicted_bytes"] / row["allocator_bytes"] - 1) for row in done),
        "over_best_baseline_worst": max(over),
        "over_best_baseline_median": float(np.median(over)),
        "overhead_points_less_where_dominated_median": float(
            np.median([row["best_overhead"] - row["overhead"] for row in dominated])
        ),
        "worse_than_best_baseline_beyond_noise": sum(row["over_best_interval"][0] > 0.01 for row in compared),
        "noise_worst": max(abs(row["noise"]) for row in done),
        "infeasible": sum("infeasible" in row and row["best"] is not None for row in rows),
        "gradient_mismatches": sum(row["gradient_mismatches"] for row in done),
    }
    return {"summary": summary, "rows": rows}


PARTS: dict[str, Callable[[argparse.Namespace], dict[str, Any]]] = {
    "chains": _chains,
    "joint": _joint,
    "training": _training,
}


_DOMINATED = 0.1
_TRAINED = ("model", "budget", "best by hand", "its overhead", "overhead", "over it (95 %)", "predicted / true peak")


def _trained_row(row: dict[str, Any]) -> tuple[str, ...]:
    if "infeasible" in row:
        return row["model"], share(row["share"]), row["best"] or "none fits", "-", "-", "-", "no plan fits"
    compared = row["over_best"]
    low, high = row["over_best_interval"] or (None, None)
    return (
        f"{row['model']}, {row['stages']} stages",
        share(row["budget_bytes"] / row["plain_bytes"]),
        row["best"] or "none fits",
        share(row["best_overhead"]) if row["best"] else "-",
        share(row["overhead"]),
        "-" if compared is None else f"{share(compared)} ({share(low)} to {share(high)})",
        f"{row['predicted_bytes'] / row['allocator_bytes']:.4f}",
    )


def optimality(count: int, least: int, most: int) -> dict[str, Any]:
    """Compare plans with the exact optimum."""
    gaps: dict[str, list[float]] = {"auto": [], "dp and moves": [], "dp": []}
    violations = 0
    for seed in range(count):
        if seed % 100 == 0:
            progress(f"optimality, {least}-{most} stages: {seed} of {count}")
        chain, budget = small_chain(seed, least, most)
        found = {
            "auto": plan_chain(chain, budget=budget),
            "dp and moves": plan_chain(chain, budget=budget, solver="dp"),
        }
        violations += sum(simulate(chain, plan.operations).peak_bytes > budget for plan in found.values())
        optimum = solve_exact(chain, budget, states=20_000_000)
        if optimum.operations is None:
            raise AssertionError(f"chain {seed}: the exact search did not finish")
        for name, plan in found.items():
            gaps[name].append(plan.seconds / optimum.seconds - 1)
        alone = solve_persistent(chain, budget)
        gaps["dp"].append(float("inf") if alone is None else alone.seconds / optimum.seconds - 1)
    shares = {name: float(np.mean([gap < _SAME - 1 for gap in each])) for name, each in gaps.items()}
    return {
        "feasible": count,
        "optimal_share": shares["auto"],
        "mean_gap": float(np.mean(gaps["auto"])),
        "max_gap": float(np.max(gaps["auto"])),
        "optimal_share_dp_and_moves_alone": shares["dp and moves"],
        "mean_gap_dp_and_moves_alone": float(np.mean(gaps["dp and moves"])),
        "optimal_share_dp_alone": shares["dp"],
        "mean_gap_dp_alone": float(np.mean(gaps["dp"])),
        "violations": violations,
    }


def soundness(count: int) -> dict[str, Any]:
    """Simulate plans of random chains of 2 to 40 stages, sizes of any magnitude, within budgets of every share."""
    plans = violations = operations = 0
    start = time.process_time()
    for seed in range(count):
        if seed % 100 == 0:
            progress(f"soundness: {seed} of {count}")
        rng = np.random.default_rng((7, seed))
        chain = _long(int(rng.integers(2, 41)), rng)
        least, full = minimal_bytes(chain), full_bytes(chain)
        budget = int(least + rng.random() * (full - least))
        solved = solve_persistent(chain, budget, slots=int(rng.integers(20, 500)))
        if solved is not None:
            plans += 1
            operations += len(solved.operations)
            violations += not simulate(chain, solved.operations, budget_bytes=budget).fits
    seconds = time.process_time() - start
    return {"chains": count, "plans": plans, "violations": violations, "operations": operations,
            "processor_seconds": seconds}  # fmt: skip


def solver_ms(length: int, repeats: int) -> float:
    """Return the median of CPU milliseconds of one plan, the table and its reconstruction, warm."""
    chain = _long(length, np.random.default_rng(length))
    budget = chain.fixed_bytes + sum(stage.saved_bytes for stage in chain.stages) * 3 // 10

    def solve() -> None:
        if solve_persistent(chain, budget, slots=_SLOTS) is None:
            raise AssertionError("the timed chain has no plan")

    return float(np.median(list(_timed(solve, repeats))) * 1000)


def certificates(length: int, limit: float) -> Iterator[dict[str, Any]]:
    """Plan random chains by the programme and moves, and by the integer programme, at two budgets each."""
    for seed in (1, 2):
        chain = _long(length, np.random.default_rng((length, seed)))
        least, full = minimal_bytes(chain), full_bytes(chain)
        for part in (0.2, 0.5):
            progress(f"certificates: {length} stages, room {part}")
            budget = int(least + part * (full - least))
            moved = plan_chain(chain, budget=budget, solver="dp")
            proof = solve_milp(chain, budget, better_than_seconds=moved.seconds, limit_seconds=limit)
            seconds = min(moved.seconds, proof.seconds)
            lower = seconds if proof.finished else max(moved.lower_seconds, min(seconds, proof.lower_seconds))
            yield {
                "stages": length,
                "room_share": part,
                "moves_overhead": moved.overhead,
                "overhead": seconds / chain.plain_seconds - 1,
                "bound_overhead": lower / chain.plain_seconds - 1,
                "gap": seconds / lower - 1,
                "moves_gap": moved.seconds / lower - 1,
                "proven": seconds / lower - 1 < _PROVEN,
            }


def _timed(work: Callable[[], None], repeats: int) -> Iterator[float]:
    work()
    for _ in range(repeats):
        start = time.process_time()
        work()
        yield time.process_time() - start


def _long(length: int, rng: np.random.Generator) -> Chain:
    stages = []
    for _ in range(length):
        output = int(rng.integers(1 << 20, 60 << 20))
        stages.append(
            Stage(
                forward_seconds=float(rng.random()),
                backward_seconds=2 * float(rng.random()),
                output_bytes=output,
                saved_bytes=output * int(rng.integers(1, 5)),
                forward_temporary_bytes=int(rng.integers(0, 4 << 20)),
                backward_temporary_bytes=int(rng.integers(0, 4 << 20)),
            )
        )
    return Chain(stages=tuple(stages), input_bytes=1 << 20)


if __name__ == "__main__":
    main()
