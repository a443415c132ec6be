"""Where each key of a TOML or YAML text stands, so that an error can name the line.

The text has been read by a real parser before: the walk over TOML below only follows keys, tables and brackets.
"""

import re
from collections.abc import Mapping
from typing import Any

__all__ = ["Path", "line_of", "toml_lines", "yaml_lines"]

Path = tuple[str | int, ...]

_TOKEN = re.compile(
    r'"""(?:\\.|[^\\])*?"""|\'\'\'.*?\'\'\'|"(?:\\.|[^"\\\n])*"|\'[^\'\n]*\'|[\[\]{},=.\n]|#[^\n]*|[^\s\[\]{},=.#\'"]+',
    re.DOTALL,
)


def line_of(lines: Mapping[Path, int], path: Path) -> int | None:
    """Return the line of a key, or of the nearest key around it."""
    return next((lines[path[:length]] for length in range(len(path), 0, -1) if path[:length] in lines), None)


def toml_lines(text: str) -> dict[Path, int]:
    """Return the line, counted from 1, of every key and every item of an array."""
    return _TomlWalk(text).lines


class _TomlWalk:
    """One pass over the tokens of a TOML text."""

    def __init__(self, text: str) -> None:
        # Each token with the line that it begins on.
        self.words = [(match[0], text.count("\n", 0, match.start()) + 1) for match in _TOKEN.finditer(text)]
        self.words = [word for word in self.words if not word[0].startswith("#")]
        self.place = 0
        self.lines: dict[Path, int] = {}
        self.tables: dict[Path, int] = {}
        table: Path = ()
        while self.place < len(self.words):
            word, line = self.words[self.place]
            if word == "\n":
                self.place += 1
            elif word == "[":
                self.place += 1
                # [[table]] is an entry of an array: its path ends with the entry's number.
                array = self._peek_word() == "["
                self.place += array
                table = self._read_key(())
                if array:
                    self.place += 1
                    count = self.tables.get(table, 0)
                    self.tables[table] = count + 1
                    table = (*table, count)
                self.lines[table] = line
            else:
                self._read_pair(table)

    def _read_key(self, table: Path) -> Path:
        """Pass a dotted key and what ends it: "=", or the bracket of a table."""
        path = table
        while (word := self._next_word()) not in {"=", "]"}:
            # A dotted key passes through the last entry of an array of tables.
            if word != ".":
                path = (*path, word.strip("\"'"))
                count = self.tables.get(path)
                path = (*path, count - 1) if count is not None and self._peek_word() == "." else path
        return path

    def _read_pair(self, table: Path) -> None:
        line = self.words[self.place][1]
        path = self._read_key(table)
        self.lines[path] = line
        self._read_value(path)

    def _read_value(self, path: Path) -> None:
        # Items of lists and inline tables have lines of their own; scalars end at the next separator.
        opened = self._next_word()
        if opened == "[":
            count = 0
            while (word := self._peek_word()) != "]":
                if word in {",", "\n"}:
                    self.place += 1
                else:
                    self.lines[*path, count] = self.words[self.place][1]
                    self._read_value((*path, count))
                    count += 1
            self.place += 1
        elif opened == "{":
            while (word := self._peek_word()) != "}":
                if word in {",", "\n"}:
                    self.place += 1
                else:
                    self._read_pair(path)
            self.place += 1
        else:
            while self._peek_word() not in {",", "]", "}", "\n", ""}:
                self.place += 1

    def _peek_word(self) -> str:
        return self.words[self.place][0] if self.place < len(self.words) else ""

    def _next_word(self) -> str:
        self.place += 1
        return self.words[self.place - 1][0]


def yaml_lines(root: Any) -> dict[Path, int]:
    """Return the same for the node tree of PyYAML's `compose`."""
    lines: dict[Path, int] = {}

    def walk(node: Any, path: Path) -> None:
        if node.id == "mapping":
            for key, value in node.value:
                lines[*path, key.value] = key.start_mark.line + 1
                walk(value, (*path, key.value))
        elif node.id == "sequence":
            for place, item in enumerate(node.value):
                lines[*path, place] = item.start_mark.line + 1
                walk(item, (*path, place))

    walk(root, ())
    return lines
