"""Finished searches, kept so that a run that was cut off goes on: one file of JSON lines per searcher, appended only.

A cell is one search: which rows of which table were evaluated, in which order. All measures are computed from that.
A search knows nothing of its budget, so a longer cell serves a shorter budget by its beginning.
"""

import json
from pathlib import Path
from typing import NamedTuple

__all__ = ["Cell", "Cells", "Key"]


class Key(NamedTuple):
    """What must be equal for a cell to be used again."""

    version: str  # of the searcher, with its settings
    table: str
    digest: str  # of the table's data
    seed: int
    workers: int


class Cell(NamedTuple):
    """One finished search of a table."""

    key: Key
    rows: tuple[int, ...]
    ask_tell_ms: float  # mean of one ask + tell, measured inside the searcher's process


class Cells:
    """The kept cells of one searcher."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._kept: dict[Key, Cell] = {}
        # By table: one searcher may be told another budget on each, which is part of its version.
        self.latest_version: dict[str, str] = {}
        text = path.read_bytes() if path.exists() else b""
        self._torn = bool(text) and not text.endswith(b"\n")
        for line in text.splitlines():
            cell = _parse(line)
            if cell is not None:
                self._keep(cell)

    def find(self, key: Key, evaluations: int) -> Cell | None:
        """Give a kept cell of at least so many evaluations."""
        cell = self._kept.get(key)
        return cell if cell is not None and len(cell.rows) >= evaluations else None

    def add(self, cell: Cell) -> None:
        """Keep a finished cell, at once and for good."""
        self._path.parent.mkdir(parents=True, exist_ok=True)
        line = json.dumps({**cell.key._asdict(), "rows": cell.rows, "ask_tell_ms": cell.ask_tell_ms})
        with self._path.open("ab") as file:
            # A torn last line is closed first, or it would swallow this one.
            file.write(b"\n" * self._torn + line.encode() + b"\n")
        self._torn = False
        self._keep(cell)

    def _keep(self, cell: Cell) -> None:
        self.latest_version[cell.key.table] = cell.key.version
        known = self._kept.get(cell.key)
        if known is None or len(known.rows) <= len(cell.rows):
            self._kept[cell.key] = cell


def _parse(line: bytes) -> Cell | None:
    """Read a line; None for one that was cut by a kill, whose search runs again."""
    try:
        data = json.loads(line)
        return Cell(Key(*(data[name] for name in Key._fields)), tuple(data["rows"]), data["ask_tell_ms"])
    except (ValueError, TypeError, KeyError):
        return None
