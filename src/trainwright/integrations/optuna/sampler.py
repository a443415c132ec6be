"""A searcher as a sampler of Optuna studies. Importing this module needs Optuna.

Optuna's spaces are found while its objectives run. What every finished trial has had, with one and the same range, is
proposed jointly; anything else, such as the parameters of one branch, on its own, from the trials that had it. What
the sampler keeps is only what it has read of `study.trials`, whoever ran them: it may be pickled, copied or replaced at
any time, and proposes the same where trials ended in the order of their numbers. Where they overlapped, rows are in the
order of arrival, and a sampler that joins later may propose otherwise.
"""

import threading
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

from trainwright.errors import MissingExtra, SearchError, SpaceExhausted
from trainwright.randomness import rng
from trainwright.search.bayes.forest_searcher import ForestSearcher
from trainwright.search.searcher import Searcher
from trainwright.search.view import SearchView
from trainwright.space import Choice, Float, Int, Space
from trainwright.space.parameters import Parameter

with MissingExtra.instead_of_import_error("TrainwrightSampler", "optuna", "optuna"):
    from optuna.distributions import BaseDistribution, CategoricalDistribution, FloatDistribution, IntDistribution
    from optuna.samplers import BaseSampler
    from optuna.search_space import IntersectionSearchSpace
    from optuna.trial import TrialState

if TYPE_CHECKING:
    from optuna.study import Study
    from optuna.trial import FrozenTrial

__all__ = ["TrainwrightSampler"]

_MOST_VIEWS = 256  # names that are new in every trial must not fill the memory


class StudyViews:
    """What has been read of one Optuna study."""

    def __init__(self, study: "Study", seed: int) -> None:
        self._signs = [1.0 if direction.name == "MINIMIZE" else -1.0 for direction in study.directions]
        self._seed = seed
        self._shared = IntersectionSearchSpace(include_pruned=True)
        self._views: OrderedDict[frozenset[str], _Subset] = OrderedDict()

    def shared(self, study: "Study") -> dict[str, BaseDistribution]:
        """Return the parameters that all finished trials have with one and the same range."""
        return self._shared.calculate(study)

    def view(self, study: "Study", number: int, distributions: Mapping[str, BaseDistribution]) -> SearchView:
        """Return what a searcher sees for trial `number`: all others that have these parameters within these ranges."""
        names = frozenset(distributions)
        # The views that were asked last stay; a changed range makes a new one.
        subset = self._views.pop(names, None)
        if subset is None or subset.distributions != distributions:
            subset = _Subset(distributions, self._signs, self._seed)
        self._views[names] = subset
        if len(self._views) > _MOST_VIEWS:
            self._views.popitem(last=False)
        subset.read(study.get_trials(deepcopy=False), number)
        return subset.view


class _Subset:
    """The trials that have certain parameters, in a view: ended ones in the order in which they were first seen so."""

    def __init__(self, distributions: Mapping[str, BaseDistribution], signs: Sequence[float], seed: int) -> None:
        self.distributions = dict(distributions)
        self._signs = signs
        self._space = Space.of({name: _parameter(it) for name, it in distributions.items()})
        self.view = SearchView(self._space, seed, len(signs))
        self._count = 0  # of trials looked at
        self._open: list[int] = []  # those of them that had not ended
        self._pending: set[int] = set()  # those of these that the view holds

    def read(self, trials: Sequence["FrozenTrial"], current: int) -> None:
        """Take in what is new; `current` is the trial that is being asked for."""
        # Trials that had not ended are looked at again, ended ones never.
        waiting, self._open = [*self._open, *range(self._count, len(trials))], []
        self._count = len(trials)
        for number in waiting:
            trial = trials[number]
            if not trial.state.is_finished():
                self._open.append(number)
            if number != current:
                self._take(trial)

    def _take(self, trial: "FrozenTrial") -> None:
        if trial.number not in self._pending:
            params = _params(trial, self.distributions)
            if params is None or self._space.check(params):
                return
            self.view.propose(trial.number, self._space.configuration_of(params))
            self._pending.add(trial.number)
        if not trial.state.is_finished():
            return
        self._pending.remove(trial.number)
        last = None
        # Steps may be reported in any order; rungs are passed upwards.
        for step, value in sorted(trial.intermediate_values.items()):
            last = step + 1  # Optuna's steps count from 0
            if last >= 1 and len(self._signs) == 1:
                self.view.report(trial.number, last, [self._signs[0] * value])
        losses = _losses(trial, self._signs)
        self.view.result(trial.number, losses, epoch=last, complete=trial.state is TrialState.COMPLETE)


def _parameter(it: BaseDistribution) -> Parameter:
    """Return the parameter of a distribution; choices by their places, for Optuna's may be any objects."""
    if isinstance(it, FloatDistribution):
        return Float(it.low, it.high, log=it.log, step=it.step)
    if isinstance(it, IntDistribution):
        return Int(it.low, it.high, log=it.log, step=None if it.step == 1 else it.step)
    assert isinstance(it, CategoricalDistribution)  # noqa: S101 -- Optuna has no others
    return Choice(*range(len(it.choices)))


def _params(trial: "FrozenTrial", distributions: Mapping[str, BaseDistribution]) -> dict[str, Any] | None:
    """Return the trial's values of these parameters, choices by their places; None if it has not all of them."""
    if trial.state is TrialState.WAITING or not distributions.keys() <= trial.params.keys():
        return None
    found = {}
    for name, it in distributions.items():
        value = trial.params[name]
        if isinstance(it, CategoricalDistribution):
            if it != trial.distributions[name]:
                return None
            value = int(it.to_internal_repr(value))
        found[name] = value
    return found


def _losses(trial: "FrozenTrial", signs: Sequence[float]) -> list[float] | None:
    """Return what a finished trial tells: its values, or the last intermediate one of a pruned trial."""
    if trial.state is TrialState.COMPLETE:
        return [sign * value for sign, value in zip(signs, trial.values, strict=True)]
    if trial.state is TrialState.PRUNED and trial.intermediate_values and len(signs) == 1:
        return [signs[0] * trial.intermediate_values[max(trial.intermediate_values)]]
    return None


class TrainwrightSampler(BaseSampler):
    """Sample for an Optuna study as `searcher` proposes (default: the forest): `create_study(sampler=...)`.

    Running trials are pending to the searcher, pruned ones stopped at their last step, failed ones failed. When every
    configuration of a finite space has been tried, it draws at random. Each trial is read once, so a proposal costs
    what the searcher's own would, and Optuna's bookkeeping. `seed` takes the place of a study's seed.
    """

    def __init__(self, searcher: Searcher | None = None, *, seed: int = 0) -> None:
        if searcher is not None and not hasattr(searcher, "ask"):
            raise SearchError(f"TrainwrightSampler: got {searcher!r}; allowed: a searcher, such as tw.ForestSearcher()")
        if isinstance(seed, bool) or not isinstance(seed, int) or seed < 0:
            raise SearchError(f"TrainwrightSampler: seed must be a whole number >= 0, got {seed!r}")
        self.searcher: Searcher = searcher if searcher is not None else ForestSearcher()
        self.seed = seed
        self._forget()

    def infer_relative_search_space(self, study: "Study", trial: "FrozenTrial") -> dict[str, BaseDistribution]:
        """Return the parameters that all finished trials share, but those with a single value."""
        del trial
        with self._lock:
            shared = self._views_of(study).shared(study)
        return {name: distribution for name, distribution in shared.items() if not distribution.single()}

    def sample_relative(
        self, study: "Study", trial: "FrozenTrial", search_space: dict[str, BaseDistribution]
    ) -> dict[str, Any]:
        """Return a value for each parameter of the search space, proposed together."""
        return self._propose(study, trial, search_space) if search_space else {}

    def sample_independent(
        self, study: "Study", trial: "FrozenTrial", param_name: str, param_distribution: BaseDistribution
    ) -> Any:
        """Return a value for one parameter, from the trials that had it within these bounds."""
        return self._propose(study, trial, {param_name: param_distribution})[param_name]

    def __getstate__(self) -> dict[str, Any]:
        attributes = dict(vars(self))
        del attributes["_studies"], attributes["_lock"]  # a copy reads the study itself
        return attributes

    def __setstate__(self, state: Mapping[str, Any]) -> None:
        vars(self).update(state)
        self._forget()

    def _forget(self) -> None:
        self._studies: WeakKeyDictionary[Study, StudyViews] = WeakKeyDictionary()
        self._lock = threading.RLock()  # of `optimize(n_jobs=...)`, whose threads share the sampler

    def _views_of(self, study: "Study") -> StudyViews:
        found = self._studies.get(study)
        if found is None:
            found = self._studies[study] = StudyViews(study, self.seed)
        return found

    def _propose(
        self, study: "Study", trial: "FrozenTrial", distributions: Mapping[str, BaseDistribution]
    ) -> dict[str, Any]:
        # A parameter with one value is nothing to search for.
        fixed = {name: _only_value(it) for name, it in distributions.items() if it.single()}
        free = {name: it for name, it in distributions.items() if name not in fixed}
        if not free:
            return fixed
        with self._lock:
            view = self._views_of(study).view(study, trial.number, free)
            try:
                [found] = self.searcher.ask(view, [trial.number])
                params: Mapping[str, Any] = found.params
            # The objective may be noisy, so a repeat is no waste.
            except SpaceExhausted:  # Optuna's studies go on, and an objective may be noisy
                [params] = view.space.decode(view.space.sample(rng(self.seed, "repeat", trial.number), 1))
        return fixed | {name: _external(free[name], value) for name, value in params.items()}


def _only_value(it: BaseDistribution) -> Any:
    return it.low if isinstance(it, FloatDistribution | IntDistribution) else it.to_external_repr(0.0)


def _external(it: BaseDistribution, value: Any) -> Any:
    return it.choices[value] if isinstance(it, CategoricalDistribution) else value
