"""Ensembles and devices that exist on paper only."""

from pathlib import Path

import numpy as np

from trainwright.ensemble import Ensemble, Member
from trainwright.randomness import rng
from trainwright.serve.placement.devices import Device
from trainwright.serve.placement.integer_program import PlacementProblem
from trainwright.serve.placement.units import MemberFootprint, MemoryModel, packed_units

GB = 10**9


def member(trial, *, microseconds=100.0, megabytes=10):
    """Return a member that was measured on a CPU, and whose files are not there."""
    return Member(
        trial=trial,
        epoch=1,
        output="classes",
        splits={},
        folder=Path("nowhere"),
        digests={"weights.safetensors": f"{trial:032x}"},
        device="cpu",
        seconds_per_row=microseconds * 1e-6,
        weight_bytes=megabytes * 10**6,
        parameter_count=megabytes * 250_000,
    )


def ensemble(*costs):
    """Return an ensemble of members that take these microseconds a row."""
    members = tuple(member(trial, microseconds=cost) for trial, cost in enumerate(costs))
    return Ensemble(members=members, weights=(1 / len(members),) * len(members))


def devices(*capacities, kind="cuda"):
    """Return simulated devices of these bytes."""
    return tuple(
        Device(name=f"{kind}/{place}", kind=kind, model=f"{kind}-model", capacity_bytes=size, simulated=True)
        for place, size in enumerate(capacities)
    )


def single_units(count):
    """Return a unit for each of `count` members."""
    return packed_units([1.0] * count, None)


def drawn_problem(seed, *, count, members, batches):
    """Return a placement problem: devices of different speed and little memory, members of different size."""
    draws = rng(seed, "allocation-cases", 0)
    capacity = 0.8 * max(1.0, members / count) * draws.uniform(2.2, 4.0, count) * GB
    found = tuple(
        Device(name=f"d/{place}", kind="cuda", model=f"m{place}", capacity_bytes=int(size), simulated=True)
        for place, size in enumerate(capacity)
    )
    speed, work = np.exp(draws.normal(0, 0.7, count)), np.exp(draws.normal(0, 1, members)) * 1e-4
    seconds = [
        1e-3 * draws.uniform(0.5, 3) * np.exp(draws.normal(0, 0.2, (members, 1)))
        + work[:, None] * np.array(batches) / speed[place] * np.exp(draws.normal(0, 0.2, (members, 1)))
        for place in range(count)
    ]
    footprints = tuple(
        MemberFootprint(weight_bytes=int(draws.uniform(0.05, 0.6) * GB), row_bytes=int(draws.uniform(0.1, 4) * 1e6))
        for _ in range(members)
    )
    return PlacementProblem(
        devices=found,
        units=single_units(members),
        batches=batches,
        seconds=np.array(seconds),
        memory=MemoryModel(footprints=footprints),
    )
