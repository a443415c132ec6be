"""Time tables and bytes of members, measured on the devices that are here: a fresh process for each kind of device.

What is timed is what a worker runs, from the batch on the host to predictions on the host. Run as a module it is such a
process: a request as JSON on its input, the answer as JSON on its output.
"""

import json
import math
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from trainwright.ensemble import Ensemble
from trainwright.errors import AllocationError, ServeError
from trainwright.serve.devices import Device
from trainwright.serve.memory import Footprint, MemoryModel
from trainwright.serve.tables import TimeTables

__all__ = ["measured"]

_LEAST, _MOST, _ENOUGH_SECONDS = 3, 20, 0.03  # timed calls of a batch, and when to stop
_LONGEST_SECONDS = 2.0  # of a batch beyond which no larger one is tried
_SLACK = 1.25  # for what an allocator keeps beyond what tensors hold
_TIMEOUT_SECONDS = 900


def measured(ensemble: Ensemble, devices: Sequence[Device], batches: Sequence[int]) -> tuple[TimeTables, MemoryModel]:
    """Return seconds of every member and batch on every model of device, and what members take of memory.

    Raises AllocationError if the members cannot be run (no weights, or no record of their input), ServeError if a
    process fails.
    """
    shapes = {(member.input_shape, member.input_dtype) for member in ensemble.members}
    shape, dtype = next(iter(shapes))
    if len(shapes) > 1 or shape is None or not all(member.predicts for member in ensemble.members):
        raise AllocationError(
            "allocate: the members cannot be timed, for they left no weights or no sample batch; allowed: members "
            "whose training function gives model=, factory= and sample= to tw.ensemble.leave, or tables= of their times"
        )
    told = {device.model: _asked(ensemble, device, batches, (shape, dtype)) for device in devices}
    tables = TimeTables(
        batches=tuple(batches),
        seconds={model: np.array(one["seconds"], dtype=float) for model, one in told.items()},
        source="measured",
    )
    footprints = tuple(
        _footprint(ensemble.members[place].weight_bytes or 0, batches, [one["peaks"][place] for one in told.values()])
        for place in range(len(ensemble.members))
    )
    context = dict(MemoryModel(footprints=()).context_bytes)
    for device in devices:
        context[device.kind] = max(context[device.kind], told[device.model]["context"])
    return tables, MemoryModel(footprints=footprints, context_bytes=context)


def _footprint(weight_bytes: int, batches: Sequence[int], peaks: Sequence[Sequence[int | None]]) -> Footprint:
    """Return a line above every peak that was seen, with slack."""
    seen = [
        (batch, _SLACK * peak) for each in peaks for batch, peak in zip(batches, each, strict=True) if peak is not None
    ]
    row = max((peak / batch for batch, peak in seen if batch == max(batch for batch, _ in seen)), default=0.0)
    fixed = max((peak - row * batch for batch, peak in seen), default=0.0)
    return Footprint(weight_bytes=weight_bytes, row_bytes=math.ceil(row), fixed_bytes=math.ceil(max(0.0, fixed)))


def _asked(
    ensemble: Ensemble, device: Device, batches: Sequence[int], inputs: tuple[tuple[int, ...], str | None]
) -> dict[str, Any]:
    request = {
        "members": [
            {"folder": str(member.folder.absolute()), "trial": member.trial, "digests": dict(member.digests)}
            for member in ensemble.members
        ],
        "device": "cpu" if device.kind == "cpu" else device.name,
        "threads": device.threads,
        "cores": list(device.cores),
        "batches": list(batches),
        "shape": list(inputs[0]),
        "dtype": inputs[1],
    }
    package = str(Path(__file__).resolve().parents[2])
    environment = {**os.environ, "OMP_NUM_THREADS": str(device.threads)}
    environment["PYTHONPATH"] = os.pathsep.join(filter(None, [package, *sys.path]))
    command = [sys.executable, "-m", "trainwright.serve.timing"]
    try:
        done = subprocess.run(
            command, input=json.dumps(request), env=environment, capture_output=True, text=True, check=True,
            timeout=_TIMEOUT_SECONDS,
        )  # fmt: skip
    except (OSError, subprocess.SubprocessError) as error:
        said = str(getattr(error, "stderr", None) or error).strip().splitlines()
        raise ServeError(f"allocate: the members could not be timed on {device.name}: {said[-1]}") from None
    answer: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return answer


def _main() -> None:
    request = json.loads(sys.stdin.read())
    if request["cores"] and hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, request["cores"])
    sys.stdout.write(json.dumps(_answer(request)) + "\n")


def _answer(request: Mapping[str, Any]) -> dict[str, Any]:
    from trainwright.serve.fused import runner_of

    told = {"kind": "process", "threads": request["threads"], "device": request["device"]}
    runner_of({**told, "members": []})
    context = _resident_bytes()
    seconds, peaks = [], []
    for member in request["members"]:
        runner = runner_of({**told, "members": [member]})
        timed: list[float | None] = []
        held: list[int | None] = []
        for batch in request["batches"]:
            if timed and (timed[-1] is None or timed[-1] > _LONGEST_SECONDS):
                timed.append(None)
                held.append(None)
                continue
            x = np.zeros((batch, *request["shape"]), dtype=request["dtype"])

            def call(x: Any = x, runner: Any = runner) -> None:
                list(runner(x, [0]))

            held.append(_peak_bytes(call, request["device"]) + 3 * x.nbytes)
            timed.append(_median(call))
        seconds.append(timed)
        peaks.append(held)
    return {"seconds": seconds, "peaks": peaks, "context": context}


def _median(call: Callable[[], None]) -> float:
    found: list[float] = []
    while len(found) < _LEAST or (len(found) < _MOST and sum(found) < _ENOUGH_SECONDS):
        started = time.perf_counter()
        call()  # ends with predictions on the host, so there is nothing to wait for
        found.append(time.perf_counter() - started)
    return statistics.median(found)


def _peak_bytes(call: Callable[[], None], device: str) -> int:
    """Return the most bytes that tensors made by a call held at once; the call is a first one, that warms up too."""
    import torch

    if device.startswith("cuda"):
        torch.cuda.reset_peak_memory_stats(device)
        before = torch.cuda.memory_allocated(device)
        call()
        return int(torch.cuda.max_memory_allocated(device) - before)
    from trainwright.profile.storages import StorageTracker

    tracker = StorageTracker()
    with tracker:
        call()
    return tracker.peak_bytes


def _resident_bytes() -> int:
    """Return what this process holds, before the first weight; 0 if nothing tells."""
    try:
        return int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except OSError:
        return 0


if __name__ == "__main__":
    _main()
