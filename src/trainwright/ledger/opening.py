"""Ledgers by what a person writes: a study's directory, or the URL of a study in a Redis server."""

from pathlib import Path

from trainwright.errors import StudyError
from trainwright.ledger.directory import DirectoryLedger
from trainwright.ledger.protocol import Ledger
from trainwright.ledger.redis import RedisLedger

__all__ = ["open_ledger"]


def open_ledger(where: str | Path, *, create: bool) -> Ledger:
    """Return a writer on the ledger of the study in directory `where`, or at redis://HOST:PORT/0?study=NAME.

    Makes the ledger if `create` and it is not there; else `StudyError` says that there is no study.
    """
    scheme, found, _ = str(where).partition("://")
    if not found:
        return DirectoryLedger(Path(where) / "ledger", create=create)
    if scheme not in {"redis", "rediss"}:
        raise StudyError(f"ledger: got {where!s}; allowed: a directory, or redis://HOST:PORT/0?study=NAME")
    return RedisLedger(str(where), create=create)
