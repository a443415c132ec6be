"""Choose the searcher of a study, and note it in the ledger for everyone who opens the study later."""

import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Self, cast

from trainwright.errors import StudyError
from trainwright.ledger import Record, State, facts
from trainwright.plugins import describe, make
from trainwright.search import DefaultSearcher, Searcher
from trainwright.study.job import latest_note
from trainwright.study.study_log import StudyLog

__all__ = ["SearcherNote", "Searching"]

_NOTE = "searcher"
_ADDRESS = re.compile(r" at 0x[0-9a-fA-F]+")


@dataclass(frozen=True, kw_only=True, slots=True)
class SearcherNote:
    """A searcher by name and settings, points and warm start included; `table` is None for a user's own class."""

    table: Mapping[str, Any] | None
    text: str  # as a person would write it

    @classmethod
    def of(cls, searcher: Searcher) -> Self:
        """Return the fact of a searcher."""
        # A table can be compared and made again; a user's own class only by its text.
        table, kind = describe("searcher", searcher), type(searcher)
        if table is not None:
            settings = ", ".join(f"{key}={_shorten(value)}" for key, value in table.items() if key != "name")
            return cls(table=table, text=f"{table['name']}({settings})")
        # What prints itself by its address prints another one in each process.
        plain = kind.__repr__ is object.__repr__
        return cls(table=None, text=kind.__qualname__ if plain else _ADDRESS.sub("", repr(searcher)))

    @classmethod
    def last(cls, state: State) -> Self | None:
        """Return the fact that was noted last, or None."""
        value = latest_note(state, _NOTE)
        return None if value is None else cls(table=value["table"], text=value["text"])

    def record(self, session: int) -> Record:
        """Return the record that notes it."""
        return facts.note(_NOTE, {**asdict(self), "session": session})

    def difference(self, other: "SearcherNote") -> str | None:
        """Return how `other` would search otherwise, or None."""
        if self == other:
            return None
        return f"the study is searched by {self.text}, this worker would search by {other.text}"

    def build(self, how: str) -> Searcher:
        """Return an equal searcher; raises `StudyError` that says `how` to give one of a user's own making."""
        if self.table is None:
            raise StudyError(
                f"the study is searched by {self.text}, which cannot be made from its records; give it: {how}"
            )
        return cast(Searcher, make("searcher", self.table))


class Searching:
    """Who proposes in one study object, and what its ledger says of that."""

    def __init__(self, log: StudyLog, searcher: Searcher | None) -> None:
        self._log = log
        self._searcher = searcher
        self._noted: Searcher | None = None  # the one that the ledger names

    def choose(self, preferred: Searcher | None, how: str) -> Searcher:
        """Return the preferred searcher, or the study object's, or the one that the study was searched by last.

        Raises `StudyError` that says `how` to give one that cannot be made from the study's records.
        """
        found = preferred if preferred is not None else self._searcher
        if found is None:
            fact = SearcherNote.last(self._log.state)
            found = self._searcher = DefaultSearcher() if fact is None else fact.build(how)
        return found

    def note(self, searcher: Searcher, *, again: bool = True) -> None:
        """Name in the ledger who proposes from now on; unless `again`, only where it names nobody."""
        if searcher is self._noted:
            return
        fact, last = SearcherNote.of(searcher), SearcherNote.last(self._log.state)
        # A worker that joins takes the study's searcher; it does not rename it for all.
        if fact != last and (again or last is None):
            self._log.append(fact.record(self._log.state.sessions))
        self._searcher = self._noted = searcher


def _shorten(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 40 else f"{text[:36]} ..."
