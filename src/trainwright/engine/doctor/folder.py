"""Examine a folder for studies: its file system, free space, hard links, seconds of a sync.

Each finding is a name, a state, what is told, and what would mend it.
"""

import os
import statistics
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from trainwright.engine.doctor.machine import Machine, amount

__all__ = ["examine_folder", "file_system"]

_NETWORK = frozenset(
    {"9p", "afs", "beegfs", "beegfs_nodev", "ceph", "cifs", "gpfs", "lustre"}
    | {"nfs", "nfs4", "panfs", "smb3", "wekafs"}
)
_FLEETING = {
    "tmpfs": "in memory: gone when the machine or the job ends",
    "ramfs": "in memory",
    "overlay": "of a container",
}
_SYNCS = 20
_SLOW_SECONDS = 0.05
_LEAST_BYTES = 1 << 30


def examine_folder(host: Machine, folder: Path) -> Iterator[tuple[str, ...]]:
    """Yield what is found; a file or two are written in the folder and removed again."""
    yield "file system", *_examine_file_system(host, folder)
    if (room := host.room(folder)) is not None:
        says = f"{amount(room[1])} of {amount(room[0])} are free; a quota may leave less"
        mend = "make room, or give --directory a larger disk"
        yield "room", *(("poor", says, mend) if room[1] < _LEAST_BYTES else ("fine", says))
    try:
        with tempfile.TemporaryDirectory(prefix=".trainwright-doctor-", dir=folder) as name:
            yield "claims", *_examine_links(Path(name))
            yield "syncs", *_examine_syncs(Path(name))
    except OSError as error:
        says = f"{folder} cannot be written: {(error.strerror or str(error)).lower()}"
        yield "writing", "broken", says, "use a directory of yours: trainwright doctor DIR"


def _examine_file_system(host: Machine, folder: Path) -> tuple[str, ...]:
    kind, mount = file_system(host, folder)
    says = f"{folder.absolute()} on {kind} ({mount})"
    if kind in _NETWORK or kind.startswith("fuse."):
        return "fine", f"{says}, shared by hosts: workers on any of them may join"
    if kind in _FLEETING:
        return "poor", f"{says}, {_FLEETING[kind]}", "keep studies that must last elsewhere"
    return "fine", f"{says}, of this host alone"


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


def _examine_links(folder: Path) -> tuple[str, ...]:
    """Link a file twice to one name: the second must be refused, for claims rest on it."""
    token, claim = folder / "token", folder / "claim"
    # The very operation by which a directory ledger lets exactly one of many writers win.
    token.write_bytes(b"")
    mend = "use another file system, or a Redis ledger"
    try:
        os.link(token, claim)
    except OSError as error:
        says = f"hard links are refused ({(error.strerror or str(error)).lower()}), and claims on trials rest on them"
        return "broken", says, mend
    try:
        os.link(token, claim)
    except FileExistsError:
        return "fine", "a name can be linked once only, so no trial is run twice"
    return "broken", "a name could be linked twice, so two workers may run one trial", mend


def _examine_syncs(folder: Path) -> tuple[str, ...]:
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
        return "poor", says, "fine for trials of minutes; for trials of seconds use a local disk or a Redis ledger"
    return "fine", says
