"""A storm of kills: worker processes end by `kill -9` as fast as they come back, while clients ask without a pause.

Members are a few lines of numpy, so that a process is there again in a fraction of a second; all else is the real
thing. Every row has its own answer. An answer is wrong if a row differs by more than 1e-9, lost if none came within ten
minutes; each must be of all members, once. It lasts `seconds`, or until there are 2,000 kills; with `--results FILE`
the file's earlier ones count too, so that a storm may be run in pieces.
"""

import argparse
import json
import os
import signal
import tempfile
import threading
import time
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
from benchmarks._report import progress, table
from benchmarks.serve._ensembles import INPUTS, ensemble
from benchmarks.serve._storm_runner import member_says

__all__ = ["run"]

_KILLS = 2000
_CLIENTS = 4
_LONGEST_SECONDS = 600.0  # for an answer; a storm on a machine with other work leaves seconds between two that live
_MOST_ROWS = 300
_WEIGHTS = (0.3, 0.7)


def run(options: argparse.Namespace) -> dict[str, Any]:
    """Measure."""
    from trainwright.serve import Deployment, DeploymentPlan, DeploymentSettings
    from trainwright.serve.placement.deployment_plan import digest_of
    from trainwright.serve.placement.devices import found_devices
    from trainwright.serve.placement.units import Unit

    seconds = 5.0 if options.quick else options.seconds
    [group, *_] = [device for device in found_devices() if device.kind == "cpu"]
    settings = DeploymentSettings(backoff_seconds=0.0, failures=10**6, queue_rows=20_000)
    before = Counter() if options.quick else _read_earlier(options.results)
    counts: Counter[str] = Counter()
    with tempfile.TemporaryDirectory() as folder:
        found = ensemble(Path(folder), [{"width": 1, "depth": 1}] * 2)
        found = type(found)(members=found.members, weights=_WEIGHTS)
        devices = group.parts(group.room or 1)
        plan = DeploymentPlan(
            ensemble=digest_of(found),
            devices=devices,
            units=(Unit(members=(0,)), Unit(members=(1,))),
            matrix=((64, 64),) * len(devices),
        )

        class Storm(Deployment):
            _runner = "benchmarks.serve._storm_runner:StormRunner"

        x = np.random.default_rng(options.seed).normal(size=(4096, INPUTS)).astype(np.float32) / 16
        expected = sum(weight * member_says(member, x) for member, weight in enumerate(_WEIGHTS))
        begun = time.monotonic()
        with Storm(found, plan, settings=settings) as service:
            over = threading.Event()
            clients = [
                threading.Thread(target=_ask_on, args=(service, (x, expected), counts, over, number))
                for number in range(_CLIENTS)
            ]
            for client in clients:
                client.start()
            draws, killed = np.random.default_rng([options.seed, before["kills"]]), set[int]()
            while before["kills"] + len(killed) < _KILLS and time.monotonic() < begun + seconds:
                killed |= _kill_one(service, draws, killed)
                time.sleep(float(draws.random()) * 0.1)
            over.set()
            for client in clients:
                client.join()
            lasted, state = time.monotonic() - begun, service.state()
    counts.update({name: state[name] for name in ("restarts", "duplicates", "stale", "slots_used", "open")})
    counts.update(before, kills=len(killed), pieces=1, seconds=round(lasted))
    told = dict(counts)
    progress(f"storm: {told}, {lasted:.0f} s")
    print(table(["of a storm of kills", "count"], [[name, told[name]] for name in sorted(told)]))
    return {
        "summary": {
            "storm_kills": counts["kills"],
            "storm_seconds": counts["seconds"],
            "storm_requests": counts["right"],
            "storm_not_once": sum(counts[name] for name in ("wrong", "lost", "degraded", "duplicates")),
        },
        "counts": told,
        "workers": len(plan.instances),
    }


def _read_earlier(file: Path | None) -> Counter[str]:
    """Return the counts of the pieces that a file of results holds."""
    if file is None or not file.exists():
        return Counter()
    return Counter(json.loads(file.read_text())["parts"].get("kill_storm", {}).get("counts", {}))


def _kill_one(service: Any, draws: np.random.Generator, killed: set[int]) -> set[int]:
    """Kill a worker that is there, whatever it does, and return its number; none if none is."""
    found = [one["pid"] for one in service.state()["instances"] if one["pid"] and one["state"] == "ready"]
    alive = [pid for pid in found if pid not in killed]
    if not alive:
        return set()
    chosen = int(draws.choice(alive))
    try:
        os.kill(chosen, signal.SIGKILL)
    except ProcessLookupError:
        return set()
    return {chosen}


def _ask_on(service: Any, rows_of: tuple[Any, Any], counts: Counter[str], over: threading.Event, number: int) -> None:
    from trainwright.errors import Overloaded

    (x, expected), draws, seen = rows_of, np.random.default_rng(number), Counter[str]()
    while not over.is_set():
        rows = int(draws.integers(1, _MOST_ROWS))
        first = int(draws.integers(0, len(x) - rows))
        part = slice(first, first + rows)
        try:
            asked = service.submit(x[part])
        except Overloaded:
            seen["refused"] += 1
            over.wait(0.01)
            continue
        try:
            answer = asked.result(_LONGEST_SECONDS)
        except Exception as error:  # noqa: BLE001 - whatever it is, the request has no answer
            seen["lost"] += 1
            progress(f"lost: {type(error).__name__}: {error}")
            continue
        if answer.degraded:
            seen["degraded"] += 1
        else:
            near = answer.prediction.shape == (rows, 2) and np.abs(answer.prediction - expected[part]).max() <= 1e-9
            seen["right" if near else "wrong"] += 1
    counts.update(seen)
