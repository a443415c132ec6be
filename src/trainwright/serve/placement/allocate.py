"""tw.serve.allocate: a plan for an ensemble on devices, searched for with a cost, beside what simpler means reach."""

import itertools
import math
import statistics
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Literal

import numpy as np

from trainwright.cluster import Cluster
from trainwright.ensemble import Ensemble
from trainwright.errors import AllocationError, DeviceError, ServeConfigError
from trainwright.serve.placement.cost import PlacementCost
from trainwright.serve.placement.deployment_plan import BATCHES, DeploymentPlan, digest_of
from trainwright.serve.placement.devices import Device, parse_devices, room_of, simulated_devices
from trainwright.serve.placement.greedy import BoundedGreedy, SearchResult
from trainwright.serve.placement.memory_model import MemoryModel
from trainwright.serve.placement.objectives import P99, Objective, Throughput
from trainwright.serve.placement.placement import Matrix, Placement
from trainwright.serve.placement.placement_space import PlacementSpace
from trainwright.serve.placement.profile_cost import ProfileCost
from trainwright.serve.placement.relaxation import place_by_relaxation, upper_bound
from trainwright.serve.placement.time_tables import TimeTables
from trainwright.serve.placement.units import Unit, packed_units, single_units
from trainwright.serve.placement.worst_fit import worst_fit

__all__ = ["allocate", "placed"]

_START_BATCH = 8
_BOUNDS: Mapping[bool, Mapping[str, int]] = {True: {}, False: {"kicks": 2, "max_tried": 1000}}  # latencies take longer
_MOST_COLUMNS = 16  # choices of fused units from which a search starts
_REAL_STEPS, _TURNS = 3, 3  # of a search by running, and of the last comparison
_WINDOW_SECONDS = 0.2  # for which a placement is loaded in each turn, after as long a warm-up
_LEAST_GAIN, _LEAST_SINGLE, _GREAT_GAIN = 1.1, 0.9, 3.0  # of worker processes over none, see `_compare_in_process`


def allocate(
    ensemble: Ensemble,
    devices: str | Iterable[str | Device] | None = None,
    *,
    cluster: Cluster | Sequence[Cluster] | None = None,
    objective: Objective | None = None,
    cost: Literal["profile", "real"] | PlacementCost = "profile",
    tables: TimeTables | None = None,
    memory: MemoryModel | None = None,
    batches: Sequence[int] = BATCHES,
    search: BoundedGreedy | None = None,
    seed: int = 0,
) -> DeploymentPlan:
    """Return the best plan found for an ensemble on `devices` of this machine, or on the simulated ones of `cluster`.

    `cost` "profile" judges placements by time tables: measured on devices that are here, by the roofline on simulated
    ones, or those given as `tables` (with `memory`). "real" goes on from there by running placements in processes of
    their own, of each step those that are expected to be best; this takes minutes. A `Cost` of your own is taken as it
    is. Several clusters make a heterogeneous set.

    The plan's `expected` and `measured` hold the value, and what worst fit, and worst fit with batch sizes tuned, reach
    by the same means: rows a second, or minus seconds for `P99`. `bound` is what no placement exceeds; between `low`
    and `high` lies the value, as far as the measured times are known.

    On a group of cores there are never more instances than cores: of more members some share a process. What was timed
    here for one group of cores alone is also run, and compared with computing in the calling process
    (`measured["in_process"]`). Worker processes are taken if they pay for what it costs to hand work over.

    Raises DeviceError for devices that are not there, AllocationError if the ensemble does not fit, ServeConfigError
    for a latency that nothing meets.
    """
    goal = Throughput() if objective is None else objective
    settings = search if search is not None else BoundedGreedy(seed=seed, **_BOUNDS[goal == Throughput()])
    found, clusters = _parse_or_simulate(devices, cluster)
    if cost == "real" and clusters:
        raise ServeConfigError("cost: got 'real' for simulated devices; allowed: 'profile', or devices= that are here")
    # Time tables: given, traced on simulated devices, or measured here.
    judge: PlacementCost
    timed_here = isinstance(cost, str) and tables is None and not clusters
    if isinstance(cost, str):
        if tables is None:
            tables, traced = _make_tables(ensemble, found, clusters, batches)
            memory = traced if memory is None else memory
        _check_reachable(goal, tables, found)
        judge = ProfileCost(devices=found, tables=tables, objective=goal, seed=seed)
    else:
        judge = cost
    # The space to search, and worst fit in it, from which every search starts.
    model = MemoryModel.assumed(ensemble) if memory is None else memory
    fusable = tables.fusable() if tables is not None else ()
    space = PlacementSpace(devices=found, batches=tuple(batches), memory=model, fusable=fusable)
    space, start = _worst_fit_start(space, _member_weights(ensemble, tables))
    members = len(ensemble.members)
    # No loop exceeds the bound of its members: on one device they share its time as well as a loop does.
    columns = list(itertools.islice(_unit_choices(single_units(members), fusable), _MOST_COLUMNS + 1))
    # The bound of the relaxation holds for throughput alone, and for few choices of columns.
    bound = None
    if isinstance(judge, ProfileCost) and goal == Throughput() and len(columns) <= _MOST_COLUMNS:
        bound = max(upper_bound(units, space, judge) for units in columns)
    starts: list[Placement] = []
    # From single members to a fused unit is a long way, of which each step must pay.
    if isinstance(judge, ProfileCost):
        looped = _single_loop(members, found)
        relaxations = (
            place_by_relaxation(units, space, judge) for units in dict.fromkeys([*columns[:_MOST_COLUMNS], *looped])
        )
        starts = [one for one in relaxations if one is not None]
    best, tuned, results = _search_all((start, *starts), space, judge, settings, bound)
    expected = {"value": best.value, "worst_fit": results[0].start_value, "batch_only": tuned.value}
    if bound is not None:
        expected["bound"] = bound
    placement, measured, in_process = best.placement, dict[str, float](), False
    if cost == "real" and isinstance(judge, ProfileCost):
        placement, measured = _search_by_running(ensemble, space, judge, settings, (start, tuned.placement, placement))
    elif timed_here and goal == Throughput() and isinstance(judge, ProfileCost):
        placement, measured, in_process = _compare_in_process(ensemble, space, judge, placement)
    # The value again with all times at either end of their intervals.
    if tables is not None and tables.spread:
        expected["value"] = judge.measure([placement])[0].value
        ends = [ProfileCost(devices=found, tables=tables.at(end), objective=goal, seed=seed) for end in (1, -1)]
        expected["low"], expected["high"] = (end.measure([placement])[0].value for end in ends)
    return DeploymentPlan(
        ensemble=digest_of(ensemble),
        devices=found,
        units=placement.units,
        matrix=placement.matrix,
        objective=goal.name,
        expected={name: value for name, value in expected.items() if math.isfinite(value)},
        measured={name: value for name, value in measured.items() if math.isfinite(value)},
        search={
            "cost": cost if isinstance(cost, str) else "given",
            "times": None if tables is None else tables.source,
            "stopped": best.stopped,
            "steps": sum(result.steps for result in results),
            "tried": sum(result.tried for result in results),
            "seed": settings.seed,
        },
        tables=tables,
        memory=model,
        in_process=in_process,
    )


def placed(
    ensemble: Ensemble,
    devices: str | Iterable[str | Device],
    *,
    objective: Objective | None = None,
    cost: Literal["profile", "real"] = "profile",
    seed: int = 0,
) -> DeploymentPlan:
    """Return what `allocate` finds; `DeploymentPlan.simple` where members cannot be timed and nothing asks for it."""
    from trainwright.serve.placement.timing import can_be_timed

    goal = Throughput() if objective is None else objective
    if goal == Throughput() and cost == "profile" and not can_be_timed(ensemble):
        return DeploymentPlan.simple(ensemble, devices)
    return allocate(ensemble, devices, objective=goal, cost=cost, seed=seed)


def _unit_choices(units: tuple[Unit, ...], fusable: Sequence[Unit]) -> Iterator[tuple[Unit, ...]]:
    """Yield these units, and them with every set of fused ones that share no member in place of what they hold."""
    yield units
    for size in range(1, len(fusable) + 1):
        for chosen in itertools.combinations(fusable, size):
            held = [member for unit in chosen for member in unit.members]
            rest = [unit for unit in units if not set(unit.members) & set(held)]
            if len(set(held)) == len(held) and sum(len(unit.members) for unit in (*chosen, *rest)) == sum(
                len(unit.members) for unit in units
            ):
                yield tuple(sorted((*chosen, *rest)))


def _search_all(
    starts: Sequence[Placement],
    space: PlacementSpace,
    judge: PlacementCost,
    settings: BoundedGreedy,
    bound: float | None,
) -> tuple[SearchResult, SearchResult, list[SearchResult]]:
    """Return the best end, that of tuning batch sizes alone, and all ends, that from the first start, worst fit, first.

    The others are relaxations, one for each choice of columns.
    """
    most = math.inf if bound is None else bound
    start, *others = starts
    results = [settings.search(other, space, judge, bound=most) for other in others]
    # Then worst fit is only measured.
    met = any(result.stopped == "optimum" for result in results)
    climb = replace(settings, max_steps=0, kicks=0) if met else settings
    results.insert(0, climb.search(start, space, judge, bound=most))
    tuned = replace(settings, kicks=0).search(start, replace(space, moves=("batch",)), judge)
    best = max(results, key=lambda result: result.value)
    if not judge.noisy and tuned.value > best.value:
        best = tuned
    if not math.isfinite(best.value):
        raise AllocationError(
            "allocate: every placement that was tried failed; allowed: an ensemble that runs on the devices"
        )
    return best, tuned, results


def _search_by_running(
    ensemble: Ensemble,
    space: PlacementSpace,
    judge: ProfileCost,
    settings: BoundedGreedy,
    placements: tuple[Placement, Placement, Placement],
) -> tuple[Placement, dict[str, float]]:
    """Go on from the last of worst fit, tuned batches and the best expected, by running; measure all in turns."""
    from trainwright.serve.placement.real_cost import RealCost, Screened

    real = RealCost(ensemble=ensemble, devices=space.devices, objective=judge.objective)
    short = replace(settings, max_steps=min(settings.max_steps, _REAL_STEPS), repeats=2)
    start, tuned, expected = placements
    found = short.search(expected, space, Screened(cost=real, by=judge)).placement
    different = list(dict.fromkeys([start, tuned, found]))
    turns = [real.measure(different) for _ in range(_TURNS)]
    values = {one: statistics.median(turn[place].value for turn in turns) for place, one in enumerate(different)}
    measured = {"worst_fit": values[start], "batch_only": values[tuned], "value": values[found]}
    if values[found] == -math.inf:
        why = turns[-1][different.index(found)].failed
        raise AllocationError(
            f"allocate: the plan that was found does not run ({why}); allowed: an ensemble that runs on the devices"
        )
    return found, {**measured, "placements": float(real.measured)}


def _compare_in_process(
    ensemble: Ensemble, space: PlacementSpace, judge: ProfileCost, found: Placement
) -> tuple[Placement, dict[str, float], bool]:
    """Return the placement, or that of all members in the calling process if that serves better; measured.

    What it takes to hand rows to another process and to wake it is in no time table. Worker processes are chosen if
    they answer more under load, unless a lone client's single rows would take longer than without them; several times
    as much under load outweighs that.
    """
    [device, *others] = space.devices
    if others or device.kind != "cpu" or device.simulated:
        return found, {}, False
    # In this process all members are computed in turn, with the batch that gives most rows a second.
    members = tuple(range(len(ensemble.members)))
    unit = Unit(members=members, kind="loop" if len(members) > 1 else "process")
    rates = np.array(judge.tables.batches) / judge.unit_seconds((unit,))[0, 0]
    best = max(space.batches, key=lambda batch: np.nan_to_num(rates)[judge.tables.batches.index(batch)])
    here = Placement((unit,), ((best,),))
    from trainwright.serve.placement.real_cost import RealCost

    real = RealCost(ensemble=ensemble, devices=space.devices, seconds=_WINDOW_SECONDS)
    workers, inside = real.in_turns([(found, False), (here, True)], _TURNS)
    # Under load workers may use more cores; single rows show what handing over costs.
    gain = workers.loaded / max(inside.loaded, 1e-9)
    single_rows = workers.single / max(inside.single, 1e-9)
    measured = {"in_process": inside.loaded}
    if gain > _LEAST_GAIN and (single_rows > _LEAST_SINGLE or gain > _GREAT_GAIN):
        return found, {"value": workers.loaded, **measured}, False
    return here, {"value": inside.loaded, **measured}, True


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


def _make_tables(
    ensemble: Ensemble, devices: Sequence[Device], clusters: Sequence[Cluster], batches: Sequence[int]
) -> tuple[TimeTables, MemoryModel]:
    """Return time tables and memory: by the roofline of simulated devices, or measured."""
    if clusters:
        from trainwright.serve.placement.roofline import simulated_tables

        return simulated_tables(ensemble, clusters, batches)
    from trainwright.serve.placement.timing import measure_times

    return measure_times(ensemble, devices, batches)


def _check_reachable(goal: Objective, tables: TimeTables, devices: Sequence[Device]) -> None:
    least = 1e3 * tables.least_seconds(devices)
    if isinstance(goal, P99) or goal.slo_ms is None or goal.slo_ms > least:
        return
    raise ServeConfigError(
        f"objective: got a latency of {goal.slo_ms:g} ms, but the fastest single batch of the slowest member takes "
        f"{least:.3g} ms; allowed: more than that"
    )


def _member_weights(ensemble: Ensemble, tables: TimeTables | None) -> list[float]:
    """Return what a member weighs beside others: its time at the largest batch if that is known, else its bytes."""
    if tables is not None:
        seconds = np.nansum([np.nanmax(table, axis=1) for table in tables.seconds.values()], axis=0)
        return [float(one) for one in seconds]
    return [float(member.weight_bytes or 1) for member in ensemble.members]


def _single_loop(members: int, devices: Sequence[Device]) -> list[tuple[Unit, ...]]:
    """Return the units of one process that computes all members in turn, where cores are what limits processes."""
    if members < 2 or not any(device.room for device in devices):
        return []
    return [(Unit(members=tuple(range(members)), kind="loop"),)]


def _worst_fit_start(space: PlacementSpace, weights: Sequence[float]) -> tuple[PlacementSpace, Placement]:
    """Return worst fit of a process each, or of as many as there are cores, with several members in turn in each.

    Where these do not fit, all members are in one, and any two units may be: a loop saves contexts.
    """
    members, units = len(weights), packed_units(weights, room_of(space.devices))
    try:
        return space, Placement(units, _worst_fit(space, units))
    except AllocationError as error:
        if members == 1:
            raise
        looped = (Unit(members=tuple(range(members)), kind="loop"),)
        try:
            return replace(space, loops=True), Placement(looped, _worst_fit(space, looped))
        except AllocationError:
            raise error from None


def _worst_fit(space: PlacementSpace, units: tuple[Unit, ...]) -> Matrix:
    """Return worst fit at 8 rows, or at the next smaller batch that fits."""
    smaller = [batch for batch in space.batches if batch <= max(_START_BATCH, space.batches[0])]
    for batch in reversed(smaller[1:]):
        try:
            return worst_fit(space.devices, units, space.memory, batch=batch, room=space.room)
        except AllocationError:
            continue
    return worst_fit(space.devices, units, space.memory, batch=smaller[0], room=space.room)
