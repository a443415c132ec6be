"""Measures the throughput and memory of members on the devices that are here: a fresh process for each kind.

What is timed is what a worker runs, from the batch on the host to predictions on the host. Run as a module it is such a
process: a request as JSON on its input, the answer as JSON on its output.
"""

import json
import math
import os
import re
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from trainwright.ensemble import Ensemble
from trainwright.ensemble.library.cost import time_quartiles
from trainwright.errors import AllocationError, ServeError
from trainwright.serve.placement.devices import Device, thread_environment
from trainwright.serve.placement.units import MemberFootprint, MemoryModel, TimeTables
from trainwright.serve.runtime.member_runners import Runner, describe_member, runner_of

__all__ = ["can_be_timed", "measure_times"]

_ENOUGH_SECONDS = 0.8  # of rounds of all batches of a member
_LONGEST_SECONDS = 2.0  # of a batch beyond which no larger one is tried
_SLACK = 1.25  # for what an allocator keeps beyond what tensors hold
_TIMEOUT_SECONDS = 900


def measure_times(
    ensemble: Ensemble, devices: Sequence[Device], batches: Sequence[int]
) -> tuple[TimeTables, MemoryModel]:
    """Return seconds of every member and batch on every model of device, and what members take of memory.

    Raises AllocationError if the members cannot be run (no weights, or no record of their input), ServeError if a
    process fails.
    """
    if not can_be_timed(ensemble):
        raise AllocationError(
            "allocate: the members cannot be timed, for they left no weights or no sample batch; allowed: members "
            "whose training function gives model=, factory= and sample= to tw.ensemble.leave, or tables= of their times"
        )
    kinds = {device.model: device for device in devices}
    answers = {model: _time_in_process(ensemble, device, batches) for model, device in kinds.items()}
    seconds = {model: np.array(one["seconds"], dtype=float) for model, one in answers.items()}
    # Memory: a line above every measured peak.
    footprints = tuple(
        _fit_footprint(member.weight_bytes or 0, batches, [one["peaks"][place] for one in answers.values()])
        for place, member in enumerate(ensemble.members)
    )
    context = dict(MemoryModel(footprints=()).context_bytes)
    # The default is a floor: a process may take more later than before its first weight.
    for model, device in kinds.items():
        context[device.kind] = max(context[device.kind], answers[model]["context"])
    spread = float(np.median([share for one in answers.values() for member in one["spreads"] for share in member]))
    tables = TimeTables(batches=tuple(batches), seconds=seconds, source="measured", spread=spread)
    return tables, MemoryModel(footprints=footprints, context_bytes=context)


def can_be_timed(ensemble: Ensemble) -> bool:
    """Say whether the members left weights, and a sample batch of one shape and dtype."""
    shapes = {(member.input_shape, member.input_dtype) for member in ensemble.members}
    return len(shapes) == 1 and all(member.predicts and member.input_shape is not None for member in ensemble.members)


def _fit_footprint(weight_bytes: int, batches: Sequence[int], peaks: Sequence[Sequence[int | None]]) -> MemberFootprint:
    """Return a line above every peak that was seen, with slack."""
    seen = [
        (batch, _SLACK * peak) for each in peaks for batch, peak in zip(batches, each, strict=True) if peak is not None
    ]
    # The slope is that of the largest batch; the fixed part lifts the line above all others.
    row = max((peak / batch for batch, peak in seen if batch == max(batch for batch, _ in seen)), default=0.0)
    fixed = max((peak - row * batch for batch, peak in seen), default=0.0)
    return MemberFootprint(weight_bytes=weight_bytes, row_bytes=math.ceil(row), fixed_bytes=math.ceil(max(0.0, fixed)))


def _time_in_process(ensemble: Ensemble, device: Device, batches: Sequence[int]) -> dict[str, Any]:
    first = ensemble.members[0]
    request = {
        "members": [describe_member(member) for member in ensemble.members],
        "device": "cpu" if device.kind == "cpu" else device.name,
        "threads": device.threads,
        "cores": list(device.cores),
        "batches": list(batches),
        "shape": list(first.input_shape or ()),
        "dtype": first.input_dtype,
    }
    # A process of its own, whose threads and cores are set before torch is loaded.
    command = [sys.executable, "-m", "trainwright.serve.placement.timing"]
    path = os.pathsep.join(filter(None, [str(Path(__file__).resolve().parents[3]), *sys.path]))
    try:
        done = subprocess.run(
            command,
            input=json.dumps(request),
            env={**thread_environment(device.threads), "PYTHONPATH": path},
            capture_output=True,
            text=True,
            check=True,
            timeout=_TIMEOUT_SECONDS,
        )
    except (OSError, subprocess.SubprocessError) as error:
        last = str(getattr(error, "stderr", None) or error).strip().splitlines()[-1]
        # What that process raised, without the name of its class.
        said = re.sub(r"^trainwright\.[\w.]+: ", "", last)
        raise ServeError(f"allocate: the members could not be timed on {device.name}: {said}") from None
    answer: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return answer


def _run_process() -> None:
    request = json.loads(sys.stdin.read())
    if request["cores"] and hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, request["cores"])
    start = {"threads": request["threads"], "device": request["device"]}
    runner_of({**start, "members": []})
    # What this process holds before the first weight; nothing tells off Linux.
    pages = Path("/proc/self/statm")
    context = int(pages.read_text("ascii").split()[1]) * os.sysconf("SC_PAGE_SIZE") if pages.exists() else 0
    found = [_time_batches(request, runner_of({**start, "members": [member]})) for member in request["members"]]
    answer = {name: [one[name] for one in found] for name in ("seconds", "spreads", "peaks")} | {"context": context}
    sys.stdout.write(json.dumps(answer) + "\n")


def _time_batches(request: Mapping[str, Any], runner: Runner) -> dict[str, list[Any]]:
    """Return the seconds, their spreads and the bytes of each batch; None from where one takes too long."""
    batches = request["batches"]
    calls: list[Callable[[], None]] = []
    peaks: list[int | None] = [None] * len(batches)
    for place, batch in enumerate(batches):
        x = np.zeros((batch, *request["shape"]), dtype=request["dtype"])

        def call(x: Any = x) -> None:
            # Ends with predictions on the host, so there is nothing to wait for.
            list(runner(x, [0]))

        # A first call, which warms up too.
        peaks[place] = _peak_bytes(call, request["device"]) + 3 * x.nbytes
        calls.append(call)
        begun = time.perf_counter()
        call()
        if time.perf_counter() - begun > _LONGEST_SECONDS:
            break
    quartiles = time_quartiles(calls, _ENOUGH_SECONDS)
    return {
        "seconds": [median for _, median, _ in quartiles] + [None] * (len(batches) - len(calls)),
        "spreads": [(upper - lower) / median for lower, median, upper in quartiles],
        "peaks": peaks,
    }


def _peak_bytes(call: Callable[[], None], device: str) -> int:
    """Return the most bytes that tensors made by a call held at once; the call is a first one, that warms up too."""
    import torch

    if device.startswith("cuda"):
        torch.cuda.reset_peak_memory_stats(device)
        before = torch.cuda.memory_allocated(device)
        call()
        return int(torch.cuda.max_memory_allocated(device) - before)
    from trainwright.model.trace.storages import StorageTracker

    tracker = StorageTracker()
    with tracker:
        call()
    return tracker.peak_bytes


if __name__ == "__main__":
    _run_process()
