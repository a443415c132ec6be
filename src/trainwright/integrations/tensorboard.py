"""The trials of a study as a log directory of TensorBoard: a run per trial with its curves, and its HParams session.

A run is one event file, `trial-000017/events.out.tfevents.SECONDS.trainwright-ID`, a function of the trial's records:
to export again writes nothing anew. Written with the extra `tensorboard`, which needs neither TensorFlow nor torch.
"""

import io
import json
import math
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from trainwright.errors import InputError, MissingExtra
from trainwright.ledger import Status, TrialState
from trainwright.ledger.rows import first_start
from trainwright.publishing import write_file
from trainwright.report.exports import FinishedTrials, metric_points
from trainwright.report.files import folder
from trainwright.space import Choice, Constant, Space
from trainwright.space.parameters import Parameter

__all__ = ["export_tensorboard"]

_GOOD = frozenset({Status.COMPLETE, Status.STOPPED})


def export_tensorboard(directory: str | Path, path: str | Path) -> Path:
    """Write the ended trials of the study in `directory` as runs in the folder `path`; returns it.

    Runs that are there are not written anew; lost trials wait until it is settled what becomes of them. Refused if the
    folder holds another study's runs.
    """
    with MissingExtra.instead_of_import_error("the TensorBoard export", "tensorboard", "tensorboard"):
        import tensorboard.compat.proto  # noqa: F401 -- before anything is made
    finished = FinishedTrials(directory)
    logs = folder(directory, path)
    suffix = f".trainwright-{finished.study_id}"
    _refuse_foreign(logs, suffix)
    parameters = Space.from_json(finished.state.space or {}).parameters
    for trial in finished.trials:
        run = logs / f"trial-{trial.number:06d}"
        _write_run(run, suffix, _start_time(trial), _make_events(trial, parameters))
    return logs


def _write_run(run: Path, suffix: str, started: float, events: Iterable[Any]) -> None:
    """Write the one event file of a run, unless it is there as it should be."""
    from tensorboard.compat.proto.event_pb2 import Event
    from tensorboard.summary.writer.record_writer import RecordWriter

    content = io.BytesIO()
    records = RecordWriter(content)
    # Equal records must give equal bytes, which is how a later export sees that nothing is new.
    for event in (Event(wall_time=started, file_version="brain.Event:2"), *events):
        records.write(event.SerializeToString(deterministic=True))
    path = run / f"events.out.tfevents.{int(started)}{suffix}"
    try:
        run.mkdir(exist_ok=True)
        _refuse_foreign(run, suffix)
        if not path.exists() or path.read_bytes() != content.getvalue():
            write_file(path, content.getvalue())
    except OSError as error:
        raise InputError(f"cannot write {path}: {(error.strerror or str(error)).lower()}") from error


def _refuse_foreign(run: Path, suffix: str) -> None:
    others = [file.name for file in run.glob("*tfevents*") if not file.name.endswith(suffix)]
    if others:
        raise InputError(
            f"cannot write to {run}: it holds {others[0]}, which is not of this study; choose another folder"
        )


def _start_time(trial: TrialState) -> float:
    """Return when a trial began, or when it was told of; 0 if nobody knows."""
    started = first_start(trial)
    return started if started is not None else trial.end.at if trial.end is not None else 0.0


def _make_events(trial: TrialState, parameters: Mapping[str, Parameter]) -> list[Any]:
    """Return what a run holds: its parameters, a scalar for each metric of each report, its result, and its end."""
    from tensorboard.plugins.hparams.api_pb2 import STATUS_FAILURE, STATUS_SUCCESS
    from tensorboard.plugins.hparams.metadata import SESSION_END_INFO_TAG, SESSION_START_INFO_TAG
    from tensorboard.plugins.hparams.plugin_data_pb2 import HParamsPluginData, SessionEndInfo, SessionStartInfo

    began = _start_time(trial)
    ended = trial.end.at if trial.end is not None else began
    start = SessionStartInfo(group_name=f"trial-{trial.number:06d}", start_time_secs=began)
    for name, value in trial.params.items():
        shown = _shown_value(parameters.get(name), value)
        if isinstance(shown, bool):
            start.hparams[name].bool_value = shown
        elif isinstance(shown, int | float):
            start.hparams[name].number_value = shown
        else:
            start.hparams[name].string_value = shown
    end = SessionEndInfo(end_time_secs=ended, status=STATUS_SUCCESS if trial.status in _GOOD else STATUS_FAILURE)
    return [
        _plugin_metadata(began, SESSION_START_INFO_TAG, HParamsPluginData(session_start_info=start)),
        *(_scalar_events(at, epoch, metrics) for at, epoch, metrics in metric_points(trial)),
        _plugin_metadata(ended, SESSION_END_INFO_TAG, HParamsPluginData(session_end_info=end)),
    ]


def _shown_value(parameter: Parameter | None, value: Any) -> Any:
    """Return the value as TensorBoard takes it: where a column's values are of several kinds, their JSON texts."""
    only = parameter.value if isinstance(parameter, Constant) else value
    values = parameter.values if isinstance(parameter, Choice) else (only,)
    # Whole numbers and floats are one kind to TensorBoard.
    kinds = {float if type(v) is int else type(v) for v in values}
    if len(kinds) == 1 and kinds <= {bool, float, str}:
        return value
    return json.dumps(value)


def _scalar_events(at: float, step: int, metrics: Mapping[str, float]) -> Any:
    from tensorboard.compat.proto.event_pb2 import Event
    from tensorboard.compat.proto.summary_pb2 import Summary

    values = [Summary.Value(tag=name, simple_value=value) for name, value in metrics.items() if not math.isnan(value)]
    return Event(wall_time=at, step=step, summary=Summary(value=values))


def _plugin_metadata(at: float, tag: str, content: Any) -> Any:
    from tensorboard.compat.proto.event_pb2 import Event
    from tensorboard.compat.proto.summary_pb2 import Summary
    from tensorboard.plugins.hparams.metadata import NULL_TENSOR, create_summary_metadata

    value = Summary.Value(tag=tag, metadata=create_summary_metadata(content), tensor=NULL_TENSOR)
    return Event(wall_time=at, summary=Summary(value=[value]))
