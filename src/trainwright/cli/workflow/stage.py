"""What a stage of a workflow is, and what it is given."""

import shlex
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Protocol, Self, TypeVar

from trainwright.engine.function_reference import load_function
from trainwright.errors import InputError
from trainwright.ledger import State, open_ledger, state_of
from trainwright.settings import Settings, settings_of
from trainwright.study import Study

__all__ = [
    "EXPORT",
    "PLACEMENT",
    "StageOutcome",
    "StageRun",
    "StudyJob",
    "WorkflowStage",
    "read_source",
    "read_text_of",
    "take_base",
]

_Base = TypeVar("_Base", bound=Settings)

EXPORT = "ensemble"  # folder of the exported ensemble in the study's
PLACEMENT = "allocation.json"  # its plan, likewise


@dataclass(kw_only=True)
class StudyJob:
    """What `trainwright run` is to do: a study, how to run it, and the stages that follow."""

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


@dataclass(frozen=True, kw_only=True, slots=True)
class StageRun:
    """A study file as it is run: its job with the command line's overrides."""

    file: Path
    job: StudyJob
    directory: Path | None
    budget: Mapping[str, Any]
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

    def state(self, stage: str) -> "State":
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
    """What a stage came to: for its record, and for summary.json."""

    content: Mapping[str, Any]
    outputs: tuple[str, ...] = ()  # files that it wrote, relative to the study's folder
    inputs: Mapping[str, Any] | None = field(default=None)  # if its own work changed them


class WorkflowStage(Protocol):
    """One stage of a workflow, made from its table of a study file."""

    name: ClassVar[str]

    @classmethod
    def from_table(cls, table: Mapping[str, Any], where: str) -> Self:
        """Return the stage of a table, as all settings are read."""

    def inputs(self, work: StageRun) -> Mapping[str, Any] | None:
        """Return what it rests on, by name; None if that cannot be told, so that it always runs."""

    def run(self, work: StageRun) -> StageOutcome:
        """Do it."""

    def show(self, content: Mapping[str, Any]) -> None:
        """Print what came out."""

    def summary(self, content: Mapping[str, Any], /) -> Mapping[str, Any]:
        """Return its entries of summary.json."""


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
