"""Opens a ledger by its address: a study's directory, or the URL of a study in a Redis server."""

from pathlib import Path

from trainwright.errors import StudyError
from trainwright.ledger.directory import DirectoryLedger
from trainwright.ledger.protocol import Ledger
from trainwright.plugins import load, names_of
from trainwright.publishing import make_folder, write_file

__all__ = ["is_url", "open_ledger"]


def open_ledger(where: str | Path, *, create: bool = False, url: str | None = None) -> Ledger:
    """Return a writer on the ledger of the study in directory `where`, or at redis://HOST:PORT/0?study=NAME.

    Makes the ledger if `create` and it is not there; else `StudyError` says that there is no study. A study may have a
    directory for its files and its ledger at `url`: that is written to DIRECTORY/ledger/url, and found there by whoever
    opens the directory.
    """
    if is_url(where):
        if url is not None and url != str(where):
            raise StudyError(f"ledger: got both {where!s} and {url}; give one")
        return _at(str(where), create=create)
    folder = Path(where) / "ledger"
    noted = _noted(folder)
    if noted is None and url is None:
        return DirectoryLedger(folder, create=create)
    if url is None or url == noted:
        return _at(str(noted), create=False)
    if noted is not None or (folder / "study.json").exists():
        had = noted if noted is not None else "the directory itself"
        raise StudyError(f"{where!s} has its ledger in {had}, now {url}; use a new directory, or leave ledger= out")
    ledger = _at(url, create=create)
    _note(folder, url)
    return ledger


def is_url(where: str | Path) -> bool:
    """Whether this is the address of a server, and no directory."""
    return "://" in str(where)


def _at(url: str, *, create: bool) -> Ledger:
    """Return the ledger at a URL, by its scheme: built in, or of a plug-in."""
    scheme = url.partition("://")[0]
    schemes = names_of("ledger")
    if scheme not in schemes:
        known = ", ".join(f"{name}://" for name in schemes)
        raise StudyError(
            f"ledger: got {url}; allowed: a directory, or redis://HOST:PORT/0?study=NAME; "
            f"this Python has ledgers for {known}, others come as plug-ins"
        )
    ledger: Ledger = load("ledger", scheme, "ledger", StudyError)(url, create=create)
    return ledger


def _noted(folder: Path) -> str | None:
    try:
        return (folder / "url").read_text(encoding="utf-8").strip()
    except (FileNotFoundError, NotADirectoryError):
        return None


def _note(folder: Path, url: str) -> None:
    """Write where the ledger is, for this user's eyes only: the URL may hold a password."""
    make_folder(folder)
    write_file(folder / "url", f"{url}\n", mode=0o600)
