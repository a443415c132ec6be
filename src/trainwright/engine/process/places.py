"""Locate an error in the user's code, and shorten its traceback to the user's frames."""

import linecache
import sysconfig
import traceback
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType

from trainwright.ledger import RaisedAt

__all__ = ["raised_at", "traceback_of"]

_OURS = str(Path(__file__).parents[2])
_LIBRARIES = tuple(sysconfig.get_paths()[name] for name in ("stdlib", "platstdlib", "purelib", "platlib"))
_LONGEST = 160  # characters of a source line


def raised_at(error: BaseException) -> RaisedAt | None:
    """Return the innermost line of an error's traceback that is a user's own, or None if there is none.

    A line of a library counts only if no other is the user's, as of a project that is installed; a line of the standard
    library or of ours never.
    """
    if isinstance(error, SyntaxError) and error.filename is not None and error.lineno is not None:
        return RaisedAt(type(error).__name__, error.filename, error.lineno, (error.text or "").strip()[:_LONGEST])
    lines = [(file, line) for file, line in _walk_lines(error.__traceback__) if not _is_ours(file)]
    own = [each for each in lines if not each[0].startswith(_LIBRARIES)]
    installed = [each for each in lines if "site-packages" in each[0]]
    if not (found := own or installed):
        return None
    file, line = found[-1]
    return RaisedAt(type(error).__name__, file, line, linecache.getline(file, line).strip()[:_LONGEST])


def traceback_of(error: BaseException) -> str:
    """Return the traceback of an error as text, from the first line that is not ours."""
    trace = error.__traceback__
    while trace is not None and _is_ours(trace.tb_frame.f_code.co_filename):
        trace = trace.tb_next
    # An error that only lines of ours raised keeps them all: there is nothing else to tell.
    return "".join(traceback.format_exception(type(error), error, trace or error.__traceback__))


def _walk_lines(trace: TracebackType | None) -> Iterator[tuple[str, int]]:
    while trace is not None:
        yield trace.tb_frame.f_code.co_filename, trace.tb_lineno
        trace = trace.tb_next


def _is_ours(file: str) -> bool:
    return file.startswith((_OURS, "<frozen"))
