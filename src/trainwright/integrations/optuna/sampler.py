"""A searcher as a sampler of Optuna studies. Importing this module needs Optuna.

Optuna's spaces are found while its objectives run. What every finished trial has had, with one and the same range, is
proposed jointly; anything else, such as the parameters of one branch, on its own, from the trials that had it. What
the sampler keeps is only what it has read of `study.trials`, whoever ran them: it may be pickled, copied or replaced at
any time, and proposes the same where trials ended in the order of their numbers. Where they overlapped, rows are in the
order of arrival, and a sampler that joins later may propose otherwise.
"""

import threading
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

from trainwright.errors import MissingExtra, SearchError, SpaceExhausted
from trainwright.randomness import rng
from trainwright.search.bayes.forest_searcher import ForestSearcher
from trainwright.search.searcher import Searcher

try:
    from optuna.distributions import BaseDistribution, CategoricalDistribution, FloatDistribution, IntDistribution
    from optuna.samplers import BaseSampler
except ImportError:
    raise MissingExtra.of("TrainwrightSampler", "optuna", "optuna") from None

from trainwright.integrations.optuna.study_view import Followed

if TYPE_CHECKING:
    from optuna.study import Study
    from optuna.trial import FrozenTrial

__all__ = ["TrainwrightSampler"]


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
            shared = self._followed(study).shared(study)
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
        self._studies: WeakKeyDictionary[Study, Followed] = WeakKeyDictionary()
        self._lock = threading.RLock()  # of `optimize(n_jobs=...)`, whose threads share the sampler

    def _followed(self, study: "Study") -> Followed:
        found = self._studies.get(study)
        if found is None:
            found = self._studies[study] = Followed(study, self.seed)
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
            view = self._followed(study).view(study, trial.number, free)
            try:
                [found] = self.searcher.ask(view, [trial.number])
                params: Mapping[str, Any] = found.params
            except SpaceExhausted:  # Optuna's studies go on, and an objective may be noisy
                [params] = view.space.decode(view.space.sample(rng(self.seed, "repeat", trial.number), 1))
        return fixed | {name: _external(free[name], value) for name, value in params.items()}


def _only_value(it: BaseDistribution) -> Any:
    return it.low if isinstance(it, FloatDistribution | IntDistribution) else it.to_external_repr(0.0)


def _external(it: BaseDistribution, value: Any) -> Any:
    return it.choices[value] if isinstance(it, CategoricalDistribution) else value
