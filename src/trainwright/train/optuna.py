"""Optuna objectives as training functions: `objective(trial)` runs unchanged, with the values of our space.

Optuna itself need not be there: its `TrialPruned` is known by name.
"""

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn

from trainwright.errors import TrialError
from trainwright.space import Float, Int, Space
from trainwright.space.parameters import Parameter
from trainwright.train.assignment import TrialEnd
from trainwright.train.recording import choice, drawn, number, recorded_space
from trainwright.train.trial import Trial

__all__ = ["ObjectiveTrial", "OptunaObjective", "from_optuna"]

Objective = Callable[[Any], Any]


def from_optuna(objective: Objective, *, unseen: str = "refuse") -> "OptunaObjective":
    """Return the training function of an Optuna objective: `study.run(tw.from_optuna(objective), trials=100)`.

    The study's space, which its `space()` can find, says what may vary; a `suggest_` that contradicts it fails the
    trial with a sentence. So does a name that the trial has no value of, unless `unseen="draw"`: then it is drawn from
    its own range and noted in the ledger, unknown to the searcher. What the objective returns is the study's objective,
    or its several objectives in their order.
    """
    if not callable(objective):
        raise TrialError(f"from_optuna: got {objective!r}; allowed: a function of an Optuna trial")
    if unseen not in {"refuse", "draw"}:
        raise TrialError(f"from_optuna: unseen: got {unseen!r}; allowed: 'refuse', 'draw'")
    return OptunaObjective(objective, unseen)


@dataclass(frozen=True)
class OptunaObjective:
    """A training function that hands an Optuna objective what it expects; an engine ships it by its objective."""

    objective: Objective
    unseen: str = "refuse"

    def space(self, *, draws: int = 32, seed: int = 0) -> Space:
        """Return the space of what the objective suggests in `draws` dry runs, each on values drawn from their ranges.

        A dry run ends at the first `report` or `should_prune`; an objective that never calls them runs as a whole.
        A name that not all runs asked for gets the condition on an earlier parameter that explains it. Raises
        `TrialError` if nothing was suggested, and `SpaceError` if one name has two ranges.
        """
        if isinstance(draws, bool) or not isinstance(draws, int) or draws < 1:
            raise TrialError(f"space: draws: got {draws!r}; allowed: a whole number >= 1")
        return recorded_space(self.objective, draws, seed)

    def __call__(self, trial: Trial) -> Any:
        """Run the objective on one trial."""
        seen = ObjectiveTrial(trial, self.unseen)
        value = self.objective(seen)  # that it prunes itself is the engine's to see
        if isinstance(value, Sequence) and not isinstance(value, str):
            names = trial.assignment.metrics
            if len(value) != len(names):
                raise TrialError(
                    f"trial {trial.number}: the objective returned {len(value)} values, the study has {len(names)} "
                    f"objectives ({', '.join(names)}); return one for each"
                )
            return dict(zip(names, value, strict=True))
        return value


class ObjectiveTrial:
    """A trial as an Optuna objective sees it; Optuna's steps from 0 are our epochs from 1."""

    def __init__(self, trial: Trial, unseen: str = "refuse") -> None:
        self.number = trial.number
        self.params: dict[str, Any] = {}
        """The values suggested so far."""
        self.user_attrs: dict[str, Any] = {}
        """The attributes set so far."""
        self._trial = trial
        self._unseen = unseen
        self._first_step: int | None = None
        self._told_to_stop = False

    def suggest_float(
        self, name: str, low: float, high: float, *, step: float | None = None, log: bool = False
    ) -> float:
        """Return the space's value of `name`, a number in [low, high]."""
        call = _call("suggest_float", name, low, high, step=step, log=log)
        value = self._given(name, call, number(Float, low, high, step=step, log=log))
        if isinstance(value, bool) or not isinstance(value, int | float) or not _within(value, low, high, step):
            self._contradicted(call, name, value)
        self.params[name] = found = float(value)
        return found

    def suggest_int(self, name: str, low: int, high: int, *, step: int = 1, log: bool = False) -> int:
        """Return the space's value of `name`, a whole number in [low, high]."""
        given = None if step == 1 else step
        call = _call("suggest_int", name, low, high, step=given, log=log)
        value = self._given(name, call, number(Int, low, high, step=given, log=log))
        if isinstance(value, bool) or not isinstance(value, int) or not _within(value, low, high, step):
            self._contradicted(call, name, value)
        self.params[name] = value
        return value

    def suggest_categorical(self, name: str, choices: Sequence[Any]) -> Any:
        """Return the space's value of `name`, one of the choices."""
        call = _call("suggest_categorical", name, list(choices))
        value = self._given(name, call, choice(choices))
        equal = [c for c in choices if c == value and isinstance(c, bool) is isinstance(value, bool)]
        if not equal:
            self._contradicted(call, name, value)
        self.params[name] = equal[0]
        return equal[0]

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
            self._told_to_stop = True  # the objective asks should_prune, and may tidy up before it ends

    def should_prune(self) -> bool:
        """Whether the study's scheduler stopped the trial at the last report."""
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

    def _given(self, name: str, call: str, parameter: Parameter) -> Any:
        params = self._trial.params
        if name in params:
            return params[name]
        if self._unseen == "refuse":
            known = ", ".join(params)
            raise TrialError(
                f"trial {self.number}: {call}: {name!r} is not among the values of this trial ({known}); add "
                f"{name}=tw.{parameter!r} to the space, or mend its when="
            )
        value = drawn(parameter, self._trial.seed, name)
        if name not in self.params:
            self._trial.note(f"drawn {name}", value)
        return value

    def _contradicted(self, call: str, name: str, value: Any) -> NoReturn:
        raise TrialError(
            f"trial {self.number}: {call} does not allow {name}={value!r}, which the study's space gave; make the two "
            "agree"
        )


def _within(value: float, low: float, high: float, step: float | None) -> bool:
    if not low <= value <= high:
        return False
    places = 0.0 if step is None else (value - low) / step
    return abs(places - round(places)) < 1e-8


def _call(method: str, *arguments: Any, **options: Any) -> str:
    return f"{method}({_arguments(*arguments, **options)})"


def _arguments(*arguments: Any, **options: Any) -> str:
    given = [f"{name}={value!r}" for name, value in options.items() if value not in (None, False)]
    return ", ".join([*map(repr, arguments), *given])
