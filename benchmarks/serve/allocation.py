"""Allocation: the integer program compared with brute force, and its gain over tuning batch sizes only.

On simulated devices, where members and devices are drawn, and on two cores of this machine as devices of their own,
where both plans are run in turns. Tuning batch sizes only: a process for each member, or for as many as there are
cores, placed by worst fit, with the batch sizes that are best there. Published gain: up to 2.7 (arXiv 2208.14049), on
hardware and models of theirs, so not comparable.
"""

import argparse
import statistics
import tempfile
import time
from collections import deque
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from benchmarks.serve._ensembles import INPUTS, ensemble
from benchmarks.serve.placement_oracles import brute_force, rates_of
from benchmarks.serve.worst_fit import worst_fit

from trainwright.errors import AllocationError
from trainwright.randomness import rng
from trainwright.serve import Deployment, allocate
from trainwright.serve.placement.devices import Device, found_devices, room_of
from trainwright.serve.placement.integer_program import Matrix, PlacementProblem
from trainwright.serve.placement.timing import measure_times
from trainwright.serve.placement.units import MemberFootprint, MemoryModel, packed_units

__all__ = ["run"]

_NEAR = 1e-3
_SMALL = (("225", 2, 2, (8, 32, 128)), ("17576", 3, 3, (8, 64)))
_BATCHES = (8, 16, 32, 64, 128)
_SETS = {
    "4 equal": (1.0, 1.0, 1.0, 1.0),
    "4 mixed": (4.0, 2.0, 1.0, 0.25),
    "16 mixed": (4.0,) * 4 + (1.0,) * 8 + (0.25,) * 4,
}
_REAL = {  # widths of perceptrons of three layers
    "2 equal": (256, 256),
    "3 mixed": (1024, 256, 64),
    "4 mixed": (1024, 512, 128, 64),
}
_TURNS, _LOADED_ROWS, _WINDOW_SECONDS = 5, 128, 1.0
_ENSEMBLES = {"4 equal": (4, 0.0), "8 mixed": (8, 1.0), "12 mixed": (12, 1.0)}  # members, spread of their work


def run(options: argparse.Namespace) -> dict[str, Any]:
    """Return small cases and gains: 20 seeds of each, or 5 if `quick`."""
    seeds = 5 if options.quick else 20
    small = {name: _small(count, members, batches, seeds) for name, count, members, batches in _SMALL}
    gains = [
        {"ensemble": ensemble, "devices": devices, **_gain(members, spread, speeds)}
        for ensemble, (members, spread) in _ENSEMBLES.items()
        for devices, speeds in _SETS.items()
    ]
    real = _list_real(0.2 if options.quick else _WINDOW_SECONDS)
    large = [gain for gain in gains if gain["ensemble"] == "12 mixed"]
    return {
        "small": small,
        "gains": gains,
        "real": real,
        "lines": [
            [
                f"- gain over tuning batch sizes alone, {one['ensemble']} members on two real cores",
                f"{one['gain']:.2f} x",
            ]
            for one in real
        ],
        "summary": {
            "allocation_equal_to_brute_force": all(one["worst_gap"] <= _NEAR for one in small.values()),
            "worst_gap": max(one["worst_gap"] for one in small.values()),
            "seconds_12_on_4": max(gain["seconds"] for gain in large if gain["devices"] == "4 mixed"),
            "largest_gain_over_batch_only": max(gain["over_batch_only"] for gain in gains),
            "median_gain_over_batch_only": statistics.median(gain["over_batch_only"] for gain in gains),
            "median_gain_on_two_cores": statistics.median(one["gain"] for one in real) if real else None,
        },
    }


def _case(
    seed: int, speeds: tuple[float, ...], members: int, batches: tuple[int, ...], *, spread: float
) -> PlacementProblem:
    draws = rng(seed, "benchmark-allocation", members)
    capacity = 0.8 * max(1.0, members / len(speeds)) * draws.uniform(2.2e9, 4e9, len(speeds))
    found = tuple(
        Device(name=f"simulated/{place}", kind="cuda", model=f"m{place}", capacity_bytes=int(size), simulated=True)
        for place, size in enumerate(capacity)
    )
    work = 1e-4 * np.exp(draws.normal(0, spread, members))
    seconds = [
        1e-3 * draws.uniform(0.5, 3) * np.exp(draws.normal(0, 0.2, (members, 1)))
        + work[:, None] * np.array(batches) / speed * np.exp(draws.normal(0, 0.2, (members, 1)))
        for speed in speeds
    ]
    footprints = tuple(
        MemberFootprint(weight_bytes=int(draws.uniform(0.05e9, 0.6e9)), row_bytes=int(draws.uniform(0.1e6, 4e6)))
        for _ in range(members)
    )
    return PlacementProblem(
        devices=found,
        units=packed_units([1.0] * members, None),
        batches=batches,
        seconds=np.array(seconds),
        memory=MemoryModel(footprints=footprints),
    )


def _start(problem: PlacementProblem) -> Matrix:
    return worst_fit(problem.devices, problem.units, problem.memory, batch=problem.batches[0])


def _small(count: int, members: int, batches: tuple[int, ...], seeds: int) -> dict[str, Any]:
    gaps, infeasible = [], 0
    for seed in range(seeds):
        speeds = tuple(np.exp(rng(seed, "benchmark-speeds", count).normal(0, 0.7, count)))
        problem = _case(seed, speeds, members, batches, spread=1.0)
        try:
            _, best = brute_force(problem)
        except AllocationError:
            infeasible += 1
            continue
        solution = problem.solve()
        gaps.append(1.0 if solution is None else 1 - solution.value / best)
    return {
        "cases": len(gaps),
        "infeasible": infeasible,
        "median_gap": statistics.median(gaps),
        "worst_gap": max(gaps),
        "exact": sum(gap < _NEAR for gap in gaps),
    }


def _gain(members: int, spread: float, speeds: tuple[float, ...]) -> dict[str, Any]:
    problem = _case(7, speeds, members, _BATCHES, spread=spread)
    start = _start(problem)
    started = time.process_time()
    found = problem.solve()
    seconds = time.process_time() - started
    # Batch sizes alone: each unit stays where worst fit puts it.
    here = np.array(start)[:, :, None] > 0
    tuned = replace(problem, seconds=np.where(here, problem.seconds, np.nan)).solve()
    if found is None or tuned is None:
        raise AllocationError("allocation: a drawn case has no placement; allowed: another seed")
    return {
        "value": found.value,
        "over_worst_fit": found.value / float(rates_of(problem, [start])[0]),
        "over_batch_only": found.value / tuned.value,
        "gap": 1 - found.value / found.bound,
        "seconds": seconds,
    }


def _list_real(seconds: float) -> list[dict[str, Any]]:
    """Return rows a second of both plans for each ensemble, on two cores of this machine; none if it has one."""
    [cores, *_] = [device for device in found_devices() if device.kind == "cpu"]
    devices = cores.parts(2)
    if len(devices) == 1:
        return []
    return [{"ensemble": name, **_real_gain(widths, devices, seconds)} for name, widths in _REAL.items()]


def _real_gain(widths: tuple[int, ...], devices: tuple[Device, ...], seconds: float) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as folder:
        found = ensemble(Path(folder), [{"width": width, "depth": 3} for width in widths])
        tables, memory = measure_times(found, devices, _BATCHES)
        best = allocate(found, devices, tables=tables, memory=memory, batches=_BATCHES)
        weights = np.nansum([table[:, -1] for table in tables.seconds.values()], axis=0).tolist()
        units = packed_units(weights, room_of(devices))
        problem = PlacementProblem(
            devices=devices,
            units=units,
            batches=_BATCHES,
            seconds=tables.of_units(units, devices),
            memory=memory,
        )
        here = np.array(_start(problem))[:, :, None] > 0
        tuned = replace(problem, seconds=np.where(here, problem.seconds, np.nan)).solve()
        if tuned is None:
            raise AllocationError("allocation: an ensemble does not fit here; allowed: a machine with more memory")
        batch_only = replace(best, units=units, matrix=tuned.matrix, expected={"value": tuned.value})
        with Deployment(found, best) as ours, Deployment(found, batch_only) as theirs:
            # In turns, so that what disturbs the machine disturbs both.
            turns = [(_loaded_rate(ours, seconds), _loaded_rate(theirs, seconds)) for _ in range(_TURNS)]
    return {
        "gain": statistics.median(one / other for one, other in turns),
        "gains": [one / other for one, other in turns],
        "expected_gain": best.expected["value"] / tuned.value,
        "matrix": best.matrix,
        "batch_only_matrix": tuned.matrix,
    }


def _loaded_rate(service: Deployment, seconds: float) -> float:
    """Return rows a second while more always wait."""
    x = np.zeros((_LOADED_ROWS, INPUTS), dtype=np.float32)
    waiting = deque(service.submit(x) for _ in range(8))
    done, started = 0, time.monotonic()
    while time.monotonic() < started + seconds:
        waiting.popleft().result()
        done += _LOADED_ROWS
        waiting.append(service.submit(x))
    taken = time.monotonic() - started
    for future in waiting:
        future.result()
    return done / taken
