"""The note of what a study runs (function, budget, scheduler), so that workers need only its address."""

import hashlib
import inspect
import sys
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any, Self

from trainwright.engine import TrainFunction
from trainwright.engine.function_reference import FunctionReference, load_reference
from trainwright.errors import EngineError, StudyError
from trainwright.ledger import State
from trainwright.plugins import describe, make
from trainwright.schedule import Scheduler
from trainwright.search import ExpectedGain
from trainwright.study.driver.budget import Budget
from trainwright.train import OptunaObjective

__all__ = ["JobNote", "latest_note"]

_NOTE = "job"


def latest_note(state: State, name: str) -> Mapping[str, Any] | None:
    """Return the note of some name that the latest session wrote, or None."""
    noted = [
        (value["session"], key, value) for key, (_, noted_name, value) in state.notes.items() if noted_name == name
    ]
    return max(noted, key=lambda item: item[:2])[2] if noted else None


@dataclass(frozen=True, kw_only=True, slots=True)
class JobNote:
    """The training function by name and source, the budget in trials, the scheduler as tables.

    None stands for what has no name (a function typed into a session, a rule of the user's own).
    """

    module: str | None = None
    name: str | None = None
    script: str | None = None
    folder: str | None = None  # from which the module can be imported
    digest: str | None = None  # of the source file
    optuna: str | None = None  # it takes Optuna's trials: as in `FunctionReference`
    trials: int | None = None
    rule: Mapping[str, Any] | None = None
    policy: Mapping[str, Any] | None = None
    stop: Mapping[str, Any] | None = None

    @classmethod
    def of(
        cls,
        train: TrainFunction,
        trials: int | None,
        scheduler: Scheduler,
        stop_when: ExpectedGain | None = None,
    ) -> Self:
        """Return the job of running `train` so."""
        parts: dict[str, Any] = {
            "rule": describe("rule", scheduler.rule),
            "policy": describe("policy", scheduler.policy),
            "stop": describe("stop", stop_when),
        }
        try:
            reference = FunctionReference.of(train)
            source = Path(inspect.getfile(train.objective if isinstance(train, OptunaObjective) else train)).resolve()
        except (EngineError, TypeError):  # no other process finds it
            return cls(trials=trials, **parts)
        digest = hashlib.blake2b(source.read_bytes(), digest_size=8).hexdigest() if source.is_file() else None
        # The folder from which the module is imported: as many levels up as its name has dots.
        depth = reference.module.count(".") + (source.name == "__init__.py")
        return cls(
            module=reference.module,
            name=reference.name,
            script=reference.script,
            folder=str(source.parents[depth]),
            digest=digest,
            optuna=reference.optuna,
            trials=trials,
            **parts,
        )

    @classmethod
    def last(cls, state: State) -> Self | None:
        """Return the job that the latest session noted, or None."""
        value = latest_note(state, _NOTE)
        return None if value is None else cls(**{field.name: value.get(field.name) for field in fields(cls)})

    def note(self, session: int) -> tuple[str, dict[str, Any]]:
        """Return name and value of the note that keeps it."""
        return _NOTE, {**asdict(self), "session": session}

    @property
    def text(self) -> str:
        """The function as a person would name it."""
        name = f"{self.script or self.module}:{self.name}"
        return name if self.optuna is None else f"from_optuna({name})"

    def load(self) -> TrainFunction:
        """Return the training function, found on the path or where it was when it was noted.

        Raises `StudyError` if it has no name, and `EngineError` if it is not there any more.
        """
        if self.module is None or self.name is None:
            raise StudyError(
                "worker: the study's training function cannot be found by name; give it: --train module:function"
            )
        if self.script is None and self.folder is not None and self.folder not in sys.path:
            sys.path.append(self.folder)
        return load_reference(
            FunctionReference(module=self.module, name=self.name, script=self.script, optuna=self.optuna)
        )

    def scheduler(self, how: str) -> Scheduler:
        """Return the scheduler; raises `StudyError` that says `how` to give one of which a part is the user's own."""
        if self.rule is None or self.policy is None:
            part = "rule" if self.rule is None else "policy"
            raise StudyError(
                f"the study runs under a {part} of its user's own making, which cannot be made from its records; "
                f"give it: {how}"
            )
        return Scheduler(make("rule", self.rule), make("policy", self.policy))

    def complete(self, budget: Budget) -> Budget:
        """Return the budget with trials and rule to stop of this job, where it names none."""
        stop = make("stop", self.stop) if budget.stop_when is None and self.stop is not None else budget.stop_when
        return replace(budget, trials=self.trials if budget.trials is None else budget.trials, stop_when=stop)

    def difference(self, other: "JobNote") -> str | None:
        """Return in what `other` would run something else than this job, or None."""
        if (self.name, self.digest, self.optuna) != (other.name, other.digest, other.optuna):
            mine, theirs = (f"{job.text} (source {job.digest})" for job in (self, other))
            return f"the study's trials run {mine}, this worker would run {theirs}"
        for part in ("rule", "policy"):
            mine, theirs = getattr(self, part), getattr(other, part)
            if mine != theirs:
                return f"the study runs under {part} {mine}, this worker would under {theirs}"
        return None
