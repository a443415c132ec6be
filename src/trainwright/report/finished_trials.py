"""The ended trials of a study, as exports to other tools need them."""

import math
from collections.abc import Iterator, Mapping
from pathlib import Path

from trainwright.errors import StudyError
from trainwright.ledger import Status, TrialState, open_ledger, state_of
from trainwright.ledger.rows import final_metrics

__all__ = ["FinishedTrials", "metric_points"]

_ENDS = frozenset({Status.COMPLETE, Status.STOPPED, Status.FAILED, Status.ABANDONED})


class FinishedTrials:
    """The trials of the study in `directory` that have ended, in the order of their numbers.

    With `lost`, lost trials count as ended; without, only once it is settled what becomes of them.
    """

    def __init__(self, directory: str | Path, *, lost: bool = False) -> None:
        self.name = Path(directory).resolve().name
        ledger = open_ledger(directory)
        self.study_id = ledger.study_id
        self.state = state_of(ledger)
        if self.state.space is None:
            raise StudyError(f"the study in {directory} has no records yet; run it before it is exported")
        statuses = _ENDS | ({Status.LOST} if lost else set())
        trials = sorted(self.state.trials.items())
        self.trials: list[TrialState] = [trial for _, trial in trials if trial.status in statuses]


def metric_points(trial: TrialState) -> Iterator[tuple[float, int, Mapping[str, float]]]:
    """Yield time, epoch and metrics of each report, then what the result of an ended trial holds beyond the last."""
    reported: Mapping[str, float] = {}
    for epoch in sorted(trial.reports):
        report = trial.reports[epoch]
        reported = report.metrics
        yield report.at, epoch, reported
    # What the last report has already said would be a second point at the end of the curve.
    final = final_metrics(trial).items()
    result = {name: value for name, value in final if reported.get(name) != value and not math.isnan(value)}
    if result:
        yield trial.end.at if trial.end is not None else 0.0, trial.epoch, result
