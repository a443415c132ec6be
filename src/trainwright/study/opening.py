"""How the directory of a study is made, found and compared with what it is opened as."""

from pathlib import Path

from trainwright.errors import StudyError, closest
from trainwright.ledger import Constraint, DirectoryLedger, Ledger, Objective
from trainwright.space import Space
from trainwright.study.book import Book

__all__ = ["compare", "create_ledger", "open_ledger_of"]

_OURS = frozenset({"ledger", "checkpoints", "library", "logs", "report.html", "summary.json"})


def create_ledger(directory: Path) -> Ledger:
    """Return the ledger of a study in a new or empty directory, or of the one that is there."""
    if directory.is_file():
        raise StudyError(f"{directory} is a file; give a directory for the study")
    if directory.is_dir() and not (directory / "ledger").is_dir():
        foreign = sorted({path.name for path in directory.iterdir()} - _OURS)
        if foreign:
            raise StudyError(
                f"{directory} is no study and holds other files ({foreign[0]}); give a new or empty directory"
            )
    return DirectoryLedger(directory / "ledger", create=True)


def open_ledger_of(directory: Path) -> Ledger:
    """Return the ledger of the study that is there; raises `StudyError` naming what is near."""
    if not (directory / "ledger" / "study.json").is_file():
        near = [
            str(path.parent.parent)
            for path in directory.parent.glob("*/ledger/study.json")
            if directory.parent.is_dir()
        ]
        listed = f"; studies there: {', '.join(sorted(near)[:5])}" if near else ""
        raise StudyError(f"no study in {directory}{listed}{closest(str(directory), near)}")
    return DirectoryLedger(directory / "ledger")


def compare(
    book: Book, space: Space, objectives: tuple[Objective, ...], constraints: tuple[Constraint, ...], seed: int
) -> None:
    """Refuse a study that was made otherwise, naming the first difference."""
    before = book.space()
    if before.fingerprint != space.fingerprint:
        differences = before.differences(space)
        what = differences[0] if differences else "another space"
        raise StudyError(f"{book.directory} was made with {what}; use a new directory, or the space it was made with")
    for word, made, given in (
        ("objectives", book.objectives, objectives),
        ("constraints", book.state.constraints, constraints),
    ):
        if made != given:
            had, now = (", ".join(map(str, outcomes)) or "none" for outcomes in (made, given))
            raise StudyError(f"{book.directory} was made with {word} {had}, now {now}; use a new directory")
    if book.state.seed != seed:
        raise StudyError(
            f"{book.directory} was made with seed {book.state.seed}, now {seed}; use a new directory, or seed="
            f"{book.state.seed}"
        )
