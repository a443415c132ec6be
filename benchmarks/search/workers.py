r"""What many workers cost: the same budget of evaluations with 1, 16 and 256 simulated asynchronous workers.

    python benchmarks/search/workers.py --functions ackley5,hartmann6,levy5,shekel --evaluations 512 --seeds 3 \
        --searchers forest,forest-team,plain-ucb,liar:1,random,optuna-tpe --json

Each count is one run of `run.py` with the other options. A worker that is free asks at once, knowing the results of
the evaluations that have ended, so with N workers the last N - 1 proposals before any moment were made without each
other's results. `loss_256` is the final regret with 256 workers less that with one.
"""

import argparse
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from benchmarks._report import add_arguments, environment, finish, table
from benchmarks.search import run

__all__ = ["main"]


def main(argv: list[str] | None = None) -> dict[str, Any]:
    """Run every count, and compare."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--workers", default="1,16,256", metavar="N,...")
    add_arguments(parser)
    arguments, others = parser.parse_known_args(argv)
    counts = [int(count) for count in arguments.workers.split(",")]
    results = {count: run.main([*others, "--workers", str(count)]) for count in counts}
    summaries = {count: result["summary"] for count, result in results.items()}
    facts = results[counts[0]]["searchers"]
    summary: dict[str, Any] = {
        f"{label}_{count}": summaries[count][label] for label in ("mean_regret", "final_regret") for count in counts
    }
    first = summaries[counts[0]]["final_regret"]
    for count in counts[1:]:
        last = summaries[count]["final_regret"]
        summary[f"loss_{count}"] = {name: last[name] - first[name] for name in facts}
    rows = [
        [name, str(facts[name]["seeds"]), *(_text(summaries[count], name) for count in counts)]
        + [f"{summary[f'loss_{count}'][name]:+.4f}" for count in counts[1:]]
        for name in facts
    ]
    header = ["searcher", "seeds", *(f"final regret, {count}" for count in counts)]
    header += [f"loss, {count}" for count in counts[1:]]
    result = {
        "benchmark": "search_workers",
        "summary": summary,
        "searchers": facts,
        "settings": results[counts[0]]["settings"] | {"workers": counts},
        "table": {"header": header, "rows": rows},
        "environment": environment(),
    }
    print(table(header, rows))
    finish(result, arguments)
    return result


def _text(summary: dict[str, Any], name: str) -> str:
    low, high = summary["final_regret_interval"][name]
    return f"{summary['final_regret'][name]:.4f} ({low:.4f}..{high:.4f})"


if __name__ == "__main__":
    main()
