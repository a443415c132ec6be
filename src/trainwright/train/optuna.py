"""Optuna objectives as training functions: `objective(trial)` runs unchanged, with the values of our space.

Optuna itself need not be there: its `TrialPruned` is known by name.
"""

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn

from trainwright.errors import TrialError
from trainwright.space import Choice, Float, Int, Space
from trainwright.space.parameters import Parameter
from trainwright.train.assignment import TrialEnd
from trainwright.train.recording import SuggestingTrial, drawn, recorded_space
from trainwright.train.trial import Trial
from trainwright.validators import check, integer, one_of

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
    check(unseen, one_of("refuse", "draw"), "from_optuna: unseen", TrialError)
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
        check(draws, integer(minimum=1), "space: draws", TrialError)
        return recorded_space(self.objective, draws, seed)

    def __call__(self, trial: Trial) -> Any:
        """Run the objective on one trial."""
        seen = ObjectiveTrial(trial, self.unseen)
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


class ObjectiveTrial(SuggestingTrial):
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
        elif self._unseen == "refuse":
            raise TrialError(
                f"trial {self.number}: {name!r} is not among the values of this trial ({', '.join(params)}); add "
                f"{name}=tw.{parameter!r} to the space, or mend its when="
            )
        else:
            value = drawn(parameter, self._trial.seed, name)
            if name not in self.params:
                self._trial.note(f"drawn {name}", value)
        self.params[name] = value
        return value
