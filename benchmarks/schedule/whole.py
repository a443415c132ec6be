"""MarginalGain against RASDA and ASHA on the whole grid, where nothing is claimed: where it wins and where it does not.

128 settings on each size of cluster (`grid.py`), those of the bands with 30 seeds, others with 5. A setting is a miss
where the mean ratio is above 1.02. Where RASDA as published stalls (it wants more devices than there are) there is
nothing to compare. Finished cells are kept and reused, so it can be stopped and run again.

    python benchmarks/schedule/whole.py --json [--devices 64,256] [--results FILE]
"""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from benchmarks._report import RESULTS, add_arguments, environment, finish, table
from benchmarks.schedule.grid import (
    DEVICE_SECONDS,
    DEVICES,
    FIRST_FULL,
    MAKESPAN,
    NAMES,
    STALLS,
    START,
    Cell,
    Kept,
    Seeds,
    grid,
)

_MISS = 1.02
_KINDS = (  # of comparisons
    ("makespan", ("marginal-gain", "rasda"), MAKESPAN),
    ("first_full", ("marginal-gain", "asha"), FIRST_FULL),
    ("device_hours", ("marginal-gain", "asha"), DEVICE_SECONDS),
)
HEADER = (
    "epochs",
    "alpha",
    "trials",
    "settings",
    "makespan ours / RASDA",
    "worst",
    "misses",
    "first full ours / ASHA, worst",
    "misses",
    "device hours ours / ASHA, worst",
)


def _stalled(kept: Kept, cell: Cell) -> bool | None:
    rows = kept.rows("rasda", cell)
    return None if rows is None else bool(rows[:, STALLS].any())


def _ratios(kept: Kept, cells: Sequence[Cell]) -> dict[str, list[float]]:
    """Return the mean ratios of each comparison, of the cells where there is one."""
    return {
        name: [found[0] for cell in cells if (found := kept.ratio(cell, pair, measure)) is not None]
        for name, pair, measure in _KINDS
    }


def _line(kept: Kept, cells: Sequence[Cell]) -> list[str] | None:
    ratios = _ratios(kept, cells)
    makespan, first, hours = ratios.values()
    if not first:
        return None
    cell = cells[0]
    missed = [str(sum(ratio > _MISS for ratio in values)) for values in (makespan, first)]
    mean, worst = (f"{sum(makespan) / len(makespan):.2f}", f"{max(makespan):.2f}") if makespan else ("stalls", "")
    place = [str(cell.epochs), f"{cell.alpha:g}", "queue" if cell.queue else "at once", str(len(first))]
    return [*place, mean, worst, missed[0], f"{max(first):.2f}", missed[1], f"{max(hours):.2f}"]


def main(argv: list[str] | None = None) -> dict[str, Any]:
    """Simulate what is missing, print the table, keep the result."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--devices", default=",".join(map(str, DEVICES)), help="sizes of clusters")
    parser.add_argument("--seeds", type=int, default=30, help="studies of a setting of the bands")
    parser.add_argument("--few", type=int, default=5, help="studies of all others")
    parser.add_argument("--processes", type=int, default=1)
    parser.add_argument("--cells", type=Path, default=RESULTS / "schedule", help="where finished cells are kept")
    add_arguments(parser)
    arguments = parser.parse_args(argv)
    cells = list(grid("whole", [int(size) for size in arguments.devices.split(",")]))
    kept = Kept(arguments.cells, NAMES, Seeds(most=arguments.seeds, few=arguments.few))
    kept.simulate(cells, NAMES, arguments.processes)
    rows: dict[tuple[int, float, bool], list[Cell]] = {}
    for cell in cells:
        rows.setdefault((cell.epochs, cell.alpha, cell.queue), []).append(cell)
    lines = [line for _, group in sorted(rows.items()) if (line := _line(kept, group)) is not None]
    print(table(HEADER, lines))
    numbers: dict[str, float] = {}
    for name, ratios in _ratios(kept, cells).items():
        numbers |= {
            f"{name}_settings": len(ratios),
            f"{name}_mean": sum(ratios) / max(1, len(ratios)),
            f"{name}_worst": max(ratios, default=0.0),
        }
        if name != "device_hours":  # more of them is the price of an earlier end
            numbers[f"{name}_misses"] = sum(ratio > _MISS for ratio in ratios)
    stalls = {cell: stalled for cell in cells if (stalled := _stalled(kept, cell)) is not None}
    numbers["rasda_stalls"] = sum(stalls.values())
    numbers["rasda_stalls_elsewhere_than_expected"] = sum(
        stalled != (START * cell.epochs > cell.devices) for cell, stalled in stalls.items()
    )
    result = {
        "benchmark": "schedule_grid",
        "environment": environment(),
        "summary": numbers,
        "table": {"header": HEADER, "rows": lines},
    }
    finish(result, arguments)
    return result


if __name__ == "__main__":
    main()
