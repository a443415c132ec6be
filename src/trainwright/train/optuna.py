"""Optuna objectives as training functions: `objective(trial)` runs unchanged, with the values of our space.

Optuna itself need not be there: its `TrialPruned` is known by name. A space that nobody declared is found by dry runs:
each draws what is suggested, and ends at the first report.
"""

import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NoReturn

from trainwright.errors import SpaceError, TrialError
from trainwright.randomness import rng
from trainwright.space import Choice, Constant, Float, Int, Space, all_of, equals, greater, less, one_of
from trainwright.space.conditions import Condition
from trainwright.space.parameters import Parameter
from trainwright.train.assignment import TrialEnd, is_pruning
from trainwright.train.trial import Trial
from trainwright.validators import check, integer

__all__ = ["ObjectiveTrial", "OptunaObjective", "from_optuna"]

Objective = Callable[[Any], Any]


def from_optuna(objective: Objective) -> "OptunaObjective":
    """Return the training function of an Optuna objective: `study.run(tw.from_optuna(objective), trials=100)`.

    The study's space, which its `space()` can find, says what may vary; a `suggest_` that contradicts it, or whose name
    is not in it, fails the trial with a sentence. What the objective returns is the study's objective, or its several
    objectives in their order.
    """
    if not callable(objective):
        raise TrialError(f"from_optuna: got {objective!r}; allowed: a function of an Optuna trial")
    return OptunaObjective(objective)


@dataclass(frozen=True)
class OptunaObjective:
    """A training function that hands an Optuna objective what it expects; an engine ships it by its objective."""

    objective: Objective

    def space(self, *, draws: int = 32, seed: int = 0) -> Space:
        """Return the space of what the objective suggests in `draws` dry runs, each on values drawn from their ranges.

        A dry run ends at the first `report` or `should_prune`; an objective that never calls them runs as a whole.
        A name that not all runs asked for gets the condition on an earlier parameter that explains it. Raises
        `TrialError` if nothing was suggested, and `SpaceError` if one name has two ranges.
        """
        check(draws, integer(minimum=1), "space: draws", TrialError)
        return _record_space(self.objective, draws, seed)

    def __call__(self, trial: Trial) -> Any:
        """Run the objective on one trial."""
        seen = ObjectiveTrial(trial)
        # If the objective prunes itself, the engine sees it.
        value = self.objective(seen)
        if isinstance(value, Sequence) and not isinstance(value, str):
            names = trial.assignment.metrics
            if len(value) != len(names):
                raise TrialError(
                    f"trial {trial.number}: the objective returned {len(value)} values, the study has {len(names)} "
                    f"objectives ({', '.join(names)}); return one for each"
                )
            return dict(zip(names, value, strict=True))
        return value


class _SuggestingTrial(ABC):
    """The `suggest_` methods of Optuna's trial; `_suggest` says where a value comes from."""

    def suggest_float(
        self, name: str, low: float, high: float, *, step: float | None = None, log: bool = False
    ) -> float:
        """Return the value of `name`, a number in [low, high]."""
        return float(self._suggest(name, _number(Float, float(low), float(high), step=step, log=log)))

    def suggest_int(self, name: str, low: int, high: int, *, step: int = 1, log: bool = False) -> int:
        """Return the value of `name`, a whole number in [low, high]."""
        return int(self._suggest(name, _number(Int, low, high, step=None if step == 1 else step, log=log)))

    def suggest_categorical(self, name: str, choices: Sequence[Any]) -> Any:
        """Return the value of `name`, one of the choices."""
        return self._suggest(name, Constant(choices[0]) if len(choices) == 1 else Choice(*choices))

    @abstractmethod
    def _suggest(self, name: str, parameter: Parameter) -> Any: ...


class ObjectiveTrial(_SuggestingTrial):
    """A trial as an Optuna objective sees it; Optuna's steps from 0 are our epochs from 1."""

    def __init__(self, trial: Trial) -> None:
        self.number = trial.number
        self.params: dict[str, Any] = {}
        """The values suggested so far."""
        self.user_attrs: dict[str, Any] = {}
        """The attributes set so far."""
        self._trial = trial
        self._first_step: int | None = None
        self._told_to_stop = False

    def report(self, value: float, step: int) -> None:
        """Report the objective's value at a step; steps that begin with 0 are counted from 1."""
        names = self._trial.assignment.metrics
        if len(names) != 1:
            raise TrialError(
                f"trial {self.number}: report gives one value, the study has {len(names)} objectives "
                f"({', '.join(names)}); leave it out, as Optuna asks too"
            )
        if self._first_step is None:
            self._first_step = step
        if self._told_to_stop:
            return
        try:
            metrics: dict[str, Any] = {names[0]: value}
            self._trial.report(epoch=step + 1 if self._first_step == 0 else step, **metrics)
        except TrialEnd:
            # The objective asks should_prune, and may tidy up before it ends.
            self._told_to_stop = True

    def should_prune(self) -> bool:
        """Whether the study's rule stopped the trial at the last report (`PromotionRule.on_report`)."""
        return self._told_to_stop

    def set_user_attr(self, key: str, value: Any) -> None:
        """Keep an attribute as a note in the ledger; it must be plain data, as JSON writes it."""
        try:
            json.dumps(value)
        except (TypeError, ValueError) as error:
            raise TrialError(f"trial {self.number}: user attribute {key!r} is no plain data ({error})") from None
        self.user_attrs[key] = value
        self._trial.note(key, value)

    def __getattr__(self, name: str) -> NoReturn:
        raise AttributeError(
            f"from_optuna: its trial has no {name!r}; it has number, params, user_attrs, suggest_float, suggest_int, "
            "suggest_categorical, report, should_prune and set_user_attr"
        )

    def _suggest(self, name: str, parameter: Parameter) -> Any:
        """Return the space's value of a parameter that the objective suggests."""
        params = self._trial.params
        if name in params:
            try:
                value = params[name]
                if isinstance(parameter, Float | Int | Choice):
                    value = parameter.clean(name, value)
            except TrialError as error:
                raise TrialError(
                    f"trial {self.number}: the objective's {name}={parameter!r} does not allow {name}="
                    f"{params[name]!r}, which the study's space gave ({error}); make the two agree"
                ) from None
        else:
            raise TrialError(
                f"trial {self.number}: {name!r} is not among the values of this trial ({', '.join(params)}); add "
                f"{name}=tw.{parameter!r} to the space, or mend its when="
            )
        self.params[name] = value
        return value


class _Enough(BaseException):
    """Ends a dry run. No `Exception`, so that an objective's `except Exception` lets it pass."""


def _number(kind: type[Float | Int], low: Any, high: Any, *, step: Any, log: bool) -> Parameter:
    """Return the parameter of a suggested number; one that cannot vary is a constant."""
    return Constant(low) if low == high else kind(low, high, step=step, log=log)


def _draw(parameter: Parameter, seed: int, name: str) -> Any:
    """Return a value of a parameter that no space holds, a function of seed and name."""
    if isinstance(parameter, Constant):
        return parameter.value
    space = Space.of({name: parameter})
    [params] = space.decode(space.sample(rng(seed, f"suggest {name}", 0), 1))
    return params[name]


def _record_space(objective: Callable[[Any], Any], draws: int, seed: int) -> Space:
    """Return the space of what an objective suggests in `draws` dry runs.

    A name that some runs do not ask for gets a condition if one earlier parameter explains it: by its values, or by a
    bound. What none explains is always active, which costs the searcher a column and nothing else.
    """
    runs, failure = [], None
    for draw in range(draws):
        run = _DryTrial(draw, seed)
        try:
            objective(run)
        except _Enough:
            pass
        except Exception as error:  # noqa: BLE001 -- what it has suggested until then counts
            if not is_pruning(error):
                failure, run.whole = error, False
        runs.append(run)
    parameters: dict[str, Parameter] = {}
    for run in runs:
        for name, parameter in run.parameters.items():
            if parameters.setdefault(name, parameter) != parameter:
                raise SpaceError(
                    f"{name}: the objective suggests it as {parameters[name]!r} and as {parameter!r}; give each range "
                    "a name of its own"
                )
    if not parameters:
        why = "" if failure is None else f" ({type(failure).__name__}: {failure})"
        raise TrialError(f"space: the objective suggested nothing in {draws} dry runs{why}; declare a tw.Space")
    whole = [run.params for run in runs if run.whole]
    return Space.of({name: _as_optional(name, parameters, whole) for name in parameters})


class _DryTrial(_SuggestingTrial):
    """Stands for Optuna's trial: draws each value from its own range and keeps the range."""

    def __init__(self, number: int, seed: int) -> None:
        self.number = number
        self.params: dict[str, Any] = {}
        self.user_attrs: dict[str, Any] = {}
        self.parameters: dict[str, Parameter] = {}
        # Whether it has suggested all that it would.
        self.whole = True
        self._seed = seed

    def report(self, value: float, step: int) -> NoReturn:
        del value, step
        raise _Enough

    def should_prune(self) -> NoReturn:
        raise _Enough

    def set_user_attr(self, key: str, value: Any) -> None:
        self.user_attrs[key] = value

    def _suggest(self, name: str, parameter: Parameter) -> Any:
        if name not in self.params:
            self.parameters[name] = parameter
            self.params[name] = _draw(parameter, int(rng(self._seed, "dry run", self.number).integers(2**63)), name)
        return self.params[name]


def _as_optional(name: str, parameters: Mapping[str, Parameter], runs: Sequence[Mapping[str, Any]]) -> Parameter:
    """Return the parameter, with the condition under which the runs had it."""
    parameter = parameters[name]
    absent = [run for run in runs if name not in run]
    present = [run for run in runs if name in run]
    if not absent or not present or not isinstance(parameter, Float | Int | Choice):
        return parameter
    for other in list(parameters)[: list(parameters).index(name)]:
        if all(other in run for run in present):
            condition = _explained(
                other, parameters[other], [run[other] for run in present], [r[other] for r in absent if other in r]
            )
            if condition is not None:
                if isinstance(parameter, Choice):
                    return Choice(*parameter.values, when=condition)
                return replace(parameter, when=condition)
    return parameter


def _explained(name: str, parameter: Parameter, present: Sequence[Any], absent: Sequence[Any]) -> Condition | None:
    """Return the condition on one parameter that holds for its values in `present` and for none in `absent`."""
    if not absent or isinstance(parameter, Constant):
        return None
    if isinstance(parameter, Choice):
        # 1 and True are two choices.
        seen = set(map(repr, present))
        if seen.intersection(map(repr, absent)):
            return None
        values = [value for value in parameter.values if repr(value) in seen]
        return equals(name, values[0]) if len(values) == 1 else one_of(name, *values)
    below, above = [v for v in absent if v < min(present)], [v for v in absent if v > max(present)]
    if len(below) + len(above) < len(absent):
        return None
    sides = [*([greater(name, max(below))] if below else []), *([less(name, min(above))] if above else [])]
    return sides[0] if len(sides) == 1 else all_of(*sides)
