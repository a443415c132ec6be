"""What a stage of a workflow is, what it is given, and the records by which unchanged stages are skipped.

`DIR/stages/NAME.json` holds a digest of each input of the stage, the digest of each file that it wrote, and what it
said. A stage is unchanged while all of them are the same; one that was killed has no record of it, and runs again.
"""

import hashlib
import json
import shlex
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Protocol, Self, TypeVar

from trainwright.engine.function_reference import load_function
from trainwright.errors import InputError
from trainwright.files import plain, write_text
from trainwright.ledger import State, open_ledger, state_of
from trainwright.settings import Settings, settings_of
from trainwright.study import Study
from trainwright.validators import instance_of

__all__ = [
    "A_TABLE",
    "EXPORT",
    "PLACEMENT",
    "SearchStage",
    "StageOutcome",
    "StageRecords",
    "StudyJob",
    "WorkflowStage",
    "read_source",
    "read_text_of",
    "take_base",
]

_Base = TypeVar("_Base", bound=Settings)

EXPORT = "ensemble"  # folder of the exported ensemble in the study's
PLACEMENT = "allocation.json"  # its plan, likewise
_FOLDER = "stages"  # of the records
_CODE = "training code"
A_TABLE = instance_of(dict, words="a table: [name], and its entries below")
"""What each [name] of a study file holds."""


@dataclass(kw_only=True)
class StudyJob:
    """What `trainwright run` is to do: the study of a file, how to run it, and the stages beside the search."""

    file: Path
    open_study: Callable[[], Study]
    train: Callable[..., Any]
    budget: dict[str, Any] = field(default_factory=dict)
    searcher: Any = None
    scheduler: Any = None
    engine: Any = None
    directory: Path | None = None
    space: Any = None
    stages: "tuple[WorkflowStage, ...]" = ()
    tables: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)  # of a .toml file
    progress: bool = True
    command: tuple[str, ...] = ()  # that runs this file here

    @property
    def folder(self) -> Path:
        """The study's folder, which every stage but the search needs."""
        if self.directory is None:
            raise InputError(f"{self.file}: stages need a study that is kept; give [study] directory, or --directory")
        return self.directory

    @property
    def study_exists(self) -> bool:
        """Whether the study is there, which it never is without a folder."""
        stored = self.directory
        return stored is not None and any((stored / "ledger" / name).is_file() for name in ("study.json", "url"))

    def state(self, stage: str) -> State:
        """Return the state of the study, which `stage` needs."""
        if not self.study_exists:
            raise self.missing(stage, f"a study in {self.folder}, where there is none", "search")
        return state_of(open_ledger(self.folder))

    def read(self, stage: str, path: str, needed: str) -> str:
        """Return the text of a file that the stage `needed` writes into the study's folder, and `stage` rests on."""
        found = read_text_of(self.folder / path)
        if found is None:
            raise self.missing(stage, f"{self.folder / path}, which is not there", needed)
        return found

    def missing(self, stage: str, what: str, needed: str) -> InputError:
        """Return the error that a stage raises when the result of one before it, `needed`, is not there."""
        # The command that mends it can be pasted as it stands.
        again = shlex.join([*self.command, "--stage", needed])
        return InputError(f"stage {stage} needs {what}; run the stage before it: {again}")


@dataclass(frozen=True, kw_only=True, slots=True)
class StageOutcome:
    """What a stage came to, for its record; `content["summary"]`, if any, has its entries of summary.json."""

    content: Mapping[str, Any]
    outputs: tuple[str, ...] = ()  # files that it wrote, relative to the study's folder
    inputs: Mapping[str, Any] | None = None  # if its own work changed them


class WorkflowStage(Protocol):
    """One stage of a workflow, made from its table of a study file."""

    name: ClassVar[str]

    @classmethod
    def from_table(cls, table: Mapping[str, Any], where: str) -> Self:
        """Return the stage of a table, as all settings are read."""

    def inputs(self, job: StudyJob) -> Mapping[str, Any] | None:
        """Return what it rests on, by name; None if that cannot be told, so that it always runs."""

    def run(self, job: StudyJob) -> StageOutcome:
        """Do it."""

    def show(self, content: Mapping[str, Any]) -> None:
        """Print what came out."""


def take_base(settings: Settings, base: type[_Base]) -> _Base:
    """Return the fields that settings have from a base class, as an object of that class."""
    return base(**{field.name: getattr(settings, field.name) for field in settings_of(base)})


def read_text_of(path: str | Path | None) -> str | None:
    """Return what is in a file; None if it cannot be read."""
    try:
        return None if path is None else Path(path).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError):
        return None


def read_source(function: str, what: str) -> str | None:
    """Return the source of the module that holds "module:function", which must be there; None if it has no file."""
    load_function(function, what)
    return read_text_of(getattr(sys.modules[function.partition(":")[0]], "__file__", None))


@dataclass(frozen=True, slots=True)
class StageRecords:
    """The records of the stages of the study in `directory`."""

    directory: Path

    def read(self, name: str) -> Mapping[str, Any] | None:
        """Return the record of a stage: `inputs`, `outputs` (digests by name) and `content`; None if it never ended."""
        try:
            record = json.loads((self.directory / _FOLDER / f"{name}.json").read_bytes())
            return {part: dict(record[part]) for part in ("inputs", "outputs", "content")}
        except (OSError, ValueError, TypeError, KeyError):
            # A record that cannot be read is none: the stage runs again.
            return None

    def changed(self, name: str, inputs: Mapping[str, Any]) -> str | None:
        """Return why a stage has to run with these inputs, such as "library changed"; None if it need not."""
        record = self.read(name)
        if record is None:
            return "not done yet"
        now, before = _digest_inputs(inputs), record["inputs"]
        differing = sorted(key for key in {*now, *before} if now.get(key) != before.get(key))
        if differing:
            return f"{', '.join(differing)} changed"
        # A file that was removed or edited since is made again.
        for path, digest in record["outputs"].items():
            if _file_digest(self.directory / path) != digest:
                return f"{path} is missing or was changed"
        return None

    def write(self, name: str, inputs: Mapping[str, Any], outcome: StageOutcome) -> Mapping[str, Any]:
        """Record that a stage has ended, and return what it said, as JSON has it."""
        content: Mapping[str, Any] = plain(outcome.content)
        outputs = {path: _file_digest(self.directory / path) or "" for path in outcome.outputs}
        # Digests are compared, so that a record stays small whatever a stage rests on.
        record = {"inputs": _digest_inputs(inputs), "outputs": outputs, "content": content}
        path = self.directory / _FOLDER / f"{name}.json"
        path.parent.mkdir(parents=True, exist_ok=True)
        write_text(path, "record of a stage", json.dumps(record, indent=1, allow_nan=False, default=str))
        return content


def digest_of(value: Any) -> str:
    """Return the BLAKE2b-128 of a value of JSON, whatever the order of its keys; other objects count as their text."""
    text = json.dumps(value, sort_keys=True, default=str)
    return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()


def _digest_inputs(inputs: Mapping[str, Any]) -> dict[str, str]:
    return {name: digest_of(value) for name, value in inputs.items()}


def _file_digest(path: Path) -> str | None:
    try:
        return hashlib.blake2b(path.read_bytes(), digest_size=16).hexdigest()
    except OSError:
        return None


@dataclass(frozen=True, slots=True)
class SearchStage(Settings):
    """Run trials until the budget is used; unchanged once it is, until file, training code, budget or ledger differ."""

    name: ClassVar[str] = "search"

    def inputs(self, job: StudyJob) -> Mapping[str, Any] | None:
        """Return the tables that steer the search, the file of its training function, its budget, and the ledger."""
        tables = job.tables
        if not tables or job.directory is None or job.budget.keys() & {"wall_seconds", "deadline"}:
            # A Python file's objects have no digest, and another hour is another hour.
            return None
        parts = {name: tables.get(name) for name in ("space", "searcher", "rule", "policy")}
        settings = {key: value for key, value in tables["study"].items() if key not in {"directory", "trials"}}
        # The ledger itself, so that new or changed trials show.
        trials = (
            None
            if not job.study_exists
            else [
                (number, str(trial.status), trial.lease, trial.epoch, dict(trial.values))
                for number, trial in sorted(job.state(self.name).trials.items())
            ]
        )
        # It changes no result that is there already.
        budget = {key: value for key, value in job.budget.items() if key != "grace_seconds"}
        code = read_source(tables["study"]["train"], "train")
        return {**parts, "study": settings, _CODE: code, "budget": budget, "ledger": trials}

    def run(self, job: StudyJob) -> StageOutcome:
        """Run or go on."""
        if job.study_exists and job.progress and self._earlier_code(job):
            print("results stay as the earlier code made them; to train all trials again, name a new --directory")
        with job.open_study() as study:
            study.run(
                job.train,
                **job.budget,
                searcher=job.searcher,
                scheduler=job.scheduler,
                engine=job.engine,
                progress=job.progress,
            )
            content = {"trials": len(study.trials), "finished": study.state.results}
        return StageOutcome(content=content, inputs=self.inputs(job))

    def _earlier_code(self, job: StudyJob) -> bool:
        # A changed training function is no error: earlier results stay, new trials use the new code.
        record, inputs = StageRecords(job.folder).read(self.name), self.inputs(job)
        return record is not None and inputs is not None and record["inputs"].get(_CODE) != digest_of(inputs[_CODE])

    def show(self, content: Mapping[str, Any]) -> None:
        """Print how many results there are."""
        print(f"\n{content['finished']} of {content['trials']} trials have a result")
