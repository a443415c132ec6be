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
`MASTER_ADDR`, `MASTER_PORT`); every rank is compared. On another number of ranks after the interruption only what is
the same there is: the restored state, and from then on where the loader stands.
"""

import json
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trainwright.checkpoint.script import run_script
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
    ranks: int = 1,
    resume_ranks: int | None = None,
    timeout_seconds: float = 3600.0,
) -> Proof:
    """Run a script four times and compare: 2k steps twice, and k steps, a new process, and k more.

    With `kill`, the first half is not stopped after its save but goes on for a while and is killed (SIGKILL). `drop`
    names items, or "rng", that are left as they are when the rest is restored: so each shows that it is needed. Each
    run has so many `ranks`, and after the interruption `resume_ranks`, if given. Raises `CheckpointNotFoundError` if
    there is no such script and `CheckpointError` if it fails or does too few steps.
    """
    path = Path(script)
    if not path.is_file():
        raise CheckpointNotFoundError(f"verify-resume: got {str(script)!r}, where no file is; give a Python script")
    with tempfile.TemporaryDirectory(prefix="trainwright-proof-") as folder:
        return prove(
            lambda plan: run_script(plan, path, arguments, timeout_seconds, alone=max(ranks, resume_ranks or 1) == 1),
            Path(folder),
            steps=steps,
            kill=kill,
            drop=drop,
            ranks=ranks,
            resume_ranks=resume_ranks,
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


def prove(
    launch: Launch,
    folder: Path,
    *,
    steps: int,
    kill: bool = False,
    drop: Sequence[str] = (),
    ranks: int = 1,
    resume_ranks: int | None = None,
) -> Proof:
    """Let `launch` run a training as `verify_resume` would a script, below `folder`."""
    after = ranks if resume_ranks is None else resume_ranks
    for name, value in (("steps", steps), ("ranks", ranks), ("resume_ranks", after)):
        if value < 1:
            raise CheckpointConfigError(f"verify-resume: {name} must be a whole number >= 1, got {value!r}")
    runs = _Runs(launch, folder, steps, ranks)
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
    resumed = runs.run("b2", steps=2 * steps, drop=tuple(drop), ranks=after, best_effort=after != ranks)
    if after == ranks:
        differing = (
            _first_difference(whole.lines, half.lines, idle)
            or _first_difference(half.lines, [line for line in resumed.lines if line.restored])
            or _first_difference(whole.lines, resumed.lines, idle)
        )
    else:
        differing = _first_difference(whole.lines, half.lines, idle) or _resized_difference(half.lines, resumed.lines)
    compared = sum(len(line.state) + len(line.batches) + len(line.losses) for line in resumed.lines)
    if differing is None:
        apart = 0.0 if after == ranks else _max_difference(whole, resumed)
        return Proof(steps=steps, repeatable=True, equal=True, compared=compared, max_difference=apart)
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


_BUFFERS = ("running_mean", "running_var", "num_batches_tracked")


@dataclass(frozen=True, slots=True)
class _Line:
    rank: int
    step: int
    restored: bool
    batches: list[str]
    losses: list[str]
    state: dict[str, str]
    samples: list[str]


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

    def __init__(self, launch: Launch, folder: Path, steps: int, ranks: int = 1) -> None:
        self._ranks = ranks
        self._launch = launch
        self._folder = folder
        self._steps = steps

    def run(self, name: str, **what: Any) -> _Run:
        """Run the training, and return its journal. Raises `CheckpointError` if it did not get where it should."""
        journal = self._folder / f"{name}.journal"
        shared = name.partition("-")[0][0]
        resumes = name.startswith("b2")
        home = self._folder / f"checkpoints-{shared if shared == 'b' else name}"
        plan = Plan(folder=str(home), journal=str(journal), **{"ranks": self._ranks, **what})
        self._launch(plan)
        lines = [line for rank in range(plan.ranks) for line in _read(Path(f"{journal}.{rank}"), rank)]
        last = {line.rank: line.step for line in lines}
        reached = min(last.get(rank, 0) for rank in range(plan.ranks))
        wanted = plan.kill_at or plan.steps
        if plan.kill_at and plan.ranks > 1:  # the first rank to die may take another along in the step before
            wanted -= 1
        if reached < wanted:
            raise CheckpointError(
                f"verify-resume: the training ended after {reached} calls of manager.step(), {wanted} are needed; give "
                f"fewer steps than {self._steps}, and call manager.step() after each optimizer step"
            )
        if resumes and not lines[0].restored:
            raise CheckpointError("verify-resume: the training never called manager.restore(); call it before the loop")
        return _Run(lines=lines, end=Path(f"{journal}.end.0"))


def _read(path: Path, rank: int) -> list[_Line]:
    if not path.exists():
        return []
    return [_Line(rank=rank, **json.loads(line)) for line in path.read_text(encoding="utf-8").splitlines()]


def _idle_generators(lines: list[_Line]) -> frozenset[str]:
    """Return the generators that nobody draws from: where they stand may differ between two runs that nobody seeded."""
    own = [line for line in lines if line.rank == 0]
    first, last = own[0].state, own[-1].state
    return frozenset(name for name in first if name.startswith("rng") and first[name] == last.get(name))


def _first_difference(whole: list[_Line], other: list[_Line], idle: frozenset[str] = frozenset()) -> _Unlike | None:
    """Return the first step at which a run is not as the uninterrupted one was, and what differs there."""
    expected = {(line.rank, line.step): line for line in whole}
    compared = 0
    for line in sorted(other, key=lambda line: line.step):  # a stable order: ranks one after the other
        was = expected[line.rank, line.step]
        compared += len(line.state)
        # what was handed out before the save is no business of the run that resumed
        samples = [] if line.restored or line.batches == was.batches else ["batches"]
        losses = [] if line.restored or line.losses == was.losses else ["losses"]
        names = [name for name in was.state if line.state.get(name) != was.state[name] and name not in idle]
        names += [name for name in line.state if name not in was.state]
        if line.rank and line.restored:  # the first one's buffers are kept: DDP hands them out with the next batch
            names = [name for name in names if not name.endswith(_BUFFERS)]
        found = [*samples, *losses, *names]
        if found:
            return _Unlike(line.step, found, _suspect(line.restored, found), compared)
    return None


def _resized_difference(half: list[_Line], resumed: list[_Line]) -> _Unlike | None:
    """Return what is not as it was right after a restore on other ranks, or the step where the loader is elsewhere."""
    saved = next(line for line in half if line.step == next(one.step for one in resumed if one.restored))
    where = {line.step: line.state for line in half}
    compared = 0
    for line in sorted(resumed, key=lambda line: line.step):
        if line.restored:
            names = [name for name in saved.state if not name.startswith("rng")]
            found = [name for name in names if line.state.get(name) != saved.state[name]]
        else:
            names = [name for name in line.samples if line.step in where]
            found = [name for name in names if line.state[name] != where[line.step][name]]
        compared += len(names)
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
