"""Ensembles and devices that exist on paper only."""

from pathlib import Path

from trainwright.ensemble import Ensemble, Member
from trainwright.serve import Device

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
