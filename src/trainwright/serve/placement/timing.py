"""Time tables and bytes of members, measured on the devices that are here: a fresh process for each kind of device.

What is timed is what a worker runs, from the batch on the host to predictions on the host. Run as a module it is such a
process: a request as JSON on its input, the answer as JSON on its output.
"""

import contextlib
import json
import math
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from trainwright.ensemble import Ensemble, Member
from trainwright.ensemble.metrics import Array
from trainwright.errors import AllocationError, ServeError
from trainwright.serve.placement.devices import Device
from trainwright.serve.placement.interference import measure_interference
from trainwright.serve.placement.memory_model import MemberFootprint, MemoryModel
from trainwright.serve.placement.repeated_timing import timed
from trainwright.serve.placement.threads import environment
from trainwright.serve.placement.time_tables import TimeTables
from trainwright.serve.placement.units import Unit

if TYPE_CHECKING:
    import torch

    from trainwright.serve.runtime.member_runners import Loop, Runner

__all__ = ["can_be_timed", "measure_times"]

_LEAST, _ENOUGH_SECONDS = 5, 0.8  # rounds of all batches of a member, and when to stop
_LONGEST_SECONDS = 2.0  # of a batch beyond which no larger one is tried
_TRIED_ROWS = 32  # with which a fused kind's answers are compared with the loop's
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
    told = {device.model: _time_in_process(ensemble, device, batches) for device in devices}
    fused = {
        (Unit(members=tuple(one["members"]), kind=one["kind"]), model): one
        for model, each in told.items()
        for one in each["fused"]
    }
    tables = TimeTables(
        batches=tuple(batches),
        seconds={model: np.array(one["seconds"], dtype=float) for model, one in told.items()},
        fused={key: np.array(one["seconds"], dtype=float) for key, one in fused.items()},
        spread={model: np.array(one["spread"], dtype=float) for model, one in told.items()},
        spread_fused={key: np.array(one["spread"], dtype=float) for key, one in fused.items()},
        source="measured",
    )
    # Memory: a line above every measured peak.
    footprints = tuple(
        _fit_footprint(
            ensemble.members[place].weight_bytes or 0, batches, [one["peaks"][place] for one in told.values()]
        )
        for place in range(len(ensemble.members))
    )
    context = dict(MemoryModel(footprints=()).context_bytes)
    for device in devices:
        context[device.kind] = max(context[device.kind], told[device.model]["context"])
    memory = MemoryModel(footprints=footprints, context_bytes=context)
    # Interference is measured last, since its windows depend on the times.
    kinds = {device.model: device for device in devices}
    together = {model: _measure_pair(ensemble, device, tables, memory) for model, device in kinds.items()}
    shares = {model: table for model, (table, _) in together.items()}
    return replace(tables, shared=shares, spread_shared={name: off for name, (_, off) in together.items()}), memory


def can_be_timed(ensemble: Ensemble) -> bool:
    """Say whether the members left weights, and a sample batch of one shape and dtype."""
    shapes = {(member.input_shape, member.input_dtype) for member in ensemble.members}
    return len(shapes) == 1 and all(member.predicts and member.input_shape is not None for member in ensemble.members)


def _fit_footprint(weight_bytes: int, batches: Sequence[int], peaks: Sequence[Sequence[int | None]]) -> MemberFootprint:
    """Return a line above every peak that was seen, with slack."""
    seen = [
        (batch, _SLACK * peak) for each in peaks for batch, peak in zip(batches, each, strict=True) if peak is not None
    ]
    row = max((peak / batch for batch, peak in seen if batch == max(batch for batch, _ in seen)), default=0.0)
    fixed = max((peak - row * batch for batch, peak in seen), default=0.0)
    return MemberFootprint(weight_bytes=weight_bytes, row_bytes=math.ceil(row), fixed_bytes=math.ceil(max(0.0, fixed)))


def _time_in_process(ensemble: Ensemble, device: Device, batches: Sequence[int]) -> dict[str, Any]:
    request = _timing_request(ensemble.members, device, batches)
    command = [sys.executable, "-m", "trainwright.serve.placement.timing"]
    try:
        done = subprocess.run(
            command,
            input=json.dumps(request),
            env=_process_environment(device),
            capture_output=True,
            text=True,
            check=True,
            timeout=_TIMEOUT_SECONDS,
        )
    except (OSError, subprocess.SubprocessError) as error:
        said = str(getattr(error, "stderr", None) or error).strip().splitlines()
        raise ServeError(f"allocate: the members could not be timed on {device.name}: {said[-1]}") from None
    answer: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return answer


def _measure_pair(ensemble: Ensemble, device: Device, tables: TimeTables, memory: MemoryModel) -> tuple[Array, float]:
    """Return what instances at once do there over what one does alone, by the two heaviest members if both fit.

    Then how far off it may be.
    """
    seconds = tables.seconds[device.model]
    pair = sorted(range(len(seconds)), key=lambda place: -float(np.nansum(seconds[place])))[:2]
    needed = sum(memory.needed(Unit(members=(place,)), device, max(tables.batches)) for place in pair)
    requests = [_timing_request([ensemble.members[place]], device, tables.batches) for place in pair]
    most = min(len(seconds), len(seconds) if device.room is None else device.room)
    most = most if needed <= memory.free(device) else 1
    return measure_interference(
        requests, _process_environment(device), seconds[pair], most, threads=device.threads_of(2)
    )


def _timing_request(members: Sequence[Member], device: Device, batches: Sequence[int]) -> dict[str, Any]:
    first = members[0]
    return {
        "members": [
            {
                "folder": str(member.folder.absolute()),
                "trial": member.trial,
                "digests": dict(member.digests),
                "trust": member.trust,
            }
            for member in members
        ],
        "device": "cpu" if device.kind == "cpu" else device.name,
        "threads": device.threads,
        "cores": list(device.cores),
        "batches": list(batches),
        "shape": list(first.input_shape or ()),
        "dtype": first.input_dtype,
    }


def _process_environment(device: Device) -> dict[str, str]:
    package = str(Path(__file__).resolve().parents[3])
    path = os.pathsep.join(filter(None, [package, *sys.path]))
    return {**environment(device.threads), "PYTHONPATH": path}


def _run_process() -> None:
    request = json.loads(sys.stdin.read())
    if request["cores"] and hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, request["cores"])
    sys.stdout.write(json.dumps(_time_members(request)) + "\n")


def _time_members(request: Mapping[str, Any]) -> dict[str, Any]:
    from trainwright.serve.runtime.member_runners import runner_of

    told = {"kind": "process", "threads": request["threads"], "device": request["device"]}
    runner_of({**told, "members": []})
    context = _resident_bytes()
    seconds, spreads, peaks = [], [], []
    # Places by structure.
    alike: dict[tuple[str, ...], list[int]] = {}
    for place, member in enumerate(request["members"]):
        runner = runner_of({**told, "members": [member]})
        alike.setdefault(_network_structure(cast("Loop", runner).networks[0]), []).append(place)
        found, spread, held = _time_batches(request, runner, [0])
        seconds.append(found)
        spreads.append(spread)
        peaks.append(held)
    groups = [places for places in alike.values() if len(places) > 1]
    fused = [
        one
        for places in groups
        for kind in _fused_kinds(request["device"])
        for one in _time_fused(request, places, kind)
    ]
    return {"seconds": seconds, "spread": spreads, "peaks": peaks, "context": context, "fused": fused}


def _time_batches(
    request: Mapping[str, Any], runner: "Runner", members: Sequence[int]
) -> tuple[list[float | None], list[float | None], list[int | None]]:
    """Return the seconds of each batch, how far off they may be, and the bytes; None from where one takes too long."""
    batches = request["batches"]
    calls: list[Callable[[], None]] = []
    held: list[int | None] = [None] * len(batches)
    for place, batch in enumerate(batches):
        x = np.zeros((batch, *request["shape"]), dtype=request["dtype"])

        def call(x: Any = x) -> None:
            # Ends with predictions on the host, so there is nothing to wait for.
            list(runner(x, members))

        # A first call, which warms up too.
        held[place] = _peak_bytes(call, request["device"]) + 3 * x.nbytes
        calls.append(call)
        begun = time.perf_counter()
        call()
        if time.perf_counter() - begun > _LONGEST_SECONDS:
            break
    found: list[tuple[float | None, float | None]] = [*timed(calls, least=_LEAST, seconds=_ENOUGH_SECONDS)]
    found += [(None, None)] * (len(batches) - len(found))
    return [seconds for seconds, _ in found], [spread for _, spread in found], held


def _fused_kinds(device: str) -> tuple[str, ...]:
    return ("vmap", "streams") if device.startswith("cuda") else ("vmap",)


def _time_fused(request: Mapping[str, Any], places: Sequence[int], kind: str) -> Iterator[dict[str, Any]]:
    """Yield the times of members of one structure as one unit, unless they do not allow it."""
    from trainwright.serve.runtime.member_runners import runner_of

    told = {
        "kind": kind,
        "threads": request["threads"],
        "device": request["device"],
        "members": [request["members"][place] for place in places],
        "batch": min(_TRIED_ROWS, max(request["batches"])),
        "input_shape": request["shape"],
        "input_dtype": request["dtype"],
    }
    with contextlib.suppress(ServeError):
        seconds, spread, _ = _time_batches(request, runner_of(told), range(len(places)))
        yield {"members": list(places), "kind": kind, "seconds": seconds, "spread": spread}


def _network_structure(network: "torch.nn.Module") -> tuple[str, ...]:
    return (str(network), *(f"{name} {tuple(tensor.shape)}" for name, tensor in network.state_dict().items()))


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


def _resident_bytes() -> int:
    """Return what this process holds, before the first weight; 0 if nothing tells."""
    try:
        return int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except OSError:
        return 0


if __name__ == "__main__":
    _run_process()
