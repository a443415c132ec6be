"""The proof that a trial resumes exactly: `trainwright checkpoint verify-resume MODULE:FUNCTION --param NAME=VALUE`.

The study's own `train(trial)` is run as an engine runs it, each time in a process of its own: (A) to its end, twice,
which tells whether it repeats itself at all; (B) killed (SIGKILL) after a step drawn at random, and run again under the
next lease, from the newest checkpoint of its own. What `trial.prepare` has made saves at reports; a Manager of the
trial's own whose `step` is called also after a step drawn at random. Batches, losses and all state are compared at
every step bit by bit, the restored state with what was saved, and what was reported.
"""

import json
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from trainwright.checkpoint.tools.comparing import (
    JournalLine,
    ProofRun,
    Unlike,
    first_difference,
    idle_generators,
    read_lines,
)
from trainwright.checkpoint.tools.proof import Proof, run_ranks
from trainwright.checkpoint.tools.step_digests import ProofPlan
from trainwright.engine.function_reference import load_function
from trainwright.errors import CheckpointConfigError, CheckpointError
from trainwright.randomness import rng
from trainwright.train.assignment import Assignment

__all__ = ["verify_trial"]

_STEPS = ("counted", "step")


def verify_trial(
    function: str,
    params: Mapping[str, Any],
    *,
    epochs: int | None = None,
    steps: int | None = None,
    seed: int = 0,
    drop: Sequence[str] = (),
    ranks: int = 1,
    timeout_seconds: float = 3600.0,
) -> Proof:
    """Run the trial that "module:function" trains with `params` four times, one of them interrupted, and compare.

    `epochs` is the study's `max_epochs`. The trial is killed after so many `steps` of its optimizer; without it after
    one that `seed` draws between its first checkpoint and its end. `drop` names items, or "rng", that are not restored.
    Raises `EngineError` if there is no such function, and `CheckpointError` if the trial fails, keeps no checkpoint, or
    none before that step.
    """
    for name, value in (("steps", steps), ("epochs", epochs), ("ranks", ranks)):
        if value is not None and value < 1:
            raise CheckpointConfigError(f"verify-resume: {name} must be a whole number >= 1, got {value!r}")
    load_function(function, "verify-resume")
    assignment = Assignment(
        trial=0, lease=1, params=params, seed=int(rng(seed, "trial", 0).integers(2**63)), max_epochs=epochs
    )
    with tempfile.TemporaryDirectory(prefix="trainwright-proof-") as folder:
        runs = _Runs(function, assignment, Path(folder), ranks, timeout_seconds)
        return _prove_resume(runs, steps, seed, tuple(drop))


def _prove_resume(runs: "_Runs", steps: int | None, seed: int, drop: tuple[str, ...]) -> Proof:
    # Twice uninterrupted first: what does not repeat itself cannot prove a resume.
    whole, again = runs.run("a"), runs.run("again")
    place = _choose_interruption(runs.function, whole.run, steps, seed)
    idle = idle_generators(whole.run.of(*_STEPS))
    unlike = _find_difference(whole, again, idle)
    if unlike is not None:
        return Proof.unequal(place.kill_at, unlike, whole.run, again.run, repeatable=False)
    half = runs.run("b1", save_at=place.save_at, kill_at=place.kill_at)
    resumed = runs.run("b2", drop=drop, after=half)
    restored = resumed.run.of("restored")
    if not restored:
        raise CheckpointError(
            f"verify-resume: {runs.function} did not restore its checkpoint; call trial.prepare, or manager.restore() "
            "before the loop"
        )
    saved = {(line.rank, line.step): line for line in half.run.of("saved")}
    unlike = (
        first_difference(_shared_steps(whole.run, half.run), half.run.of(*_STEPS), idle)
        or first_difference(list(saved.values()), restored)
        or _find_difference(whole, resumed, idle, since=restored[0].step)
    )
    if unlike is not None:
        return Proof.unequal(place.kill_at, unlike, whole.run, resumed.run, resumed_from=restored[0].step)
    compared = sum(len(line.state) + len(line.batches) + len(line.losses) for line in resumed.run.lines)
    return Proof(steps=place.kill_at, repeatable=True, equal=True, compared=compared, resumed_from=restored[0].step)


@dataclass(frozen=True, slots=True)
class _Place:
    kill_at: int
    save_at: int = 0  # 0: where the trial saves by itself


def _choose_interruption(name: str, whole: ProofRun, steps: int | None, seed: int) -> _Place:
    """Return after which step the trial is killed, and after which it is made to save."""
    taken = [line.step for line in whole.of(*_STEPS)]
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
    return _Place(kill_at, int(draws.integers(1, kill_at)) if own_loop else 0)


@dataclass(frozen=True, slots=True)
class _Seen:
    """A run and what it reported, by epoch."""

    run: ProofRun
    reports: dict[int, dict[str, float]]


class _Runs:
    """The runs of one proof: those of b share their study's folder."""

    def __init__(self, function: str, assignment: Assignment, folder: Path, ranks: int, timeout_seconds: float) -> None:
        self.function = function
        self._assignment = assignment
        self._folder = folder
        self._ranks = ranks
        self._timeout_seconds = timeout_seconds

    def run(self, name: str, *, after: _Seen | None = None, **what: Any) -> _Seen:
        """Run the trial, as the next lease of the run `after` if there is one. Raises `CheckpointError` if it fails."""
        journal = self._folder / f"{name}.journal"
        plan = ProofPlan(folder="", journal=str(journal), ranks=self._ranks, **what)
        file = Path(f"{journal}.plan")
        plan.write(file)
        study = self._folder / ("b" if name.startswith("b") else name)
        study.mkdir(exist_ok=True)
        assignment = replace(
            self._assignment,
            directory=str(study),
            lease=1 if after is None else 2,
            reported_epoch=0 if after is None else max(after.reports, default=0),
        )
        module, arguments = "trainwright.engine.process.proof_worker", json.dumps(asdict(assignment))
        command = ["-m", module, str(file), self.function, arguments]
        run_ranks(plan, self.function, command, self._timeout_seconds, alone=self._ranks == 1)
        reports = Path(f"{journal}.reports")
        told = map(json.loads, reports.read_text(encoding="utf-8").splitlines() if reports.exists() else [])
        return _Seen(
            ProofRun(lines=read_lines(journal, self._ranks), end=Path(f"{journal}.end.0")),
            {report["epoch"]: report["metrics"] for report in told},
        )


def _shared_steps(whole: ProofRun, half: ProofRun) -> list[JournalLine]:
    """Return the steps of a run that another took too."""
    taken = {(line.rank, line.step) for line in half.of(*_STEPS)}
    return [line for line in whole.of(*_STEPS) if (line.rank, line.step) in taken]


def _find_difference(whole: _Seen, other: _Seen, idle: frozenset[str], since: int = 0) -> Unlike | None:
    """Return the first step after `since` at which a run to the end is unlike the first one, or a report that is."""
    unlike = first_difference(whole.run.of(*_STEPS), other.run.of(*_STEPS), idle)
    if unlike is not None:
        return unlike
    ends = [max((line.step for line in seen.run.of(*_STEPS)), default=since) for seen in (whole, other)]
    if ends[1] < ends[0]:
        return Unlike(ends[1], ["steps"], f"it ends there, the uninterrupted run at {ends[0]}: some are left out", 0)
    for epoch, metrics in other.reports.items():
        was = whole.reports.get(epoch, {})
        items = [f"{name} of epoch {epoch}" for name in metrics if repr(metrics[name]) != repr(was.get(name))]
        if items:
            return Unlike(ends[1], items, "the evaluation: what it draws or keeps that the checkpoint does not hold", 0)
    return None
