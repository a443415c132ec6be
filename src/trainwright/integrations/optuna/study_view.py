"""An Optuna study as views of its trials, one for each set of parameters asked for, that grow with the study.

Optuna's trials never change once they have ended, so each is read once: a step costs what is new, and what still runs.
"""

from collections import OrderedDict
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from optuna.distributions import BaseDistribution, CategoricalDistribution, FloatDistribution, IntDistribution
from optuna.search_space import IntersectionSearchSpace
from optuna.trial import TrialState

from trainwright.search.view import SearchView
from trainwright.space import Choice, Float, Int, Space
from trainwright.space.parameters import Parameter

if TYPE_CHECKING:
    from optuna.study import Study
    from optuna.trial import FrozenTrial

__all__ = ["Followed"]

_MOST_VIEWS = 256  # names that are new in every trial must not fill the memory


class Followed:
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
