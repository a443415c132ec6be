"""Simulates a study: forecasts on a simulated cluster, from given curves or its own, and what ends by a deadline."""

from collections.abc import Mapping
from itertools import groupby, pairwise
from operator import attrgetter
from statistics import median, mode
from typing import Any, Required, TypedDict, Unpack, overload

import numpy as np

from trainwright.cluster import Cluster
from trainwright.engine import Engine
from trainwright.engine.protocol import node_shapes
from trainwright.engine.simulated.settings import Simulated
from trainwright.engine.simulated.table import Table
from trainwright.errors import StudyError
from trainwright.ledger import Objective, State, TrialState
from trainwright.ledger.objectives import losses_of
from trainwright.ledger.trials import Report
from trainwright.schedule import AllocationPolicy, PromotionRule, Scheduler
from trainwright.search import Searcher
from trainwright.study.forecast.forecast import Forecast, SearchSetup, forecasts
from trainwright.study.inspecting import Inspecting

__all__ = ["Simulating", "SimulationOptions", "expect_by_deadline", "outcome_by_deadline"]

AnyScheduler = Scheduler | PromotionRule | AllocationPolicy


class SimulationOptions(TypedDict, total=False):
    """What `Study.simulate` takes beside schedulers; see there."""

    engine: Required[Simulated]
    searcher: Searcher | None
    trials: int | None
    wall_seconds: float | None
    device_seconds: float | None
    deadline_seconds: float | None
    seeds: int


class Simulating(Inspecting):
    """The part of a study that simulates."""

    @overload
    def simulate(self, scheduler: AnyScheduler, **options: Unpack[SimulationOptions]) -> Forecast: ...
    @overload
    def simulate(
        self, scheduler: Mapping[str, AnyScheduler], **options: Unpack[SimulationOptions]
    ) -> dict[str, Forecast]: ...
    def simulate(
        self, scheduler: AnyScheduler | Mapping[str, AnyScheduler], **options: Unpack[SimulationOptions]
    ) -> Forecast | dict[str, Forecast]:
        """Forecast a study of so many `trials`, or of so much time, under a scheduler or several by name on `engine`.

        At the end of `wall_seconds`, or when `device_seconds` are used, all that runs is cut off; before
        `deadline_seconds` the best train to their end first, as before the `deadline` of `run`. `seeds` studies (30)
        are simulated, under the same draws for each scheduler; nothing is trained and nothing recorded. With a
        `searcher` trials have the parameters that it proposes, which the engine's task must know (a table).
        """
        by_name = scheduler if isinstance(scheduler, Mapping) else {"": scheduler}
        search = None
        if (searcher := options.get("searcher")) is not None:
            count = len(self.objectives)
            bounds = tuple(self.state.limits[:count])
            search = SearchSetup(searcher=searcher, space=self.space, objectives=count, bounds=bounds)
        schedulers = {name: Scheduler.of(each) for name, each in by_name.items()}
        limits: dict[str, Any] = {name: value for name, value in options.items() if name != "searcher"}
        found = forecasts(schedulers, first_seed=self.seed, search=search, **limits)
        return found if isinstance(scheduler, Mapping) else found[""]

    def measured(self, cluster: Cluster) -> Simulated:
        """Return a simulated `cluster` whose trials are this study's own, drawn anew, with its restarts' cost.

        A trial that was stopped goes on, if another rule lets it, as those went on that were not.
        """
        return _measure_study(self.state, cluster)


def _measure_study(state: State, cluster: Cluster) -> Simulated:
    """Return the simulated cluster of a study's own curves, times of epochs and times of restarts."""
    objectives = [outcome for outcome in state.outcomes if isinstance(outcome, Objective)]
    curves, times, params, restarts, resizes = [], [], [], [], list[float]()
    gaps, firsts = _measure_gaps(state)
    processes = []
    for number in sorted(state.trials):
        trial = state.trials[number]
        losses = [losses_of(objectives, trial.reports[epoch].metrics) for epoch in sorted(trial.reports)]
        if not losses:
            continue
        seconds, starts, changes = _measure_epochs(trial)
        restarts.append(starts)
        resizes += changes
        if number in firsts and len(seconds) > 1:
            # What its first epoch took longer, such as imports, is the new process's.
            processes.append(firsts[number] + starts[0])
            seconds[0] -= starts[0]
        if sorted(trial.reports) == list(range(1, len(losses) + 1)) and None not in losses:
            curves.append(np.array(losses, dtype=float))
            times.append(seconds)
            params.append(trial.params)
    if not curves:
        raise StudyError("measured: no trial of this study has reported yet; simulate with tw.Parametric() instead")
    known = tuple(map(len, curves))
    longest = max(known)
    full = [curve for curve in curves if len(curve) == longest]
    # Curves of stopped trials are continued as the longest ones went on, in the median.
    usual = np.median([_make_finite(curve) for curve in full], axis=0)
    continued = [
        np.concatenate([curve, curve[-1] + usual[at:] - usual[at - 1]]) for curve, at in zip(curves, known, strict=True)
    ]
    leases = [lease for trial in state.trials.values() for lease in trial.leases.values()]
    start = median(gaps or [0.0])
    # A study without restarts knows at least what a start takes.
    costs = [cost for _, *later in restarts for cost in later] or [first for first, *_ in restarts]
    # Without checkpoints every restart began at the first epoch, and will in the simulation.
    again = [lease for lease in leases if lease.number > 1]
    restart = start + median(costs)
    return Simulated(
        cluster=cluster,
        task=Table(
            losses=tuple(continued),
            seconds=tuple(np.cumsum([*each, *[median(each)] * (longest - len(each))]) for each in times),
            params=tuple(params),
            measured=known,
            missing="nearest",
        ),
        task_devices=mode([max(1, len(lease.devices)) for lease in leases]),
        start_seconds=start,
        restart_seconds=restart,
        resize_seconds=max(0.0, median(resizes or [restart]) - restart),
        process_seconds=max(0.0, median(processes or [0.0]) - start),
        resume=not again or any(lease.resumed_epoch for lease in again),
    )


def _make_finite(curve: np.ndarray) -> np.ndarray:
    """Return a curve whose infinite losses are its worst finite one: differences are taken of it."""
    worst: float = curve[np.isfinite(curve)].max(initial=0.0)
    finite: np.ndarray = np.nan_to_num(curve, nan=worst, posinf=worst)
    return finite


def _measure_epochs(trial: TrialState) -> tuple[list[float], list[float], list[float]]:
    """Return the seconds of each epoch, how much longer than most the first epoch of each run took, and resizes.

    The first epoch after a restart counts as long as most, as the start is part of it; so does every epoch on another
    number of devices than at first, whose runs are told of by the seconds of their resizes.
    """
    reports = [trial.reports[epoch] for epoch in sorted(trial.reports)]
    runs = [list(run) for _, run in groupby(reports, key=attrgetter("lease"))]
    leases = [trial.leases[run[0].lease] for run in runs]
    seconds = [np.diff([report.wall_seconds for report in run], prepend=run[0].setup_seconds) for run in runs]
    alike = [len(lease.devices) == len(leases[0].devices) for lease in leases]
    # Later runs begin with a short epoch where their process has imported everything.
    known = np.concatenate([run for run, same in zip(seconds, alike, strict=True) if same])
    usual = float(np.median(known[1:] if len(known) > 1 else known))
    firsts, resizes = [], []
    for run, own, lease, same in zip(runs, seconds, leases, alike, strict=True):
        longer = max(0.0, float(own[0] - (usual if same else np.median(own[1:] if len(own) > 1 else own))))
        before = trial.leases.get(lease.number - 1)
        if before is not None and before.end is not None and before.end.reason == "resized":
            resizes.append(max(0.0, _began(run[0]) - before.end.at) + longer)
        if same:
            firsts.append(longer)
        if not same:
            own[:] = usual
        elif run is not runs[0]:
            own[0] = usual
    return np.maximum(1e-9, np.concatenate(seconds)).tolist(), firsts, resizes


def _measure_gaps(state: State) -> tuple[list[float], dict[int, float]]:
    """Return the seconds until a run trained after the last report of the one before in its slot; and of each first.

    The first run of a slot, which waits for its process, is told by its trial.
    """
    # By slot: when a run trained, its last report, when it was started, and its trial.
    runs: dict[tuple[str, str], list[tuple[float, float, float, int]]] = {}
    for trial in state.trials.values():
        for lease in trial.leases.values():
            reports = [report for report in trial.reports.values() if report.lease == lease.number]
            # What a change of its devices takes is told by the trial.
            if reports and len(lease.devices) == len(trial.leases[min(trial.leases)].devices):
                # By the clock of the reports: a lease's own start includes the wait for its process.
                began = _began(min(reports))
                ended, started = max(report.at for report in reports), lease.started_at or began
                runs.setdefault((lease.writer, lease.slot), []).append((began, ended, started, trial.number))
    pairs = [pair for each in runs.values() for pair in pairwise(sorted(each))]
    firsts = {trial: max(0.0, began - started) for began, _, started, trial in map(min, runs.values())}
    return [max(0.0, after[0] - before[1]) for before, after in pairs], firsts


def _began(report: Report) -> float:
    """Return when the first epoch of a run began, by its first report."""
    return report.at - report.wall_seconds + report.setup_seconds


_STUDIES = 10


def expect_by_deadline(study: Simulating, scheduler: Scheduler, engine: Engine, seconds: float) -> str | None:
    """Return what simulations of the study's own trials come to by the deadline; None if too few epochs are known."""
    length = scheduler.rule.max_epochs
    if length is None or len(study.objectives) > 1 or not any(trial.epoch >= length for trial in study.trials):
        return None
    sizes, speeds = zip(*node_shapes(engine), strict=True)
    cluster = Cluster(len(sizes), max(sizes), node_devices=sizes, node_speeds=speeds)
    try:
        found = study.simulate(scheduler, engine=study.measured(cluster), deadline_seconds=seconds, seeds=_STUDIES)
    except StudyError:  # nothing of the study can be simulated
        return None
    (goal,) = study.objectives
    sign = 1 if goal.loss(1.0) > 0 else -1
    best, full = found.full_loss, found.full
    more = f"{full.low:.0f} to {full.high:.0f} more trials complete by the deadline"
    if full.mean < 1:
        return f"forecast: {more}; fewer epochs, or more devices a trial, would bring more"
    ends = sorted(sign * loss for loss in (best.low, best.high))
    return f"forecast: {more}, the best of them with {goal.metric} from {ends[0]:.4g} to {ends[1]:.4g}"


def outcome_by_deadline(state: State, before: int, best: str) -> str:
    """Return how many trials are complete beyond those `before`, and which is the best."""
    return f"deadline: {state.counts['complete'] - before} more trials are complete; {best or 'none has a result'}"
