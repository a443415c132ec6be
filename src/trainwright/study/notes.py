"""Records the training function, searcher and rule in the ledger, so that workers join by the study's address alone."""

import hashlib
import inspect
import re
import sys
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields, replace
from operator import itemgetter
from pathlib import Path
from typing import Any, ClassVar, Self, cast

from trainwright.engine import TrainFunction
from trainwright.engine.function_reference import FunctionReference, load_reference
from trainwright.errors import EngineError, StudyError
from trainwright.ledger import Record, State, facts
from trainwright.plugins import describe, make
from trainwright.schedule import Scheduler
from trainwright.search import DefaultSearcher, Searcher
from trainwright.study.driver.budget import Budget
from trainwright.study.study_log import StudyLog
from trainwright.train.optuna import OptunaObjective
from trainwright.validators import check, instance_of, optional

__all__ = ["JobNote", "SearcherNote", "Searching"]

_ADDRESS = re.compile(r" at 0x[0-9a-fA-F]+")


class _StudyNote:
    """A note of the study in its ledger: a dataclass whose fields are the note's value, beside the session."""

    kind: ClassVar[str]

    @classmethod
    def last(cls, state: State) -> Self | None:
        """Return the note that the latest session wrote, or None."""
        noted = [(value["session"], key, value) for key, (_, kind, value) in state.notes.items() if kind == cls.kind]
        if not noted:
            return None
        value = max(noted, key=itemgetter(0, 1))[2]
        return cls(**{field.name: value.get(field.name) for field in fields(cls)})  # type: ignore[arg-type]  # dataclasses

    def record(self, session: int) -> Record:
        """Return the record that notes it."""
        return facts.note(self.kind, {**asdict(self), "session": session})  # type: ignore[call-overload]  # likewise


@dataclass(frozen=True, kw_only=True)
class JobNote(_StudyNote):
    """The training function by name and source, the budget in trials, the scheduler as tables.

    None stands for what has no name (a function typed into a session, a rule of the user's own).
    """

    kind = "job"
    module: str | None = None
    name: str | None = None
    script: str | None = None
    folder: str | None = None  # from which the module can be imported
    digest: str | None = None  # of the source file
    optuna: str | None = None  # it takes Optuna's trials: as in `FunctionReference`
    trials: int | None = None
    rule: Mapping[str, Any] | None = None
    policy: Mapping[str, Any] | None = None

    @classmethod
    def of(cls, train: TrainFunction, scheduler: Scheduler, budget: Budget) -> Self:
        """Return the job of running `train` so."""
        parts: dict[str, Any] = {
            "trials": budget.trials,
            "rule": describe("rule", scheduler.rule),
            "policy": describe("policy", scheduler.policy),
        }
        try:
            reference = FunctionReference.of(train)
            source = Path(inspect.getfile(train.objective if isinstance(train, OptunaObjective) else train)).resolve()
        except (EngineError, TypeError):  # no other process finds it
            return cls(**parts)
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
            **parts,
        )

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
        """Return the budget with the trials of this job, where it names none."""
        return replace(budget, trials=self.trials if budget.trials is None else budget.trials)

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


@dataclass(frozen=True, kw_only=True)
class SearcherNote(_StudyNote):
    """A searcher by name and settings, points and warm start included; `table` is None for a user's own class."""

    kind = "searcher"
    table: Mapping[str, Any] | None
    text: str  # as a person would write it

    @classmethod
    def of(cls, searcher: Searcher) -> Self:
        """Return the fact of a searcher."""
        # A table can be compared and made again; a user's own class only by its text.
        table, kind = describe("searcher", searcher), type(searcher)
        if table is not None:
            settings = ", ".join(f"{key}={_shorten(value)}" for key, value in table.items() if key != "name")
            return cls(table=table, text=f"{table['name']}({settings})")
        # What prints itself by its address prints another one in each process.
        plain = kind.__repr__ is object.__repr__
        return cls(table=None, text=kind.__qualname__ if plain else _ADDRESS.sub("", repr(searcher)))

    def difference(self, other: "SearcherNote") -> str | None:
        """Return how `other` would search otherwise, or None."""
        if self == other:
            return None
        return f"the study is searched by {self.text}, this worker would search by {other.text}"

    def build(self, how: str) -> Searcher:
        """Return an equal searcher; raises `StudyError` that says `how` to give one of a user's own making."""
        if self.table is None:
            raise StudyError(
                f"the study is searched by {self.text}, which cannot be made from its records; give it: {how}"
            )
        return cast(Searcher, make("searcher", self.table))


class Searching:
    """Who proposes in one study object, and what its ledger says of that."""

    def __init__(self, log: StudyLog, searcher: Searcher | None) -> None:
        self._log = log
        self._searcher = searcher
        self._noted: Searcher | None = None  # the one that the ledger names

    def choose(self, preferred: Searcher | None, how: str) -> Searcher:
        """Return the preferred searcher, or the study object's, or the one that the study was searched by last.

        Raises `StudyError` that says `how` to give one that cannot be made from the study's records.
        """
        found = preferred if preferred is not None else self._searcher
        check(
            found, optional(instance_of(Searcher, words="a searcher such as ForestSearcher()")), "searcher", StudyError
        )
        if found is None:
            fact = SearcherNote.last(self._log.state)
            found = self._searcher = DefaultSearcher() if fact is None else fact.build(how)
        return found

    def note(self, searcher: Searcher, *, again: bool = True) -> None:
        """Name in the ledger who proposes from now on; unless `again`, only where it names nobody."""
        if searcher is self._noted:
            return
        fact, last = SearcherNote.of(searcher), SearcherNote.last(self._log.state)
        # A worker that joins takes the study's searcher; it does not rename it for all.
        if fact != last and (again or last is None):
            self._log.append(fact.record(self._log.state.sessions))
        self._searcher = self._noted = searcher


def _shorten(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 40 else f"{text[:36]} ..."
