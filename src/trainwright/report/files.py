"""Where a report or an export goes: refused in one sentence, or replaced as a whole."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from trainwright.errors import InputError
from trainwright.publishing import publish, write_file

__all__ = ["folder", "replacing", "target", "write"]


def target(directory: str | Path, file: str | Path, finished: tuple[str, ...] = ()) -> Path:
    """Return `file` as a path that may be written, or raise `InputError`; no `finished` allow any.

    What lies in the study's own records is never overwritten.
    """
    path = Path(file)
    if finished and path.suffix.lower() not in finished:
        values = repr(path.suffix) if path.suffix else "no ending"
        raise InputError(f"cannot write {path}: its name must end in {' or '.join(finished)}, got {values}")
    if path.is_dir():
        raise InputError(f"cannot write {path}: it is a directory; give the name of a file in it")
    if not path.parent.is_dir():
        raise InputError(f"cannot write {path}: the directory {path.parent} does not exist; make it first")
    _refuse_records(directory, path)
    return path


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Give a temporary path that takes the place of `path` at the end; raises `InputError` where it cannot be."""
    with _explain_errors(path), publish(path) as temporary:
        yield temporary


def write(path: Path, content: str | bytes) -> None:
    """Write a file as a whole, in place of what is there; raises `InputError` where it cannot be."""
    with _explain_errors(path):
        write_file(path, content)


@contextmanager
def _explain_errors(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise InputError(f"cannot write {path}: {(error.strerror or str(error)).lower()}") from error


def folder(directory: str | Path, path: str | Path) -> Path:
    """Return `path` as a folder that may be written to, made if it is not there, or raise `InputError`."""
    result = Path(path)
    _refuse_records(directory, result)
    if not result.parent.is_dir():
        raise InputError(f"cannot write {result}: the directory {result.parent} does not exist; make it first")
    with _explain_errors(result):
        result.mkdir(exist_ok=True)
    return result


def _refuse_records(directory: str | Path, path: Path) -> None:
    # An export over the study's own records would destroy the study.
    records = (Path(directory) / "ledger").resolve()
    if records in (path.resolve(), *path.resolve().parents):
        raise InputError(f"cannot write {path}: it lies in the study's own records, {records}; choose another place")
