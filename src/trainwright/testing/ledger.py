"""What every ledger promises, as tests: subclass `LedgerConformance`, give `make` and `another`, inherit them.

Needs hypothesis; nothing else of the package imports this file.
"""
# ruff: noqa: S101 -- asserts are what tests are made of

import math
import threading
from abc import ABC, abstractmethod
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import ClassVar

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, initialize, rule
from hypothesis.stateful import run_state_machine_as_test as run_machine

from trainwright.ledger.kinds import KINDS
from trainwright.ledger.protocol import Cursor, Ledger
from trainwright.ledger.record import Record

__all__ = ["LedgerConformance", "bodies", "records"]

# All of Unicode, NUL, line ends and unpaired surrogates.
_text = st.text(max_size=8)
_values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**63) | st.floats() | _text,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(_text, inner, max_size=3),
    max_leaves=6,
)
_shared = settings(deadline=None, suppress_health_check=[HealthCheck.differing_executors, HealthCheck.too_slow])

bodies = st.dictionaries(_text, _values, max_size=4)
"""Any body that a record of an unknown kind may have: JSON values, NaN and infinities among them."""

records = st.tuples(
    _text.filter(lambda kind: kind not in KINDS), bodies, st.none() | st.integers(0, 9), st.none() | st.integers(1, 4)
).map(lambda parts: Record(*parts))
"""Records of unknown kinds, which a ledger keeps as they are, not yet stamped."""


class LedgerConformance(ABC):
    """What every ledger promises. Subclass as Test<Ledger>, give `make` and `another`, inherit the tests."""

    records: ClassVar[st.SearchStrategy[Record]] = records
    """What is appended."""

    examples = 30
    """How many examples hypothesis tries; fewer for a ledger that is slow to make."""

    @abstractmethod
    def make(self) -> Ledger:
        """Return a writer on a new, empty ledger."""

    @abstractmethod
    def another(self, ledger: Ledger) -> Ledger:
        """Return another writer on the records of `ledger`, which may be closed."""

    def test_round_trip(self) -> None:
        """Any record comes back as it was stamped: unknown kinds, NaN, infinities, all of Unicode."""

        @settings(_shared, max_examples=self.examples)
        @given(batches=st.lists(st.lists(self.records, max_size=3), max_size=3))
        def check(batches: list[list[Record]]) -> None:
            ledger = self.make()
            stamped = [record for batch in batches for record in ledger.append(batch)]
            for reader in (ledger, self.another(ledger)):
                read, _ = reader.read(None)
                assert _lines(read) == _lines(stamped)
                assert [record.kind for record in read] == [record.kind for batch in batches for record in batch]

        check()

    def test_what_does_not_fit_is_left_out_and_named(self) -> None:
        """A record of a known kind with a wrong body costs itself, and hides nothing."""
        ledger = self.make()
        # One record misfits by a field, one lacks its trial.
        ledger.append(
            [Record(kind="a"), Record("reported", {"epoch": "1"}, 0, 1), Record("lost", {}), Record(kind="b")]
        )
        for reader in (ledger, self.another(ledger)):
            assert [record.kind for record in reader.read(None)[0]] == ["a", "b"]
            assert [dropped.why for dropped in reader.dropped()] == [
                "it is no record 'reported': epoch is no whole number >= 0",
                "it is no record 'lost': trial is no whole number >= 0",
            ]

    def test_stamps(self) -> None:
        """The stamp is the writer's name and its consecutive numbers; the record is left as it was."""
        # Two writers on one ledger, which must not mix up their numbers.
        first = self.make()
        second = self.another(first)
        record = Record(kind="mark", body={"name": "x"})
        for ledger in (first, second, first):
            ledger.append([record, record])
        assert record.writer == ""
        assert first.writer != second.writer
        read = first.read(None)[0]
        assert [r.seq for r in read if r.writer == first.writer] == [0, 1, 2, 3]
        assert [r.seq for r in read if r.writer == second.writer] == [0, 1]

    def test_blocks_are_one_read(self) -> None:
        """Read in blocks of any size, the records are those of one read, in each writer's order."""
        first = self.make()
        second = self.another(first)
        for number in range(30):
            # Batches of up to three records, empty ones among them, from two writers in turn.
            (first, second)[number % 2].append([Record(kind="mark", body={"name": "x" * number})] * (number % 4))
        # One record a block, an odd size, and all at once.
        for most in (1, 7, 1000):
            cursor, found = None, []
            while True:
                read, after = first.read(cursor, most=most)
                found += read
                # A block that is not full is the last one.
                if len(read) < most:
                    assert first.read(after)[0] == []
                    break
                cursor = after
            assert _by_writer(found) == _by_writer(first.read(None)[0])

    def test_claims_are_for_ever(self) -> None:
        """Whoever claims a key, now or after reopening, is told the token that came first; any text is a key."""
        first = self.make()
        second = self.another(first)
        # As names of files, some of these would be folders, other places, or one another.
        keys = ("number/0/0", "number/0", "number", "..", ".", "a b", "%2E", "../study.json", "Ä/é", "x" * 200)
        for key in keys:
            assert second.claim(key, f"second {key}") == f"second {key}"
            assert second.claim(key, f"second {key}") == f"second {key}"
        assert [first.claim(key, "first") for key in keys] == [f"second {key}" for key in keys]
        second.close()
        later = self.another(first)
        assert [later.claim(key, "later") for key in keys] == [f"second {key}" for key in keys]
        assert first.read(None)[0] == []

    def test_silences(self) -> None:
        """A writer that has just sent a heartbeat was not silent for long; one that never has was silent for ever."""
        ledger = self.make()
        ledger.heartbeat()
        silences = self.another(ledger).silences([ledger.writer, "nobody"])
        assert 0.0 <= silences[ledger.writer] < ledger.lease_seconds
        assert silences["nobody"] == math.inf
        assert ledger.silences([]) == {}

    def test_heartbeats_during_appends(self) -> None:
        """Heartbeats may come from a thread while another appends: none is lost, and the writer stays who it is."""
        ledger = self.make()

        def heartbeat() -> None:
            for _ in range(50):
                ledger.heartbeat()

        # The driver's heartbeat thread and its appends share one writer.
        thread = threading.Thread(target=heartbeat)
        thread.start()
        stamped = [record for _ in range(50) for record in ledger.append([Record(kind="a"), Record(kind="b")])]
        thread.join()
        assert ledger.heartbeats([ledger.writer]) == {ledger.writer: 50}
        assert [(record.writer, record.seq) for record in stamped] == [(ledger.writer, i) for i in range(100)]
        assert _lines(ledger.read(None)[0]) == _lines(stamped)

    def test_close(self) -> None:
        """What was appended outlives the writer, which may be closed twice; nothing was dropped."""
        ledger = self.make()
        ledger.append([Record(kind="a")])
        ledger.close()
        ledger.close()
        # A reader that comes later knows nothing of the first but its files.
        later = self.another(ledger)
        later.append([Record(kind="b")])
        assert {record.kind for record in later.read(None)[0]} == {"a", "b"}
        assert later.dropped() == []

    def test_against_a_model(self) -> None:
        """Many writers and readers, opened, interleaved and closed in any order, agree with a list and a dict."""
        run_machine(
            lambda: _Machine(self),  # type: ignore[arg-type]  # a factory will do, whatever the annotation says
            settings=settings(_shared, max_examples=self.examples, stateful_step_count=30),
        )


@dataclass(slots=True)
class _Party:
    """One ledger object, and what was read through it."""

    ledger: Ledger
    cursor: Cursor | None = None
    seen: list[Record] = field(default_factory=list)


class _Machine(RuleBasedStateMachine):
    """The model: what each writer appended, the first token of each key, how many heartbeats each writer sent."""

    parties: Bundle[_Party] = Bundle("parties")

    def __init__(self, kind: LedgerConformance) -> None:
        super().__init__()
        self.kind = kind
        self.written: dict[str, list[Record]] = defaultdict(list)
        self.claims: dict[str, str] = {}
        self.beaten: dict[str, int] = defaultdict(int)

    @initialize(target=parties)
    def make(self) -> _Party:
        return _Party(self.kind.make())

    @rule(target=parties, party=parties)
    def another(self, party: _Party) -> _Party:
        return _Party(self.kind.another(party.ledger))

    @rule(party=parties)
    def reopen(self, party: _Party) -> None:
        party.ledger.close()
        party.ledger = self.kind.another(party.ledger)
        party.cursor, party.seen = None, []

    @rule(party=parties, batch=st.lists(records, max_size=3))
    def append(self, party: _Party, batch: list[Record]) -> None:
        self.written[party.ledger.writer] += party.ledger.append(batch)

    @rule(party=parties, key=st.sampled_from("abc"), token=st.sampled_from("xyz"))
    def claim(self, party: _Party, key: str, token: str) -> None:
        assert party.ledger.claim(key, token) == self.claims.setdefault(key, token)

    @rule(party=parties)
    def heartbeat(self, party: _Party) -> None:
        party.ledger.heartbeat()
        self.beaten[party.ledger.writer] += 1

    @rule(party=parties)
    def read_news(self, party: _Party) -> None:
        read, party.cursor = party.ledger.read(party.cursor)
        party.seen += read
        assert _by_writer(party.seen) == self.expected()

    @rule(party=parties)
    def read_all(self, party: _Party) -> None:
        assert _by_writer(party.ledger.read(None)[0]) == self.expected()
        assert party.ledger.heartbeats([*self.beaten, "nobody"]) == {**self.beaten, "nobody": 0}

    def expected(self) -> dict[str, list[bytes]]:
        return {writer: _lines(stream) for writer, stream in self.written.items() if stream}


def _lines(stream: Iterable[Record]) -> list[bytes]:
    """Return records in a form in which NaN equals NaN."""
    return [record.line() for record in stream]


def _by_writer(read: Iterable[Record]) -> dict[str, list[bytes]]:
    """Return each writer's records in the order in which they came first, repetitions left out."""
    streams: dict[str, dict[int, bytes]] = defaultdict(dict)
    for record in read:
        streams[record.writer].setdefault(record.seq, record.line())
    return {writer: list(stream.values()) for writer, stream in streams.items()}
