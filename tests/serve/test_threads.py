"""Threads and cores: no plan gives a group of cores more than it has, and workers wait without spinning."""

import dataclasses
import math
import os
import sys
import types

import numpy as np
import pytest
from allocation_for_tests import GB, ensemble
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from trainwright.ensemble.library.cost import time_calls
from trainwright.randomness import rng
from trainwright.serve import DeploymentPlan, TimeTables, allocate
from trainwright.serve.placement import devices as devices_module
from trainwright.serve.placement.devices import parse_devices, share_devices, thread_environment
from trainwright.serve.placement.units import MemberFootprint, MemoryModel, packed_units

BATCHES = (1, 8, 64)


@st.composite
def hosts(draw):
    """Return cores, what a quota grants of them, OMP_NUM_THREADS, and names of devices that divide the cores."""
    cores = draw(st.integers(1, 9))
    cuts = sorted(draw(st.sets(st.integers(1, cores - 1), max_size=3))) if cores > 1 else []
    groups = [f"cpu:{first}-{last - 1}" for first, last in zip([0, *cuts], [*cuts, cores], strict=True)]
    granted = draw(st.one_of(st.none(), st.floats(0.2, 12.0)))
    return cores, granted, draw(st.sampled_from([None, "1", "2", "4,2", "64", "many"])), groups


def found_on(monkeypatch, host):
    cores, granted, asked, groups = host
    monkeypatch.setattr(os, "sched_getaffinity", lambda _process: set(range(cores)), raising=False)
    monkeypatch.setattr(os, "cpu_count", lambda: cores)
    monkeypatch.setattr(devices_module, "cgroup_cores", lambda: granted)
    monkeypatch.setattr(devices_module, "host_memory_bytes", lambda: 100 * GB)
    if asked is None:
        monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    else:
        monkeypatch.setenv("OMP_NUM_THREADS", asked)
    return parse_devices(groups)


@given(host=hosts(), members=st.integers(1, 12), seed=st.integers(0, 99))
@settings(max_examples=40, deadline=None, suppress_health_check=list(HealthCheck))
def test_every_plan_keeps_to_its_cores(host, members, seed):
    """The simple one and the allocated one."""
    with pytest.MonkeyPatch.context() as monkeypatch:
        found = found_on(monkeypatch, host)
        of = ensemble(*range(1, members + 1))
        draws = rng(seed, "test-threads", members)
        times = np.cumsum(draws.uniform(0.1, 1.0, (members, len(BATCHES))), axis=1)
        tables = TimeTables(batches=BATCHES, seconds={device.model: times for device in found})
        memory = MemoryModel(footprints=(MemberFootprint(weight_bytes=10, row_bytes=1),) * members)
        plans = [
            DeploymentPlan.simple(of, found),
            allocate(of, found, tables=tables, memory=memory, batches=BATCHES),
        ]
        for plan in plans:
            held = [member for unit in plan.units for member in unit.members]
            assert sorted(held) == list(range(members))
            check_threads(plan, host)


@given(host=hosts(), members=st.integers(1, 6), models=st.integers(1, 5))
@settings(max_examples=40, deadline=None, suppress_health_check=list(HealthCheck))
def test_several_models_keep_to_the_cores(host, members, models):
    """Each has its share of the threads, one at least: together they have what one model may have."""
    with pytest.MonkeyPatch.context() as monkeypatch:
        found = found_on(monkeypatch, host)
        of = ensemble(*range(1, members + 1))
        plan = DeploymentPlan.simple(of, share_devices(found, models))
        plan.check(of)
        for device in found:
            threads = sum(one.threads for one in plan.instances if one.device.name == device.name)
            assert models * threads <= max(models, device.room)


def check_threads(plan, host):
    """Assert that no group has more threads than it may, and no process."""
    cores, granted, asked, _ = host
    cap = {"1": 1, "2": 2, "4,2": 4}.get(asked, 64)
    for device in plan.devices:
        threads = [one.threads for one in plan.instances if one.device == device]
        # The room of a group that is parted is parted in whole threads: one part may have one more than its share.
        share = cores if granted is None else max(1, math.ceil(granted * len(device.cores) / cores))
        assert sum(threads) <= min(len(device.cores), share)
        assert all(1 <= each <= cap for each in threads)


def test_members_are_packed_by_weight():
    """As many processes as there are cores, of about equal weight; without a limit one each."""
    names = [unit.name for unit in packed_units([5.0, 1.0, 4.0, 2.0], 2)]
    assert names == ["loop(0,1)", "loop(2,3)"]
    assert [unit.name for unit in packed_units([5.0, 1.0], 2)] == ["0", "1"]
    assert [unit.name for unit in packed_units([5.0, 1.0, 4.0], None)] == ["0", "1", "2"]
    assert [unit.name for unit in packed_units([9.0, 1.0, 1.0], 2)] == ["0", "loop(1,2)"]


def test_workers_wait_without_spinning(monkeypatch):
    """Unless the environment says otherwise; the number of threads is the plan's."""
    for name in ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("OMP_NUM_THREADS", "7")
    told = thread_environment(2)
    assert (told["OMP_WAIT_POLICY"], told["GOMP_SPINCOUNT"], told["KMP_BLOCKTIME"]) == ("PASSIVE", "0", "0")
    assert {told[name] for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")} == {"2"}
    monkeypatch.setenv("OMP_WAIT_POLICY", "ACTIVE")
    assert thread_environment(2)["OMP_WAIT_POLICY"] == "ACTIVE"


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="the environment of a process is read from /proc")
def test_a_worker_has_that_environment(tmp_path, monkeypatch):
    """Before it loads torch, which reads it once."""
    pytest.importorskip("torch")
    from pathlib import Path

    from served_networks import ensemble as networks

    from trainwright.serve import Deployment

    monkeypatch.delenv("OMP_WAIT_POLICY", raising=False)
    found = networks(tmp_path, [{}, {"hidden": 4}])
    with Deployment(found, DeploymentPlan.simple(found, "cpu:0")) as service:
        (pid,) = [one["pid"] for one in service.state()["instances"]]
        told = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    assert {b"OMP_WAIT_POLICY=PASSIVE", b"GOMP_SPINCOUNT=0", b"OMP_NUM_THREADS=1"} <= set(told)


def test_a_start_with_one_slow_batch(monkeypatch):
    """The rate that a worker says at its start, by which the queue is bounded, rests on several batches."""
    from trainwright.serve.runtime import worker

    clock, calls = [0.0], []

    def runner(x, members):
        calls.append(len(x))
        clock[0] += 1.0 if len(calls) in {1, 2} else 0.001  # the second is disturbed
        return iter([(0, np.zeros((len(x), 2)))])

    module = types.ModuleType("a_runner")
    module.make = lambda told: runner
    monkeypatch.setitem(sys.modules, "a_runner", module)
    monkeypatch.setattr(worker, "time_calls", lambda calls, seconds: time_calls(calls, seconds, lambda: clock[0]))
    told = {
        "cores": [], "path": list(sys.path), "runner": "a_runner:make", "batch": 8, "input_shape": [3],
        "input_dtype": "float32", "places": [0],
    }  # fmt: skip
    _, built = worker._load_members(told)
    assert built["seconds"] == pytest.approx(0.001)
    assert (built["output_shape"], built["rows"]) == ([2], 8)


@pytest.mark.parametrize(
    ("workers", "inside", "in_process"),
    [((9.0, 5.0), (10.0, 9.0), True), ((12.0, 9.0), (10.0, 9.0), False), ((12.0, 5.0), (10.0, 9.0), True),
     ((31.0, 5.0), (10.0, 9.0), False)],
)  # fmt: skip
def test_what_serves_better_when_run_is_the_plan(monkeypatch, workers, inside, in_process):
    """By time tables two processes are best; what it costs to hand rows over may make none the better."""
    from trainwright.serve.placement import allocate as search

    found = found_on(monkeypatch, (2, None, None, ["cpu:0-1"]))
    times = np.array([[1.0, 4.0, 20.0], [1.0, 5.0, 35.0], [1.0, 3.0, 15.0]])
    tables = TimeTables(batches=BATCHES, seconds={"cpu x 2": times, "cpu": 1.2 * times}, source="measured")
    memory = MemoryModel(footprints=(MemberFootprint(weight_bytes=10, row_bytes=1),) * 3)
    monkeypatch.setattr(search, "measure_times", lambda *_: (tables, memory))
    asked = []

    class Served:
        def __init__(self, _ensemble, plan, *, settings):
            asked.append(plan)
            self.plan = plan

        def start(self):
            """Nothing to start."""

        def drain(self, seconds):
            """Nothing to end."""

    monkeypatch.setattr(search, "Deployment", Served)
    both_cores = ["cpu:0", "cpu:1"]

    def rates(service):
        if service.plan.in_process:
            return inside
        return workers if [one.name for one in service.plan.devices] == both_cores else (1.0, 1.0)

    monkeypatch.setattr(search, "_measure_rates", rates)
    plan = allocate(ensemble(1, 2, 3), found, batches=BATCHES)
    assert [[one.name for one in each.devices] for each in asked] == [["cpu:0-1"], both_cores, ["cpu:0-1"]]
    assert [each.in_process for each in asked] == [False, False, True]
    assert plan.in_process == in_process
    assert plan == dataclasses.replace(asked[2 if in_process else 1], measured=plan.measured)
    assert plan.measured == {"value": (inside if in_process else workers)[0], "in_process": 10.0}
    assert DeploymentPlan.from_json(plan.to_json()) == plan
    asked.clear()
    assert allocate(ensemble(1, 2, 3), found, tables=tables, memory=memory).measured == {}
    assert asked == []
