"""Claims of the directory ledger: one winner among many processes, with and without hard links, on lying disks."""

import errno
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from trainwright.errors import LedgerError
from trainwright.ledger import DirectoryLedger

ENVIRONMENT = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2] / "src")}


@pytest.fixture
def ledger(tmp_path):
    return DirectoryLedger(tmp_path / "ledger", create=True)


@pytest.fixture
def no_links(monkeypatch):
    """Make it a file system without hard links, such as many a FUSE mount."""

    def link(*_):
        raise PermissionError(errno.EPERM, os.strerror(errno.EPERM))

    monkeypatch.setattr(os, "link", link)


@pytest.mark.parametrize(("processes", "keys"), [(16, 50), pytest.param(64, 1000, marks=pytest.mark.slow)])
@pytest.mark.timeout(900)
def test_one_winner_among_many_processes(ledger, tmp_path, processes, keys):
    """All start at one moment; each is told the same winner, for every key, and everybody else is told it later."""
    gate = tmp_path / "gate"
    script = Path(__file__).with_name("claiming.py")
    command = [sys.executable, str(script), str(ledger.directory), str(keys)]
    running = [
        subprocess.Popen([*command, f"p{i}", str(gate)], env=ENVIRONMENT, stdout=subprocess.PIPE, text=True)
        for i in range(processes)
    ]
    try:
        for process in running:
            assert process.stdout.readline() == "ready\n"
        gate.touch()
        told = [process.communicate()[0].split() for process in running]
    finally:
        for process in running:
            process.kill()
            process.wait()
    assert told[0] == [ledger.claim(f"number/{key}", "late") for key in range(keys)]
    assert all(owners == told[0] for owners in told)
    assert set(told[0]) <= {f"p{i}" for i in range(processes)}
    assert len(Counter(told[0])) > 1  # they did run at once
    temporary = [path for path in (ledger.directory / "claims").rglob("*") if path.name.startswith(".")]
    assert temporary == []


def test_without_hard_links(ledger, no_links):
    other = DirectoryLedger(ledger.directory)
    assert ledger.claim("key", "mine") == "mine"
    assert ledger.claim("key", "mine") == "mine"
    assert other.claim("key", "theirs") == "mine"
    assert DirectoryLedger(ledger.directory).claim("key", "later") == "mine"


def test_without_hard_links_the_file_is_read_back(ledger, no_links, monkeypatch):
    """An old network file system may let two create one file; its content tells who it was."""
    monkeypatch.setattr("trainwright.ledger.directory._owner", lambda _: "theirs")
    assert ledger.claim("key", "mine") == "theirs"


def test_a_study_is_made_without_hard_links(tmp_path, no_links):
    first = DirectoryLedger(tmp_path / "ledger", create=True)
    assert DirectoryLedger(tmp_path / "ledger", create=True).study_id == first.study_id


def test_an_empty_claim_is_taken(ledger, no_links):
    """Without hard links a claimant may die between making the file and writing its name there."""
    ledger.claim("key", "")
    assert ledger.claim("key", "mine") == ""


def test_a_lost_answer_is_a_claim_won(ledger, monkeypatch):
    """A network file system may make the link and then report that it exists; the link count knows."""
    real = os.link

    def link(*arguments):
        real(*arguments)
        raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST))

    with monkeypatch.context() as patch:
        patch.setattr(os, "link", link)
        assert ledger.claim("key", "mine") == "mine"
    assert ledger.claim("key", "other") == "mine"


def test_a_lost_answer_with_another_error_is_a_claim_won(ledger, monkeypatch):
    real = os.link

    def link(*arguments):
        real(*arguments)
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(os, "link", link)
    assert ledger.claim("key", "mine") == "mine"


def test_the_claims_of_a_writer_are_names_of_one_file(ledger):
    """Many claims fill no table of files, and a claim costs no new one."""
    for key in range(5):
        ledger.claim(f"number/{key}", "mine")
    ledger.claim("number/9", "theirs")
    paths = sorted((ledger.directory / "claims").rglob("number*"), key=lambda path: path.name)
    assert len({path.stat().st_ino for path in paths}) == 2
    assert [path.read_text() for path in paths] == ["mine"] * 5 + ["theirs"]


@pytest.mark.parametrize("error", [FileExistsError(errno.EEXIST, ""), OSError(errno.EIO, "")])
def test_a_lost_answer_to_another_name_is_a_claim_won(ledger, monkeypatch, error):
    real = os.link
    ledger.claim("number/0", "mine")

    def link(*arguments):
        real(*arguments)
        raise error

    monkeypatch.setattr(os, "link", link)
    assert ledger.claim("number/1", "mine") == "mine"


@pytest.mark.parametrize("number", [errno.EMLINK, errno.ENOENT])
def test_a_file_that_takes_no_more_names(ledger, monkeypatch, number):
    """A file system limits them (to 65,000, say), and somebody may have removed the file: another one is made."""
    real = os.link
    ledger.claim("number/0", "mine")
    full = next((ledger.directory / "claims").rglob("number*"))

    def link(source, path):
        if source == full:
            raise OSError(number, os.strerror(number))
        real(source, path)

    monkeypatch.setattr(os, "link", link)
    assert [ledger.claim(f"number/{key}", "mine") for key in range(3)] == ["mine"] * 3
    paths = (ledger.directory / "claims").rglob("number*")
    assert len({path.stat().st_ino for path in paths}) == 2


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EIO, errno.EDQUOT])
def test_a_failing_link_claims_nothing(ledger, monkeypatch, number):
    def link(*_):
        raise OSError(number, os.strerror(number))

    with monkeypatch.context() as patch:
        patch.setattr(os, "link", link)
        with pytest.raises(LedgerError, match=rf"cannot claim number/0 in .*ledger: {os.strerror(number).lower()}"):
            ledger.claim("number/0", "mine")
    assert ledger.claim("number/0", "other") == "other"


def test_two_who_make_one_study(tmp_path):
    """Whoever comes first gives the ledger its identity."""
    first = DirectoryLedger(tmp_path / "ledger", create=True)
    second = DirectoryLedger(tmp_path / "ledger", create=True)
    assert first.study_id == second.study_id == DirectoryLedger(tmp_path / "ledger").study_id
