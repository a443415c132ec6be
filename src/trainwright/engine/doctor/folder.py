"""Examine a folder for studies: file system, free space, hard links, renames, seconds of a sync, clock."""

import os
import statistics
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from trainwright.engine.doctor.devices import amount
from trainwright.engine.doctor.finding import Area, Finding, Grade
from trainwright.engine.doctor.machine import Machine

__all__ = ["examine_folder", "file_system"]

_NETWORK = {
    "nfs",
    "nfs4",
    "lustre",
    "gpfs",
    "beegfs",
    "beegfs_nodev",
    "ceph",
    "cifs",
    "smb3",
    "panfs",
    "wekafs",
    "9p",
    "afs",
}
_FLEETING = {
    "tmpfs": "in memory: gone when the machine or the job ends",
    "ramfs": "in memory",
    "overlay": "of a container",
}
_SYNCS = 20
_SLOW_SECONDS = 0.05
_LEAST_BYTES = 1 << 30
_LEAST_FILES = 10_000
_SKEW_SECONDS = 5.0
_OLDEST_CLOCK = 1_700_000_000  # November 2023, before Trainwright was


def examine_folder(host: Machine, folder: Path) -> Iterator[Finding]:
    """Yield what is found; a file or two are written in the folder and removed again."""
    yield _examine_file_system(host, folder)
    yield from _examine_free_space(host, folder)
    if host.now() < _OLDEST_CLOCK:
        yield _make_finding(
            "clock", Grade.POOR, "it tells a time long past, and reports will too", "set it: ntpd, chronyd"
        )
    try:
        with tempfile.TemporaryDirectory(prefix=".trainwright-doctor-", dir=folder) as name:
            yield from _examine_operations(host, Path(name))
    except OSError as error:
        says = f"{folder} cannot be written: {(error.strerror or str(error)).lower()}"
        yield _make_finding("writing", Grade.BROKEN, says, "use a directory of yours: trainwright doctor DIR")


def _make_finding(name: str, state: Grade, says: str, mend: str = "") -> Finding:
    return Finding(area=Area.FOLDER, name=name, state=state, says=says, mend=mend)


def _examine_file_system(host: Machine, folder: Path) -> Finding:
    kind, mount = file_system(host, folder)
    says = f"{folder.absolute()} on {kind} ({mount})"
    if kind in _NETWORK or kind.startswith("fuse."):
        return _make_finding("file system", Grade.FINE, f"{says}, shared by hosts: workers on any of them may join")
    if kind in _FLEETING:
        mend = "keep studies that must last elsewhere"
        return _make_finding("file system", Grade.POOR, f"{says}, {_FLEETING[kind]}", mend)
    return _make_finding("file system", Grade.FINE, f"{says}, of this host alone")


def file_system(host: Machine, folder: Path) -> tuple[str, str]:
    """Return the kind of file system that holds a folder and where it is mounted; ("unknown", "") if nothing tells."""
    best, found = -1, ("unknown", "")
    path = folder.resolve()
    for line in host.text("proc/self/mountinfo").splitlines():
        before, _, after = line.partition(" - ")
        if len(before.split()) < 5 or not after.split():
            continue
        mount = before.split()[4].encode().decode("unicode_escape")
        # The last of two mounts at one place hides the first.
        if path.is_relative_to(mount) and len(Path(mount).parts) >= best:
            best, found = len(Path(mount).parts), (after.split()[0], mount)
    return found


def _examine_free_space(host: Machine, folder: Path) -> Iterator[Finding]:
    room = host.room(folder)
    if room is None:
        return
    says = f"{amount(room.free_bytes)} of {amount(room.total_bytes)} are free; a quota may leave less"
    if room.free_bytes < _LEAST_BYTES:
        yield _make_finding("room", Grade.POOR, says, "make room, or give --directory a larger disk")
    elif room.free_files is not None and room.free_files < _LEAST_FILES:
        mend = "remove files, or use a disk with more of them"
        yield _make_finding("room", Grade.POOR, f"{says}; but only {room.free_files} more files", mend)
    else:
        yield _make_finding("room", Grade.FINE, says)


def _examine_operations(host: Machine, folder: Path) -> Iterator[Finding]:
    yield _examine_links(folder)
    yield _examine_renames(folder)
    yield _examine_syncs(folder)
    yield _examine_clock(host, folder)


def _examine_links(folder: Path) -> Finding:
    """Link a file twice to one name: the second must be refused, for claims rest on it."""
    token, claim = folder / "token", folder / "claim"
    token.write_bytes(b"")
    mend = "use another file system, or a Redis ledger"
    try:
        os.link(token, claim)
    except OSError as error:
        says = f"hard links are refused ({(error.strerror or str(error)).lower()}), and claims on trials rest on them"
        return _make_finding("claims", Grade.BROKEN, says, mend)
    try:
        os.link(token, claim)
    except FileExistsError:
        return _make_finding("claims", Grade.FINE, "a name can be linked once only, so no trial is run twice")
    return _make_finding("claims", Grade.BROKEN, "a name could be linked twice, so two workers may run one trial", mend)


def _examine_renames(folder: Path) -> Finding:
    new, old = folder / "new", folder / "old"
    new.write_bytes(b"new")
    old.write_bytes(b"old")
    new.replace(old)
    if old.read_bytes() == b"new" and not new.exists():
        return _make_finding("renames", Grade.FINE, "a file replaces another whole, as checkpoints need it")
    says = "a rename did not replace its target, on which checkpoints rest"
    return _make_finding("renames", Grade.BROKEN, says, "use another file system")


def _examine_syncs(folder: Path) -> Finding:
    seconds = []
    with (folder / "journal").open("ab", buffering=0) as file:
        for _ in range(_SYNCS):
            file.write(b"a record of some length" * 10)
            begun = time.perf_counter()
            os.fsync(file.fileno())
            seconds.append(time.perf_counter() - begun)
    median = statistics.median(seconds)
    took = f"{1000 * median:.1f} ms (median of {_SYNCS}, most {1000 * max(seconds):.1f})"
    says = f"a sync takes {took}; a trial waits for one when it starts and when it ends"
    if median > _SLOW_SECONDS:
        mend = "fine for trials of minutes; for trials of seconds use a local disk or a Redis ledger"
        return _make_finding("syncs", Grade.POOR, says, mend)
    return _make_finding("syncs", Grade.FINE, says)


def _examine_clock(host: Machine, folder: Path) -> Finding:
    path = folder / "stamp"
    before = host.now()
    path.write_bytes(b"now")
    skew = path.stat().st_mtime - before
    if abs(skew) > _SKEW_SECONDS:
        says = f"the file system's clock is {abs(skew):.0f} s {'ahead of' if skew > 0 else 'behind'} this host's"
        return _make_finding("clock", Grade.POOR, f"{says}; nothing is decided by it", "times in reports will disagree")
    return _make_finding("clock", Grade.FINE, "the file system's agrees with this host's")
