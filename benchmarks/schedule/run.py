"""Makespan, device hours and first full model of allocation policies, on simulated clusters of 64 to 4,096 devices.

What is simulated is in `grid.py`. What must hold is `--grid band`: R in 4, 8, 16, alpha in .8, .9, c in .1, .25; the
claim on RASDA against ASHA is for 1,024 devices, R = 8, alpha in .8, .9, 1, c in 0, .1, .25 (`claim`). These have 30
seeds, the rest of the grid (`whole.py`) 5. Finished cells are kept in `--cells` and reused while the policies behave
the same. Two more parts: `speed` simulates 100,000 trials on 10,000 workers, `ray` is `benchmarks/ray/run.py`. Parts
that are not asked for stay as the results file has them.

    python benchmarks/schedule/run.py --json [--parts grid,speed,ray] [--devices 64,256] [--results FILE]
"""

import argparse
import json
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import numpy as np
from benchmarks._report import RESULTS, add_arguments, environment, finish, table
from benchmarks.ray import run as ray
from benchmarks.schedule.grid import (
    DEVICE_SECONDS,
    DEVICES,
    FIRST_FULL,
    LOSS,
    MAKESPAN,
    NAMES,
    START,
    STATIC,
    Cell,
    Kept,
    Seeds,
    grid,
)
from benchmarks.schedule.paired import shown

from trainwright.cluster import Cluster
from trainwright.engine.simulated import Parametric, Simulated, simulate
from trainwright.schedule import ASHA, Fixed, Scheduler

SHOWN = (8, 0.9, 0.1)  # epochs, alpha and restart of the table


def simulated_seconds() -> float:
    """Return the seconds that 100,000 trials on 10,000 workers take to simulate."""
    rule = ASHA(max_epochs=243, eta=3)  # 5 rungs
    setting = Simulated(cluster=Cluster(2500, 4), task=Parametric())
    began = time.perf_counter()
    simulate(Scheduler(rule, Fixed(1)), setting, trials=100_000, seed=0)
    return time.perf_counter() - began


def summary(kept: Kept, devices: Sequence[int]) -> dict[str, float]:
    """Return the claims' numbers."""
    band = list(grid("band", devices))
    found: dict[str, float] = {}
    claim = [r for c in grid("claim", [1024]) if (r := kept.ratio(c, ("asha", "rasda"), MAKESPAN)) is not None]
    if claim:
        found["asha_over_rasda_makespan_1024"] = min(mean for mean, _, _ in claim)
        found["asha_over_rasda_makespan_1024_low"] = min(low for _, low, _ in claim)
    for size in devices:  # whether the lead grows with the cluster
        trend = kept.ratio(Cell(size, size // START, *SHOWN), ("asha", "rasda"), MAKESPAN)
        if trend is not None:
            names = [f"trend_asha_over_rasda_makespan_{size}{end}" for end in ("", "_low", "_high")]
            found |= dict(zip(names, trend, strict=True))
    for name, baseline, measure in (
        ("makespan", "rasda", MAKESPAN),
        ("first_full", "asha", FIRST_FULL),
        ("device_hours_queue", "asha", DEVICE_SECONDS),
    ):
        cells = [cell for cell in band if cell.queue or name != "device_hours_queue"]
        values = [r for c in cells if (r := kept.ratio(c, ("marginal-gain", baseline), measure)) is not None]
        if values:
            found[f"ours_over_{baseline}_{name}_worst"] = max(mean for mean, _, _ in values)
            found[f"ours_over_{baseline}_{name}_worst_high"] = max(high for _, _, high in values)
        if name == "makespan":
            found["cells"] = len(values)
    losses = [
        float((mine[:, LOSS] - other[:, LOSS]).mean())
        for cell in band
        if (mine := kept.rows("marginal-gain", cell)) is not None and (other := kept.rows("asha", cell)) is not None
    ]
    if losses:
        found["ours_minus_asha_best_loss_mean"] = float(np.mean(losses))
    return found


def line(kept: Kept, size: int, queue: bool) -> list[str] | None:
    """Return a row of the table, None if nothing of it is known."""
    cell = Cell(size, size if queue else size // START, *SHOWN)
    static = {name: rows for name in ("asha", *STATIC) if (rows := kept.rows(name, cell)) is not None}
    best = min(static, key=lambda name: static[name][:, MAKESPAN].mean()) if len(static) > len(STATIC) else ""
    ours = "marginal-gain"
    pairs = [("asha", "rasda", MAKESPAN), (ours, "rasda", MAKESPAN), (ours, "asha", MAKESPAN)]
    pairs += [(ours, best, MAKESPAN), (ours, "asha", FIRST_FULL), ("rasda", "asha", FIRST_FULL)]
    pairs += [("rasda", "asha", DEVICE_SECONDS), (ours, "asha", DEVICE_SECONDS)]
    values = [kept.ratio(cell, (mine, theirs), measure) for mine, theirs, measure in pairs]
    texts = ["" if value is None else shown(value) for value in values]
    return [f"{size:,}", "queue" if queue else "at once", *texts] if any(texts) else None


HEADER = (
    "devices",
    "trials",
    "makespan ASHA / RASDA",
    "ours / RASDA",
    "ours / ASHA",
    "ours / best static",
    "first full ours / ASHA",
    "RASDA / ASHA",
    "device hours RASDA / ASHA",
    "ours / ASHA",
)


def main(argv: list[str] | None = None) -> dict[str, Any]:
    """Simulate what is missing, print the table, keep the result."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--parts", default="grid,speed,ray", help="grid, speed, ray, or several with commas")
    parser.add_argument("--grid", default="band,claim", help="band, claim, or both with a comma")
    parser.add_argument("--devices", default=",".join(map(str, DEVICES)), help="sizes of clusters")
    parser.add_argument("--policies", default=",".join((*NAMES, *STATIC)), help="what is simulated")
    parser.add_argument("--seeds", type=int, default=30, help="studies of a setting")
    parser.add_argument("--processes", type=int, default=1)
    parser.add_argument("--cells", type=Path, default=RESULTS / "schedule", help="where finished cells are kept")
    add_arguments(parser)
    arguments = parser.parse_args(argv)
    devices = [int(size) for size in arguments.devices.split(",")]
    parts, names = arguments.parts.split(","), arguments.policies.split(",")
    old: dict[str, Any] = {}
    if arguments.results is not None and arguments.results.exists():
        old = json.loads(arguments.results.read_text())
    numbers: dict[str, Any] = dict(old.get("summary", {}))
    lines: list[list[str]] = old.get("table", {}).get("rows", [])
    if "grid" in parts:
        kept = Kept(arguments.cells, names, Seeds(most=arguments.seeds))
        cells = list(dict.fromkeys(cell for kind in arguments.grid.split(",") for cell in grid(kind, devices)))
        kept.simulate(cells, [name for name in names if name not in STATIC], arguments.processes)
        shown_cells = [cell for cell in cells if cell[2:] == SHOWN]
        kept.simulate(shown_cells, [name for name in names if name in STATIC], arguments.processes)
        numbers |= summary(kept, devices)
        lines = [row for size in devices for queue in (False, True) if (row := line(kept, size, queue))]
        print(table(HEADER, lines))
    if "speed" in parts:
        numbers["simulated_seconds_10000_workers"] = simulated_seconds()
    if "ray" in parts:
        numbers |= {name: value for name, value in ray.main([])["summary"].items() if name.startswith("ray_")}
    result = {
        "benchmark": "schedule",
        "environment": environment(),
        "seeds": arguments.seeds,
        "summary": numbers,
        "table": {"header": HEADER, "rows": lines},
    }
    finish(result, arguments)
    return result


if __name__ == "__main__":
    main()
