"""Allocation on simulated devices: greedy beside brute force and the integer program, gains, noise, processor seconds.

Nothing is run on devices: members and devices are drawn, and a placement's value is what `ProfileCost` says. Published
gain over tuning batch sizes only: up to 2.7 (arXiv 2208.14049), on hardware and models of theirs, so not comparable.
"""

import argparse
import math
import statistics
import time
from typing import Any

import numpy as np
from benchmarks.serve.placement_oracles import InjectedCost, brute_force, integer_program

from trainwright.errors import AllocationError
from trainwright.randomness import rng
from trainwright.serve import Device, TimeTables
from trainwright.serve.placement.greedy import BoundedGreedy
from trainwright.serve.placement.memory_model import MemberFootprint, MemoryModel
from trainwright.serve.placement.placement import Placement
from trainwright.serve.placement.placement_space import PlacementSpace
from trainwright.serve.placement.profile_cost import ProfileCost
from trainwright.serve.placement.relaxation import place_by_relaxation, upper_bound
from trainwright.serve.placement.units import single_units
from trainwright.serve.placement.worst_fit import worst_fit

__all__ = ["run"]

_MARGIN = 0.03
_SMALL = (("225", 2, 2, (8, 32, 128)), ("17576", 3, 3, (8, 64)))
_BATCHES = (8, 16, 32, 64, 128)
_SETS = {
    "4 equal": (1.0, 1.0, 1.0, 1.0),
    "4 mixed": (4.0, 2.0, 1.0, 0.25),
    "16 mixed": (4.0,) * 4 + (1.0,) * 8 + (0.25,) * 4,
}
_ENSEMBLES = {"4 equal": (4, 0.0), "8 mixed": (8, 1.0), "12 mixed": (12, 1.0)}  # members, spread of their work


def run(options: argparse.Namespace) -> dict[str, Any]:
    """Return small cases, gains and noise: 200 seeds of each, or 5 if `quick`."""
    seeds = 5 if options.quick else 200
    small = {name: _small(count, members, batches, seeds) for name, count, members, batches in _SMALL}
    gains = [
        {"ensemble": ensemble, "devices": devices, **_gain(members, spread, speeds, quick=options.quick)}
        for ensemble, (members, spread) in _ENSEMBLES.items()
        for devices, speeds in _SETS.items()
    ]
    large = [gain for gain in gains if gain["ensemble"] == "12 mixed"]
    noise = sum(_noise_moves(seed) for seed in range(seeds))
    return {
        "small": small,
        "gains": gains,
        "noise_accepted_share": noise / seeds,
        "summary": {
            "allocation_equal_to_brute_force": all(one["worst_gap"] <= _MARGIN for one in small.values()),
            "worst_gap": max(one["worst_gap"] for one in small.values()),
            "integer_program_equal": all(one["integer_program_equal"] for one in small.values()),
            "seconds_12_on_4": max(gain["seconds"] for gain in large if gain["devices"] == "4 mixed"),
            "largest_gain_over_batch_only": max(gain["over_batch_only"] for gain in gains),
            "median_gain_over_batch_only": statistics.median(gain["over_batch_only"] for gain in gains),
        },
    }


def _case(
    seed: int, speeds: tuple[float, ...], members: int, batches: tuple[int, ...], *, spread: float, slope: float
) -> tuple[PlacementSpace, ProfileCost]:
    draws = rng(seed, "benchmark-allocation", members)
    capacity = 0.8 * max(1.0, members / len(speeds)) * draws.uniform(2.2e9, 4e9, len(speeds))
    found = tuple(
        Device(name=f"simulated/{place}", kind="cuda", model=f"m{place}", capacity_bytes=int(size), simulated=True)
        for place, size in enumerate(capacity)
    )
    work = 1e-4 * np.exp(draws.normal(0, spread, members))
    tables = {
        device.model: 1e-3 * draws.uniform(0.5, 3) * np.exp(draws.normal(0, 0.2, (members, 1)))
        + work[:, None] * np.array(batches) / speed * np.exp(draws.normal(0, 0.2, (members, 1)))
        for device, speed in zip(found, speeds, strict=True)
    }
    footprints = tuple(
        MemberFootprint(weight_bytes=int(draws.uniform(0.05e9, 0.6e9)), row_bytes=int(draws.uniform(0.1e6, 4e6)))
        for _ in range(members)
    )
    space = PlacementSpace(devices=found, batches=batches, memory=MemoryModel(footprints=footprints))
    slower = np.repeat([[1 / (1 + slope * others)] for others in range(members)], len(batches), axis=1)
    shared = {device.model: slower for device in found} if slope else {}
    drawn = TimeTables(batches=batches, seconds=tables, shared=shared, source="drawn")
    return space, ProfileCost(devices=found, tables=drawn)


def _start(space: PlacementSpace, members: int) -> Placement:
    units = single_units(members)
    return Placement(units, worst_fit(space.devices, units, space.memory, batch=space.batches[0]))


def _small(count: int, members: int, batches: tuple[int, ...], seeds: int) -> dict[str, Any]:
    gaps, equal, infeasible = [], True, 0
    for seed in range(seeds):
        speeds = tuple(np.exp(rng(seed, "benchmark-speeds", count).normal(0, 0.7, count)))
        slope = 0.0 if seed % 2 else 0.3 * (seed % 10) / 10
        space, cost = _case(seed, speeds, members, batches, spread=1.0, slope=slope)
        try:
            start = _start(space, members)
        except AllocationError:
            infeasible += 1
            continue
        _, best = brute_force(start.units, space, cost)
        gaps.append(1 - BoundedGreedy(seed=seed).search(start, space, cost).value / best)
        if slope == 0:
            equal &= math.isclose(integer_program(start.units, space, cost).value, best, rel_tol=1e-6)
    return {
        "cases": len(gaps),
        "worst_fit_failed": infeasible,
        "median_gap": statistics.median(gaps),
        "worst_gap": max(gaps),
        "exact": sum(gap < 1e-9 for gap in gaps),
        "integer_program_equal": equal,
    }


def _gain(members: int, spread: float, speeds: tuple[float, ...], *, quick: bool) -> dict[str, Any]:
    space, cost = _case(7, speeds, members, _BATCHES, spread=spread, slope=0.0)
    start = _start(space, members)
    BoundedGreedy(max_steps=1, kicks=0).search(start, space, cost)  # kernels are compiled once, and cached on disk
    started = time.process_time()
    bound = upper_bound(start.units, space, cost)
    other = place_by_relaxation(start.units, space, cost)
    starts = [start] if other is None else [other, start]
    found = max((BoundedGreedy().search(one, space, cost, bound=bound) for one in starts), key=lambda one: one.value)
    seconds = time.process_time() - started
    only = PlacementSpace(devices=space.devices, batches=space.batches, memory=space.memory, moves=("batch",))
    tuned = BoundedGreedy(kicks=0).search(start, only, cost)
    program = integer_program(start.units, space, cost, max_seconds=1.0 if quick else 10.0)
    return {
        "value": found.value,
        "over_worst_fit": found.value / tuned.start_value,
        "over_batch_only": found.value / tuned.value,
        "gap": 1 - found.value / min(bound, program.bound),
        "tried": found.tried,
        "seconds": seconds,
    }


def _noise_moves(seed: int) -> bool:
    space, _ = _case(seed, (1.0, 1.0), 2, (8, 32), spread=0.0, slope=0.0)
    cost = InjectedCost(value=lambda _: 100.0, noise=0.05, seed=seed)
    return BoundedGreedy(seed=seed).search(_start(space, 2), space, cost).steps > 0
