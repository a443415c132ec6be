"""Journals under damage and failing disks: what was acknowledged stays, what is dropped is named."""

import errno
import os
import re

import pytest

from trainwright.errors import LedgerError, LedgerFull, LedgerTooNew, StudyError
from trainwright.ledger import DirectoryLedger, Record, blocks, facts
from trainwright.ledger.record import FORMAT


@pytest.fixture
def ledger(tmp_path):
    return DirectoryLedger(tmp_path / "ledger", create=True)


def marks(*values):
    return [Record(kind="mark", body={"value": value}) for value in values]


def values(records):
    return [record.body["value"] for record in records]


def journal(ledger):
    return ledger.directory / "journal" / f"{ledger.writer}.jsonl"


def read(directory):
    """Return the values that a newly opened ledger reads, and the sentences about what it dropped."""
    reader = DirectoryLedger(directory)
    records, _ = reader.read(None)
    return values(records), [str(dropped) for dropped in reader.dropped()]


# Damage.


def test_cut_at_every_byte_of_the_last_two_records(ledger):
    """Whatever a dying machine leaves of the tail, all before it is read and the rest is named with its size."""
    ledger.append(marks("one", "two", "three"))
    path = journal(ledger)
    whole = path.read_bytes()
    ends = [match.end() for match in re.finditer(b"\n", whole)]
    for cut in range(ends[0], len(whole) + 1):
        path.write_bytes(whole[:cut])
        kept = sum(end <= cut for end in ends)
        found, dropped = read(ledger.directory)
        assert found == ["one", "two", "three"][:kept]
        tail = cut - ends[kept - 1]
        expected = f"{path.name}: {tail} bytes at {ends[kept - 1]} dropped (its end is missing)"
        assert dropped == ([expected] if tail else [])


def test_nul_filled_tails(ledger):
    """A page that was allocated but never written reads as NUL; it may still be on its way."""
    ledger.append(marks("one", "two"))
    path = journal(ledger)
    whole = path.read_bytes()
    first = whole.index(b"\n") + 1
    for cut in range(first, len(whole) + 1):
        for tail in (b"\0", bytes(4096), bytes(100) + b"\n"):
            path.write_bytes(whole[:cut] + tail)
            found, dropped = read(ledger.directory)
            assert found == ["one", "two"][: 1 + (cut == len(whole))]
            assert len(dropped) == 1
            assert dropped[0].endswith("dropped (zeros, until it is sure that nothing comes in their place)")


def test_a_hole_in_a_long_journal_is_told_with_all_that_it_hides(ledger):
    """Also if the journal is read in blocks, as studies do."""
    for _ in range(3):
        ledger.append(marks(*range(3000)))
    path = journal(ledger)
    whole = path.read_bytes()
    hole = whole.index(b"\n", len(whole) // 2) + 1
    path.write_bytes(whole[:hole] + bytes(10) + whole[hole + 10 :])
    reader = DirectoryLedger(ledger.directory)
    records = [record for block, _ in blocks(reader) for record in block]
    assert b"".join(record.line() for record in records) == whole[:hole]
    assert [dropped.size for dropped in reader.dropped()] == [len(whole) - hole]


def test_a_delayed_page_is_read_when_it_arrives(ledger):
    ledger.append(marks("one", "two", "three"))
    path = journal(ledger)
    whole = path.read_bytes()
    middle = len(whole) // 2
    reader = DirectoryLedger(ledger.directory)
    path.write_bytes(whole[:middle] + bytes(40) + whole[middle + 40 :])
    first, cursor = reader.read(None)
    assert reader.dropped()
    path.write_bytes(whole)
    later, _ = reader.read(cursor)
    assert values(first + later) == ["one", "two", "three"]
    assert reader.dropped() == []


def test_any_flipped_byte_in_the_middle_costs_at_most_its_neighbours(ledger):
    """One damaged byte is counted and named; records of other lines are all there."""
    ledger.append(marks("one", "two", "three"))
    path = journal(ledger)
    whole = path.read_bytes()
    ends = [match.end() for match in re.finditer(b"\n", whole)]
    for place in range(ends[0], ends[1]):
        for flip in (0x01, 0x20, 0x80):
            damaged = bytearray(whole)
            damaged[place] ^= flip
            path.write_bytes(damaged)
            found, dropped = read(ledger.directory)
            if found == ["one", "two", "three"]:  # the case of a hex digit, or the space before the record
                assert place < ends[0] + 9
                assert dropped == []
                continue
            if damaged[place] == 0:  # as if a page had not arrived: nothing beyond is read
                assert (found, len(dropped)) == (["one"], 1)
                continue
            newline = place == ends[1] - 1  # it joins two lines into one
            assert found == (["one"] if newline else ["one", "three"])
            size = (ends[2] if newline else ends[1]) - ends[0]
            if damaged[place] != ord("\n"):
                assert dropped == [f"{path.name}: {size} bytes at {ends[0]} dropped (its checksum does not hold)"]
            assert dropped


def test_damage_is_counted_once_however_often_it_is_read(ledger):
    ledger.append(marks("one", "two"))
    path = journal(ledger)
    path.write_bytes(path.read_bytes().replace(b'"one"', b'"ONE"'))
    reader = DirectoryLedger(ledger.directory)
    for _ in range(3):
        assert values(reader.read(None)[0]) == ["two"]
    assert len(reader.dropped()) == 1


@pytest.mark.parametrize("text", [b"", b"{}", b"[]", b"7", b'{"v": 1}', b'{"v": "x"}', b"no JSON"])
def test_a_sound_line_that_is_no_record_is_dropped(ledger, text):
    import zlib

    ledger.append(marks("one"))
    with journal(ledger).open("ab") as file:
        file.write(b"%08x %b\n" % (zlib.crc32(text), text))
    ledger.append(marks("two"))
    found, dropped = read(ledger.directory)
    assert found == ["one", "two"]
    assert len(dropped) == 1


def test_other_journals_are_read_beside_a_damaged_one(ledger):
    ledger.append(marks("one"))
    other = DirectoryLedger(ledger.directory)
    other.append(marks("two"))
    journal(ledger).write_bytes(b"garbage\n" * 3)
    found, dropped = read(ledger.directory)
    assert found == ["two"]
    assert len(dropped) == 3


# Newer formats.


def test_a_newer_ledger_is_refused_before_anything_is_written(tmp_path):
    directory = tmp_path / "ledger"
    DirectoryLedger(directory, create=True)
    path = directory / "study.json"
    path.write_text(path.read_text().replace(f'"format": {FORMAT}', '"format": 3'))
    for folder in ("journal", "claims", "beats"):
        (directory / folder).rmdir()  # a newer version may keep its records elsewhere
    for create in (True, False):
        with pytest.raises(LedgerTooNew, match=rf"format 3; this version reads up to {FORMAT}; upgrade trainwright"):
            DirectoryLedger(directory, create=create)
    assert [entry.name for entry in directory.iterdir()] == ["study.json"]


@pytest.mark.parametrize("content", ["", "[]", "{}", '{"format": 1}', "null", "\x00", '{"format": "x", "study": "y"}'])
def test_a_damaged_study_file(tmp_path, content):
    DirectoryLedger(tmp_path / "ledger", create=True)
    (tmp_path / "ledger" / "study.json").write_text(content)
    with pytest.raises(StudyError, match=r"study\.json is damaged: expected a JSON object with 'format' and 'study'"):
        DirectoryLedger(tmp_path / "ledger")


# Failing disks.


def failing(number, *, times=1, after=0, wrote=None):
    """Return a stand-in for a system call that fails `times` times with `number` after `after` good calls."""
    calls = iter([False] * after + [True] * times)

    def call(real, *arguments):
        if next(calls, False):
            if wrote is not None:
                wrote(*arguments)
            raise OSError(number, os.strerror(number))
        return real(*arguments)

    return call


def inject(monkeypatch, name, call):
    real = getattr(os, name)
    monkeypatch.setattr(os, name, lambda *arguments: call(real, *arguments))


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EIO, errno.EDQUOT])
@pytest.mark.parametrize(
    ("name", "first"),
    [("open", True), ("fsync", True), ("write", True), ("write", False), ("fdatasync", True), ("fdatasync", False)],
)
def test_a_failing_call_is_one_clear_error_and_a_new_writer_goes_on(ledger, monkeypatch, name, number, first):
    acknowledged = [] if first else values(ledger.append(marks("before")))
    failed = ledger.writer
    with monkeypatch.context() as patch:
        inject(patch, name, failing(number))
        with pytest.raises(LedgerError, match=rf"cannot write .*{failed}.jsonl: {os.strerror(number).lower()}.*again"):
            ledger.append(marks("lost?"))
    assert ledger.writer != failed
    acknowledged += values(ledger.append(marks("after")))
    assert journal(ledger).name == f"{ledger.writer}.jsonl"
    found, _ = read(ledger.directory)
    assert sorted(set(found) - {"lost?"}) == sorted(acknowledged)
    records = ledger.read(None)[0]
    assert len({(record.writer, record.seq) for record in records}) == len(records)


def test_a_short_write_is_a_full_disk(ledger, monkeypatch):
    """Half of a batch may be there afterwards; whole records of it may be read, torn ones are named."""
    ledger.append(marks("before"))
    real = os.write
    with monkeypatch.context() as patch:
        patch.setattr(os, "write", lambda handle, data: real(handle, data[: len(data) - 10]))
        with pytest.raises(LedgerError, match=r"no space left on device; [\d,]+ bytes are free there; mend that"):
            ledger.append(marks("one", "two"))
    ledger.append(marks("after"))
    found, dropped = read(ledger.directory)
    assert sorted(found) == ["after", "before", "one"]
    assert len(dropped) == 1


@pytest.mark.parametrize("name", ["write", "fdatasync"])
def test_an_interrupt_in_a_write_leaves_no_number_used_twice(ledger, monkeypatch, name):
    """Ctrl-C after the bytes reached the file must not let the next record take the same (writer, seq)."""
    real = getattr(os, name)

    def interrupted(*arguments):
        real(*arguments)
        raise KeyboardInterrupt

    ledger.append(marks("before"))
    with monkeypatch.context() as patch:
        patch.setattr(os, name, interrupted)
        with pytest.raises(KeyboardInterrupt):
            ledger.append(marks("written"))
    ledger.append(marks("after"))
    records = ledger.read(None)[0]
    assert sorted(values(records)) == ["after", "before", "written"]
    assert len({(record.writer, record.seq) for record in records}) == 3


def test_a_sync_that_fails_at_a_beat_starts_a_new_writer(ledger, monkeypatch):
    """Afterwards nobody knows which pages are on the disk, so nothing more may follow them."""
    ledger.append([facts.reported(0, 1, epoch=1, step=None, metrics={"x": 1.0}, wall_seconds=0.0)])
    failed = ledger.writer
    with monkeypatch.context() as patch:
        inject(patch, "fdatasync", failing(errno.EIO))
        with pytest.raises(LedgerError, match="input/output error"):
            ledger.heartbeat()
    assert ledger.writer != failed
    ledger.heartbeat()
    assert ledger.heartbeats([ledger.writer])[ledger.writer] > 0


@pytest.mark.parametrize("at", ["heartbeat", "append", "close"])
def test_what_a_failed_sync_leaves_in_doubt_is_written_again(ledger, monkeypatch, at):
    """On a network file system a full disk is told by the sync only, and takes the pages with it."""
    ledger.append([facts.note("lazily synced", "one"), facts.note("lazily synced", "two")])
    old = journal(ledger)
    with monkeypatch.context() as patch:
        inject(patch, "fdatasync", failing(errno.ENOSPC))
        with pytest.raises(LedgerFull, match="no space left on device"):
            ledger.append(
                marks("no")
            ) if at == "append" else ledger.heartbeat() if at == "heartbeat" else ledger.close()
    old.unlink()
    ledger.append(marks("three"))
    ledger.close()
    assert read(ledger.directory)[0] == ["one", "two", "three"]


def test_a_sync_that_fails_at_the_end_is_told(ledger, monkeypatch):
    ledger.append([facts.reported(0, 1, epoch=1, step=None, metrics={"x": 1.0}, wall_seconds=0.0)])
    inject(monkeypatch, "fdatasync", failing(errno.EIO))
    with pytest.raises(LedgerError, match="input/output error"):
        ledger.close()
    ledger.close()


def test_beats_that_cannot_be_written(ledger):
    (ledger.directory / "beats").rmdir()
    with pytest.raises(LedgerError, match=r"cannot write .*beats: no such file or directory"):
        ledger.heartbeat()


def test_a_journal_folder_that_is_gone(ledger):
    (ledger.directory / "journal").rmdir()
    with pytest.raises(LedgerError, match=r"cannot read .*journal: No such file or directory"):
        ledger.read(None)


@pytest.mark.parametrize("content", [{"x": object()}, {"x": {1, 2}}])
def test_a_body_that_is_no_json_writes_nothing(ledger, content):
    ledger.append(marks("before"))
    with pytest.raises(TypeError, match="not JSON serializable"):
        ledger.append([*marks("with it"), Record(kind="x", body=content)])
    ledger.append(marks("after"))
    assert sorted(read(ledger.directory)[0]) == ["after", "before"]


# When syncs happen.


@pytest.mark.parametrize(
    ("policy", "lazy", "urgent", "heartbeat"), [("lifecycle", 0, 1, 1), ("always", 1, 1, 0), ("never", 0, 0, 0)]
)
def test_fsync_policies(tmp_path, monkeypatch, policy, *, lazy, urgent, heartbeat):
    """Reports alone are synced at the next beat by default; anything else before `append` returns."""
    ledger = DirectoryLedger(tmp_path / "ledger", create=True, fsync=policy)
    report = facts.reported(0, 1, epoch=1, step=None, metrics={"x": 1.0}, wall_seconds=0.0)
    ledger.append([facts.left()])
    syncs = []
    real = os.fdatasync
    monkeypatch.setattr(os, "fdatasync", lambda handle: syncs.append(real(handle)))
    ledger.append([report, facts.note("n", 1)])
    assert len(syncs) == lazy
    ledger.heartbeat()
    assert len(syncs) == lazy + heartbeat
    ledger.append([report, facts.left()])
    assert len(syncs) == lazy + heartbeat + urgent
    ledger.close()
    assert len(syncs) == lazy + heartbeat + urgent


def test_reports_are_synced_five_seconds_later(ledger, monkeypatch):
    report = facts.reported(0, 1, epoch=1, step=None, metrics={"x": 1.0}, wall_seconds=0.0)
    ledger.append([facts.left()])
    syncs = []
    monkeypatch.setattr(os, "fdatasync", syncs.append)
    now = 100.0
    monkeypatch.setattr("trainwright.ledger.journal.time.monotonic", lambda: now)
    ledger.append([report])
    now += 4.0
    ledger.append([report])
    assert not syncs
    now += 2.0
    ledger.append([report])
    assert len(syncs) == 1
