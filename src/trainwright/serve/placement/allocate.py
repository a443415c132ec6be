"""tw.serve.allocate: the plan for an ensemble on devices that answers most rows a second.

On a processor plans are also compared by running them: what it takes to hand rows to another process and to wake it,
and what processes side by side take from each other, is in no time table.
"""

import time
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Future
from dataclasses import replace
from typing import NoReturn

import numpy as np

from trainwright.cluster import Cluster
from trainwright.ensemble import Ensemble
from trainwright.errors import AllocationError, DeviceError, ServeError
from trainwright.serve.deployment import Deployment
from trainwright.serve.placement.deployment_plan import BATCHES, DeploymentPlan, digest_of
from trainwright.serve.placement.devices import Device, parse_devices, room_of, simulated_devices
from trainwright.serve.placement.integer_program import PlacementProblem, PlacementSolution
from trainwright.serve.placement.timing import can_be_timed, measure_times
from trainwright.serve.placement.units import MemoryModel, TimeTables, Unit, packed_units
from trainwright.serve.service import DeploymentSettings, Response

__all__ = ["allocate", "allocate_or_pack"]

_TURNS = 3
_LOADED_ROWS = 128  # of a request under load
_WINDOW_SECONDS = 0.2  # for which a plan is loaded in each turn, half of it by a lone client
_LIMIT_SECONDS = 60.0  # of one answer
_FAST = 32_000  # rows a second, of which a batch is not worth its hand-over to another process
_LEAST_GAIN, _LEAST_SINGLE, _GREAT_GAIN = 1.1, 0.9, 3.0  # of worker processes over none, see `_find_fastest`


def allocate(
    ensemble: Ensemble,
    devices: str | Iterable[str | Device] | None = None,
    *,
    cluster: Cluster | Sequence[Cluster] | None = None,
    tables: TimeTables | None = None,
    memory: MemoryModel | None = None,
    batches: Sequence[int] = BATCHES,
) -> DeploymentPlan:
    """Return the plan with most rows a second on `devices` of this machine, or on the simulated ones of `cluster`.

    Placements are judged by time tables: measured on devices that are here, by the roofline on simulated ones, or those
    given as `tables` (with `memory`). Several clusters make a heterogeneous set.

    The plan's `expected` holds the rows a second, `bound`, which no placement of these units exceeds, and of measured
    times their `spread`, the share by which a batch's time varies (the range of the middle half). A group of
    cores never has more instances than cores: of more members some share a process. What was timed here for one group
    of cores is also run (`measured`): in the calling process, and unless that is fast anyhow, as a whole and with its
    cores apart. Worker processes are taken if they pay for handing work over.

    Raises DeviceError for devices that are not there, AllocationError if the ensemble does not fit.
    """
    found, clusters = _parse_or_simulate(devices, cluster)
    # Several groups of cores are also tried as one device for each core, where members run side by side.
    timed_here = tables is None and not clusters
    cores = tuple(part for device in found for part in device.parts(device.room or 1))
    device_sets = list(dict.fromkeys([found, cores])) if timed_here else [found]
    if clusters and tables is None:
        from trainwright.serve.placement.roofline import simulated_tables

        tables, known = simulated_tables(ensemble, clusters, batches)
        memory = memory or known
    elif tables is None:
        every = list(dict.fromkeys(device for one in device_sets for device in one))
        tables, known = measure_times(ensemble, every, batches)
        memory = memory or known
    model = MemoryModel.assumed(ensemble) if memory is None else memory
    plans = [_search(ensemble, one, tables, model) for one in device_sets]
    feasible = [plan for plan in plans if plan is not None]
    if not feasible:
        _refuse_ensemble(found, tables, model)
    # Times say nothing of what processes cost: on one group of cores the candidates are run.
    best = max(feasible, key=lambda plan: plan.expected["value"])
    [first, *others] = found
    if not timed_here or others or first.kind != "cpu":
        return best
    here = _in_process_plan(feasible[0], first, tables)
    return _find_fastest(ensemble, [here] if here.expected["value"] >= _FAST else [*feasible, here])


def allocate_or_pack(ensemble: Ensemble, devices: str | Iterable[str | Device]) -> DeploymentPlan:
    """Return what `allocate` finds; `DeploymentPlan.simple` where members cannot be timed."""
    return allocate(ensemble, devices) if can_be_timed(ensemble) else DeploymentPlan.simple(ensemble, devices)


def _find_fastest(ensemble: Ensemble, plans: Sequence[DeploymentPlan]) -> DeploymentPlan:
    """Return the plan with most rows a second of those that run, with what was `measured`.

    Worker processes are chosen if they answer more under load, unless a lone client's single rows would take longer
    than without them; several times as much under load outweighs that. Raises ServeError if no plan runs.
    """
    # A plan whose workers end even once is none to choose, and a queue without a limit refuses no load.
    settings = DeploymentSettings(start_seconds=120.0, queue_rows=1_000_000, failures=1, move=False)
    services = [(plan, Deployment(ensemble, plan, settings=settings)) for plan in plans]
    running: list[tuple[DeploymentPlan, Deployment]] = []
    failure: Exception | None = None
    try:
        for plan, service in services:
            try:
                service.start()
                # Warms up, and finds members that fail only under load.
                _measure_rates(service)
                running.append((plan, service))
            except (ServeError, TimeoutError) as error:
                failure = error
        # In turns, so that what disturbs the machine disturbs all alike; the others are idle meanwhile.
        turns = [[_measure_rates(one) for _, one in running] for _ in range(_TURNS)]
    finally:
        for _, service in services:
            service.drain(0.0)
    if not running:
        raise ServeError(f"allocate: no plan runs here ({failure}); allowed: an ensemble that does")
    rates = np.median(turns, axis=0).tolist()
    # The best of those with workers, if any runs.
    best = max(range(len(running)), key=lambda place: rates[place][0] * (not running[place][0].in_process))
    plan, (loaded, single) = running[best][0], rates[best]
    measured = {"value": loaded}
    for (other, _), (other_loaded, other_single) in zip(running, rates, strict=True):
        if other.in_process:
            measured["in_process"] = other_loaded
            # Under load workers may use more cores; single rows show what handing over costs.
            gain = loaded / other_loaded
            if gain <= _LEAST_GAIN or (single / other_single <= _LEAST_SINGLE and gain <= _GREAT_GAIN):
                return replace(other, measured={**measured, "value": other_loaded})
    return replace(plan, measured=measured)


def _measure(service: Deployment, rows: int, requests: int, seconds: float) -> float:
    """Return the rows a second while so many requests of `rows` rows always wait."""
    x = np.zeros((rows, *service.input_shape), dtype=service.input_dtype)
    waiting: deque[Future[Response]] = deque(service.submit(x) for _ in range(requests))
    done, started = 0, time.monotonic()
    while (taken := time.monotonic() - started) < seconds or not done:
        waiting.popleft().result(timeout=_LIMIT_SECONDS)
        done += rows
        waiting.append(service.submit(x))
    for future in waiting:
        future.result(timeout=_LIMIT_SECONDS)
    return done / taken


def _measure_rates(service: Deployment) -> tuple[float, float]:
    # So many requests at once that no instance waits for the next one; then single rows.
    loaded = _measure(service, _LOADED_ROWS, 4 + 2 * len(service.plan.instances), _WINDOW_SECONDS)
    return loaded, _measure(service, 1, 1, _WINDOW_SECONDS / 2)


def _search(
    ensemble: Ensemble, devices: tuple[Device, ...], tables: TimeTables, memory: MemoryModel
) -> DeploymentPlan | None:
    """Return the best plan over the ways to pack members into processes; None if nothing fits."""
    best: tuple[PlacementProblem, PlacementSolution] | None = None
    for units in _list_packings(tables, devices):
        problem = PlacementProblem(
            devices=devices,
            units=units,
            batches=tables.batches,
            seconds=tables.of_units(units, devices),
            memory=memory,
        )
        solution = problem.solve()
        # Of equals the packing with most processes: a crash then loses fewest members.
        if solution is not None and (best is None or solution.value > best[1].value * (1 + 1e-3)):
            best = problem, solution
    if best is None:
        return None
    problem, solution = best
    return DeploymentPlan(
        ensemble=digest_of(ensemble),
        devices=devices,
        units=problem.units,
        matrix=solution.matrix,
        expected={
            "value": solution.value,
            "bound": solution.bound,
            **({"spread": tables.spread} if tables.source == "measured" else {}),
        },
        source=tables.source,
    )


def _list_packings(tables: TimeTables, devices: Sequence[Device]) -> Iterator[tuple[Unit, ...]]:
    """Yield a process for each member, as many as there are cores, and one process for all."""
    # What a member weighs compared with others: its time at the largest batch.
    weights = np.nansum([np.nanmax(table, axis=1) for table in tables.seconds.values()], axis=0).tolist()
    # One process for all saves contexts where memory is short.
    rooms = [len(weights), room_of(devices), 1]
    yield from dict.fromkeys(packed_units(weights, room) for room in rooms)


def _refuse_ensemble(devices: tuple[Device, ...], tables: TimeTables, memory: MemoryModel) -> NoReturn:
    """Raise AllocationError, with the bytes of one process that holds all members."""
    unit = Unit(members=tuple(range(len(memory.footprints))))
    needed = [memory.needed(unit, device, min(tables.batches)) for device in devices]
    table = "; ".join(
        f"{device.name}: needed {need}, free {memory.free(device)} of {device.capacity_bytes}"
        for device, need in zip(devices, needed, strict=True)
    )
    raise AllocationError(
        f"allocate: no placement was found; bytes of all members in one process with batches of {min(tables.batches)} "
        f"rows: {table}; allowed: devices that hold every member, a device more, or an ensemble with fewer members"
    )


def _in_process_plan(plan: DeploymentPlan, device: Device, tables: TimeTables) -> DeploymentPlan:
    """Return the plan that computes all members in the calling process, which chooses smaller batches if it pays."""
    unit = Unit(members=tuple(range(sum(len(one.members) for one in plan.units))))
    # Batches that took too long to be timed have no rate.
    rates = np.nan_to_num(np.array(tables.batches) / tables.of_units([unit], [device])[0, 0])
    batch = tables.batches[int(np.flatnonzero(rates)[-1])]
    expected = {**plan.expected, "value": float(rates.max()), "bound": float(rates.max())}
    return replace(plan, devices=(device,), units=(unit,), matrix=((batch,),), expected=expected, in_process=True)


def _parse_or_simulate(
    devices: str | Iterable[str | Device] | None, cluster: Cluster | Sequence[Cluster] | None
) -> tuple[tuple[Device, ...], list[Cluster]]:
    if cluster is None and devices is not None:
        return parse_devices(devices), []
    if cluster is None or devices is not None:
        given = "neither" if devices is None else "both"
        raise DeviceError(f"allocate: got {given} of devices and cluster; allowed: one of them")
    clusters = [cluster] if isinstance(cluster, Cluster) else list(cluster)
    return simulated_devices(clusters), clusters
