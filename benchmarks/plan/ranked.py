"""What is ranked, runs: the plans of Hugging Face families on 2 and 4 gloo ranks, compared with one process.

    python benchmarks/plan/ranked.py --results benchmarks/results/plan_ranked.json

For each family (random weights, as the library makes it), the Oracle ranks plans as a user would and tries them in a
dry run. Every plan that it calls runnable on all ranks is trained for three steps; losses, gradients and parameters
are compared with those of one process. Of the others the reason is kept. Rows of families and numbers of ranks that
were not asked for stay in the file of results, each with the revision that it was measured at.
"""

import argparse
import json
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
sys.path.insert(1, str(Path(__file__).resolve().parents[2] / "src"))

from benchmarks._report import add_arguments, environment, finish, progress, table
from benchmarks.plan.families import FAMILIES, distance_from_serial, rank_family

_EQUAL = 2e-5
"""Relative difference that float32 explains after three steps."""


def main() -> None:
    """Run all families and print what came of each."""
    parser = argparse.ArgumentParser(description=__doc__)
    add_arguments(parser)
    parser.add_argument("--families", default=",".join(FAMILIES), help="some of them, by comma")
    parser.add_argument("--ranks", default="2,4", help="numbers of ranks")
    arguments = parser.parse_args()
    rows = [
        row
        for family in arguments.families.split(",")
        for ranks in map(int, arguments.ranks.split(","))
        for row in _rows_of(family, ranks)
    ]
    rows += _kept_rows(arguments.results, {(row["family"], row["ranks"]) for row in rows})
    rows.sort(key=lambda row: (list(FAMILIES).index(row["family"]), row["ranks"]))
    shown = [(row["family"], row["ranks"], row["plan"], row["place"], row["outcome"][:90]) for row in rows]
    print(table(("family", "ranks", "plan", "place in the ranking", "outcome"), shown))
    run = [row for row in rows if row["distance"] is not None or row["outcome"].startswith("failed")]
    top = [row for row in run if row["place"] <= 3]
    summary = {
        "families": len({row["family"] for row in rows}),
        "runnable": len(run),
        "equal": sum(row["outcome"] == "equal" for row in run),
        "worst_distance": max((row["distance"] for row in run if row["distance"] is not None), default=None),
        "top_three": len(top),
        "top_three_equal": sum(row["outcome"] == "equal" for row in top),
        "not_runnable": len(rows) - len(run),
    }
    print(f"\n{summary['equal']} of {summary['runnable']} plans that are called runnable equal one process")
    finish(
        {
            "benchmark": "plan_ranked",
            "environment": environment(),
            "summary": summary,
            "table": table_of(rows),
            "rows": rows,
        },
        arguments,
    )


def table_of(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """Return one row a family: runnable plans that equal one process on each number of ranks, and what is refused."""
    numbers = sorted({row["ranks"] for row in rows})
    found = []
    for family in dict.fromkeys(row["family"] for row in rows):
        own = [row for row in rows if row["family"] == family]
        cells = []
        for ranks in numbers:
            run = [row for row in own if row["ranks"] == ranks and not row["outcome"].startswith("not runnable")]
            cells.append(f"{sum(row['outcome'] == 'equal' for row in run)} of {len(run)}" if run else "-")
        refused = {row["plan"] for row in own if row["outcome"].startswith("not runnable")}
        # Of the axes, those that no plan of the family has.
        axes = [axis for axis in ("tensor", "context", "pipeline") if axis in refused]
        found.append([family, *cells, ", ".join(axes) or "-"])
    return {"header": ["family", *(f"equal on {ranks} ranks" for ranks in numbers), "not runnable"], "rows": found}


def _rows_of(family: str, ranks: int) -> list[dict[str, Any]]:
    progress(f"{family} on {ranks} ranks")
    ranking = [plan for plan in rank_family(family, ranks) if plan.devices == ranks]
    runnable = [plan for plan in ranking if not plan.refusal]
    distances = dict(
        zip((plan.strategy for plan in runnable), distance_from_serial(family, runnable, ranks), strict=True)
    )
    rows = []
    for plan in ranking:
        distance = distances.get(plan.strategy, "")
        if plan.refusal:
            outcome = f"not runnable: {plan.refusal}"
        elif isinstance(distance, str):
            outcome = f"failed: {distance}"
        else:
            outcome = "equal" if distance <= _EQUAL else "different"
        # Places count plans that are called runnable.
        place = 1 + runnable.index(plan) if plan in runnable else len(runnable) + 1
        number = distance if isinstance(distance, float) else None
        told = {"plan": plan.strategy, "place": place, "distance": number, "outcome": outcome}
        rows.append({"family": family, "ranks": ranks, **told, "revision": environment()["revision"]})
    return rows


def _kept_rows(path: Path | None, measured: set[tuple[str, int]]) -> list[dict[str, Any]]:
    """Return the rows of a file of results that were not measured now."""
    if path is None or not path.exists():
        return []
    known = json.loads(path.read_text())
    usual = {"revision": known["environment"]["revision"]}
    return [usual | row for row in known["rows"] if (row["family"], row["ranks"]) not in measured]


if __name__ == "__main__":
    main()
