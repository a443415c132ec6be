"""The views of the live page: groups of the report's figures, cached until the study changes."""

import pickle
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from trainwright.ensemble.ensemble_settings import SETTINGS_FILE
from trainwright.ensemble.library.library import find_newest_offer
from trainwright.errors import TrainwrightError
from trainwright.ledger import State
from trainwright.report.figures.groups import GROUPS, DrawnGroup, FigureSource
from trainwright.report.figures.parameters import axis_names, scatter
from trainwright.report.figures.studies import comparison, distribution
from trainwright.report.overview import Overview
from trainwright.ui.study_details import filter_trials
from trainwright.ui.study_follower import StudyFollower

__all__ = ["VIEWS", "FigureViews", "compare_studies"]

_IMPORTANCE_TRIALS = 300  # sampled from any number, so that a forest is fitted in seconds
_GROWTH = 1.1  # importance is computed again when the number of results has grown by this factor

View = dict[str, Any]

VIEWS: Mapping[str, tuple[str, ...]] = {
    "progress": ("front", "progress"),
    "curves": ("curves",),
    "parallel": ("parallel",),
    "scatter": (),
    "importance": ("importance",),
    "cluster": ("workers",),
    "ensembles": ("ensembles",),
}
"""The groups of figures of each view that may be asked for; of a scatter the axes are asked for too."""


@dataclass(slots=True)
class _CachedView:
    key: Any = None  # what the view was made of
    view: View | None = None
    working: threading.Thread | None = None  # makes a newer one


@dataclass(slots=True)
class FigureViews:
    """The views of one study. Slow ones are drawn in a thread, from a copy; meanwhile the last one is shown."""

    follower: StudyFollower
    _cache: dict[str, _CachedView] = field(default_factory=dict)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def view(self, name: str, words: str = "", axes: Sequence[str] = ()) -> View:
        """Return {"figures", "notes", "pending"} of a view in `VIEWS`; `pending` while a newer one is made.

        `words` choose trials, as in the table; `axes` are the two names of a scatter.
        """
        if name == "importance":
            return self._view_importance()
        if name == "ensembles":
            return self._view_ensembles()
        with self.follower.reading() as overview:
            key = (self.follower.revision, words, axes)
            with self._lock:
                cached = self._cache.setdefault(name, _CachedView())
            if cached.view is None or cached.key != key:
                every = range(len(overview.trials))
                chosen = overview.select(filter_trials(overview, words, every)) if words else overview
                if name == "scatter":
                    cached.view = _draw_scatter(chosen, *axes)
                else:
                    cached.view = _draw_view(name, chosen, self.follower.directory)
                cached.key = key
            return cached.view

    def _view_importance(self) -> View:
        """Return which parameters matter, computed again when results have grown by a tenth."""
        with self.follower.reading() as overview:
            results = len(overview.results)
            if overview.state.space is None or not results:
                return _as_view(DrawnGroup())
            key = (self.follower.study_id, int(np.log(results) / np.log(_GROWTH)))
            # An even sample over the study, so that early and late trials count alike.
            numbers = sorted(overview.trials[at].number for at in overview.results)
            chosen = [numbers[at] for at in np.linspace(0, results - 1, min(results, _IMPORTANCE_TRIALS)).astype(int)]
            return self._draw_in_background("importance", key, lambda: _copy_state(overview.state, chosen), None)

    def _view_ensembles(self) -> View:
        """Return the front of ensembles, of the library as it is."""
        folder = self.follower.directory
        with self.follower.reading() as overview:
            offered = [trial.number for trial in overview.trials if trial.offered]
            if folder is None or not offered:
                return _as_view(DrawnGroup())
            entries = tuple(find_newest_offer(trial).path for trial in overview.trials if trial.offered)
            key = (self.follower.study_id, entries, _read_bytes(folder / SETTINGS_FILE))
            return self._draw_in_background("ensembles", key, lambda: _copy_state(overview.state, offered), folder)

    def _draw_in_background(self, name: str, key: Any, copy: Callable[[], State], folder: Path | None) -> View:
        """Return the view as it was drawn last; draw it anew, from a copy of the state, where `key` is another."""
        with self._lock:
            cached = self._cache.setdefault(name, _CachedView())
            # The state is copied only if it will be drawn: that takes longer than the answer.
            if cached.key != key and cached.working is None:
                overview = Overview(copy())

                def work() -> None:
                    try:
                        view = _draw_view(name, overview, folder)
                    except TrainwrightError as error:
                        view = _as_view(DrawnGroup(notes=[f"{error}."]))
                    with self._lock:
                        cached.view, cached.key, cached.working = view, key, None

                # The request returns at once with the earlier view; the page asks again while one is
                # pending.
                cached.working = threading.Thread(target=work, name=f"draw {name}", daemon=True)
                cached.working.start()
            view = cached.view or _as_view(DrawnGroup())
            return {**view, "pending": cached.working is not None}


def compare_studies(followers: Sequence[StudyFollower]) -> View:
    """Return the best so far of several studies and the distributions of their results, by name.

    All calls must give them in one order, for each study is held until all are drawn.
    """
    with ExitStack() as stack:
        overviews = {follower.name: stack.enter_context(follower.reading()) for follower in followers}
        known = {name: overview for name, overview in sorted(overviews.items()) if overview.objectives}
        figures = [draw(known) for draw in (comparison, distribution)] if known else []
        return _as_view(DrawnGroup(figures=[figure for figure in figures if figure is not None]))


def _draw_scatter(overview: Overview, across: str = "", up: str = "") -> View:
    """Return the results by two axes, and what axes there are; by default the first parameter and objective."""
    space = FigureSource(overview).space
    if space is None:
        return _as_view(DrawnGroup())
    names = axis_names(overview, space)
    drawn = scatter(overview, space, across or names[0], up or overview.objectives[0].metric)
    return {**_as_view(DrawnGroup(figures=[drawn] if drawn is not None else [])), "axes": names}


def _draw_view(name: str, overview: Overview, directory: Path | None) -> View:
    source = FigureSource(overview, directory)
    return _as_view(*(GROUPS[group].draw(source) for group in VIEWS[name]))


def _as_view(*groups: DrawnGroup) -> View:
    view: View = {
        "figures": [asdict(figure) for group in groups for figure in group.figures],
        "notes": [note for group in groups for note in group.notes],
        "pending": False,
    }
    for group in groups:
        if group.ensemble is not None:
            # The page's table of members shows these alone.
            columns = ("trial", "weight", "seconds_per_row", "parameter_count")
            view["members"] = [{name: row[name] for name in columns} for row in group.ensemble.ensemble.table()]
    return view


def _read_bytes(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError:
        return b""


def _copy_state(state: State, numbers: Sequence[int]) -> State:
    """Return a copy of the state with some of its trials, to draw from while the study continues."""
    trials = pickle.loads(pickle.dumps({number: state.trials[number] for number in numbers}))  # noqa: S301 -- our own
    return State(
        space=state.space,
        objectives=state.objectives,
        constraints=state.constraints,
        seed=state.seed,
        trials=trials,
        writers=dict(state.writers),
    )
