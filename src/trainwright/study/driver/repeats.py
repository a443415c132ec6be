"""Warn once per run about trials without a checkpoint, which train from epoch 1 again."""

from collections.abc import Callable
from pathlib import Path

from trainwright.ledger import TrialState

__all__ = ["Repeats"]


class Repeats:
    """Says it the first time that a trial was paused, or starts, without anything to go on from."""

    def __init__(self, directory: Path | None, say: Callable[[str], None]) -> None:
        self._directory = directory
        self._say = say
        self._said = False

    def paused(self, trial: TrialState) -> None:
        """Look at a trial that has ended its run, and goes on later or elsewhere."""
        if (trial.at_rung or trial.resizing) and not self._has_saved(trial):
            when = "once promoted" if trial.at_rung else "on other devices"
            self._say_once(
                f"trial {trial.number} was paused without a checkpoint: {when}, such trials start again from epoch 1; "
                "save one with trial.prepare, in a study with a directory"
            )

    def starts(self, trial: TrialState) -> None:
        """Look at a trial that starts, perhaps not for the first time."""
        if trial.epoch and not self._has_saved(trial):
            self._say_once(
                f"trial {trial.number} begins again at epoch 1: it had reported up to epoch {trial.epoch} and saved "
                "nothing to go on from; save with trial.prepare or a Manager, or keep files in trial.folder"
            )

    def _has_saved(self, trial: TrialState) -> bool:
        """Whether it has checkpoints, or a folder with files of its own."""
        own = None if self._directory is None else self._directory / "files" / f"trial-{trial.number:06d}"
        return bool(trial.checkpoints) or (own is not None and own.is_dir())

    def _say_once(self, text: str) -> None:
        if not self._said:
            self._said = True
            self._say(text)
