"""Open or create the ledger of a study, and compare an existing study with what is asked for."""

from pathlib import Path

from trainwright.errors import StudyError
from trainwright.ledger import Constraint, Ledger, MemoryLedger, Objective, open_ledger
from trainwright.space import Space
from trainwright.study.study_log import StudyLog

__all__ = ["compare", "open_study_ledger"]

_OURS = frozenset({"ledger", "checkpoints", "library", "logs", "report.html", "summary.json", "stages"})


def open_study_ledger(where: str | Path | None, ledger: Ledger | str | None, *, create: bool) -> Ledger:
    """Return the ledger of the study in a directory or at a URL; without a place one in memory.

    With `create` it is made in a new or empty directory; else `StudyError` names what is near.
    """
    if ledger is not None and not isinstance(ledger, str):
        return ledger
    if where is None:
        return MemoryLedger() if ledger is None else open_ledger(ledger, create=True)
    directory = Path(where)
    if create and directory.is_file():
        raise StudyError(f"{directory} is a file; give a directory for the study")
    if create and directory.is_dir() and not (directory / "ledger").is_dir():
        # A study writes many files: never among somebody's own.
        foreign = sorted({path.name for path in directory.iterdir()} - _OURS)
        if foreign:
            raise StudyError(
                f"{directory} is no study and holds other files ({foreign[0]}); give a new or empty directory"
            )
    return open_ledger(where, url=ledger, create=create)


def compare(
    log: StudyLog, space: Space, objectives: tuple[Objective, ...], constraints: tuple[Constraint, ...], seed: int
) -> None:
    """Refuse a study that was made otherwise, naming the first difference."""
    place = log.directory or "the study"
    before = log.space()
    if before.fingerprint != space.fingerprint:
        differences = before.differences(space)
        what = differences[0] if differences else "another space"
        raise StudyError(f"{place} was made with {what}; use a new directory, or the space it was made with")
    for word, existing, wanted in (
        ("objectives", log.objectives, objectives),
        ("constraints", log.state.constraints, constraints),
    ):
        if existing != wanted:
            had, now = (", ".join(map(str, outcomes)) or "none" for outcomes in (existing, wanted))
            raise StudyError(f"{place} was made with {word} {had}, now {now}; use a new directory")
    if log.state.seed != seed:
        raise StudyError(
            f"{place} was made with seed {log.state.seed}, now {seed}; use a new directory, or seed={log.state.seed}"
        )
