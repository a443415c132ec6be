"""Studies of recorded curves: the tables as simulated tasks, and a rule whose reports are noted with their times."""

import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from benchmarks.fidelity.problems import LCBench

from trainwright.cluster import Cluster
from trainwright.engine.simulated.settings import Simulated
from trainwright.engine.simulated.simulation import simulate
from trainwright.engine.simulated.state import SimulatedStudy
from trainwright.engine.simulated.table import Table, tables
from trainwright.engine.simulated.task import Task
from trainwright.randomness import rng
from trainwright.schedule import (
    Continue,
    Event,
    Fixed,
    Promote,
    PromotionRule,
    Reason,
    Reported,
    RuleView,
    Scheduler,
    Stop,
    TrialView,
)
from trainwright.schedule.rules.promotion_rule import WAIT, Clone, Ended, Index, New, Verdict, Wait

__all__ = ["Curves", "Watched", "algoperf", "lcbench", "study", "taskset"]

_EPOCHS = 50  # of AlgoPerf's runs: fiftieths of
_SHARE = 0.9  # the time allowed, that a run must have used
_LEAST = 12  # rows that make a table
_CONFIGURATIONS = 300  # drawn for each of them


@dataclass(frozen=True, kw_only=True)
class Curves:
    """A table of curves that are equally long, lower being better."""

    name: str
    task: Table
    finals: np.ndarray  # losses at the end, +inf if there is none
    seconds: float  # of a whole trial, the median

    @property
    def length(self) -> int:
        """Epochs of a whole trial."""
        return len(self.task.losses[0])

    @property
    def rows(self) -> int:
        """How many configurations there are."""
        return len(self.finals)

    @property
    def aim(self) -> float:
        """A loss that one in a hundred ends with."""
        return float(np.quantile(self.finals, 0.01, method="higher"))

    def regret(self, loss: float) -> float:
        """Return how far a loss is from the best end, in units of the median end's distance from it, at most 1."""
        best, middle = np.quantile(self.finals[np.isfinite(self.finals)], [0.0, 0.5]).tolist()
        return min(1.0, max(0.0, (loss - best) / (middle - best or 1.0))) if math.isfinite(loss) else 1.0


@dataclass(eq=False)
class Watched(PromotionRule):
    """A rule as it is, but for a study that ends at a time; notes who reported what, when.

    `each_epoch`: every epoch is reported, also where no verdict can change. `bracket`: a new trial is started only
    while fewer than so many have been, or once all of the bracket before have come to rest.
    """

    rule: PromotionRule
    until: float = math.inf
    each_epoch: bool = False
    bracket: int = 0
    reports: list[tuple[float, int, int, float]] = field(default_factory=list)  # seconds, trial, epoch, loss
    _begun: int = 0
    _running: set[int] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.max_epochs = self.rule.max_epochs

    @property
    def promotes(self) -> bool:
        """As the rule does."""
        return self.rule.promotes

    @property
    def rungs(self) -> tuple[int, ...]:
        """The rule's."""
        return tuple(getattr(self.rule, "rungs", ()))

    @property
    def reads_curves(self) -> bool:
        """As the rule does."""
        return self.rule.reads_curves

    def check(self, objectives: int, trials: int | None = None) -> None:
        """Refuse what the rule refuses."""
        self.rule.check(objectives, trials)

    def empty(self) -> Index:
        """Return the rule's index."""
        return self.rule.empty()

    def fold(self, index: Index, event: Event) -> Index:
        """Note a report."""
        if isinstance(event, Reported):
            self.reports.append((event.at_seconds, event.trial, event.epoch, event.losses[0]))
        elif isinstance(event, Ended):
            self._running.discard(event.trial)
        return self.rule.fold(index, event)

    def on_report(self, index: Index, view: RuleView, trial: TrialView) -> Verdict:
        """Stop whoever trains when time is over."""
        if view.at_seconds >= self.until:
            return Stop(Reason(rule="time", epoch=trial.epoch))
        verdict = self.rule.on_report(index, view, trial)
        if not isinstance(verdict, Continue):
            self._running.discard(trial.number)
        return verdict

    def on_free(self, index: Index, view: RuleView) -> Promote | New | Clone | Wait:
        """Start nothing when time is over, nor a bracket before the one before it has come to rest."""
        if view.at_seconds >= self.until:
            return WAIT
        answer = self.rule.on_free(index, view)
        if isinstance(answer, Promote):
            self._running.add(answer.trial)
        elif isinstance(answer, New):
            if self.bracket and self._begun % self.bracket == 0 and self._running:
                return WAIT
            self._running.add(self._begun)
            self._begun += 1
        return answer

    def next_epoch(self, index: Index, trial: TrialView) -> int:
        """Return the next epoch that counts."""
        return trial.epoch + 1 if self.each_epoch else self.rule.next_epoch(index, trial)

    def best(self, at_seconds: float = math.inf) -> float:
        """Return the best loss reported by then."""
        return min((loss for at, _, _, loss in self.reports if at <= at_seconds), default=math.inf)

    def reached(self, loss: float) -> float:
        """Return when a loss so good was first reported, inf if never."""
        return min((at for at, _, _, found in self.reports if found <= loss), default=math.inf)

    def latest(self) -> dict[int, tuple[int, float]]:
        """Return each trial's last epoch and its loss there."""
        return {trial: (epoch, loss) for _, trial, epoch, loss in sorted(self.reports, key=lambda row: row[2])}


def study(
    rule: PromotionRule | Watched,
    task: Task,
    *,
    slots: int,
    trials: int,
    seed: int,
    **setting: float,
) -> tuple[Watched, SimulatedStudy]:
    """Simulate trials of one slot each; moving them costs nothing."""
    watched = rule if isinstance(rule, Watched) else Watched(rule)
    cluster = Simulated(cluster=Cluster(1, slots), task=task, restart_seconds=0.0, **setting)  # type: ignore[arg-type]  # numbers by name
    return watched, simulate(Scheduler(watched, Fixed(1)), cluster, trials=trials, seed=seed)


def taskset(folder: Path) -> Iterator[Curves]:
    """Yield TaskSet's tables of validation losses; an epoch is one of their points, and takes a minute."""
    for path in sorted((folder / "taskset").glob("*.npz")):
        yield _curves(path.stem, tables(path))


def algoperf(folder: Path) -> Iterator[Curves]:
    """Yield AlgoPerf's workloads: what a run's metric was at fiftieths of 0.9 of its time, if it used as much."""
    try:
        import polars as pl
    except ImportError:
        return
    place = folder / "algoperf"
    if not place.is_dir():
        return
    runs = pl.read_parquet(place / "algoperf_runs.parquet")
    curves = pl.read_parquet(place / "algoperf_curves.parquet").join(runs, on="run")
    for (workload,), rows in sorted(curves.group_by("workload")):
        losses, seconds = [], []
        for _, run in sorted(rows.group_by("run")):
            sign, most = 1.0 if run["metric"][0] == "loss" else -1.0, float(run["max_runtime_s"][0])
            spent = run["submission_time_s"].to_numpy() / most
            if spent.max() < _SHARE:
                continue
            ends = _SHARE * np.arange(1, _EPOCHS + 1) / _EPOCHS
            latest = np.searchsorted(spent, ends, side="right") - 1
            values = sign * run["val_metric"].to_numpy().astype(float)
            losses.append(np.where(latest < 0, np.inf, values[np.maximum(latest, 0)]))
            seconds.append(ends * most)
        if len(losses) >= _LEAST:
            yield _curves(workload, tables({"valid_loss": np.stack(losses), "s": np.stack(seconds)}, seconds="s"))


def lcbench(folder: Path) -> Iterator[Curves]:
    """Yield errors (percent) that the LCBench surrogate gives to random configurations of its first data sets.

    Nothing if onnxruntime is missing. Its seconds fall at times; a later epoch never counts as earlier.
    """
    lcbench = LCBench.of(folder / "yahpo_lcbench")
    if lcbench is None:
        return
    for number, (name, code) in enumerate(lcbench.codes.items()):
        shares = rng(0, "surrogate", number).random((_CONFIGURATIONS, len(lcbench.parameters)))
        chosen = [_placed(entry, shares[:, i]) for i, entry in enumerate(lcbench.parameters.values())]
        found = lcbench.predict(code, np.stack(chosen, axis=1))
        seconds, error = found[:, :, 0], 100.0 - found[:, :, 1]
        yield _curves(name, tables({"valid_loss": error, "s": np.maximum(seconds, 1e-3)}, seconds="s"))


def _placed(parameter: dict[str, Any], shares: np.ndarray) -> np.ndarray:
    """Return values at shares of a parameter's range."""
    low, high = float(parameter["lower"]), float(parameter["upper"])
    values = low * (high / low) ** shares if parameter.get("log") else low + (high - low) * shares
    placed: np.ndarray = np.round(values) if parameter["type"] == "uniform_int" else values
    return placed


def _curves(name: str, task: Table) -> Curves:
    finals = np.array([row[-1, 0] for row in task.losses])
    length = len(task.losses[0])
    seconds = (
        task.epoch_seconds * length if task.seconds is None else float(np.median([row[-1] for row in task.seconds]))
    )
    return Curves(name=name, task=task, finals=np.where(np.isfinite(finals), finals, np.inf), seconds=seconds)
