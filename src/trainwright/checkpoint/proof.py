"""The proof that a training resumes exactly: `trainwright checkpoint verify-resume SCRIPT --steps K`.

A script takes part as it is, if its loop has the three lines that checkpoints need anyway:

    manager = tw.checkpoint.Manager("runs/x", model=model, optimizer=optimizer, loader=loader)   # a folder
    manager.restore()
    ...
        manager.step()    # after each optimizer step

Every run is a process of its own, whose checkpoints go to a folder of the proof: (A) 2k steps without interruption,
twice, which tells whether the script repeats itself at all; (B) k steps, a save, a new process that restores and does
the other k. Batches, losses and all state are compared at every step, bit by bit.
"""

import json
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trainwright.checkpoint.witness import Plan
from trainwright.errors import CheckpointConfigError, CheckpointError, CheckpointNotFoundError

__all__ = ["Launch", "Proof", "drop_table", "prove", "verify_resume"]

Launch = Callable[[Plan], None]
"""Runs a training as a plan says, in a process of its own. Raises `CheckpointError` if it fails."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Proof:
    """What came out: `equal` if the resumed run is the uninterrupted one, bit by bit.

    `repeatable` is False if two uninterrupted runs differ already: then nothing can be said of the resume. `step` and
    `item` name the first difference, `others` how many more there are at that step, `suspect` in words what may be
    behind it. `max_difference` is the largest one between parameters at the end; `compared` counts the digests.
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


def verify_resume(
    script: Path | str,
    *,
    steps: int,
    arguments: Sequence[str] = (),
    kill: bool = False,
    drop: Sequence[str] = (),
    timeout_seconds: float = 3600.0,
) -> Proof:
    """Run a script four times and compare: 2k steps twice, and k steps, a new process, and k more.

    With `kill`, the first half is not stopped after its save but goes on for a while and is killed (SIGKILL). `drop`
    names items, or "rng", that are left as they are when the rest is restored: so each shows that it is needed. Raises
    `CheckpointNotFoundError` if there is no such script and `CheckpointError` if it fails or does too few steps.
    """
    path = Path(script)
    if not path.is_file():
        raise CheckpointNotFoundError(f"verify-resume: got {str(script)!r}, where no file is; give a Python script")
    with tempfile.TemporaryDirectory(prefix="trainwright-proof-") as folder:
        return prove(
            lambda plan: _run_script(plan, path, arguments, timeout_seconds),
            Path(folder),
            steps=steps,
            kill=kill,
            drop=drop,
        )


def drop_table(launch: Launch, folder: Path, *, steps: int, items: Sequence[str]) -> dict[str, float]:
    """Return the largest parameter difference after 2k steps, for nothing dropped ("none") and for each item alone."""
    runs = _Runs(launch, folder, steps)
    whole = runs.run("a", steps=2 * steps)
    runs.run("b1", steps=steps, save_at=steps)
    found = {}
    for name in ("none", *items):
        resumed = runs.run(f"b2-{name}", steps=2 * steps, drop=() if name == "none" else (name,))
        found[name] = _max_difference(whole, resumed)
    return found


def prove(launch: Launch, folder: Path, *, steps: int, kill: bool = False, drop: Sequence[str] = ()) -> Proof:
    """Let `launch` run a training as `verify_resume` would a script, below `folder`."""
    if steps < 1:
        raise CheckpointConfigError(f"verify-resume: steps must be a whole number >= 1, got {steps!r}")
    runs = _Runs(launch, folder, steps)
    whole = runs.run("a", steps=2 * steps)
    again = runs.run("again", steps=2 * steps)
    idle = _idle_generators(whole.lines)
    unlike = _first_difference(whole.lines, again.lines, idle)
    if unlike is not None:
        return Proof(
            steps=steps,
            repeatable=False,
            equal=False,
            compared=unlike.compared,
            step=unlike.step,
            item=unlike.items[0],
            others=len(unlike.items) - 1,
            suspect="two uninterrupted runs differ already: seed every generator and set deterministic algorithms",
            max_difference=_max_difference(whole, again),
        )
    if kill:
        half = runs.run("b1", steps=2 * steps, save_at=steps, kill_at=min(2 * steps, steps + max(1, steps // 2)))
    else:
        half = runs.run("b1", steps=steps, save_at=steps)
    resumed = runs.run("b2", steps=2 * steps, drop=tuple(drop))
    differing = (
        _first_difference(whole.lines, half.lines, idle)
        or _first_difference(half.lines, resumed.lines[:1])
        or _first_difference(whole.lines, resumed.lines, idle)
    )
    compared = sum(len(line.state) + len(line.batches) + len(line.losses) for line in resumed.lines)
    if differing is None:
        return Proof(steps=steps, repeatable=True, equal=True, compared=compared)
    return Proof(
        steps=steps,
        repeatable=True,
        equal=False,
        compared=compared,
        step=differing.step,
        item=differing.items[0],
        others=len(differing.items) - 1,
        suspect=differing.suspect,
        max_difference=_max_difference(whole, resumed),
    )


@dataclass(frozen=True, slots=True)
class _Line:
    step: int
    restored: bool
    batches: list[str]
    losses: list[str]
    state: dict[str, str]


@dataclass(frozen=True, slots=True)
class _Run:
    lines: list[_Line]
    end: Path


@dataclass(frozen=True, slots=True)
class _Unlike:
    step: int
    items: list[str]
    suspect: str
    compared: int


class _Runs:
    """The runs of one proof: those of b share their folder of checkpoints."""

    def __init__(self, launch: Launch, folder: Path, steps: int) -> None:
        self._launch = launch
        self._folder = folder
        self._steps = steps

    def run(self, name: str, **what: Any) -> _Run:
        """Run the training, and return its journal. Raises `CheckpointError` if it did not get where it should."""
        journal = self._folder / f"{name}.journal"
        shared = name.partition("-")[0][0]
        resumes = name.startswith("b2")
        plan = Plan(
            folder=str(self._folder / f"checkpoints-{shared if shared == 'b' else name}"), journal=str(journal), **what
        )
        self._launch(plan)
        lines = _read(Path(f"{journal}.0"))
        reached = lines[-1].step if lines else 0
        wanted = plan.kill_at or plan.steps
        if reached < wanted:
            raise CheckpointError(
                f"verify-resume: the training ended after {reached} calls of manager.step(), {wanted} are needed; give "
                f"fewer steps than {self._steps}, and call manager.step() after each optimizer step"
            )
        if resumes and not lines[0].restored:
            raise CheckpointError("verify-resume: the training never called manager.restore(); call it before the loop")
        return _Run(lines=lines, end=Path(f"{journal}.end.0"))


def _run_script(plan: Plan, script: Path, arguments: Sequence[str], timeout_seconds: float) -> None:
    path = Path(f"{plan.journal}.plan")
    plan.write(path)
    start = "import sys; from trainwright.checkpoint.witness import main; main(sys.argv[1:])"
    command = [sys.executable, "-c", start, str(path), str(script), *arguments]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=timeout_seconds)
    except subprocess.TimeoutExpired as error:
        raise CheckpointError(
            f"verify-resume: {script} took longer than {timeout_seconds:g} s for {plan.steps} steps; give fewer steps"
        ) from error
    killed = plan.kill_at and done.returncode < 0
    if done.returncode != 0 and not killed:
        last = (done.stderr.strip().splitlines() or ["no message"])[-1]
        raise CheckpointError(f"verify-resume: {script} ended with status {done.returncode}: {last}")


def _read(path: Path) -> list[_Line]:
    if not path.exists():
        return []
    return [_Line(**json.loads(line)) for line in path.read_text(encoding="utf-8").splitlines()]


def _idle_generators(lines: list[_Line]) -> frozenset[str]:
    """Return the generators that nobody draws from: where they stand may differ between two runs that nobody seeded."""
    first, last = lines[0].state, lines[-1].state
    return frozenset(name for name in first if name.startswith("rng") and first[name] == last.get(name))


def _first_difference(whole: list[_Line], other: list[_Line], idle: frozenset[str] = frozenset()) -> _Unlike | None:
    """Return the first step at which a run is not as the uninterrupted one was, and what differs there."""
    expected = {line.step: line for line in whole}
    compared = 0
    for line in other:
        was = expected[line.step]
        compared += len(line.state)
        # what was handed out before the save is no business of the run that resumed
        samples = [] if line.restored or line.batches == was.batches else ["batches"]
        losses = [] if line.restored or line.losses == was.losses else ["losses"]
        names = [name for name in was.state if line.state.get(name) != was.state[name] and name not in idle]
        names += [name for name in line.state if name not in was.state]
        found = [*samples, *losses, *names]
        if found:
            return _Unlike(line.step, found, _suspect(line.restored, found), compared)
    return None


def _suspect(restored: bool, found: list[str]) -> str:
    if restored:
        return f"{found[0]} is not restored as it was saved"
    if found[0] == "batches":
        return "the samples: the loader's position or order is not kept; give the Manager a tw.train.Loader as loader="
    if found[0] == "losses":
        return "the forward pass on equal samples: random draws, buffers or other state that the Manager was not given"
    return "the update after an equal loss: an optimizer, schedule, scaler or average that the Manager was not given"


def _max_difference(one: _Run, other: _Run) -> float:
    import torch

    a, b = (torch.load(run.end, weights_only=True, map_location="cpu") for run in (one, other))
    pairs = ((a[item][name].double(), b[item][name].double()) for item in a for name in a[item])
    return max((float((x - y).abs().max()) for x, y in pairs if x.numel()), default=0.0)
