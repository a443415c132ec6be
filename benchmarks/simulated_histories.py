"""Bring the table of the simulated histories up to date with their count, and say where it ran.

    python -m trainwright.testing.simulation --seeds 1000000 --jobs 2 --results benchmarks/results/simulation.json
    python benchmarks/simulated_histories.py

The first command counts, and continues a count that was interrupted; the second one only tells of it.
"""

import json
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks._report import RESULTS, environment, table


def main() -> None:
    """Print the table, and keep it beside the count."""
    path = RESULTS / "simulation.json"
    counted = json.loads(path.read_text(encoding="utf-8"))
    header = ["simulated histories", "count"]
    rows = [
        [f"seeds 0 to {counted['histories'] - 1}", f"{counted['histories']:,}"],
        ["- of ten faults or more", f"{counted['of_ten_faults']:,}"],
        ["faults", f"{counted['faults']:,}"],
        *([f"- {fault}", f"{times:,}"] for fault, times in sorted(counted["struck"].items())),
        ["histories that broke a promise", f"{len(counted['broken']):,}"],
    ]
    print(table(header, rows))
    summary = {
        "histories": counted["histories"],
        "broken": len(counted["broken"]),
        "of_ten_faults": counted["of_ten_faults"],
    }
    counted |= {"environment": environment(), "summary": summary, "table": {"header": header, "rows": rows}}
    path.write_text(json.dumps(counted, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
