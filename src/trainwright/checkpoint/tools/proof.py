"""The proof that a training resumes exactly: `trainwright checkpoint verify-resume SCRIPT --steps K`.

A script takes part as it is, if its loop has the three lines that checkpoints need anyway:

    manager = tw.checkpoint.Manager("runs/x", model=model, optimizer=optimizer, loader=loader)   # a folder
    manager.restore()
    ...
        manager.step()    # after each optimizer step

Every run is a process of its own, whose checkpoints go to a folder of the proof: (A) 2k steps without interruption,
twice, which tells whether the script repeats itself at all; (B) k steps, a save, a new process that restores and does
the other k. Batches, losses and all state are compared at every step, bit by bit.

With several ranks each run is that many processes, which find each other as torchrun has them (`RANK`, `WORLD_SIZE`,
`MASTER_ADDR`, `MASTER_PORT`); every rank is compared.
"""

import os
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from trainwright.checkpoint.tools.comparing import (
    ProofRun,
    Unlike,
    first_difference,
    idle_generators,
    max_difference,
    read_lines,
)
from trainwright.checkpoint.tools.step_digests import ProofPlan
from trainwright.errors import CheckpointConfigError, CheckpointError, CheckpointNotFoundError
from trainwright.files import read_text

__all__ = ["Launch", "Proof", "prove", "run_ranks", "verify_resume"]

Launch = Callable[[ProofPlan], None]
"""Runs a training as a plan says, in a process of its own. Raises `CheckpointError` if it fails."""

# That ranks get to die after the first one that was to.
_AFTER_KILL_SECONDS = 10.0
_UNREPEATABLE = "two uninterrupted runs differ already: seed every generator and set deterministic algorithms"


@dataclass(frozen=True, kw_only=True, slots=True)
class Proof:
    """What came out: `equal` if the resumed run is the uninterrupted one, bit by bit.

    `repeatable` is False if two uninterrupted runs differ already: then nothing can be said of the resume. `step` and
    `item` name the first difference, `others` how many more there are at that step, `suspect` in words what may be
    behind it. `max_difference` is the largest one between parameters at the end; `compared` counts the digests. A
    trial is killed after `steps`, and goes on after `resumed_from`.
    """

    steps: int
    repeatable: bool
    equal: bool
    compared: int
    step: int | None = None
    item: str = ""
    others: int = 0
    suspect: str = ""
    max_difference: float = 0.0
    resumed_from: int | None = None

    @classmethod
    def unequal(
        cls,
        steps: int,
        unlike: Unlike,
        one: ProofRun,
        other: ProofRun,
        *,
        repeatable: bool = True,
        resumed_from: int | None = None,
    ) -> "Proof":
        """Return what came out where two runs are unlike."""
        return cls(
            steps=steps,
            repeatable=repeatable,
            equal=False,
            compared=unlike.compared,
            step=unlike.step,
            item=unlike.items[0],
            others=len(unlike.items) - 1,
            suspect=unlike.suspect if repeatable else _UNREPEATABLE,
            max_difference=max_difference(one, other),
            resumed_from=resumed_from,
        )


def verify_resume(
    script: Path | str,
    *,
    steps: int,
    arguments: Sequence[str] = (),
    kill: bool = False,
    drop: Sequence[str] = (),
    ranks: int = 1,
    timeout_seconds: float = 3600.0,
) -> Proof:
    """Run a script four times and compare: 2k steps twice, and k steps, a new process, and k more.

    With `kill`, the first half is not stopped after its save but goes on for a while and is killed (SIGKILL). `drop`
    names items, or "rng", that are left as they are when the rest is restored: so each shows that it is needed. Each
    run has so many `ranks`. Raises `CheckpointNotFoundError` if
    the script cannot be read and `CheckpointError` if it fails or does too few steps.
    """
    path = Path(script)
    read_text(path, "training script", allowed="a Python script with a Manager", error=CheckpointNotFoundError)
    with tempfile.TemporaryDirectory(prefix="trainwright-proof-") as folder:
        return prove(
            lambda plan: run_script(plan, path, arguments, timeout_seconds, alone=ranks == 1),
            Path(folder),
            steps=steps,
            kill=kill,
            drop=drop,
            ranks=ranks,
        )


def prove(
    launch: Launch,
    folder: Path,
    *,
    steps: int,
    kill: bool = False,
    drop: Sequence[str] = (),
    ranks: int = 1,
) -> Proof:
    """Let `launch` run a training as `verify_resume` would a script, below `folder`."""
    for name, value in (("steps", steps), ("ranks", ranks)):
        if value < 1:
            raise CheckpointConfigError(f"verify-resume: {name} must be a whole number >= 1, got {value!r}")
    runs = _Runs(launch, folder, steps, ranks)
    whole = runs.run("a", steps=2 * steps)
    # The same run twice: a training that differs from itself cannot be compared with a resumed one.
    again = runs.run("again", steps=2 * steps)
    idle = idle_generators(whole.of("step"))
    unlike = first_difference(whole.of("step"), again.of("step"), idle)
    if unlike is not None:
        return Proof.unequal(steps, unlike, whole, again, repeatable=False)
    # Killed in the middle of the second half: what was computed after the save must be repeated.
    if kill:
        half = runs.run("b1", steps=2 * steps, save_at=steps, kill_at=min(2 * steps, steps + max(1, steps // 2)))
    else:
        half = runs.run("b1", steps=steps, save_at=steps)
    resumed = runs.run("b2", steps=2 * steps, drop=tuple(drop))
    # In the order of causes: the run before the save, what was restored, the steps after it.
    differing = (
        first_difference(whole.of("step"), half.of("step"), idle)
        or first_difference(half.of("step"), resumed.of("restored"))
        or first_difference(whole.of("step"), resumed.of("step"), idle)
    )
    compared = sum(len(line.state) + len(line.batches) + len(line.losses) for line in resumed.lines)
    if differing is None:
        return Proof(steps=steps, repeatable=True, equal=True, compared=compared)
    return Proof.unequal(steps, replace(differing, compared=compared), whole, resumed)


class _Runs:
    """The runs of one proof: those of b share their folder of checkpoints."""

    def __init__(self, launch: Launch, folder: Path, steps: int, ranks: int = 1) -> None:
        self._ranks = ranks
        self._launch = launch
        self._folder = folder
        self._steps = steps

    def run(self, name: str, **what: Any) -> ProofRun:
        """Run the training, and return its journal. Raises `CheckpointError` if it did not get where it should."""
        journal = self._folder / f"{name}.journal"
        shared = name.partition("-")[0][0]
        resumes = name.startswith("b2")
        home = self._folder / f"checkpoints-{shared if shared == 'b' else name}"
        plan = ProofPlan(folder=str(home), journal=str(journal), **{"ranks": self._ranks, **what})
        self._launch(plan)
        lines = read_lines(journal, plan.ranks)
        last = {line.rank: line.step for line in lines}
        reached = min(last.get(rank, 0) for rank in range(plan.ranks))
        wanted = plan.kill_at or plan.steps
        # The first rank to die may take another along in the step before.
        if plan.kill_at and plan.ranks > 1:
            wanted -= 1
        if reached < wanted:
            raise CheckpointError(
                f"verify-resume: the training ended after {reached} calls of manager.step(), {wanted} are needed; give "
                f"fewer steps than {self._steps}, and call manager.step() after each optimizer step"
            )
        if resumes and lines[0].event != "restored":
            raise CheckpointError("verify-resume: the training never called manager.restore(); call it before the loop")
        return ProofRun(lines=lines, end=Path(f"{journal}.end.0"))


def run_script(plan: ProofPlan, script: Path, arguments: Sequence[str], timeout_seconds: float, *, alone: bool) -> None:
    """Run a script as one run of a proof. Raises as `run_ranks`."""
    path = Path(f"{plan.journal}.plan")
    plan.write(path)
    start = "import sys; from trainwright.checkpoint.tools.step_digests import main; main(sys.argv[1:])"
    run_ranks(plan, str(script), ["-c", start, str(path), str(script), *arguments], timeout_seconds, alone=alone)


def run_ranks(plan: ProofPlan, name: str, arguments: Sequence[str], timeout_seconds: float, *, alone: bool) -> None:
    """Call Python with `arguments` once for each rank; `alone` without the variables by which ranks find each other.

    Raises `CheckpointError`, in which it is called `name`, if it fails, or takes longer than `timeout_seconds`.
    """
    command = [sys.executable, *arguments]
    meeting = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(_free_port()), "WORLD_SIZE": str(plan.ranks)}
    deadline = time.monotonic() + timeout_seconds
    members = []
    for rank in range(plan.ranks):
        place = {} if alone else {**meeting, "RANK": str(rank), "LOCAL_RANK": str(rank)}
        with Path(f"{plan.journal}.said.{rank}").open("wb") as said:
            members.append(
                subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=said, env={**os.environ, **place})
            )
    try:
        for member in members:
            member.wait(max(0.0, deadline - time.monotonic()))
            # What the others wait for never comes.
            if plan.kill_at:
                deadline = min(deadline, time.monotonic() + _AFTER_KILL_SECONDS)
    except subprocess.TimeoutExpired as error:
        # After the kill the other ranks may wait for ever, which is no sign of a slow training.
        if not (plan.kill_at and members[0].poll() is not None):
            raise CheckpointError(
                f"verify-resume: {name} took longer than {timeout_seconds:g} s; give it more, or fewer steps or epochs"
            ) from error
    finally:
        for member in members:
            member.kill()
            member.wait()
    # It was killed, as planned; how the other ranks ended does not matter then.
    if plan.kill_at and members[0].returncode < 0:
        return
    for rank, member in enumerate(members):
        if member.returncode != 0:
            lines = Path(f"{plan.journal}.said.{rank}").read_text(encoding="utf-8", errors="replace").strip()
            last = (lines.splitlines() or ["no message"])[-1]
            raise CheckpointError(f"verify-resume: {name} ended with status {member.returncode}: {last}")


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port
