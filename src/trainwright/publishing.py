"""Publishes files and folders atomically: written beside the target, fsynced, renamed into place.

It is written beside its place under a temporary name, brought to the disk and renamed, and so are the names in its
folder. So after a crash, or without room on the disk, there is the old content or the new, never a part of either.
"""

import ctypes
import errno
import os
import secrets
import shutil
import stat
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

__all__ = ["FileLayer", "is_disk_full", "make_folder", "new_file", "publish", "sync_all", "sync_folder", "write_file"]

_NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
_EXCHANGE = 2  # renameat2's flag
_HERE = -100  # AT_FDCWD: paths are as they are given


def is_disk_full(error: BaseException | None) -> bool:
    """Whether an error says that the disk is full (ENOSPC) or a quota is used up (EDQUOT)."""
    return isinstance(error, OSError) and error.errno in {errno.ENOSPC, errno.EDQUOT}


class FileLayer:
    """The file operations of publishing, one method each: a place for stripe hints of a file system, and for faults."""

    def make_folder(self, path: Path) -> None:
        """Make a folder, and those above it so that a power cut leaves their names; it is no error if it is there."""
        make_folder(path.parent)
        path.mkdir(exist_ok=True)

    def create(self, path: Path) -> int:
        """Open a new file for writing and return its handle."""
        return os.open(path, _NEW, 0o666)

    def write(self, handle: int, data: memoryview) -> None:
        """Write all of `data`, and have the system begin to bring it to the disk, so that `sync` waits for less."""
        while data:
            data = data[os.write(handle, data) :]
        # What is on the disk already leaves the cache: to find memory for all of a large file may take longer.
        if hasattr(os, "posix_fadvise"):
            os.posix_fadvise(handle, 0, 0, os.POSIX_FADV_DONTNEED)

    def sync(self, handle: int) -> None:
        """Make a file's content durable."""
        os.fsync(handle)

    def close(self, handle: int) -> None:
        """Close a file."""
        os.close(handle)

    def rename(self, source: Path, target: Path) -> None:
        """Rename a file or folder, as `os.rename` does: what publishes it."""
        source.rename(target)

    def sync_folder(self, path: Path) -> None:
        """Make the names in a folder durable."""
        handle = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)

    def remove(self, path: Path) -> None:
        """Remove a folder and all in it; it is no error if it is gone or cannot be removed."""
        shutil.rmtree(path, ignore_errors=True)


_FILES = FileLayer()


def write_file(path: str | Path, data: bytes | str, *, mode: int | None = None) -> None:
    """Write a file atomically and as a whole, in place of what is there.

    `mode` are its permissions from its first moment on; by default those of the file that it replaces. A device or a
    pipe is written to as it is. Raises `OSError`; then what was there is there still.
    """
    content = data.encode() if isinstance(data, str) else data
    target = Path(path).resolve()  # a link stays a link
    there = _mode_of(target)
    if there is not None and not stat.S_ISREG(there) and not stat.S_ISDIR(there):
        with target.open("wb") as device:
            device.write(content)
        return
    with publish(target) as temporary:
        handle = os.open(temporary, _NEW, 0o666 if mode is None else mode)
        try:
            if mode is None and there is not None:
                os.fchmod(handle, stat.S_IMODE(there))
            _FILES.write(handle, memoryview(content))
        finally:
            _FILES.close(handle)


@contextmanager
def publish(path: str | Path, *, replace: bool = True) -> Iterator[Path]:
    """Give a temporary path at which to make a file or a folder, which takes the name `path` at the end.

    Without `replace` nothing may be there: `FileExistsError`. After an error what was there is there still, and nothing
    is left of what was begun. A folder takes the place of another in one step where the system can (Linux, on local
    file systems); elsewhere a crash between two steps leaves the earlier one as `.NAME.earlier`.
    """
    target = Path(path).resolve()
    temporary = _beside(target)
    try:
        yield temporary
        sync_all(temporary)
        if not replace and os.path.lexists(target):
            raise FileExistsError(f"{path} exists")
        if not temporary.is_dir():
            temporary.replace(target)
        elif target.is_dir():
            _exchange(temporary, target)
        else:
            temporary.rename(target)
        sync_folder(target.parent)
    finally:
        # Still there: it was not published.
        if temporary.is_dir():
            _FILES.remove(temporary)
        else:
            temporary.unlink(missing_ok=True)


@contextmanager
def new_file(layer: FileLayer, path: Path) -> Iterator[int]:
    """Give the handle of a new file of a folder that is being made; it is synced at the end."""
    handle = layer.create(path)
    try:
        yield handle
        layer.sync(handle)
    finally:
        layer.close(handle)


def make_folder(path: Path) -> None:
    """Make a folder and those above it, and bring their names to the disk."""
    if not path.is_dir():
        # Asked in this order: another process may make the folder meanwhile.
        if path.exists() and not path.is_dir():
            raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), str(path))
        make_folder(path.parent)
        path.mkdir(exist_ok=True)
        sync_folder(path.parent)


def sync_folder(path: Path) -> None:
    """Bring the names in a folder to the disk."""
    _FILES.sync_folder(path)


def _beside(target: Path) -> Path:
    # Without its name, by which others may look for files: TensorBoard does.
    return target.with_name(f".publishing-{secrets.token_hex(8)}")


def _mode_of(path: Path) -> int | None:
    try:
        return path.stat().st_mode
    except FileNotFoundError:
        return None


def sync_all(path: Path) -> None:
    """Bring a file, or all below a folder, to the disk."""
    for below in sorted(path.iterdir()) if path.is_dir() and not path.is_symlink() else ():
        sync_all(below)
    handle = os.open(path, os.O_RDONLY)
    try:
        _FILES.sync(handle)
    finally:
        _FILES.close(handle)


def _exchange(new: Path, old: Path) -> None:
    """Let two folders change their names, or put the first in the second's place by two renames."""
    if sys.platform == "linux":
        swap = getattr(ctypes.CDLL(None, use_errno=True), "renameat2", None)
        if swap is not None and swap(_HERE, os.fsencode(new), _HERE, os.fsencode(old), _EXCHANGE) == 0:
            return
    earlier = old.with_name(f".{old.name}.earlier")
    # A crash in an earlier run may have left one behind.
    shutil.rmtree(earlier, ignore_errors=True)
    old.rename(earlier)
    new.rename(old)
    shutil.rmtree(earlier, ignore_errors=True)
