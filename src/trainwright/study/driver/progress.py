"""What a run says: a live line on a terminal or one plain line per ended trial; and of trials that train again."""

import sys
import time
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Self, TextIO

from trainwright.ledger import Dropped, Objective, State, Status, TrialState, keeps

if TYPE_CHECKING:
    from rich.progress import Progress as Bar
    from rich.progress import TaskID

__all__ = ["Progress", "Repeats"]


class Progress:
    """Prints to `stream` (default: standard error). `shown=False` says nothing at all."""

    def __init__(self, trials: int | None, *, shown: bool = True, stream: TextIO | None = None) -> None:
        self._trials = trials
        self._shown = shown
        self._stream = stream or sys.stderr
        self._started = time.monotonic()
        self._bar: Bar | None = None
        self._task: TaskID | None = None
        self._best: tuple[float, TrialState] | None = None

    def __enter__(self) -> Self:
        if self._shown and self._stream.isatty():
            from rich.console import Console
            from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

            columns = (
                TextColumn("[bold]trials"),
                BarColumn(),
                MofNCompleteColumn(),
                TimeElapsedColumn(),
                TextColumn("{task.fields[state]}"),
            )
            self._bar = Progress(*columns, console=Console(file=self._stream))
            self._bar.start()
            self._task = self._bar.add_task("trials", total=self._trials, state="")
        return self

    def __exit__(self, *_: object) -> None:
        if self._bar is not None:
            self._bar.stop()
            self._bar = None

    def say(self, text: str) -> None:
        """Print a line."""
        if self._bar is not None:
            self._bar.console.print(text, highlight=False, markup=False)
        elif self._shown:
            print(text, file=self._stream, flush=True)

    def say_if(self, text: str | None) -> None:
        """Print a line, if there is one to print."""
        if text is not None:
            self.say(text)

    def resume(self, state: State) -> None:
        """Take the best of earlier runs for the best so far."""
        for trial in state.trials.values():
            self._note_best(state, trial)

    def warn_of(self, dropped: Sequence[Dropped]) -> None:
        """Warn that records are damaged, so that work may be missing that was finished; torn ends are none."""
        damaged = [each for each in dropped if not each.torn]
        if damaged:
            more = f" and {len(damaged) - 1} more" if len(damaged) > 1 else ""
            warnings.warn(
                f"the ledger cannot be read as a whole: {damaged[0]}{more}; "
                "a trial whose end was there is trained again",
                stacklevel=4,
            )

    def tick(self, state: State, running: int) -> None:
        """Bring the live line up to date."""
        if self._bar is not None and self._task is not None:
            best = self._best_text(state)
            failed = state.counts[Status.FAILED]
            text = f"{running} running" + (f", {failed} failed" if failed else "") + (f", {best}" if best else "")
            self._bar.update(self._task, completed=state.results, state=text)

    def ended(self, state: State, trial: TrialState) -> None:
        """Say how a trial ended; beside a live line only what stands out: a new best, or no result."""
        if not self._shown:
            return
        better = self._note_best(state, trial)
        line = f"trial {trial.number} {trial.status}{_length_text(trial)}{_result_text(trial)}"
        if self._bar is None:
            of = f"/{self._trials}" if self._trials is not None else ""
            best = self._best_text(state)
            self.say(f"[{state.results}{of}] {line}" + (f" | {best}" if best else ""))
        elif better or not trial.has_result:
            self.say(line)

    def _note_best(self, state: State, trial: TrialState) -> bool:
        objective = _single_objective(state)
        if objective is None or not keeps(state.outcomes, trial.values):
            return False
        loss = objective.loss(trial.values[objective.metric])
        if self._best is not None and loss >= self._best[0]:
            return False
        self._best = loss, trial
        return True

    def _best_text(self, state: State) -> str:
        objective = _single_objective(state)
        if self._best is None or objective is None:
            return ""
        trial = self._best[1]
        return f"best {objective.metric}={trial.values[objective.metric]:.6g} (trial {trial.number})"


def _single_objective(state: State) -> Objective | None:
    return state.objectives[0] if len(state.objectives) == 1 else None


def _length_text(trial: TrialState) -> str:
    epochs = f" after {trial.epoch} epochs" if trial.epoch > 1 else ""
    return f"{epochs} ({trial.seconds:.1f} s)"


def _result_text(trial: TrialState) -> str:
    if trial.failure is not None:
        at = "" if trial.failure.raised is None else f" ({trial.failure.raised.place})"
        return f": {trial.failure.kind}: {trial.failure.message}{at}"
    values = ", ".join(f"{name}={value:.6g}" for name, value in trial.values.items())
    return f": {values}" if values else ""


class Repeats:
    """Warns the first time that a trial was paused, or starts again, without anything to go on from."""

    def __init__(self, directory: Path | None, say: Callable[[str], None]) -> None:
        self._directory = directory
        self._say = say
        self._said = False

    def paused(self, trial: TrialState) -> None:
        """Look at a trial that has ended its run, and goes on later or elsewhere."""
        if trial.at_rung or trial.resizing:
            when = "once promoted" if trial.at_rung else "on other devices"
            self._warn_of(
                trial,
                f"was paused without a checkpoint: {when}, such trials start again from epoch 1; save one with "
                "trial.prepare, in a study with a directory",
            )

    def starts(self, trial: TrialState) -> None:
        """Look at a trial that starts, perhaps not for the first time."""
        if trial.epoch:
            self._warn_of(
                trial,
                f"begins again at epoch 1: it had reported up to epoch {trial.epoch} and saved nothing to go on from; "
                "save with trial.prepare or a Manager, or keep files in trial.folder",
            )

    def _warn_of(self, trial: TrialState, what: str) -> None:
        own = None if self._directory is None else self._directory / "files" / f"trial-{trial.number:06d}"
        # Files of its own in its folder are a checkpoint as well.
        if not self._said and not trial.checkpoints and (own is None or not own.is_dir()):
            self._said = True
            self._say(f"trial {trial.number} {what}")
