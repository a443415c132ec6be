"""Proves that a training resumes exactly: `trainwright checkpoint verify-resume SCRIPT --steps K`.

A script takes part as it is, if its loop has the three lines that checkpoints need anyway:

    manager = tw.checkpoint.Manager("runs/x", model=model, optimizer=optimizer, loader=loader)   # a folder
    manager.restore()
    ...
        manager.step()    # after each optimizer step

Every run is a process of its own, whose checkpoints go to a folder of the proof: (A) 2k steps without interruption,
twice, which tells whether the script repeats itself at all; (B) k steps, a save, a new process that restores and does
the other k. Batches, losses and all state are compared at every step, bit by bit. A trial runs to its end instead, is
killed after a step drawn at random, and goes on from its newest checkpoint.

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
from functools import partial
from pathlib import Path
from typing import Any

from trainwright.checkpoint.tools.comparing import (
    STEPS,
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
from trainwright.randomness import rng
from trainwright.validators import check, integer, optional

__all__ = ["Interruption", "Launch", "Proof", "choose_interruption", "launch_ranks", "prove", "verify_resume"]

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


@dataclass(frozen=True, kw_only=True, slots=True)
class Interruption:
    """After which step a run saves (0: where it does by itself), and after which it is killed (0: it is not)."""

    save_at: int
    kill_at: int


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
    read_text(script, "training script", allowed="a Python script with a Manager", error=CheckpointNotFoundError)
    start = "import sys; from trainwright.checkpoint.tools.step_digests import main; main(sys.argv[1:])"
    launch = partial(
        launch_ranks,
        name=str(script),
        command=("-c", start),
        arguments=(str(script), *arguments),
        timeout_seconds=timeout_seconds,
    )
    with tempfile.TemporaryDirectory(prefix="trainwright-proof-") as folder:
        return prove(launch, Path(folder), steps=steps, kill=kill, drop=drop, ranks=ranks)


def prove(
    launch: Launch,
    folder: Path,
    *,
    steps: int | None = None,
    kill: bool = False,
    drop: Sequence[str] = (),
    ranks: int = 1,
    trial: str = "",
    seed: int = 0,
) -> Proof:
    """Let `launch` run a training as `verify_resume` would a script, below `folder`; or the `trial` of that name.

    A trial is killed after so many `steps` of its optimizer; without it after one that `seed` draws between its first
    checkpoint and its end.
    """
    counted = integer(minimum=1)
    check(steps, optional(counted) if trial else counted, "verify-resume: steps", CheckpointConfigError)
    check(ranks, counted, "verify-resume: ranks", CheckpointConfigError)
    runs = _Runs(launch, folder, ranks, trial)
    # A trial runs to its end.
    length = sys.maxsize if trial or steps is None else 2 * steps
    whole = runs.run("a", steps=length)
    # The same run twice: a training that differs from itself cannot be compared with a resumed one.
    again = runs.run("again", steps=length)
    if trial or steps is None:
        place = choose_interruption(trial, whole, steps, seed)
    else:
        # Killed in the middle of the second half: what was computed after the save must be repeated.
        place = Interruption(save_at=steps, kill_at=min(length, steps + max(1, steps // 2)) if kill else 0)
    idle = idle_generators(whole.of(*STEPS))
    at = place.kill_at if trial else place.save_at
    unlike = _compare_to_end(whole, again, idle)
    if unlike is not None:
        return _unequal_proof(at, unlike, whole, again, repeatable=False)
    half = runs.run("b1", steps=length if place.kill_at else at, save_at=place.save_at, kill_at=place.kill_at)
    resumed = runs.run("b2", steps=length, drop=tuple(drop))
    restored = resumed.of("restored")
    if not restored:
        raise CheckpointError(
            f"verify-resume: {trial or 'the training'} did not restore its checkpoint; call manager.restore() before "
            "the loop, or trial.prepare in a trial"
        )
    # In the order of causes: the run before the save, what was restored, the steps after it.
    unlike = (
        first_difference(whole.of(*STEPS), half.of(*STEPS), idle)
        or first_difference(half.of("saved"), restored)
        or _compare_to_end(whole, resumed, idle)
    )
    compared = sum(len(line.state) + len(line.batches) + len(line.losses) for line in resumed.lines)
    resumed_from = restored[0].step if trial else None
    if unlike is None:
        return Proof(steps=at, repeatable=True, equal=True, compared=compared, resumed_from=resumed_from)
    return _unequal_proof(at, replace(unlike, compared=compared), whole, resumed, resumed_from=resumed_from)


def choose_interruption(name: str, whole: ProofRun, steps: int | None, seed: int) -> Interruption:
    """Return where a trial is killed, and where it is made to save; what `trial.prepare` has made saves at reports.

    Raises `CheckpointError` if the trial keeps no checkpoint, or none before that step.
    """
    taken = [line.step for line in whole.of(*STEPS)]
    saved = [line.step for line in whole.of("saved")]
    own_loop = bool(whole.of("step"))
    if not taken or not (saved or own_loop):
        raise CheckpointError(
            f"verify-resume: {name} keeps no checkpoint; call trial.prepare and trial.report, or make a "
            "tw.checkpoint.Manager(trial, ...) and call its step() after each optimizer step"
        )
    first, last = (1 if own_loop else min(saved)), max(taken)
    if first >= last:
        raise CheckpointError(
            f"verify-resume: {name} saves its first checkpoint after step {first} of {last}, so that none can be "
            "resumed; give more epochs"
        )
    # A random step shows what a fixed one, such as the end of an epoch, would hide.
    draws = rng(seed, "verify-resume", 0)
    kill_at = int(draws.integers(first + 1, last + 1)) if steps is None else steps
    if not first < kill_at <= last:
        raise CheckpointError(
            f"verify-resume: steps: got {kill_at}; {name} has its first checkpoint after step {first} and takes {last} "
            f"steps; allowed: {first + 1} to {last}"
        )
    return Interruption(kill_at=kill_at, save_at=int(draws.integers(1, kill_at)) if own_loop else 0)


def _compare_to_end(whole: ProofRun, other: ProofRun, idle: frozenset[str]) -> Unlike | None:
    """Return the first difference of a run to the end from the uninterrupted one, or that it ends before it."""
    unlike = first_difference(whole.of(*STEPS, "saved"), other.of(*STEPS, "saved"), idle)
    last, reached = (max((line.step for line in run.lines), default=0) for run in (whole, other))
    if unlike is None and reached < last:
        return Unlike(reached, ["steps"], f"it ends there, the uninterrupted run at {last}: some are left out", 0)
    return unlike


def _unequal_proof(
    steps: int,
    unlike: Unlike,
    one: ProofRun,
    other: ProofRun,
    *,
    repeatable: bool = True,
    resumed_from: int | None = None,
) -> Proof:
    return Proof(
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


class _Runs:
    """The runs of one proof: those of b share their folder of checkpoints."""

    def __init__(self, launch: Launch, folder: Path, ranks: int, trial: str) -> None:
        self._launch = launch
        self._folder = folder
        self._ranks = ranks
        self._trial = trial

    def run(self, name: str, **what: Any) -> ProofRun:
        """Run the training, and return its journal. Raises `CheckpointError` if it did not get where it should."""
        journal = self._folder / f"{name}.journal"
        home = self._folder / f"checkpoints-{'b' if name.startswith('b') else name}"
        lease = (2 if name == "b2" else 1) if self._trial else 0
        plan = ProofPlan(folder=str(home), journal=str(journal), ranks=self._ranks, lease=lease, **what)
        self._launch(plan)
        lines = read_lines(journal, plan.ranks)
        last = {line.rank: line.step for line in lines}
        reached = min(last.get(rank, 0) for rank in range(plan.ranks))
        wanted = plan.kill_at or plan.steps
        # The first rank to die may take another along in the step before.
        if plan.kill_at and plan.ranks > 1:
            wanted -= 1
        if not self._trial and reached < wanted:
            raise CheckpointError(
                f"verify-resume: the training ended after {reached} calls of manager.step(), {wanted} are needed; give "
                "fewer steps, and call manager.step() after each optimizer step"
            )
        return ProofRun(lines=lines, end=Path(f"{journal}.end.0"))


def launch_ranks(
    plan: ProofPlan, *, name: str, command: Sequence[str], arguments: Sequence[str], timeout_seconds: float
) -> None:
    """Call Python with `command`, the plan's file and `arguments`, once for each rank.

    Several ranks get the variables by which they find each other.
    Raises `CheckpointError`, in which it is called `name`, if it fails, or takes longer than `timeout_seconds`.
    """
    plan_file = Path(f"{plan.journal}.plan")
    plan.write(plan_file)
    whole = [sys.executable, *command, str(plan_file), *arguments]
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    meeting = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "WORLD_SIZE": str(plan.ranks)}
    deadline = time.monotonic() + timeout_seconds
    members = []
    for rank in range(plan.ranks):
        place = {} if plan.ranks == 1 else {**meeting, "RANK": str(rank), "LOCAL_RANK": str(rank)}
        with Path(f"{plan.journal}.said.{rank}").open("wb") as said:
            members.append(subprocess.Popen(whole, stdout=subprocess.DEVNULL, stderr=said, env={**os.environ, **place}))
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
