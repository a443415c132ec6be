"""What the service adds to the work: a batch of 128 rows through shared memory, beside a bare loop over the members.

Four members of 5 ms a batch or more, all in one worker with one thread; the bare loop calls the same networks in turn
in this process, with one thread, and combines them by the same rule. Both in turn, `repeats` times; medians.
`overhead_percent_128` is of wall seconds; on a machine with other work it says more about that work, so the share of
processor time that the whole service took beyond the loop is given too.
"""

import argparse
import os
import statistics
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks._report import progress, table
from benchmarks.serve._ensembles import INPUTS, ensemble, plan

__all__ = ["run"]

_ROWS = 128
_LEAST_SECONDS = 5e-3  # of a member's batch


def run(options: argparse.Namespace) -> dict[str, Any]:
    """Measure."""
    import torch

    from trainwright.serve import Deployment

    torch.set_num_threads(1)
    calls = 3 if options.quick else 40
    with tempfile.TemporaryDirectory() as folder:
        found = ensemble(Path(folder), _params(options.quick))
        x = torch.randn(_ROWS, INPUTS, generator=torch.Generator().manual_seed(options.seed)).numpy()
        alone = [_median(partial(_member, found, k, x), 5) for k in range(len(found.members))]
        rows = []
        with Deployment(found, plan(found, batch=_ROWS)) as service:
            pids = [one["pid"] for one in service.state()["instances"]]
            wrong = int(abs(service.predict(x) - found.predict(x)).max() > 1e-6)
            for repeat in range(options.repeats):
                pair = {"bare": lambda: found.predict(x), "served": lambda: service.predict(x)}
                order = list(pair) if repeat % 2 else list(reversed(pair))
                seconds = {name: _measured(pair[name], calls, pids) for name in order}
                rows.append({name: dict(zip(("wall", "cpu"), seconds[name], strict=True)) for name in pair})
    wall, cpu = (
        {name: statistics.median(row[name][kind] for row in rows) for name in ("bare", "served")}
        for kind in ("wall", "cpu")
    )
    over = 100.0 * (wall["served"] / wall["bare"] - 1.0)
    over_cpu = 100.0 * (cpu["served"] / cpu["bare"] - 1.0)
    lines = [[name, f"{1e3 * wall[name]:.2f}", f"{1e3 * cpu[name]:.2f}"] for name in wall]
    print(table(["batch of 128", "wall ms", "processor ms"], lines))
    progress(f"members alone: {', '.join(f'{1e3 * one:.1f} ms' for one in alone)}")
    return {
        "summary": {
            "overhead_percent_128": round(over, 2),
            "overhead_cpu_percent_128": round(over_cpu, 2),
            "member_ms": round(1e3 * min(alone), 2),
            "wrong_answers": wrong,
        },
        "rows": rows,
        "valid": min(alone) >= _LEAST_SECONDS,
    }


def _params(quick: bool) -> list[dict[str, int]]:
    return [{"width": 64, "depth": 2}] * 2 if quick else [{"width": 1024, "depth": 3}] * 4


def _member(found: Any, k: int, x: Any) -> None:
    import torch

    with torch.inference_mode():
        found.networks[k](torch.from_numpy(x))


def _measured(call: Callable[[], object], calls: int, pids: list[int]) -> tuple[float, float]:
    """Median wall seconds of a call, and processor seconds of a call in this process and the workers."""
    call()
    before = time.process_time() + sum(_processor_seconds(pid) for pid in pids)
    wall = _median(call, calls)
    after = time.process_time() + sum(_processor_seconds(pid) for pid in pids)
    return wall, (after - before) / calls


def _median(call: Callable[[], object], calls: int) -> float:
    times = []
    for _ in range(calls):
        begun = time.perf_counter()
        call()
        times.append(time.perf_counter() - begun)
    return statistics.median(times)


def _processor_seconds(pid: int) -> float:
    """Read what a process has used, in ticks of 10 ms."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    except OSError:
        return 0.0
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
