"""The space of an Optuna objective, found by dry runs: each draws what is suggested, and ends at the first report."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, NoReturn

from trainwright.errors import SpaceError, TrialError
from trainwright.randomness import rng
from trainwright.space import Choice, Constant, Float, Int, Space, all_of, equals, greater, less, one_of
from trainwright.space.conditions import Condition
from trainwright.space.parameters import Parameter
from trainwright.train.misuse import is_pruning

__all__ = ["SuggestingTrial", "drawn", "recorded_space"]


class _Enough(BaseException):
    """Ends a dry run. No `Exception`, so that an objective's `except Exception` lets it pass."""


class SuggestingTrial(ABC):
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


def _number(kind: type[Float | Int], low: Any, high: Any, *, step: Any, log: bool) -> Parameter:
    """Return the parameter of a suggested number; one that cannot vary is a constant."""
    return Constant(low) if low == high else kind(low, high, step=step, log=log)


def drawn(parameter: Parameter, seed: int, name: str) -> Any:
    """Return a value of a parameter that no space holds, a function of seed and name."""
    if isinstance(parameter, Constant):
        return parameter.value
    space = Space.of({name: parameter})
    [params] = space.decode(space.sample(rng(seed, f"suggest {name}", 0), 1))
    return params[name]


def recorded_space(objective: Callable[[Any], Any], draws: int, seed: int) -> Space:
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


class _DryTrial(SuggestingTrial):
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
            self.params[name] = drawn(parameter, int(rng(self._seed, "dry run", self.number).integers(2**63)), name)
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
