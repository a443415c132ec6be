"""File layers that fail, die, stall or lose power, for the tests of checkpoints."""

import contextlib
import errno
import os
import random
import shutil
import threading

from trainwright.publishing import FileLayer

__all__ = ["FailingFiles", "Killed", "StallingFiles", "VolatileFiles", "flip_bit"]


class Killed(BaseException):
    """The process ends here."""


class FailingFiles(FileLayer):
    """Fails at the `at`-th operation, and for `times` - 1 more; with `killed` all that follow never happen."""

    def __init__(self, at=10**9, *, times=1, killed=False, error=errno.ENOSPC):
        self.count, self.at, self.times, self.killed, self.error = 0, at, times, killed, error

    def _count(self):
        self.count += 1
        if self.killed and self.count >= self.at:
            raise Killed
        if self.at <= self.count < self.at + self.times:
            raise OSError(self.error, os.strerror(self.error))

    def make_folder(self, path):
        self._count()
        super().make_folder(path)

    def create(self, path):
        self._count()
        return super().create(path)

    def write(self, handle, data):
        try:
            self._count()
        except (OSError, Killed):
            os.write(handle, data[: len(data) // 2])  # torn in the middle
            raise
        super().write(handle, data)

    def sync(self, handle):
        self._count()
        super().sync(handle)

    def rename(self, source, target):
        self._count()
        super().rename(source, target)

    def sync_folder(self, path):
        self._count()
        super().sync_folder(path)

    def remove(self, path):
        self._count()
        super().remove(path)


class VolatileFiles(FailingFiles):
    """Dies at an operation, and `lose_power` then takes back any part of what was not synced.

    The content of a file is safe after its `sync`, a name in a folder (a new file, a folder, a rename) after the
    `sync_folder` of that folder. What is not may be there or not, each on its own.
    """

    def __init__(self, at=10**9):
        super().__init__(at, killed=True)
        self._unsynced = {}  # handle -> path
        self._names = {}  # folder -> ways to take a name back, in order

    def make_folder(self, path):
        missing = [one for one in (path, *path.parents) if not one.exists()]
        super().make_folder(path)
        for one in missing:
            self._names.setdefault(one.parent, []).append(lambda one=one: shutil.rmtree(one, ignore_errors=True))

    def create(self, path):
        handle = super().create(path)
        self._unsynced[handle] = path
        self._names.setdefault(path.parent, []).append(lambda: path.unlink(missing_ok=True))
        return handle

    def sync(self, handle):
        super().sync(handle)
        self._unsynced.pop(handle, None)

    def close(self, handle):
        super().close(handle)
        if handle in self._unsynced:  # the number may be used again
            self._unsynced[object()] = self._unsynced.pop(handle)

    def rename(self, source, target):
        super().rename(source, target)
        for names in (self._names, self._unsynced):
            for key, value in list(names.items()):
                if value == source:
                    names[key] = target
        if source in self._names:
            self._names[target] = self._names.pop(source)

        def back():
            with contextlib.suppress(OSError):
                target.rename(source)

        self._names.setdefault(target.parent, []).append(back)

    def sync_folder(self, path):
        super().sync_folder(path)
        self._names.pop(path, None)

    def lose_power(self, seed):
        """Take back a random part of what was not synced."""
        chance = random.Random(seed)
        for path in self._unsynced.values():
            if path.exists():
                os.truncate(path, chance.choice([0, path.stat().st_size // 2, path.stat().st_size]))
        for ways in list(self._names.values()):
            for way in reversed(ways):
                if chance.random() < 0.5:
                    way()


class StallingFiles(FileLayer):
    """Waits in the middle of a save until it is `released`."""

    def __init__(self):
        self.reached, self.released = threading.Event(), threading.Event()

    def sync(self, handle):
        self.reached.set()
        self.released.wait()
        super().sync(handle)


def flip_bit(path, number):
    """Flip one bit of a file."""
    content = bytearray(path.read_bytes())
    content[number // 8] ^= 1 << number % 8
    path.write_bytes(content)
