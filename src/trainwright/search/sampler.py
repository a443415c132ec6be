"""A searcher as a sampler of Optuna studies. Importing this module needs Optuna.

Optuna's spaces are found while its objectives run. What every finished trial has had, with one and the same range, is
proposed jointly; anything else, such as the parameters of one branch, on its own, from the trials that had it. The
sampler keeps nothing: each proposal is made from `study.trials`, whoever ran them, so it is the same in all processes
that see the same trials, and may be pickled, copied or replaced at any time.
"""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from trainwright.errors import MissingExtra, SearchError, SpaceExhausted
from trainwright.randomness import rng
from trainwright.search._searcher import Searcher
from trainwright.search.forest import ForestSearcher
from trainwright.search.view import View
from trainwright.space import Choice, Float, Int, Parameter, Space

try:
    from optuna.distributions import BaseDistribution, CategoricalDistribution, FloatDistribution, IntDistribution
    from optuna.samplers import BaseSampler
    from optuna.search_space import intersection_search_space
    from optuna.trial import TrialState
except ImportError:
    raise MissingExtra.of("TrainwrightSampler", "optuna", "optuna") from None

if TYPE_CHECKING:
    from optuna.study import Study
    from optuna.trial import FrozenTrial

__all__ = ["TrainwrightSampler"]


class TrainwrightSampler(BaseSampler):
    """Sample for an Optuna study as `searcher` proposes (default: the forest): `create_study(sampler=...)`.

    Running trials are pending to the searcher, pruned ones stopped at their last step, failed ones failed. When every
    configuration of a finite space has been tried, it draws at random. Rebuilding what the searcher knows costs O(n)
    for each trial. `seed` takes the place of a study's seed.
    """

    def __init__(self, searcher: Searcher | None = None, *, seed: int = 0) -> None:
        if searcher is not None and not hasattr(searcher, "ask"):
            raise SearchError(f"TrainwrightSampler: got {searcher!r}; allowed: a searcher, such as tw.ForestSearcher()")
        if isinstance(seed, bool) or not isinstance(seed, int) or seed < 0:
            raise SearchError(f"TrainwrightSampler: seed must be a whole number >= 0, got {seed!r}")
        self.searcher: Searcher = searcher if searcher is not None else ForestSearcher()
        self.seed = seed

    def infer_relative_search_space(self, study: "Study", trial: "FrozenTrial") -> dict[str, BaseDistribution]:
        """Return the parameters that all finished trials share, but those with a single value."""
        del trial
        shared = intersection_search_space(study.get_trials(deepcopy=False), include_pruned=True)
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

    def _propose(
        self, study: "Study", trial: "FrozenTrial", distributions: Mapping[str, BaseDistribution]
    ) -> dict[str, Any]:
        fixed = {name: _only_value(it) for name, it in distributions.items() if it.single()}
        free = {name: it for name, it in distributions.items() if name not in fixed}
        if not free:
            return fixed
        space = Space.of({name: _parameter(it) for name, it in free.items()})
        view = _view(study, trial, free, space, self.seed)
        try:
            [found] = self.searcher.ask(view, [trial.number])
            params: Mapping[str, Any] = found.params
        except SpaceExhausted:  # Optuna's studies go on, and an objective may be noisy
            [params] = space.decode(space.sample(rng(self.seed, "repeat", trial.number), 1))
        return fixed | {name: _external(free[name], value) for name, value in params.items()}


def _parameter(it: BaseDistribution) -> Parameter:
    """Return the parameter of a distribution; choices by their places, for Optuna's may be any objects."""
    if isinstance(it, FloatDistribution):
        return Float(it.low, it.high, log=it.log, step=it.step)
    if isinstance(it, IntDistribution):
        return Int(it.low, it.high, log=it.log, step=None if it.step == 1 else it.step)
    assert isinstance(it, CategoricalDistribution)  # noqa: S101 -- Optuna has no others
    return Choice(*range(len(it.choices)))


def _only_value(it: BaseDistribution) -> Any:
    return it.low if isinstance(it, FloatDistribution | IntDistribution) else it.to_external_repr(0.0)


def _external(it: BaseDistribution, value: Any) -> Any:
    return it.choices[value] if isinstance(it, CategoricalDistribution) else value


def _view(
    study: "Study", current: "FrozenTrial", distributions: Mapping[str, BaseDistribution], space: Space, seed: int
) -> View:
    """Return what a searcher sees of the study: the trials that have all these parameters, in order of number."""
    signs = [1.0 if direction.name == "MINIMIZE" else -1.0 for direction in study.directions]
    view = View(space, seed, len(signs))
    for trial in study.get_trials(deepcopy=False):
        params = None if trial.number == current.number else _params(trial, distributions)
        if params is None or space.check(params):
            continue
        view.propose(trial.number, space.configuration_of(params))
        if trial.state is TrialState.RUNNING:
            continue
        last = None
        for step, value in sorted(trial.intermediate_values.items()):
            last = step + 1  # Optuna's steps count from 0
            if last >= 1 and len(signs) == 1:
                view.report(trial.number, last, [signs[0] * value])
        view.result(trial.number, _losses(trial, signs), epoch=last, complete=trial.state is TrialState.COMPLETE)
    return view


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
