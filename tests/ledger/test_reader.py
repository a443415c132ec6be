"""Following many journals: what a look costs, when new ones are seen, and files of one writer in their order."""

import os
from collections import Counter

import pytest

from trainwright.ledger import DirectoryLedger, Record
from trainwright.ledger.journal import END


@pytest.fixture
def ledger(tmp_path):
    return DirectoryLedger(tmp_path / "ledger", create=True)


class Clock:
    now = 1000.0

    def __call__(self):
        return self.now


@pytest.fixture
def clock(monkeypatch):
    clock = Clock()
    monkeypatch.setattr("trainwright.ledger.reader.time.monotonic", clock)
    return clock


@pytest.fixture
def calls(monkeypatch):
    """Count system calls of the `os` module."""
    found = Counter()

    def counted(name, real):
        def call(*arguments, **named):
            found[name] += 1
            return real(*arguments, **named)

        return call

    for name in ("stat", "listdir", "open", "pread", "close", "scandir"):
        monkeypatch.setattr(os, name, counted(name, getattr(os, name)))
    return found


def mark(value=0):
    return [Record(kind="mark", body={"value": value})]


def values(records):
    return [record.body["value"] for record in records]


def settled(ledger, clock, writers):
    """Return a reader and its cursor after a look at `writers` live journals; nothing was made since long."""
    others = [DirectoryLedger(ledger.directory) for _ in range(writers)]
    for other in others:
        other.append(mark())
    reader = DirectoryLedger(ledger.directory)
    _, cursor = reader.read(None)
    clock.now += 5.0
    return others, reader, reader.read(cursor)[1]


def test_a_look_is_one_stat_a_live_journal(ledger, clock, calls):
    """And open, read, close for each that has grown; no folder is listed."""
    writers, reader, cursor = settled(ledger, clock, 20)
    calls.clear()
    assert reader.read(cursor)[0] == []
    assert calls == {"stat": 21}
    for writer in writers[:5]:
        writer.append([*mark(1), *mark(2)])
    calls.clear()
    assert len(reader.read(cursor, most=1000)[0]) == 10
    assert calls == {"stat": 21, "open": 5, "pread": 5, "close": 5}


def test_closed_journals_cost_nothing(ledger, clock, calls):
    writers, reader, cursor = settled(ledger, clock, 20)
    for writer in writers[1:]:
        writer.close()
    _, cursor = reader.read(cursor)
    calls.clear()
    assert reader.read(cursor)[0] == []
    assert calls == {"stat": 2}


def test_torn_tails_are_not_read_again_and_again(ledger, clock, calls):
    writers, reader, cursor = settled(ledger, clock, 3)
    for writer in writers:
        with (ledger.directory / "journal" / f"{writer.writer}.jsonl").open("ab") as file:
            file.write(b"0000")
    _, cursor = reader.read(cursor)
    assert len(reader.dropped()) == 3
    calls.clear()
    assert reader.read(cursor)[0] == []
    assert calls == {"stat": 4}


def test_new_journals_are_seen_at_once(ledger, clock):
    """Whether the folder's time has changed or not, as within one tick of the file system's clock."""
    _, reader, cursor = settled(ledger, clock, 2)
    new = DirectoryLedger(ledger.directory)
    new.append(mark("first"))
    records, cursor = reader.read(cursor)
    assert values(records) == ["first"]
    time = (ledger.directory / "journal").stat().st_mtime_ns
    another = DirectoryLedger(ledger.directory)
    another.append(mark("second"))
    os.utime(ledger.directory / "journal", ns=(time, time))
    records, cursor = reader.read(cursor)
    assert values(records) == ["second"]


def test_a_folder_whose_time_lies_is_listed_every_ten_seconds(ledger, clock):
    """Network file systems keep old attributes for a while."""
    _, reader, cursor = settled(ledger, clock, 2)
    time = (ledger.directory / "journal").stat().st_mtime_ns
    DirectoryLedger(ledger.directory).append(mark("new"))
    os.utime(ledger.directory / "journal", ns=(time, time))
    assert reader.read(cursor)[0] == []
    clock.now += 10.0
    assert values(reader.read(cursor)[0]) == ["new"]


def test_a_removed_journal_is_named(ledger):
    """By hand, before it was read; the others are read."""
    writers = [DirectoryLedger(ledger.directory) for _ in range(3)]
    for number, writer in enumerate(writers):
        writer.append(mark(number))
    reader = DirectoryLedger(ledger.directory)
    first, cursor = reader.read(None)
    for writer in writers:
        writer.append(mark(9))
    path = ledger.directory / "journal" / f"{writers[1].writer}.jsonl"
    path.unlink()
    later, cursor = reader.read(cursor)
    assert sorted(values(first + later)) == [0, 1, 2, 9, 9]
    assert reader.read(cursor)[0] == []


def test_a_ledger_that_vanishes(ledger):
    """What is appended to a file that nobody can see would be lost: it is an error."""
    import shutil

    from trainwright.errors import LedgerError

    ledger.append(mark())
    shutil.rmtree(ledger.directory)
    for why in ("it was removed", "no such file or directory"):
        with pytest.raises(LedgerError, match=rf"cannot write .*: {why}"):
            ledger.append(mark(1))
    with pytest.raises(LedgerError, match=r"cannot read .*: No such file or directory"):
        ledger.read()
    with pytest.raises(LedgerError, match=r"cannot write .*beats: no such file or directory"):
        ledger.heartbeat()
    with pytest.raises(LedgerError, match=r"cannot claim .*: no such file or directory"):
        ledger.claim("key", "mine")


# One writer's files.


def test_a_journal_in_several_files_is_read_in_order(ledger):
    """An earlier version went on in another file after 16 MiB."""
    for value in range(6):
        ledger.append(mark(value))
    (path,) = (ledger.directory / "journal").iterdir()
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join(lines[:2]) + END)
    for part, start in ((1, 2), (2, 4)):
        path.with_name(f"{ledger.writer}~{part:04d}.jsonl").write_bytes(b"".join(lines[start : start + 2]))
    seen, _ = DirectoryLedger(ledger.directory).read()
    assert values(seen) == [record.seq for record in seen] == list(range(6))


def test_an_end_that_cannot_be_written_is_no_error(ledger, monkeypatch):
    import errno

    ledger.append(mark())
    (path,) = (ledger.directory / "journal").iterdir()

    def write(*_):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patch:
        patch.setattr(os, "write", write)
        ledger.close()
    assert not path.read_bytes().endswith(END)
    assert values(ledger.read()[0]) == [0]


def test_what_cannot_be_found_for_a_moment_is_read_later(ledger, clock):
    """A network file system may show a moved journal neither in its old place nor in its new one yet."""
    writers, reader, cursor = settled(ledger, clock, 1)
    writers[0].append(mark(1))
    path = ledger.directory / "journal" / f"{writers[0].writer}.jsonl"
    hidden = path.rename(path.with_suffix(".hidden"))
    journal = reader._reader._journals[path.name]
    journal.size = hidden.stat().st_size
    assert reader.read(cursor)[0] == []
    hidden.rename(path)
    assert values(reader.read(cursor)[0]) == [1]
