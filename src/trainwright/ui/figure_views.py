"""The figures of each view of the page: the report's own, made of the state as it is, and kept until it changes."""

import pickle
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from trainwright.ensemble.ensemble_settings import SETTINGS_FILE
from trainwright.ensemble.library.library import find_newest_offer
from trainwright.errors import EnsembleError, SearchError, TrainwrightError
from trainwright.ledger import State
from trainwright.report.ensemble_page import pictures
from trainwright.report.figures.best_so_far import best_so_far
from trainwright.report.figures.ensemble_front import ensemble_front
from trainwright.report.figures.figure import Figure
from trainwright.report.figures.hypervolume import hypervolume_figure
from trainwright.report.figures.importance import importance_figure, nothing_known
from trainwright.report.figures.learning_curves import learning_curves
from trainwright.report.figures.parallel_coordinates import parallel_coordinates
from trainwright.report.figures.planned import planned_figures
from trainwright.report.figures.trade_off import trade_offs
from trainwright.report.figures.utilisation import utilisation
from trainwright.report.overview import Overview
from trainwright.report.study_ensemble import ensembles_of
from trainwright.report.study_plans import Plans, plans_of
from trainwright.search.importance import importance_of
from trainwright.space import Space
from trainwright.ui.study_follower import Follower

__all__ = ["VIEWS", "Drawings"]

_MOST_OBJECTIVES = 3
_IMPORTANCE_TRIALS = 300  # what importance looks at, of any number
_GROWTH = 1.1  # importance is found anew when there are so many times as many results

View = dict[str, Any]


@dataclass(slots=True)
class _Kept:
    """What was made last, of what, and what goes on."""

    key: Any = None
    view: View | None = None
    working: threading.Thread | None = None


@dataclass(slots=True)
class Drawings:
    """The views of one study. What takes long is made beside, from a copy; meanwhile the last one is shown."""

    follower: Follower
    _kept: dict[str, _Kept] = field(default_factory=dict)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def view(self, name: str) -> View:
        """Return {"figures", "notes", "pending"} of a view in `VIEWS`; `pending` while a newer one is made."""
        return VIEWS[name](self)

    # Views that are made at once, once a revision.

    def _quick(self, name: str, make: Callable[[Overview], Sequence[Figure | None]]) -> View:
        with self.follower.reading() as overview:
            with self._lock:
                kept = self._kept.setdefault(name, _Kept())
            if kept.view is None or kept.key != self.follower.revision:
                kept.view, kept.key = _view(make(overview)), self.follower.revision
            return kept.view

    def progress(self) -> View:
        """Return the objectives against each other, the best so far, the hypervolume."""
        return self._quick("progress", _progress)

    def curves(self) -> View:
        """Return the learning curves of each objective."""
        return self._quick("curves", lambda each: [learning_curves(each, goal) for goal in _goals(each)])

    def parallel(self) -> View:
        """Return the parallel coordinates."""
        return self._quick("parallel", _parallel)

    def cluster(self) -> View:
        """Return who worked when, on which devices."""
        return self._quick("cluster", lambda each: [utilisation(each, by="device")])

    def plans(self) -> View:
        """Return what was planned before the search, beside what came of it, and memory plans and strategies."""
        folder = self.follower.directory
        found = plans_of(folder) if folder is not None else Plans()
        with self.follower.reading() as overview:
            return _view(planned_figures(overview, found), notes=found.refused)

    # Views that take long.

    def _slow(self, name: str, key: Any, make: Callable[[], View]) -> View:
        with self._lock:
            kept = self._kept.setdefault(name, _Kept())
            if kept.key != key and kept.working is None:

                def work() -> None:
                    try:
                        made = make()
                    except TrainwrightError as error:
                        made = _view([], notes=[f"{error}."])
                    with self._lock:
                        kept.view, kept.key, kept.working = made, key, None

                kept.working = threading.Thread(target=work, name=f"draw {name}", daemon=True)
                kept.working.start()
            view = kept.view or _view([])
            return {**view, "pending": kept.working is not None}

    def importance(self) -> View:
        """Return which parameters matter, found anew when results have grown by a tenth."""
        with self.follower.reading() as overview:
            results = len(overview.results)
            if overview.state.space is None or not results:
                return _view([])
            key = (self.follower.study_id, int(np.log(results) / np.log(_GROWTH)))
            with self._lock:
                kept = self._kept.get("importance")
            if kept is not None and kept.key == key:
                return self._slow("importance", key, dict)
            numbers = sorted(overview.trials[at].number for at in overview.results)
            chosen = [numbers[at] for at in np.linspace(0, results - 1, min(results, _IMPORTANCE_TRIALS)).astype(int)]
            state = _detached(overview.state, chosen)
        return self._slow("importance", key, lambda: _importance(state))

    def ensembles(self) -> View:
        """Return the front of ensembles, the pick's reliability, and who disagrees; of the library as it is."""
        folder = self.follower.directory
        with self.follower.reading() as overview:
            offered = [trial.number for trial in overview.trials if trial.offered]
            if folder is None or not offered:
                return _view([])
            entries = tuple(find_newest_offer(trial).path for trial in overview.trials if trial.offered)
            key = (self.follower.study_id, entries, _bytes_of(folder / SETTINGS_FILE))
            with self._lock:
                kept = self._kept.get("ensembles")
            if kept is not None and kept.key == key:
                return self._slow("ensembles", key, dict)
            state = _detached(overview.state, offered)

        def make() -> View:
            try:
                found = ensembles_of(state, folder)
            except EnsembleError as error:  # a library that allows no selection
                return _view([], notes=[f"{error}."])
            if found is None:
                return _view([])
            drawn = [ensemble_front(found), *pictures(found.chosen.report)]
            members = [
                {name: row[name] for name in ("trial", "weight", "seconds_per_row", "parameter_count")}
                for row in found.pick.table()
            ]
            return {**_view(drawn), "members": members}

        return self._slow("ensembles", key, make)


VIEWS: Mapping[str, Callable[[Drawings], View]] = {
    "progress": Drawings.progress,
    "curves": Drawings.curves,
    "parallel": Drawings.parallel,
    "importance": Drawings.importance,
    "cluster": Drawings.cluster,
    "ensembles": Drawings.ensembles,
    "plans": Drawings.plans,
}
"""What may be asked for, by name."""


def _bytes_of(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError:
        return b""


def _view(figures: Sequence[Figure | None], notes: Sequence[str] = ()) -> View:
    found = [asdict(figure) for figure in figures if figure is not None]
    return {"figures": found, "notes": list(notes), "pending": False}


def _goals(overview: Overview) -> range:
    return range(min(len(overview.objectives), _MOST_OBJECTIVES))


def _progress(overview: Overview) -> list[Figure | None]:
    pairs = [pair for goal in _goals(overview) if (pair := best_so_far(overview, goal)) is not None]
    several = [hypervolume_figure(overview.state)] if len(overview.objectives) > 1 else []
    return [*trade_offs(overview), *several, *(figure for pair in pairs for figure in pair)]


def _space(state: State) -> Space:
    # Without requirements, which may be functions of modules that are not here; no row is drawn, only read.
    return Space.from_json({"parameters": (state.space or {})["parameters"]})


def _parallel(overview: Overview) -> list[Figure | None]:
    if overview.state.space is None or not overview.trials:
        return []
    return [parallel_coordinates(overview, _space(overview.state))]


def _importance(state: State) -> View:
    figures: list[Figure | None] = []
    notes: list[str] = []
    for goal, objective in enumerate(state.objectives[:_MOST_OBJECTIVES]):
        try:
            found = importance_of(state, _space(state), objective.metric)
        except SearchError as error:
            return _view(figures, notes=[*notes, f"{error}."])
        figures.append(importance_figure(found, objective.metric, goal))
        notes += [] if found.known else [nothing_known(found, objective.metric)]
    return _view(figures, notes=notes)


def _detached(state: State, numbers: Sequence[int]) -> State:
    """Return a state of some trials that nobody else holds, so that it may be worked on while the study goes on."""
    trials = pickle.loads(pickle.dumps({number: state.trials[number] for number in numbers}))  # noqa: S301 -- our own
    return State(
        space=state.space,
        objectives=state.objectives,
        constraints=state.constraints,
        seed=state.seed,
        trials=trials,
        writers=dict(state.writers),
    )
