"""Prints the progress of a run: one line per ended trial; and warnings of damaged records and of repeated training."""

import sys
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import TextIO

from trainwright.ledger import Dropped, State, TrialState
from trainwright.ledger.objectives import is_feasible

__all__ = ["Progress"]


class Progress:
    """Prints to `stream` (default: standard error). `shown=False` says nothing at all."""

    def __init__(self, trials: int | None, *, shown: bool = True, stream: TextIO | None = None) -> None:
        self._of = "" if trials is None else f"/{trials}"
        self._shown = shown
        self._stream = stream or sys.stderr
        self._best: tuple[float, str] | None = None
        self._repeats_said = False

    def say(self, text: str | None) -> None:
        """Print a line, if there is one to print."""
        if self._shown and text is not None:
            print(text, file=self._stream, flush=True)

    def resume(self, state: State) -> None:
        """Take the best of earlier runs for the best so far."""
        # In a large study this takes a worker as long as reading a tenth of it.
        for trial in state.trials.values() if self._shown else ():
            self._note_best(state, trial)

    def warn_of(self, dropped: Sequence[Dropped]) -> None:
        """Warn that records are damaged, so that work may be missing that was finished; torn ends are none."""
        # A torn end is a write that was cut short, and its writer tried again.
        damaged = [each for each in dropped if not each.torn]
        if damaged:
            more = f" and {len(damaged) - 1} more" if len(damaged) > 1 else ""
            warnings.warn(
                f"the ledger cannot be read as a whole: {damaged[0]}{more}; "
                "a trial whose end was there is trained again",
                stacklevel=4,
            )

    @property
    def best(self) -> str:
        """The best result so far, as text; "" if there is none, or several objectives."""
        return "" if self._best is None else self._best[1]

    def ended(self, state: State, trial: TrialState) -> None:
        """Say how a trial ended, and which is the best so far."""
        self._note_best(state, trial)
        line = f"trial {trial.number} {trial.status}{_length_text(trial)}{_result_text(trial)}"
        best = f" | {self.best}" if self.best else ""
        self.say(f"[{state.results}{self._of}] {line}{best}")

    def warn_of_repeat(self, trial: TrialState, directory: Path | None) -> None:
        """Say of the first trial that starts again without anything to go on from that it does."""
        files = None if directory is None else directory / "files" / f"trial-{trial.number:06d}"
        # Files of its own in its folder are a checkpoint as well.
        if self._repeats_said or not trial.epoch or trial.checkpoints or (files is not None and files.is_dir()):
            return
        self._repeats_said = True
        self.say(
            f"trial {trial.number} restarts at epoch 1: it had reported up to epoch {trial.epoch} and saved no "
            "checkpoint; save with trial.prepare or a Manager in a study with a directory, or keep files in "
            "trial.folder"
        )

    def _note_best(self, state: State, trial: TrialState) -> None:
        objective, values = state.objectives[0], trial.values
        if len(state.objectives) > 1 or objective.metric not in values:
            return
        value = values[objective.metric]
        loss = objective.loss(value)
        # As text, since a trial that is promoted has no result until it ends again.
        if (self._best is None or loss < self._best[0]) and is_feasible(state.outcomes, values):
            self._best = loss, f"best {objective.metric}={value:.6g} (trial {trial.number})"


def _length_text(trial: TrialState) -> str:
    epochs = f" after {trial.epoch} epochs" if trial.epoch > 1 else ""
    return f"{epochs} ({trial.seconds:.1f} s)"


def _result_text(trial: TrialState) -> str:
    if trial.failure is not None:
        at = "" if trial.failure.raised is None else f" ({trial.failure.raised.place})"
        return f": {trial.failure.kind}: {trial.failure.message}{at}"
    values = ", ".join(f"{name}={value:.6g}" for name, value in trial.values.items())
    return f": {values}" if values else ""
