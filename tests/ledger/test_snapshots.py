"""Snapshots: whatever is moved, by whom, killed when, every reader reads every record once and in order."""

import errno
import json
import os
import signal

import pytest

from trainwright.errors import LedgerError, LedgerTooNew
from trainwright.ledger import DirectoryLedger, Record, blocks, state_of
from trainwright.ledger.snapshots import DAY_SECONDS

CALLS = ("open", "write", "fsync", "rename", "unlink", "link", "close", "fstat", "mkdir", "listdir", "scandir", "stat")


@pytest.fixture
def ledger(tmp_path):
    return DirectoryLedger(tmp_path / "ledger", create=True)


def write(directory, count, *, first=0, close=True, each=3):
    """Append `each` records by each of `count` writers."""
    writers = []
    for number in range(first, first + count):
        ledger = DirectoryLedger(directory)
        for i in range(each):
            ledger.append([Record(kind="mark", body={"value": [number, i]})])
        if close:
            ledger.close()
        writers.append(ledger)
    return writers


def values(records):
    return [tuple(record.body["value"]) for record in records]


def expected(count, each=3):
    return sorted((number, i) for number in range(count) for i in range(each))


def age(directory, seconds):
    """Make everything there look older, journals, beats, snapshots and all."""
    for path in directory.rglob("*"):
        about = path.stat()
        os.utime(path, (about.st_atime - seconds, about.st_mtime - seconds))


def check(directory, count, each=3):
    """Check that a new reader reads all records once, in each writer's order, and drops nothing."""
    reader = DirectoryLedger(directory)
    records = [record for block, _ in blocks(reader) for record in block]
    assert sorted(values(records)) == expected(count, each)
    assert reader.dropped() == []
    for writer in {record.writer for record in records}:
        seqs = [record.seq for record in records if record.writer == writer]
        assert seqs == sorted(seqs)


def journals(directory):
    return sorted(path.name for path in (directory / "journal").iterdir())


def snapshots(directory):
    return sorted(path.name for path in (directory / "snapshot").iterdir())


def test_closed_journals_become_one_file(ledger):
    write(ledger.directory, 5)
    assert ledger.compact() == 5
    assert snapshots(ledger.directory) == ["gen-000001-0.jsonl"]
    check(ledger.directory, 5)
    assert len(journals(ledger.directory)) == 5  # a reader on a network file system may not see the snapshot yet
    ledger.compact(keep_seconds=0)
    assert journals(ledger.directory) == []
    check(ledger.directory, 5)
    assert ledger.compact() == 0


def test_readers_go_on_from_where_they_stood(ledger):
    """Whether they had read a journal wholly, in part, or not at all, before it was moved and removed."""
    writers = write(ledger.directory, 3, close=False)
    readers = []
    for read in range(4):
        reader = DirectoryLedger(ledger.directory)
        records, cursor = reader.read(None)
        readers.append((reader, values(records), cursor))
        for number, writer in enumerate(writers):
            if read < 3:
                writer.append([Record(kind="mark", body={"value": [number, 3 + read]})])
    for writer in writers:
        writer.close()
    readers.append((DirectoryLedger(ledger.directory), [], None))
    ledger.compact()
    ledger.compact(keep_seconds=0)
    assert journals(ledger.directory) == []
    for reader, seen, cursor in readers:
        records, later = reader.read(cursor)
        assert sorted(seen + values(records)) == expected(3, 6)
        assert reader.read(later)[0] == []
        assert reader.dropped() == []


def test_a_reader_that_was_looking_elsewhere(ledger):
    """Journals that came and went between two of its looks are in the snapshot."""
    reader = DirectoryLedger(ledger.directory)
    _, cursor = reader.read(None)
    write(ledger.directory, 3)
    ledger.compact()
    ledger.compact(keep_seconds=0)
    records, _ = reader.read(cursor)
    assert sorted(values(records)) == expected(3)


def test_beats_go_with_their_journals(ledger):
    live, *ended = write(ledger.directory, 3, close=False)
    names = [one.writer for one in (live, *ended)]
    for one in (live, *ended):
        one.heartbeat()
    for one in ended:
        one.close()
    assert ledger.compact() == 2
    assert {path.name for path in (ledger.directory / "beats").iterdir()} == set(names)
    ledger.compact(keep_seconds=0)
    assert [path.name for path in (ledger.directory / "beats").iterdir()] == names[:1]


def test_live_writers_are_left_alone(ledger):
    (live,) = write(ledger.directory, 1, close=False)
    write(ledger.directory, 2, first=1)
    assert ledger.compact() == 2
    ledger.compact(keep_seconds=0)
    live.append([Record(kind="mark", body={"value": [0, 3]})])
    assert journals(ledger.directory) == [f"{live.writer}.jsonl"]
    assert sorted(values(DirectoryLedger(ledger.directory).read()[0])) == sorted([*expected(3), (0, 3)])


def test_a_writer_that_was_silent_for_a_day_is_done_with(ledger):
    """Killed writers end nothing; their torn tails are kept, and named."""
    killed = write(ledger.directory, 2, close=False)
    beating = write(ledger.directory, 1, first=2, close=False)[0]
    torn = ledger.directory / "journal" / f"{killed[0].writer}.jsonl"
    torn.write_bytes(torn.read_bytes()[:-10])
    age(ledger.directory, DAY_SECONDS - 100)
    assert ledger.compact() == 0
    age(ledger.directory, 200)
    beating.heartbeat()
    assert ledger.compact() == 2
    age(ledger.directory, DAY_SECONDS + 1)
    beating.heartbeat()
    ledger.compact()
    assert journals(ledger.directory) == [f"{beating.writer}.jsonl"]
    reader = DirectoryLedger(ledger.directory)
    assert sorted(values(reader.read()[0])) == sorted(set(expected(3)) - {(0, 2)})
    assert [dropped.path for dropped in reader.dropped()] == [torn.name]


def test_one_that_comes_back_after_days_loses_nothing(ledger):
    """Its journal was moved, or even removed; what it appends is read all the same."""
    back = write(ledger.directory, 3, close=False)
    readers = [(DirectoryLedger(ledger.directory), None) for _ in range(2)]
    readers[0] = (readers[0][0], readers[0][0].read(None)[1])
    age(ledger.directory, DAY_SECONDS + 100)
    assert ledger.compact() == 3
    back[0].append([Record(kind="mark", body={"value": [0, 3]})])  # it does not know how long it slept
    age(ledger.directory, DAY_SECONDS + 100)
    ledger.compact()
    assert journals(ledger.directory) == [f"{back[0].writer}.jsonl"]
    old = back[1].writer
    back[1].append([Record(kind="mark", body={"value": [1, 3]})])
    assert back[1].writer != old
    new = {(0, 3), (1, 3)}
    for reader, cursor in readers:
        assert set(values(reader.read(cursor)[0])) == (new if cursor else {*expected(3), *new})
    assert set(values(DirectoryLedger(ledger.directory).read()[0])) == {*expected(3), *new}


def test_an_hour_of_silence_makes_a_new_writer(ledger, monkeypatch):
    """So it never appends to what others may have moved; a beat is a sign of life too."""
    now = 0.0
    monkeypatch.setattr("trainwright.ledger.directory._now", lambda: now)
    (writer,) = write(ledger.directory, 1, close=False)
    first = writer.writer
    now += 3000.0
    writer.heartbeat()
    now += 3000.0
    assert writer.writer == first
    now += 3601.0
    second = writer.writer
    assert second != first
    writer.append([Record(kind="mark", body={"value": [0, 3]})])
    assert writer.writer == second
    check(ledger.directory, 1, each=4)
    writer.heartbeat()
    assert writer.heartbeats([first, second]) == {first: 2, second: 1}  # the old one's trials are not up for grabs


def test_snapshots_take_in_smaller_ones(ledger):
    """So that their number stays small, and each byte is not written too often."""
    total = 0
    for number in range(20):
        write(ledger.directory, 2, first=total)
        total += 2
        ledger.compact(keep_seconds=0)
        assert len(snapshots(ledger.directory)) <= 2 + (number + 1).bit_length()
        check(ledger.directory, total)
    assert len(journals(ledger.directory)) <= 2
    assert len(snapshots(ledger.directory)) < 8


def test_writers_compact_by_themselves(ledger):
    write(ledger.directory, 65)
    user = DirectoryLedger(ledger.directory)
    user.read(None)
    assert not (ledger.directory / "snapshot").exists()  # readers write nothing
    user.append([Record(kind="mark", body={"value": [65, 0]})])
    assert len(snapshots(ledger.directory)) == 1
    age(ledger.directory, DAY_SECONDS + 1)
    user.append([Record(kind="mark", body={"value": [65, 1]})])
    user.append([Record(kind="mark", body={"value": [65, 2]})])
    later = DirectoryLedger(ledger.directory)
    later.read(None)
    later.append([Record(kind="mark", body={"value": [66, 0]})])
    later.read(None)
    later.close()
    assert len(journals(ledger.directory)) <= 2
    found = set(values(DirectoryLedger(ledger.directory).read()[0]))
    assert found == {*expected(66), (66, 0)}


def test_one_packer_at_a_time_and_the_next_after_an_hour(ledger, monkeypatch):
    """A packer that died in the midst of it holds nobody up for longer."""
    write(ledger.directory, 3)
    with monkeypatch.context() as patch:
        patch.setattr(os, "rename", lambda *_: (_ for _ in ()).throw(OSError(errno.EIO, os.strerror(errno.EIO))))
        with pytest.raises(LedgerError, match=r"cannot compact .*ledger: Input/output error"):
            ledger.compact()
    assert ledger.compact() == 0
    claims = next(path for path in (ledger.directory / "claims").rglob("compact*"))
    token, at = claims.read_text().split()
    claims.write_text(f"{token} {int(at) - 3601}")
    assert ledger.compact() == 3
    check(ledger.directory, 3)


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EIO])
@pytest.mark.parametrize("name", ["open", "write", "fsync", "rename"])
def test_a_failing_call_leaves_what_was_there(ledger, monkeypatch, name, number):
    write(ledger.directory, 3)

    def fails(*_):
        raise OSError(number, os.strerror(number))

    with monkeypatch.context() as patch:
        patch.setattr(os, name, fails)
        with pytest.raises(LedgerError, match=rf"cannot compact .*ledger: {os.strerror(number)}"):
            ledger.compact()
    assert snapshots(ledger.directory) == []
    check(ledger.directory, 3)


@pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")  # the child of the fork does nothing else
@pytest.mark.parametrize("name", CALLS)
def test_killed_at_each_call(tmp_path, name):
    """A packer killed at any moment loses nothing, for old readers and new; the next one ends what it began."""
    for count in range(100):
        directory = tmp_path / f"ledger-{count}"
        DirectoryLedger(directory, create=True)
        write(directory, 4, each=2)
        packer = DirectoryLedger(directory)
        packer.compact()  # so that there is something to remove, and to take in
        write(directory, 4, first=4, each=2)
        old = DirectoryLedger(directory)
        seen, cursor = old.read(None)
        assert len(seen) == 16
        rest = DirectoryLedger(directory)
        some, place = rest.read(None, most=1)
        killed = _in_a_child(lambda: packer.compact(keep_seconds=0), name, count)  # noqa: B023 -- runs before the next
        check(directory, 8, each=2)
        assert old.read(cursor)[0] == []
        assert sorted(values(some + rest.read(place)[0])) == expected(8, 2)
        if not killed:
            assert count > 0, f"{name} is never called"
            return
        for claim in (directory / "claims").rglob("compact*"):
            claim.write_text("the-dead 0")
        age(directory, DAY_SECONDS + 1)
        packer.compact()
        check(directory, 8, each=2)
        age(directory, DAY_SECONDS + 1)
        packer.compact()
        assert journals(directory) == []
        assert not [name for name in snapshots(directory) if name.startswith(".")]
        check(directory, 8, each=2)
        assert old.read(cursor)[0] == []


def _in_a_child(act, name, count):
    """Run `act` in a child process that is killed before its call number `count` of `os.<name>`; return if it was."""
    child = os.fork()
    if not child:
        left, real = iter(range(count, -1, -1)), getattr(os, name)

        def call(*arguments, **named):
            if next(left, 1) == 0:
                os.kill(os.getpid(), signal.SIGKILL)
            return real(*arguments, **named)

        setattr(os, name, call)
        status = 1
        try:
            act()
            status = 0
        finally:
            os._exit(status)
    _, status = os.waitpid(child, 0)
    assert status in {0, signal.SIGKILL}
    return status != 0


def test_a_page_that_has_not_arrived_is_not_moved(ledger):
    (writer,) = write(ledger.directory, 1)
    path = ledger.directory / "journal" / f"{writer.writer}.jsonl"
    (path,) = (ledger.directory / "journal").iterdir()
    whole = path.read_bytes()
    path.write_bytes(whole[:20] + bytes(20) + whole[40:])
    write(ledger.directory, 1, first=1)
    assert ledger.compact() == 1
    path.write_bytes(whole)
    ledger.compact(keep_seconds=0)
    check(ledger.directory, 2)


@pytest.mark.parametrize("damage", ["cut", "flip", "empty"])
def test_a_damaged_snapshot_is_named_and_its_journals_are_moved_again(ledger, damage):
    write(ledger.directory, 3)
    ledger.compact()
    (path,) = (ledger.directory / "snapshot").iterdir()
    whole = path.read_bytes()
    path.write_bytes({"cut": whole[:-5], "flip": whole[:-30] + b"!" + whole[-29:], "empty": b""}[damage])
    reader = DirectoryLedger(ledger.directory)
    assert sorted(set(values(reader.read()[0]))) == expected(3)  # some twice: from where they were, too
    assert [str(d).split(":")[0] for d in reader.dropped()] == [path.name]
    for claim in (ledger.directory / "claims").rglob("compact*"):
        claim.write_text("the-dead 0")
    assert ledger.compact() == 3
    ledger.compact(keep_seconds=0)
    assert sorted(set(values(DirectoryLedger(ledger.directory).read()[0]))) == expected(3)


@pytest.mark.parametrize("at", [-1, -10, -30, -100, 5])
def test_a_damaged_snapshot_is_all_that_is_left(ledger, at):
    """One byte, of its index or of a record, costs no more than a record; later snapshots may take it in."""
    write(ledger.directory, 3)
    ledger.compact()
    ledger.compact(keep_seconds=0)
    assert journals(ledger.directory) == []
    (path,) = (ledger.directory / "snapshot").iterdir()
    damaged = bytearray(path.read_bytes())
    damaged[at] = 0
    path.write_bytes(damaged)
    for _ in range(2):
        reader = DirectoryLedger(ledger.directory)
        assert len(set(expected(3)) - set(values(reader.read()[0]))) == (at == 5)
        assert len(reader.dropped()) == 1
        write(ledger.directory, 3, first=3)
        for claim in (ledger.directory / "claims").rglob("compact*"):
            claim.write_text("the-dead 0")
        ledger.compact()


def test_a_newer_snapshot_is_refused(ledger):
    import zlib

    write(ledger.directory, 1)
    ledger.compact()
    (path,) = (ledger.directory / "snapshot").iterdir()
    *lines, index, place = path.read_bytes().splitlines(keepends=True)
    newer = json.dumps({**json.loads(index[9:]), "v": 9}).encode()
    path.write_bytes(b"".join(lines) + b"%08x %b\n" % (zlib.crc32(newer), newer) + place)
    with pytest.raises(LedgerTooNew, match="format 9; this version reads up to 1; upgrade trainwright"):
        DirectoryLedger(ledger.directory).read()


def test_the_state_is_the_same(tmp_path):
    """A study's state, by journals and by snapshots."""
    import trainwright as tw

    directory = tmp_path / "study"
    space = tw.Space(x=tw.Float(0, 1))
    for session in range(3):
        with tw.Study(space, objectives="min loss", directory=directory, searcher=tw.RandomSearcher()) as study:
            for _ in range(4):
                configuration = study.ask()
                study.tell(configuration, loss=configuration["x"] + session)
    before = state_of(DirectoryLedger(directory / "ledger"))
    ledger = DirectoryLedger(directory / "ledger")
    assert ledger.compact() == 3
    ledger.compact(keep_seconds=0)
    assert journals(directory / "ledger") == []
    assert state_of(DirectoryLedger(directory / "ledger")) == before
    with tw.Study.open(directory) as study:
        assert study.state.results == 12
