"""Members without torch: a runner that workers import by name, whose answers are known, and which can be told to fail.

Its processes start in a fraction of a second, so tests of faults can start many.
"""

import json
import os
import signal
import time
from pathlib import Path

import numpy as np

from trainwright.ensemble import Ensemble
from trainwright.ensemble.library.member import MEMBER_FILE, SCHEMA, WEIGHTS_FILE, read_member, write_folder
from trainwright.serve import Deployment, DeploymentPlan
from trainwright.serve.placement.deployment_plan import digest_of
from trainwright.serve.placement.devices import parse_devices
from trainwright.serve.placement.units import Unit

INPUTS, OUTPUTS = 4, 3


class Numpy(Deployment):
    """A deployment whose workers compute these members."""

    _runner = "numpy_members:Runner"


class Runner:
    """What a member does beside its sum is in its folder's `member.json`: `params` {"seconds", "ordered"}.

    `ordered` is a folder; a file `die in batch` in it is an order to the next batch, which takes it away. Others are
    `stop`, `raise`, `sleep` until there is a file `go`, and `tear`: to die with half of its answer copied to shared
    memory; or `at start`.
    """

    def __init__(self, told):
        self._members = [json.loads((Path(one["folder"]) / MEMBER_FILE).read_text()) for one in told["members"]]
        for one in self._members:
            self._obey(one, "at start")

    def __call__(self, x, members):
        for k in members:
            told = self._members[k]
            word = self._obey(told, "in batch")
            time.sleep(told["params"].get("seconds", 0.0))
            if (x[:, 0] == -1).any():
                raise IndexError("index -1 is out of range")
            found = predicted(told["trial"], x)
            if word == "tear":
                found = found.astype(object)
                found[len(x) // 2, 0] = Torn()
            yield k, found

    def _obey(self, told, moment):
        folder = told["params"].get("ordered")
        for order in list(Path(folder).glob(f"* {moment}")) if folder else []:
            word, number = order.name.split()[0], int(order.read_text() or 1)
            order.unlink() if number <= 1 else order.write_text(str(number - 1))
            if word == "die":
                os.kill(os.getpid(), signal.SIGKILL)
            elif word == "stop":
                os.kill(os.getpid(), signal.SIGSTOP)
            elif word == "sleep":
                while not (Path(folder) / "go").exists():
                    time.sleep(0.01)
            elif word == "raise":
                raise MemoryError("no memory left")
            else:
                return word
        return None


class Torn(float):
    """A number that ends the process when it is copied into an array of floats."""

    def __float__(self):
        os.kill(os.getpid(), signal.SIGKILL)


def order(folder, word, moment, times=1):
    """Have the next worker that looks do something, so often."""
    (folder / f"{word} {moment}").write_text(str(times))


def until(true, seconds=60.0):
    """Wait for something that will be."""
    end = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < end, "it did not come true"
        time.sleep(0.01)


def pids(service):
    """Return the processes of a service's instances; None where there is none now."""
    return [one["pid"] for one in service.state()["instances"]]


def running(pid):
    """Whether a process is there and no zombie that its new parent has not fetched."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    stat = Path(f"/proc/{pid}/stat")
    try:
        return stat.read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except OSError:
        return not Path("/proc").exists()


def predicted(trial, x):
    """Return the probabilities [N, 3] of a member; the first column tells the row."""
    draws = np.random.default_rng(trial).normal(size=(INPUTS, OUTPUTS))
    odds = np.exp(np.asarray(x, dtype=np.float64) @ draws)
    return odds / odds.sum(axis=1, keepdims=True)


def ensemble(directory, count=2, weights=None, **params):
    """Return an ensemble of such members; each of `params` may be a list with an entry per member."""
    members = []
    for trial in range(count):
        own = {name: value[trial] if isinstance(value, list) else value for name, value in params.items()}
        content = b"none"
        told = {
            "schema": SCHEMA,
            "trial": trial,
            "epoch": 1,
            "params": {name: str(value) if isinstance(value, Path) else value for name, value in own.items()},
            "seed": 0,
            "output": "classes",
            "data": None,
            "splits": {},
            "parameter_count": None,
            "weight_bytes": len(content),
            "cost": [{"device": "cpu", "rows": 1, "seconds": 1.0, "input_shape": [INPUTS], "input_dtype": "float32"}],
            "factory": "nowhere:none",
            "link": "identity",
            "files": {WEIGHTS_FILE: len(content)},
        }
        files = {WEIGHTS_FILE: content, MEMBER_FILE: json.dumps(told).encode()}
        folder, digests = write_folder(directory, f"member-{trial}", files)
        members.append(read_member(folder, digests, trial=trial))
    return Ensemble(members=tuple(members), weights=tuple(weights or [1.0 / count] * count))


def plan(found, units=None, *, batch=16, devices="cpu:0", matrix=None):
    """Return a plan with a process for each member, or for each of these units, on each of the devices."""
    columns = units or tuple(Unit(members=(member,)) for member in range(len(found.members)))
    rows = parse_devices(devices)
    matrix = matrix or ((batch,) * len(columns),) * len(rows)
    return DeploymentPlan(ensemble=digest_of(found), devices=rows, units=columns, matrix=matrix)


def expected(found, x, members=None):
    """Return the weighted mean of these members."""
    chosen = range(len(found.members)) if members is None else members
    total = sum(found.weights[member] for member in chosen)
    return sum(found.weights[member] / total * predicted(found.members[member].trial, x) for member in chosen)


def inputs(rows, seed=0):
    return np.random.default_rng(seed).normal(size=(rows, INPUTS)).astype(np.float32)
