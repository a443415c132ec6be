"""Kill a process again and again while it saves, and look at what a restart finds.

A child holds a state whose every byte is a function of the step, restores it, and then saves step after step
without end; it tells each commit through a pipe. It is killed with SIGKILL at a random moment, in the restore too. What
the next child restores must be a step that was saved, with exactly its bytes, and no older than the last one told.

    python benchmarks/checkpoint/kills.py FOLDER KILLS SEED NUMBERS WRITER SECONDS
"""

import json
import os
import random
import select
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

__all__ = ["Killed", "kill_while_saving"]

_AFTER_RESTORE = 0.8  # of the kills; the others may come sooner
_AFTER_COMMIT = 0.4  # of the kills: so that on a machine of any load some come in a later save
_TENSORS = 4


@dataclass(frozen=True, kw_only=True, slots=True)
class Killed:
    """What so many kills did.

    `commits` counts the saves that were told, `half_done` the kills that left something unpublished behind, `lost` the
    restarts that found less than what was told, `wrong` those that found other bytes, or failed.
    """

    kills: int
    commits: int
    half_done: int
    lost: int
    wrong: int


def kill_while_saving(
    folder: Path,
    kills: int,
    *,
    seed: int = 0,
    numbers: int = 20_000,
    writer: str = "thread",
    within_seconds: float = 0.15,
) -> Killed:
    """Kill so many savers of checkpoints in `folder`; `numbers` are the integers of their state.

    Each dies within so many seconds of its start, or mostly of its restore or its first save.

    All are forked from one new process that has torch loaded, so that a kill costs a fraction of a second.
    """
    arguments = [str(folder), str(kills), str(seed), str(numbers), writer, str(within_seconds)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, __file__, *arguments], stdout=subprocess.PIPE, text=True, check=True, env=environment
    )
    return Killed(**json.loads(done.stdout.splitlines()[-1]))


def _kill_all(folder: Path, kills: int, *, seed: int, numbers: int, writer: str, within_seconds: float) -> Killed:
    chance = random.Random(seed)
    commits = half_done = lost = wrong = told = 0
    _warm_up(folder.with_name(f"{folder.name}-warm"), numbers)
    for number in range(kills + 1):  # the last one is not killed before it has restored
        child, line = _fork(folder, numbers, writer)
        place, said = chance.random(), b""
        if number == kills or place < _AFTER_RESTORE:
            said += _heard(line, b".\n")  # it says that it has restored
        if number < kills and place < _AFTER_COMMIT:
            said += _heard(line, b"committed")
        if number < kills:
            time.sleep(chance.uniform(0, within_seconds))
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        with os.fdopen(line, "rb") as rest_of_it:
            said += rest_of_it.read()
        words = [text.split() for text in said.decode().splitlines() if text.endswith(".")]
        half_done += any(folder.glob(".tmp-*"))
        for word, *rest in words:
            step = int(rest[0])
            wrong += word == "wrong"
            lost += word == "restored" and step < told
            commits += word == "committed"
            told = max(told, step)
        wrong += number == kills and not words
    return Killed(kills=kills, commits=commits, half_done=half_done, lost=lost, wrong=wrong)


def _heard(line: int, word: bytes) -> bytes:
    """Read until a word has come, the other side has gone, or a minute is over."""
    said, deadline = b"", time.monotonic() + 60
    while word not in said and select.select([line], [], [], max(0.0, deadline - time.monotonic()))[0]:
        piece = os.read(line, 4096)
        if not piece:
            break
        said += piece
    return said


def _warm_up(folder: Path, numbers: int) -> None:
    """Load what a save and a restore load, once for all that are forked; no thread is started."""
    from trainwright.checkpoint import CheckpointConfig, Manager

    with Manager(folder, config=CheckpointConfig(writer="sync"), **_state(0, numbers)) as manager:
        manager.save(wait=True)
        manager.restore()
    shutil.rmtree(folder)


def _fork(folder: Path, numbers: int, writer: str) -> tuple[int, int]:
    read, write = os.pipe()
    child = os.fork()
    if child:
        os.close(write)
        return child, read
    status = 1
    try:
        os.close(read)
        _train(folder, numbers, writer, write)
    except BaseException as error:  # noqa: BLE001 -- told to the parent, whatever it is
        os.write(2, f"{type(error).__name__}: {error}\n".encode())
        os.write(write, b"wrong 0 .\n")
    os._exit(status)


def _train(folder: Path, numbers: int, writer: str, line: int) -> None:
    import torch

    from trainwright.checkpoint import CheckpointConfig, Manager

    state = _state(0, numbers)
    config = CheckpointConfig(writer=writer, on_error="raise")  # type: ignore[arg-type]  # one of its words
    manager = Manager(folder, config=config, **state)
    restored = manager.restore()
    step = 0 if restored is None else restored.step
    good = all(torch.equal(state[name], expected) for name, expected in _state(step, numbers).items())
    os.write(line, b"%b %d .\n" % (b"restored" if good else b"wrong", step))
    while good:
        step += 1
        for name, value in _state(step, numbers).items():
            state[name].copy_(value)
        manager.steps = step
        manager.save(wait=True)
        os.write(line, b"committed %d .\n" % step)


def _state(step: int, numbers: int) -> dict[str, Any]:
    import torch

    size = numbers // _TENSORS
    return {f"x{place}": torch.arange(size) * (place + 1) + step for place in range(_TENSORS)}


if __name__ == "__main__":
    import torch  # noqa: F401 -- once, for all that are forked

    import trainwright.checkpoint  # noqa: F401 -- likewise

    where, count, seed, numbers, writer, within = sys.argv[1:]
    settings = {"seed": int(seed), "numbers": int(numbers), "within_seconds": float(within)}
    result = _kill_all(Path(where), int(count), writer=writer, **settings)  # type: ignore[arg-type]  # as they are named
    print(json.dumps(asdict(result)))
