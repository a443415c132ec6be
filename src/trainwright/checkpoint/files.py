"""What a save does to the file system, one method for each operation: a place for stripe hints, and for faults."""

import os
import shutil
from pathlib import Path

__all__ = ["FileLayer"]


class FileLayer:
    """The file operations of saving. A subclass may lay files out on a parallel file system, or fail on purpose."""

    def make_folder(self, path: Path) -> None:
        """Make a folder and those above it; it is no error if it is there."""
        path.mkdir(parents=True, exist_ok=True)

    def create(self, path: Path) -> int:
        """Open a new file for writing and return its handle."""
        return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)

    def write(self, handle: int, data: memoryview) -> None:
        """Write all of `data`."""
        while data:
            data = data[os.write(handle, data) :]

    def sync(self, handle: int) -> None:
        """Make a file's content durable."""
        os.fsync(handle)

    def close(self, handle: int) -> None:
        """Close a file."""
        os.close(handle)

    def rename(self, source: Path, target: Path) -> None:
        """Rename a file or folder."""
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
