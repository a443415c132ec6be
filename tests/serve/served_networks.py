"""Networks that workers import by name, and ensembles of them without a study."""

import fcntl
import json
import time

import numpy as np
import torch
from torch import nn

from trainwright.ensemble import Ensemble
from trainwright.ensemble.combine.rules import make_rule
from trainwright.ensemble.library.member import (
    MEMBER_FILE,
    PROGRAM_FILE,
    SCHEMA,
    WEIGHTS_FILE,
    read_member,
    write_folder,
)
from trainwright.ensemble.library.networks import serialise_weights

INPUTS = 5


def classes(params):
    hidden = params.get("hidden", 8)
    return nn.Sequential(nn.Linear(INPUTS, hidden), nn.ReLU(), nn.Linear(hidden, params.get("outputs", 3)))


class Pairs(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(INPUTS, 2)

    def forward(self, x):
        mean, scale = self.inner(x).unbind(1)
        return torch.stack([mean, nn.functional.softplus(scale) + 1e-3], 1)


def pairs(params):
    return Pairs()


def values(params):
    return nn.Linear(INPUTS, 1)


class Slow(nn.Module):
    """Takes its time, in a file's lock if it is given one, and refuses rows that begin with -1."""

    def __init__(self, seconds, lock=None):
        super().__init__()
        self.seconds, self.lock, self.inner = seconds, lock, nn.Linear(INPUTS, 3)

    def forward(self, x):
        with open(self.lock or "/dev/null", "ab") as lock:  # noqa: PTH123 -- a device too
            if self.lock:
                fcntl.flock(lock, fcntl.LOCK_EX)
            time.sleep(self.seconds)
        if (x[:, 0] == -1).any():
            raise IndexError("index out of range in self")
        return self.inner(x)


def slow(params):
    return Slow(**params)


class Fussy(nn.Module):
    """Looks at what it computed, which a network that is one of several at once cannot."""

    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(INPUTS, 3)

    def forward(self, x):
        found = self.inner(x)
        return found if found.sum() < 1e9 else -found


def fussy(params):
    return Fussy()


def broken(params):
    raise RuntimeError("no such file as the vocabulary")


FACTORIES = {"classes": classes, "moments": pairs, "values": values, "slow": slow, "broken": broken, "fussy": fussy}


def ensemble(
    directory, params, *, kind="classes", weights=None, rule=None, sample=True, build=None, program=None, by_name=True
):
    """Return an ensemble of one network per entry of `params`, with weights of their own.

    `program` makes the `model.onnx` of a network; without `by_name` members have no factory.
    """
    members = []
    for number, one in enumerate(params):
        torch.manual_seed(number)
        factory = FACTORIES[kind]
        network = (build or factory)(one)
        output = kind if kind in {"moments", "values"} else "classes"
        weights_file = serialise_weights(network)
        table = {
            "device": "cpu",
            "threads": 1,
            "dtype": "float32",
            "rows": 128,
            "seconds": 0.01,
            "input_shape": [INPUTS],
            "input_dtype": "float32",
        }
        told = {
            "schema": SCHEMA,
            "trial": 10 + number,
            "epoch": 1,
            "params": one,
            "seed": 0,
            "output": output,
            "data": None,
            "splits": {},
            "parameter_count": 1,
            "weight_bytes": len(weights_file),
            "cost": [table] if sample else [],
            "factory": f"served_networks:{factory.__name__}" if by_name else None,
            "link": "softmax" if output == "classes" else "identity",
        }
        files = {WEIGHTS_FILE: weights_file}
        if program is not None:
            files[PROGRAM_FILE] = program(network)
        told["files"] = {name: len(content) for name, content in files.items()}
        files[MEMBER_FILE] = json.dumps(told).encode()
        folder, digests = write_folder(directory, f"member-{number}", files)
        members.append(read_member(folder, digests, trial=10 + number))
    weights = weights or [1.0 / len(members)] * len(members)
    default = "mixture" if kind == "moments" else "weighted"
    return Ensemble(members=tuple(members), weights=tuple(weights), rule=make_rule(rule or default, members[0].output))


def inputs(rows, seed=0):
    return np.random.default_rng(seed).normal(size=(rows, INPUTS)).astype(np.float32)
