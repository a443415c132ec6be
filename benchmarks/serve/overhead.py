"""What the service adds to the work: a batch of 128 rows through shared memory, beside a bare loop over the members.

Four members of 5 ms a batch or more, all in one worker with one thread; the bare loop calls the same networks in turn
in this process, with one thread, and combines them by the same rule. A round asks each contestant once, in an order
that turns from round to round, so that what else the machine does meets all of them alike;
`overhead_percent_128` is the ratio of the medians over all rounds, `overhead_paired_percent_128` the median of the
rounds' own ratios, which differ where the machine was busy. HTTP, binary and JSON, is asked in the same rounds, from
this process, which the server shares, and given apart.

What a request costs at least, beside the members and the rule, which the bare loop has too: one copy of the rows into
shared memory (128 KiB here: 10 to 20 us), one copy of each member's predictions out (10 KiB each), 32 bytes to the
worker and 32 a member back, and two wake-ups: the worker's by the request, the client's by the answer. Ours has two
more, of the dispatcher by the request and by the worker, and one for each further member's report, which the last
answer does not wait for. `wake_ups` counts all that threads of front and worker did per request, and needs no quiet
machine: with four members 3 + 4 is what this design has, and 2 is what none can do without.
"""

import argparse
import contextlib
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks._report import progress, table
from benchmarks.serve._ensembles import INPUTS, ensemble, plan

__all__ = ["run"]

_ROWS = 128
_LEAST_SECONDS = 5e-3  # of a member's batch
_ROUNDS = 40  # of each repeat


def run(options: argparse.Namespace) -> dict[str, Any]:
    """Measure."""
    import torch

    from trainwright.serve import Client, Deployment, Server

    torch.set_num_threads(1)
    rounds = 3 if options.quick else _ROUNDS * options.repeats
    with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as stack:
        found = ensemble(Path(folder), _params(options.quick))
        x = torch.randn(_ROWS, INPUTS, generator=torch.Generator().manual_seed(options.seed)).numpy()
        alone = [_median(partial(_member, found, k, x), 5) for k in range(len(found.members))]
        service = stack.enter_context(Deployment(found, plan(found, batch=_ROWS)))
        server = stack.enter_context(Server(service, port=0))
        binary, plain = (stack.enter_context(Client(server.url, binary=kind)) for kind in (True, False))
        contestants: dict[str, Callable[[], Any]] = {
            "bare": lambda: found.predict(x),
            "served": lambda: service.predict(x),
            "http": lambda: binary.predict(x),
            "http json": lambda: plain.predict(x),
        }
        expected = found.predict(x)
        wrong = sum(int(abs(call() - expected).max() > 1e-6) for call in contestants.values())
        seconds = _in_turns(contestants, rounds)
        pids = [one["pid"] for one in service.state()["instances"]]
        told = {name: _counted(contestants[name], 10 if options.quick else 50, pids) for name in contestants}
    medians = {name: statistics.median(times) for name, times in seconds.items()}
    over = {name: 100.0 * (median / medians["bare"] - 1.0) for name, median in medians.items()}
    paired = [served / bare - 1.0 for served, bare in zip(seconds["served"], seconds["bare"], strict=True)]
    header = ["batch of 128", "ms", "over the bare loop", "processor ms", "wake-ups"]
    lines = [
        [
            name,
            f"{1e3 * medians[name]:.2f}",
            f"{over[name]:.1f} %",
            f"{1e3 * told[name][0]:.2f}",
            f"{told[name][1]:.1f}",
        ]
        for name in contestants
    ]
    print(table(header, lines))
    progress(f"members alone: {', '.join(f'{1e3 * one:.1f} ms' for one in alone)}")
    return {
        "summary": {
            "overhead_percent_128": round(over["served"], 2),
            "overhead_paired_percent_128": round(100.0 * statistics.median(paired), 2),
            "overhead_http_percent_128": round(over["http"], 2),
            "overhead_http_json_percent_128": round(over["http json"], 2),
            "wake_ups": round(told["served"][1], 1),
            "member_ms": round(1e3 * min(alone), 2),
            "wrong_answers": wrong,
        },
        "rows": [{name: 1e3 * times[place] for name, times in seconds.items()} for place in range(rounds)],
        "table": {"header": header, "rows": lines},
        "valid": min(alone) >= _LEAST_SECONDS,
    }


def _params(quick: bool) -> list[dict[str, int]]:
    return [{"width": 64, "depth": 2}] * 2 if quick else [{"width": 1024, "depth": 3}] * 4


def _member(found: Any, k: int, x: Any) -> None:
    import torch

    with torch.inference_mode():
        found.networks[k](torch.from_numpy(x))


def _in_turns(contestants: dict[str, Callable[[], Any]], rounds: int) -> dict[str, list[float]]:
    """Return the seconds of each contestant by round; the first of a round is another one each time."""
    names = list(contestants)
    found: dict[str, list[float]] = {name: [] for name in names}
    for place in range(rounds):
        first = place % len(names)
        for name in names[first:] + names[:first]:
            found[name].append(_timed(contestants[name]))
    return found


def _timed(call: Callable[[], Any]) -> float:
    begun = time.perf_counter()
    call()
    return time.perf_counter() - begun


def _median(call: Callable[[], object], calls: int) -> float:
    return statistics.median(_timed(call) for _ in range(calls))


def _counted(call: Callable[[], Any], calls: int, pids: list[int]) -> tuple[float, float]:
    """Return processor seconds and wake-ups of a call, of all threads of this process and the workers."""
    call()
    before = _so_far(pids)
    for _ in range(calls):
        call()
    after = _so_far(pids)
    return (after[0] - before[0]) / calls, (after[1] - before[1]) / calls


def _so_far(pids: list[int]) -> tuple[float, int]:
    """Return what these processes and this one have used, and how often their threads have waited; 0 off Linux."""
    nanoseconds = waits = 0
    for task in _tasks([*pids, "self"]):
        with contextlib.suppress(OSError):  # a thread that has ended since
            nanoseconds += int((task / "schedstat").read_text().split()[0])
            lines = (task / "status").read_text().splitlines()
            waits += int(next(line for line in lines if line.startswith("voluntary")).split()[1])
    return 1e-9 * nanoseconds, waits


def _tasks(pids: list[Any]) -> Iterator[Path]:
    for pid in pids:
        with contextlib.suppress(OSError):
            yield from Path(f"/proc/{pid}/task").iterdir()
