"""Any sampler of Optuna (optuna.org) as a searcher, over an Optuna study in memory that follows the view.

The space is told to Optuna column by column, in the order of its conditions: a parameter is suggested only if those
before it make it active. Each proposal is made by a fresh copy of the sampler whose random states are seeded from the
study's seed and the trial's number, so it is a function of the view as far as the sampler's own memory goes: some keep
what they remember in the attributes of the trials that they asked for (CMA-ES, NSGA-II, QMC, grid), and that part is
lost when a study is opened again.
"""

import copy
import logging
import math
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from trainwright.errors import MissingExtra, SearchError, closest
from trainwright.randomness import rng
from trainwright.search.searcher import draw_new, propose, propose_default
from trainwright.search.view import SearchView
from trainwright.space import Space
from trainwright.space.axes import Axis, Code, Grid, Linear, Log, RoundedLog
from trainwright.space.configuration import Configuration
from trainwright.space.parameters import Varying
from trainwright.space.row_schema import names_in, order_by_needs

if TYPE_CHECKING:
    import optuna

__all__ = ["OptunaSearcher"]

Row = NDArray[np.float64]

_TRIES = 5  # of the sampler, before a configuration that is illegal or known is replaced by a random one
_STEPS = 1_000_000  # the integer step of a full trial, for intermediate values


@dataclass(frozen=True, slots=True)
class OptunaSearcher:
    """Propose what an Optuna sampler proposes: an instance such as `TPESampler(multivariate=True)`, or a class's name.

    Pending trials are running trials to it, stopped ones pruned; failed ones are ignored by most. Requirements are met
    by asking again, priors and weights are not passed on. The sampler's own seed is not used: the study's is.
    """

    sampler: "optuna.samplers.BaseSampler | str" = "TPESampler"

    def __post_init__(self) -> None:
        known = [name for name in ("sample_relative", "sample_independent") if not hasattr(self.sampler, name)]
        if isinstance(self.sampler, type) or (known and not isinstance(self.sampler, str)):
            raise SearchError(
                f"OptunaSearcher: got {self.sampler!r}; allowed: a sampler, such as optuna.samplers.TPESampler(), or "
                "the name of its class, such as 'TPESampler'"
            )

    def ask(self, view: SearchView, numbers: Sequence[int]) -> list[Configuration]:
        """Return one new configuration per number; each costs what the sampler costs, and O(new results)."""
        label = self.sampler if isinstance(self.sampler, str) else type(self.sampler).__name__
        session = view.memo.get(self)
        if not isinstance(session, _Session) or session.revision != view.revision:
            session = view.memo[self] = _Session(_prototype(self.sampler), view)
        taken: set[bytes] = set()
        proposals = []
        with _quietly():
            session.follow(view)
            for number in numbers:
                proposal = propose_default(view, number, taken, searcher=label)
                if proposal is None:
                    row = session.ask(view, number, taken)
                    proposal = propose(view, row, number, searcher=label)
                proposals.append(proposal)
        return proposals


def _prototype(sampler: Any) -> Any:
    with MissingExtra.instead_of_import_error("OptunaSearcher", "optuna", "optuna"):
        import optuna
    if not isinstance(sampler, str):
        return sampler
    known = [name for name in optuna.samplers.__all__ if name.endswith("Sampler") and not name.startswith("Base")]
    if sampler not in known:
        raise SearchError(
            f"OptunaSearcher: Optuna has no sampler {sampler!r}; allowed: {', '.join(known)}{closest(sampler, known)}"
        )
    with _quietly():
        return getattr(optuna.samplers, sampler)()


class _Session:
    """An Optuna study that holds what a view holds."""

    def __init__(self, prototype: Any, view: SearchView) -> None:
        import optuna

        self.revision = view.revision
        self._prototype = prototype
        self._coordinates = coordinates(view.space)
        self._conditional = any(coordinate.conditional for coordinate in self._coordinates)
        self._objectives = view.objectives
        self._storage = optuna.storages.InMemoryStorage()
        with _quietly():
            directions = [optuna.study.StudyDirection.MINIMIZE] * view.objectives
            self._id = self._storage.create_new_study(directions, "trainwright")
            self._study = optuna.study.Study("trainwright", self._storage, sampler=copy.deepcopy(prototype))
        self._running: dict[bytes, int] = {}  # numbers of Optuna's trials by the key of their row
        self._stopped: dict[bytes, tuple[Row, int, float]] = {}  # last intermediate values of trials without an end
        self._read = 0  # rows of the view

    @cached_property
    def _states(self) -> Any:
        from optuna.trial import TrialState

        return TrialState

    def follow(self, view: SearchView) -> None:
        """Tell Optuna what the view has learnt since."""
        rows = view.rows[self._read :]
        # Only what came since the last look: an Optuna study never changes what has ended.
        results = zip(
            view.space.row_keys(rows), rows, view.losses[self._read :], view.failed[self._read :],
            view.complete[self._read :], view.progress[self._read :], strict=True,
        )  # fmt: skip
        for key, row, losses, failed, complete, progress in results:
            if complete:
                self._stopped.pop(key, None)
                self._end(key, row, None if failed else losses.tolist())
            elif not failed:
                self._stopped[key] = row, round(_STEPS * float(progress)), float(losses[0])
        self._read = view.count
        # By the key of their row: Optuna numbers trials otherwise.
        pending = dict(zip(view.space.row_keys(view.pending), view.pending, strict=True))
        # What reported once and is not pending any more has stopped, and ends with its last value.
        for key in [key for key in self._stopped if key not in pending]:
            row, step, loss = self._stopped.pop(key)
            self._end(key, row, None, {step: loss} if self._objectives == 1 else None)
        for key in [key for key in self._running if key not in pending]:  # withdrawn, or never really proposed
            self._study.tell(self._running.pop(key), state=self._states.FAIL)
        for key, row in pending.items():
            if key not in self._running:
                self._running[key] = self._add(row, self._states.RUNNING)

    def ask(self, view: SearchView, number: int, taken: set[bytes]) -> Row:
        """Return a legal row that is neither tried nor taken, and add its key to `taken`."""
        seeds = rng(view.seed, "optuna", number)
        # A fresh copy for each number, so that a proposal does not depend on who asked before.
        self._study.sampler = _seeded(self._prototype, seeds)
        for _ in range(_TRIES):
            trial = self._study.ask()
            row = self._suggest(view, trial)
            [key] = view.space.row_keys(row[None, :])
            if key not in taken and key not in view.tried and view.space.legal(row[None, :])[0]:
                taken.add(key)
                self._running[key] = trial.number
                return row
            self._study.tell(trial.number, state=self._states.FAIL)
        # The sampler had its tries: a random row keeps the study going.
        row = draw_new(view, number, taken, "last")
        [key] = view.space.row_keys(row[None, :])
        self._running[key] = self._add(row, self._states.RUNNING)
        return row

    def _suggest(self, view: SearchView, trial: Any) -> Row:
        row = np.zeros((1, len(self._coordinates)))
        for coordinate in self._coordinates:
            # The row so far says whether this parameter is active, for what decides it comes before.
            if not coordinate.conditional or not np.isnan(view.space.settle(row)[0, coordinate.index]):
                row[0, coordinate.index] = coordinate.suggest(trial)
        [params] = view.space.decode(view.space.settle(row))
        settled: Row = view.space.encode(params)  # the row that the view will hold: a float may lose its last bit
        identity = self._storage.get_trial_id_from_study_id_trial_number(self._id, trial.number)
        for c in self._coordinates:
            if c.continuous and not math.isnan(settled[c.index]):
                self._storage.set_trial_param(identity, c.name, c.value(settled[c.index]), c.distribution)
        return settled

    def _end(
        self, key: bytes, row: Row, losses: list[float] | None, intermediate: dict[int, float] | None = None
    ) -> None:
        # For Optuna a trial that stopped is pruned if it has a value, and has failed if it has none.
        state = self._states.PRUNED if intermediate else self._states.FAIL if losses is None else self._states.COMPLETE
        number = self._running.pop(key, None)
        if number is None:
            self._add(row, state, losses, intermediate)
            return
        trial = self._storage.get_trial_id_from_study_id_trial_number(self._id, number)
        for step, loss in (intermediate or {}).items():
            self._storage.set_trial_intermediate_value(trial, step, loss)
        self._study.tell(number, losses, state=state)

    def _add(
        self, row: Row, state: Any, losses: list[float] | None = None, intermediate: dict[int, float] | None = None
    ) -> int:
        import optuna

        # An inactive parameter is not suggested, so Optuna must not see it.
        active = [c for c in self._coordinates if not math.isnan(row[c.index])]
        value = next(iter(intermediate.values())) if intermediate else None
        frozen = optuna.trial.create_trial(
            state=state,
            values=[value] if value is not None else losses,
            params={c.name: c.value(row[c.index]) for c in active},
            distributions={c.name: c.distribution for c in active},
            intermediate_values=intermediate,
        )
        trial = self._storage.create_new_trial(self._id, template_trial=frozen)
        number: int = self._storage.get_trial_number_from_id(trial)
        return number


def _seeded(prototype: Any, seeds: np.random.Generator) -> Any:
    """Return a copy of a sampler, each random state of it and of the samplers within it seeded anew."""
    sampler = copy.deepcopy(prototype)
    waiting = [sampler]
    while waiting:
        for part in vars(waiting.pop()).values():
            # Samplers hide their generators in attributes, and other samplers too.
            state = part if isinstance(part, np.random.RandomState) else getattr(part, "rng", None)
            if isinstance(state, np.random.RandomState):
                state.seed(int(seeds.integers(2**32)))
            elif hasattr(part, "sample_independent"):
                waiting.append(part)
    return sampler


@contextmanager
def _quietly() -> Iterator[None]:
    """Keep Optuna from announcing its inner study, and from warning of what is experimental there."""
    logger = logging.getLogger("optuna.storages._in_memory")
    before = logger.disabled
    logger.disabled = True
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logger.disabled = before


@dataclass(frozen=True, kw_only=True)
class Coordinate:
    """One column as Optuna sees it: a number, a place on a grid, or the place of a choice."""

    name: str
    index: int
    conditional: bool
    distribution: Any
    axis: Axis

    @property
    def continuous(self) -> bool:
        """Whether it has a value for every unit."""
        return self.axis.continuous

    def suggest(self, trial: Any) -> float:
        """Return the unit of what an Optuna trial suggests."""
        it = self.distribution
        if hasattr(it, "choices"):
            return float(trial.suggest_categorical(self.name, it.choices))
        ask: Callable[..., float] = trial.suggest_float if self.continuous else trial.suggest_int
        return self._unit(ask(self.name, it.low, it.high, log=it.log))

    def value(self, unit: float) -> float:
        """Return Optuna's value of a unit."""
        if isinstance(self.axis, Grid):
            points = float(self.axis.points[0])
            # The cell that the unit lies in; unit 1 belongs to the last one.
            return int(min(points - 1, unit * points // 1))
        number = float(self.axis.to_numbers(np.array([unit]))[0])
        return number if self.continuous else int(number)

    def _unit(self, value: float) -> float:
        if isinstance(self.axis, Grid):
            return float((value + 0.5) / self.axis.points[0])
        return float(self.axis.to_units(np.array([float(value)]))[0])


def coordinates(space: Space) -> list[Coordinate]:
    """Return the columns of a space, each after those that its condition compares."""
    from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution

    parameters = {name: p for name, p in space.parameters.items() if isinstance(p, Varying)}
    places = {name: index for index, name in enumerate(parameters)}
    by_name = {}
    for name, parameter in parameters.items():
        axis = parameter.axis
        shape: Any
        if isinstance(axis, Linear | Log):
            shape = FloatDistribution(float(axis.low[0]), float(axis.high[0]), log=isinstance(axis, Log))
        elif isinstance(axis, RoundedLog):
            shape = IntDistribution(int(axis.low[0]), int(axis.high[0]), log=True)
        else:
            count = axis.count or 1
            # Optuna sees places only: the values, and how they are rounded, stay the space's own.
            shape = CategoricalDistribution(range(count)) if isinstance(axis, Code) else IntDistribution(0, count - 1)
        conditional = parameter.when is not None
        by_name[name] = Coordinate(
            name=name, index=places[name], conditional=conditional, distribution=shape, axis=axis
        )
    # A parameter is suggested after those that decide whether it is active.
    needs = {name: names_in(parameter.when) for name, parameter in parameters.items()}
    return [by_name[name] for name in order_by_needs(needs, "conditions") if name in by_name]
