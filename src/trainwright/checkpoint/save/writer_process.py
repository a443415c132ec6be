"""A separate process that writes from shared memory, so that the training never waits for the interpreter lock.

The process is started anew, never forked, so that it inherits no device and no lock; it ends when its parent's end of
the line closes. It is deaf to signals that warn of an end: what is under way is finished first.
"""

import mmap
import os
import socket
import subprocess
import sys
from contextlib import suppress
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from trainwright.checkpoint.manifest import FileRecord, TensorRecord
from trainwright.checkpoint.save.shard_file import ShardFile
from trainwright.checkpoint.save.writer import write_data
from trainwright.errors import CheckpointError
from trainwright.publishing import FileLayer
from trainwright.signals import ignore_launcher, signals_held

__all__ = ["WriterProcess", "main"]

_RESTARTS = 1
_FAREWELL_SECONDS = 5.0


class WriterProcess:
    """Writes data files from shared memory, in another process; one after the other.

    A process that died is started again once. After that, `write` does the work itself.
    """

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None
        self._line: Connection[Any, Any] | None = None
        # Descriptor of shared memory -> its size as the process has it.
        self._mapped: dict[int, int] = {}
        self._deaths = 0

    @property
    def pid(self) -> int | None:
        """The process's number while it runs."""
        return None if self._process is None else self._process.pid

    def write(
        self, folder: Path, layout: ShardFile, memory: memoryview, descriptor: int, *, rank: int = 0
    ) -> tuple[FileRecord, tuple[TensorRecord, ...]]:
        """Write and sync a rank's data file from the memory behind `descriptor`, which is `memory` here.

        Raises `OSError` as a write does, and `CheckpointError` if the process died.
        """
        if self._deaths > _RESTARTS:
            return write_data(FileLayer(), folder, layout, memory, rank=rank)
        try:
            answer = self._request_write(folder, layout, len(memory), descriptor, rank)
        except (EOFError, ConnectionError) as error:
            self._deaths += 1
            status = self.close()
            cure = "it is started again" if self._deaths <= _RESTARTS else "the next saves are written without one"
            raise CheckpointError(
                f"{folder.parent}: the process that wrote the checkpoint ended with status {status}; {cure}"
            ) from error
        if isinstance(answer, OSError):
            raise answer
        return answer  # type: ignore[no-any-return]  # what `main` sends

    def close(self) -> int | None:
        """End the process, after what it is writing; return its status."""
        process, self._process = self._process, None
        if self._line is not None:
            self._line.close()
            self._line = None
        self._mapped.clear()
        if process is None:
            return None
        try:
            return process.wait(_FAREWELL_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            return process.wait()

    def _request_write(self, folder: Path, layout: ShardFile, size: int, descriptor: int, rank: int) -> Any:
        if self._line is None:
            self._start_process()
        line = self._line
        if line is None:
            raise EOFError
        # The buffer is sent once, as a descriptor; after that a job is only a few hundred bytes.
        if self._mapped.get(descriptor) != size:
            line.send(("map", descriptor, size))
            with socket.socket(fileno=os.dup(line.fileno())) as raw:
                socket.send_fds(raw, [b"\0"], [descriptor])
            self._mapped[descriptor] = size
        line.send(("write", descriptor, str(folder), layout, rank))
        return line.recv()

    def _start_process(self) -> None:
        ours, theirs = socket.socketpair()
        # A signal to the group must not kill the writer in the middle of the last checkpoint.
        with theirs, signals_held():
            self._process = subprocess.Popen(
                [sys.executable, "-c", f"from {__name__} import main; main({theirs.fileno()})"],
                env={**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)},
                stdin=subprocess.DEVNULL,
                pass_fds=[theirs.fileno()],
            )
        self._line = Connection(ours.detach())


def main(descriptor: int) -> None:
    """Do what the line asks for until it closes."""
    ignore_launcher()
    memories: dict[int, mmap.mmap] = {}
    with Connection(descriptor) as line, suppress(EOFError, ConnectionError):
        while True:
            kind, key, *rest = line.recv()
            if kind == "map":
                with socket.socket(fileno=os.dup(descriptor)) as raw:
                    _, (shared,), _, _ = socket.recv_fds(raw, 1, 1)
                memories[key] = mmap.mmap(shared, rest[0], prot=mmap.PROT_READ)
                os.close(shared)
                continue
            folder, layout, rank = rest
            try:
                answer: Any = write_data(FileLayer(), Path(folder), layout, memoryview(memories[key]), rank=rank)
            except OSError as error:
                answer = OSError(error.errno, error.strerror)
            line.send(answer)
