"""Every kind of damage to a journal: at most the records that it touches are lost, and all of them are named."""

import json
import os
import zlib

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from known_records import known_records

from trainwright.ledger import DirectoryLedger, MemoryLedger, Record, blocks, facts, fold, state_of
from trainwright.ledger.facts import note
from trainwright.ledger.journal import END
from trainwright.ledger.kinds import KINDS, NOTES
from trainwright.ledger.record import LONGEST

slow_to_make = settings(
    deadline=None, max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
)


@pytest.fixture
def ledger(tmp_path):
    return DirectoryLedger(tmp_path / "ledger", create=True)


def written(ledger, count=6):
    """Let a ledger's writer write some records and end; return its journal and the bytes that are there."""
    for number in range(count):
        ledger.append([facts.finished(number, 1, reason="completed", values={"loss": number / 8}, wall_seconds=1.0)])
    ledger.close()
    (path,) = (ledger.directory / "journal").iterdir()
    return path, path.read_bytes()


def touched(whole, start, end):
    """Return the numbers of the trials whose lines lie in bytes [start, end) of a journal."""
    numbers, at = set(), 0
    for number, line in enumerate(whole.splitlines(keepends=True)):
        if at < end and start < at + len(line):
            numbers.add(number)
        at += len(line)
    return numbers


def check(directory, whole, start, end, *, count=6):
    """Check that no record is lost but in the damaged bytes, and that a lost one is named."""
    reader = DirectoryLedger(directory)
    records = [record for block, _ in blocks(reader) for record in block]
    found = {record.trial for record in records}
    lost = set(range(count)) - found
    # a line that loses its newline takes the next one with it
    allowed = touched(whole, start, end + (b"\n" in whole[start:end]))
    assert lost <= allowed
    if lost and not (end == len(whole) and start in {0, whole.rfind(b"\n", 0, start) + 1}):
        assert reader.dropped()  # of whole lines that are cut off nothing is left to tell
    for record in records:
        assert record.body["values"]["loss"] == record.trial / 8
    return lost, reader.dropped()


@pytest.mark.parametrize("byte", [b"\0", b"\xff", b"\n"])
def test_each_byte(ledger, byte):
    path, whole = written(ledger, 3)
    for at in range(len(whole)):
        damaged = whole[:at] + byte + whole[at + 1 :]
        path.write_bytes(damaged)
        lost, dropped = check(ledger.directory, whole, at, at + 1, count=3)
        assert len(lost) <= 2
        assert sum(each.size for each in dropped) <= 2 * max(map(len, whole.splitlines(keepends=True)))


@pytest.mark.parametrize("size", [1, 40, 512])
def test_pages_of_zeros(ledger, size):
    path, whole = written(ledger)
    for at in range(0, len(whole), 29):
        damaged = whole[:at] + bytes(len(whole[at : at + size])) + whole[at + size :]
        path.write_bytes(damaged)
        check(ledger.directory, whole, at, at + size)


def test_cuts_and_repeats(ledger):
    path, whole = written(ledger)
    for at in range(0, len(whole), 17):
        path.write_bytes(whole[:at])
        check(ledger.directory, whole, at, len(whole))
        path.write_bytes(whole[:at] + whole[at + 60 :])
        check(ledger.directory, whole, at, at + 60)
        path.write_bytes(whole[:at] + whole[max(0, at - 300) :])  # what was written came twice
        check(ledger.directory, whole, at, at + 1)


@slow_to_make
@given(data=st.data())
def test_any_bytes_in_place_of_others(ledger, data):
    if not any((ledger.directory / "journal").iterdir()):
        written(ledger)
        (path,) = (ledger.directory / "journal").iterdir()
        path.with_suffix(".whole").write_bytes(path.read_bytes())
    (path,) = (ledger.directory / "journal").glob("*.jsonl")
    whole = path.with_suffix(".whole").read_bytes()
    start = data.draw(st.integers(0, len(whole)))
    end = data.draw(st.integers(start, min(len(whole), start + 300)))
    damaged = whole[:start] + data.draw(st.binary(max_size=300)) + whole[end:]
    path.write_bytes(damaged)
    check(ledger.directory, whole, start, end + 1)


# Zeros that may still become records.


def page_lost(ledger, tail=b""):
    """Write journals of which a page in the middle is not there yet; return the path, what it will be, and the rest."""
    path, whole = written(ledger)
    whole = whole.removesuffix(END) + tail
    path.write_bytes(whole[:300] + bytes(200) + whole[500:])
    return path, whole


def numbers(records):
    return [record.trial for record in records]


def test_zeros_of_a_writer_that_may_live_are_waited_for(ledger, monkeypatch):
    """And read when they have become records, in the order in which they were written."""
    path, whole = page_lost(ledger)
    now = 1000.0
    monkeypatch.setattr("trainwright.ledger.reader.time.monotonic", lambda: now)
    reader = DirectoryLedger(ledger.directory)
    some, cursor = reader.read(None)
    now += 170.0
    assert reader.read(cursor)[0] == []
    assert "until it is sure" in str(reader.dropped()[0])
    path.write_bytes(whole)
    rest, _ = reader.read(cursor)
    assert numbers(some + rest) == list(range(6))
    assert reader.dropped() == []


@pytest.mark.parametrize("how", ["patience", "another's time", "END"])
def test_zeros_are_damage_once_nothing_can_come(ledger, monkeypatch, how):
    now = 1000.0
    monkeypatch.setattr("trainwright.ledger.reader.time.monotonic", lambda: now)
    path, _ = page_lost(ledger, END if how == "END" else b"")
    reader = DirectoryLedger(ledger.directory)
    some, cursor = reader.read(None)
    if how == "patience":
        assert len(some) < 4
        now += 180.0
    elif how == "another's time":
        os.utime(path, (path.stat().st_atime, path.stat().st_mtime - 200))
        reader.append([facts.note("x", 1)])
    some += reader.read(cursor)[0]
    some = [record for record in some if record.kind != "note"]
    assert len(some) >= 3
    assert some[-1].trial == 5
    assert any("zeros in it" in str(each) for each in reader.dropped())


def test_a_sparse_journal_costs_nothing(ledger):
    """4 GiB of zeros that nobody wrote, while they may still come and when they cannot."""
    import resource

    written(ledger)
    sparse = ledger.directory / "journal" / "zz.jsonl"
    sparse.touch()
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    for old in (False, True):
        os.truncate(sparse, 2**32)
        if old:
            os.utime(sparse, (1e9, 1e9))
        reader = DirectoryLedger(ledger.directory)
        assert len(reader.read(None)[0]) == 6
        (dropped,) = reader.dropped()
        assert dropped.size == 2**32
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 64 * 1024


def test_a_line_that_is_too_long_hides_nothing(ledger, monkeypatch):
    """It is named, in memory that does not grow with it, and no writer writes one."""
    from trainwright.errors import LedgerError

    monkeypatch.setattr("trainwright.ledger.reader.LONGEST", 2**19)
    path, whole = written(ledger)
    line = whole.index(b"\n") + 1
    path.write_bytes(whole[:line] + b"x" * 2**21 + b"\n" + whole[line:])
    reader = DirectoryLedger(ledger.directory)
    assert numbers(reader.read(None)[0]) == list(range(6))
    assert [(each.offset, each.size) for each in reader.dropped()] == [(line, 2**21 + 1)]
    with pytest.raises(LedgerError, match=r"a record 'note' of .* bytes is too long; allowed: 16,777,216"):
        ledger.append([facts.note("x", "x" * LONGEST)])
    ledger.append([facts.note("x", 1)])


def test_what_was_searched_is_not_searched_again(ledger, monkeypatch):
    """For the end of a line that is too long each look reads only what has come since."""
    monkeypatch.setattr("trainwright.ledger.reader.LONGEST", 2**19)
    path, whole = written(ledger)
    path.write_bytes(whole + b"x" * 2**21)
    reader = DirectoryLedger(ledger.directory)
    assert numbers(reader.read(None)[0]) == list(range(6))
    starts, pread = [], os.pread
    monkeypatch.setattr(os, "pread", lambda file, size, start: starts.append(start) or pread(file, size, start))
    with path.open("ab") as file:
        file.write(b"x\n")
    reader.read({path.name: len(whole)})
    assert min(start for start in starts if start > len(whole)) >= len(whole) + 2**21


@pytest.mark.parametrize("what", ["folder", "link to itself"])
def test_what_is_no_file_is_named(ledger, what):
    """It hides nothing, and is looked at once."""
    path, _ = written(ledger)
    other = path.with_name("a-1-0.jsonl")
    other.mkdir() if what == "folder" else other.symlink_to(other.name)
    reader = DirectoryLedger(ledger.directory)
    for _ in range(2):
        assert numbers(reader.read(None)[0]) == list(range(6))
        assert [(each.path, each.why) for each in reader.dropped()] == [(other.name, "it is no file")]


# Lines that are sound, and wrong.


def spoilt(draw, record):
    """Return the record with one field missing, or of another type, or huge, or nested far too deep."""
    deep = []
    for _ in range(200):
        deep = [deep]
    wrong = st.sampled_from([10**400, -1, deep, {"a": deep}, [1], {"a": {}}, 1.5, object])
    content = record._asdict()
    if draw(st.booleans()):
        name = draw(st.sampled_from(["trial", "lease", "seq", "at", "kind", "body", "v", "writer"]))
        value = draw(wrong)
        content = {k: v for k, v in content.items() if k != name} if value is object else {**content, name: value}
    elif record.body:
        name = draw(st.sampled_from(sorted(record.body)))
        value = draw(wrong)
        body = {k: v for k, v in record.body.items() if k != name}
        content["body"] = body if value is object else {**body, name: value}
    return content


def line_of(content):
    text = json.dumps(content, default=str).encode()
    return b"%08x %b\n" % (zlib.crc32(text), text)


def sound_for_all(content):
    """Return the record if what was made wrong is right all the same, as one number in place of another may be."""
    try:
        return Record._make([content[name] for name in Record._fields])
    except KeyError:
        return None


@pytest.mark.parametrize("known", sorted(KINDS))
def test_a_wrong_record_is_left_out_and_named(tmp_path_factory, known):
    """The state is that without it; the records before and after it count."""

    @settings(deadline=None, max_examples=15, suppress_health_check=list(HealthCheck))
    @given(data=st.data())
    def check_one(data):
        directory = tmp_path_factory.mktemp("ledger")
        ledger = DirectoryLedger(directory, create=True)
        around = [facts.note("before", 1), facts.note("after", 2)]
        record = data.draw(known_records.filter(lambda record: record.kind == known))
        stamped = [r.stamped(ledger.writer, i, 1.0) for i, r in enumerate((around[0], record, around[1]))]
        content = spoilt(data.draw, stamped[1])
        path = directory / "journal" / f"{ledger.writer}.jsonl"
        try:
            path.write_bytes(stamped[0].line() + line_of(content) + stamped[2].line())
        except (ValueError, RecursionError):  # no JSON at all
            return
        try:
            fitting = Record.of_lines([line_of(content)[:-1]])[0]
        except tw_errors.LedgerTooNew:
            return
        reader = DirectoryLedger(directory)
        state = state_of(reader)
        if isinstance(fitting, Record):  # what was put there is right, too
            wanted = sound_for_all(content)
            # A NaN among the values is unequal to itself, though the records read alike.
            assert fitting == wanted or repr(fitting) == repr(wanted) or fitting.writer != ledger.writer
            return
        assert len(reader.dropped()) == 1
        assert state == fold([stamped[0], stamped[2]])

    from trainwright import errors as tw_errors

    check_one()


@settings(deadline=None, max_examples=200, suppress_health_check=list(HealthCheck))
@given(st.lists(known_records, max_size=20))
def test_whatever_fits_the_table_can_be_folded(records):
    """No record that passes the check makes the fold, a table or a page of numbers fail."""
    from trainwright.ledger.rows import columns, rows

    ledger = MemoryLedger()
    ledger.append(records)
    assert ledger.dropped() == []
    state = state_of(ledger)
    rows(state)
    columns(state)
    for trial in state.trials.values():
        assert trial.settled() is trial.status


def test_a_number_that_leaps_ahead_hides_nothing():
    """A wrong line whose number is far ahead of its writer's others is no reason to take those for repetitions."""
    one, far, two, three = (note("n", value).stamped("w", seq, 0.0) for value, seq in ((1, 0), (2, 9), (3, 1), (4, 2)))
    state = fold([one, far, two, three])
    assert [value for _, _, value in state.notes.values()] == [1, 2, 3, 4]
    assert not any(state.apply(record) for record in (one, two, three, far))
    assert all(map(state.knows, (one, two, three, far)))
    between = note("n", 5).stamped("w", 5, 0.0)
    assert not state.knows(between)
    assert state.apply(between)
    assert not state.apply(between)


def test_a_record_of_another_writer_is_left_out(ledger):
    path, whole = written(ledger)
    other = note("x", 1).stamped("somebody", 0, 0.0)
    path.write_bytes(other.line() + whole)
    reader = DirectoryLedger(ledger.directory)
    assert numbers(reader.read(None)[0]) == list(range(6))
    assert [each.why for each in reader.dropped()] == ["it is of another writer"]


def test_what_is_written_fits():
    """A fact that nobody would read is refused where it is made, in one sentence."""
    from trainwright.errors import InputError

    deep = []
    for _ in range(30):
        deep = [deep]
    with pytest.raises(
        InputError, match=r"record 'note': value is no JSON, at most 20 levels deep; it would not be re"
    ):
        facts.note("x", deep)
    with pytest.raises(InputError, match=r"record 'note': value: session is missing"):
        facts.note("job", {})
    assert set(NOTES) == {"job", "reference"}


def test_each_kind_has_its_maker():
    """A fact of each kind is made by the maker of its name, which refuses a field that the kind does not have."""
    from trainwright.errors import InputError

    assert all(callable(getattr(facts, name)) for name in KINDS)
    with pytest.raises(InputError, match=r"record 'lost': got becuase; allowed: the fields of its kind"):
        facts.lost(0, 1, becuase="gone", blame=True)
    with pytest.raises(InputError, match=r"record 'lost': why is missing; it would not be read"):
        facts.lost(0, 1, blame=True)
