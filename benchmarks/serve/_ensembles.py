"""Ensembles to serve: networks of a chosen size with random weights, kept in a folder, and plans for them."""

import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import nn

from trainwright.ensemble import Ensemble
from trainwright.ensemble.combine.rules import make_rule
from trainwright.ensemble.library.member import MEMBER_FILE, SCHEMA, WEIGHTS_FILE, read_member, write_folder
from trainwright.ensemble.library.networks import serialise_weights
from trainwright.serve import DeploymentPlan
from trainwright.serve.placement.deployment_plan import digest_of
from trainwright.serve.placement.devices import parse_devices
from trainwright.serve.placement.units import Unit

__all__ = ["INPUTS", "OUTPUTS", "core", "ensemble", "mlp", "plan"]

INPUTS, OUTPUTS = 256, 10


def mlp(params: Mapping[str, Any]) -> nn.Module:
    """Build a network of `depth` hidden layers of `width`; with `channels` a convolutional one of 16 x 16 images."""
    layers: list[nn.Module]
    if channels := params.get("channels"):
        layers = [nn.Unflatten(1, (1, 16, 16)), nn.Conv2d(1, channels, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)]
        layers += [nn.Conv2d(channels, channels, 3, padding=1), nn.ReLU(), nn.MaxPool2d(4), nn.Flatten()]
        return nn.Sequential(*layers, nn.Linear(4 * channels, OUTPUTS))
    width = params["width"]
    layers = [nn.Linear(INPUTS, width), nn.ReLU()]
    for _ in range(params["depth"] - 1):
        layers += [nn.Linear(width, width), nn.ReLU()]
    return nn.Sequential(*layers, nn.Linear(width, OUTPUTS))


def ensemble(directory: Path, params: Sequence[Mapping[str, Any]], *, rule: str = "weighted") -> Ensemble:
    """Return an ensemble of one network per entry of `params`, kept below `directory`."""
    members = []
    for trial, one in enumerate(params):
        torch.manual_seed(trial)
        weights = serialise_weights(mlp(one))
        cost = {"device": "cpu", "rows": 128, "seconds": 1.0, "input_shape": [INPUTS], "input_dtype": "float32"}
        told = {
            "schema": SCHEMA,
            "trial": trial,
            "epoch": 1,
            "params": dict(one),
            "seed": 0,
            "output": "classes",
            "data": None,
            "splits": {},
            "parameter_count": None,
            "weight_bytes": len(weights),
            "cost": [cost],
            "factory": "benchmarks.serve._ensembles:mlp",
            "link": "softmax",
            "files": {WEIGHTS_FILE: len(weights)},
        }
        files = {WEIGHTS_FILE: weights, MEMBER_FILE: json.dumps(told).encode()}
        folder, digests = write_folder(directory, f"member-{trial}", files)
        members.append(read_member(folder, digests, trial=trial))
    total = sum(range(1, len(members) + 1))
    return Ensemble(
        members=tuple(members),
        weights=tuple((len(members) - place) / total for place in range(len(members))),
        rule=make_rule(rule, "classes"),
    )


def plan(
    found: Ensemble, *, batch: int = 128, units: Sequence[Unit] | None = None, devices: str = ""
) -> DeploymentPlan:
    """Return a plan of all members in one process on one core, or of these units, one instance each per device."""
    everyone = Unit(members=tuple(range(len(found.members))))
    columns = tuple(units or (everyone,))
    rows = parse_devices(devices or core())
    return DeploymentPlan(
        ensemble=digest_of(found), devices=rows, units=columns, matrix=((batch,) * len(columns),) * len(rows)
    )


def core() -> str:
    """Name the last core that this process may use."""
    cores = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else range(os.cpu_count() or 1)
    return f"cpu:{cores[-1]}"
