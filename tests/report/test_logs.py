"""Exports that are repeated: what TensorBoard and MLflow read back is what the study holds, once."""

import json
import shutil
import sys

import pytest

import trainwright as tw
from trainwright.errors import InputError, MissingExtra
from trainwright.integrations.mlflow import export_mlflow
from trainwright.integrations.tensorboard import export_tensorboard
from trainwright.ledger import DirectoryLedger, facts
from trainwright.report.exports import FinishedTrials

SPACE = tw.Space(
    lr=tw.Float(1e-5, 1e-1, log=True),
    width=tw.Int(16, 256, log=True),
    optimizer=tw.Choice("sgd", "adamw"),
    momentum=tw.Float(0.0, 0.99, when=tw.equals("optimizer", "sgd")),
    mixed=tw.Choice(1, 1.5, True, None, "1", (2, 3)),
    clip=tw.Choice(False, True),
    data=tw.Constant("digits"),
    twice=tw.Derived("2 * width"),
)
KINDS = ("complete", "stopped", "failed", "lost", "abandoned", "running", "complete")
ENDED = [0, 1, 2, 4, 6]


@pytest.fixture
def study(scribe):
    """Return the directory of a study with a trial of each kind; each has reported three epochs."""
    scribe.create(objectives=["max accuracy"], space=SPACE)
    for number, kind in enumerate(KINDS):
        scribe.propose(number, space=SPACE)
        scribe.at += 10
        scribe.say(facts.started(number, 1, slot="0", devices=["cpu"], resumed_epoch=0))
        for epoch in (1, 2, 3):
            scribe.at += 1
            metrics = {"accuracy": 0.1 * number + 0.01 * epoch, "val_loss": 1.0 / epoch}
            scribe.say(facts.reported(number, 1, epoch=epoch, step=None, metrics=metrics, wall_seconds=float(epoch)))
        values = metrics | {"size": 7.0}
        ends = {
            "complete": facts.finished(number, 1, reason="completed", values=values, wall_seconds=3.0),
            "stopped": facts.finished(number, 1, reason="stopped", values=metrics, wall_seconds=3.0),
            "abandoned": facts.finished(number, 1, reason="cancelled", values={}, wall_seconds=3.0),
            "failed": facts.failed(number, 1, failure="timeout", message="took too long", wall_seconds=3.0),
            "lost": facts.lost(number, 1, why="gone", blame=True),
        }
        if kind in ends:
            scribe.say(ends[kind])
    return scribe.write()


def settle(directory):
    """End the lost trial."""
    ledger = DirectoryLedger(directory / "ledger")
    ledger.append([facts.finished(3, 1, reason="completed", values={"accuracy": 0.9}, wall_seconds=1.0)])
    ledger.close()


def trials_of(directory):
    return FinishedTrials(directory).state.trials


theirs = pytest.mark.filterwarnings("ignore")  # what TensorBoard's server and MLflow warn of in their own code


# TensorBoard.

tensorboard = pytest.mark.outside("TensorBoard")


@pytest.fixture
def read_runs():
    """Return a function that reads a log directory with TensorBoard's own reader: run name to accumulator."""
    pytest.importorskip("tensorboard", reason='TensorBoard is absent; pip install ".[tensorboard]"')
    from tensorboard.backend.event_processing.event_multiplexer import EventMultiplexer

    def read(path):
        multiplexer = EventMultiplexer().AddRunsFromDirectory(str(path))
        multiplexer.Reload()
        return {name: multiplexer.GetAccumulator(name) for name in multiplexer.Runs()}

    return read


def hparams(accumulator, tag):
    from tensorboard.plugins.hparams.plugin_data_pb2 import HParamsPluginData

    [content] = [value for name, value in accumulator.PluginTagToContent("hparams").items() if name == tag]
    return HParamsPluginData.FromString(content)


def test_tensorboard_reads_every_trial(study, tmp_path, read_runs):
    """Curves by epoch, parameters and how it ended; a metric that only the result has is there too."""
    runs = read_runs(export_tensorboard(study, tmp_path / "logs"))
    assert set(runs) == {f"trial-{number:06d}" for number in ENDED}
    states = {0: 1, 1: 1, 2: 2, 4: 2, 6: 1}  # success, failure
    for number, trial in trials_of(study).items():
        if number not in ENDED:
            continue
        run = runs[f"trial-{number:06d}"]
        curve = [(event.step, event.value, event.wall_time) for event in run.Scalars("accuracy")]
        assert curve == [(e, pytest.approx(r.metrics["accuracy"]), r.at) for e, r in sorted(trial.reports.items())]
        assert ("size" in run.Tags()["scalars"]) == (KINDS[number] == "complete")
        start = hparams(run, "_hparams_/session_start_info").session_start_info
        given = {name: getattr(value, value.WhichOneof("kind")) for name, value in start.hparams.items()}
        shown = {**trial.params, "mixed": {None: "null", "1": '"1"', True: "true"}.get(trial.params["mixed"])}
        if not isinstance(trial.params["mixed"], bool | str | None):
            shown["mixed"] = {1: "1", 1.5: "1.5"}.get(trial.params["mixed"], "[2, 3]")
        assert given == shown
        assert hparams(run, "_hparams_/session_end_info").session_end_info.status == states[number]


@tensorboard
@theirs
def test_the_page_of_parameters_lists_the_trials(study, tmp_path):
    """TensorBoard's own server answers with a session for each trial, its parameters and its objective."""
    pytest.importorskip("tensorboard", reason='TensorBoard is absent; pip install ".[tensorboard]"')
    from tensorboard.program import TensorBoard
    from werkzeug.test import Client

    board = TensorBoard()
    logs = str(export_tensorboard(study, tmp_path / "logs"))
    board.configure(logdir=logs, load_fast="false", reload_interval=0, reload_task="blocking", port=0)
    server = board._make_server()
    server.server_close()
    client = Client(server.app)
    experiment = json.loads(client.post("/data/plugin/hparams/experiment", json={"experimentName": ""}).text)
    assert {info["name"] for info in experiment["hparamInfos"]} == {*SPACE.parameters}
    asked = {"experimentName": "", "allowedStatuses": ["STATUS_SUCCESS", "STATUS_FAILURE"], "sliceSize": 10}
    asked["colParams"] = [{"hparam": "lr"}, {"metric": {"tag": "accuracy"}}]
    answer = json.loads(client.post("/data/plugin/hparams/session_groups", json=asked).text)
    groups = {group["name"]: group for group in answer["sessionGroups"]}
    assert sorted(groups) == [f"trial-{number:06d}" for number in ENDED]
    last = groups["trial-000006"]
    assert last["hparams"]["lr"] == trials_of(study)[6].params["lr"]
    values = [v for v in last["metricValues"] if v["name"]["tag"] == "accuracy"]
    assert [(v["value"], v["trainingStep"]) for v in values] == [(pytest.approx(0.63), 3)]


def files_of(path):
    return {file.relative_to(path): (file.read_bytes(), file.stat().st_mtime_ns) for file in path.rglob("*tfevents*")}


@tensorboard
def test_tensorboard_again_writes_nothing_anew(study, tmp_path):
    """Files stay as they are; one cut short by a crash is written again, and what ended since is added."""
    pytest.importorskip("tensorboard", reason='TensorBoard is absent; pip install ".[tensorboard]"')
    log = export_tensorboard(study, tmp_path / "logs")
    before = files_of(log)
    assert files_of(export_tensorboard(study, tmp_path / "logs")) == before
    cut = next(file for file in before if "trial-000001" in str(file))
    (log / cut).write_bytes(before[cut][0][:50])
    settle(study)
    export_tensorboard(study, tmp_path / "logs")
    after = files_of(log)
    assert {file: content for file, (content, _) in after.items() if file in before} == {
        file: content for file, (content, _) in before.items()
    }
    assert {file.parts[0] for file in after.keys() - before.keys()} == {"trial-000003"}


@tensorboard
def test_tensorboard_refusals(study, tmp_path, monkeypatch):
    pytest.importorskip("tensorboard", reason='TensorBoard is absent; pip install ".[tensorboard]"')
    logs = tmp_path / "logs"
    logs.mkdir()
    (logs / "events.out.tfevents.1.other").write_bytes(b"")
    with pytest.raises(
        InputError, match=r"holds events\.out\.tfevents\.1\.other, which is not of this study; choose an"
    ):
        export_tensorboard(study, logs)
    with pytest.raises(InputError, match="does not exist; make it first"):
        export_tensorboard(study, tmp_path / "a" / "b")
    with pytest.raises(InputError, match="file exists"):
        export_tensorboard(study, logs / "events.out.tfevents.1.other")
    with pytest.raises(InputError, match="lies in the study's own records"):
        export_tensorboard(study, study / "ledger" / "logs")
    monkeypatch.setitem(sys.modules, "tensorboard.compat.proto", None)
    with pytest.raises(MissingExtra, match=r'TensorBoard export needs tensorboard: pip install "\.\[tensorboard'):
        export_tensorboard(study, tmp_path / "more")
    assert not (tmp_path / "more").exists()


# MLflow.


@pytest.fixture(scope="module")
def empty_store(tmp_path_factory):
    """Return an SQLite store without runs: to make one takes seconds."""
    pytest.importorskip("sqlalchemy", reason='SQLAlchemy is absent; pip install ".[mlflow]"')
    pytest.importorskip("mlflow", reason='MLflow is absent; pip install ".[mlflow]"')
    path = tmp_path_factory.mktemp("mlflow") / "mlflow.db"
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MLFLOW_DISABLE_TELEMETRY", "true")
        from mlflow.tracking import MlflowClient

        MlflowClient(tracking_uri=f"sqlite:///{path}").search_experiments()
        yield path


@pytest.fixture
def store(tmp_path, monkeypatch, empty_store):
    """Return the URI of an SQLite store, and a client of it."""
    from mlflow.tracking import MlflowClient

    monkeypatch.chdir(tmp_path)
    shutil.copy(empty_store, tmp_path / "mlflow.db")
    uri = f"sqlite:///{tmp_path}/mlflow.db"
    return uri, MlflowClient(tracking_uri=uri)


def runs_of(client, experiment):
    runs = client.search_runs([experiment], max_results=1000)
    return {int(run.data.tags.get("trainwright.trial", -1)): run for run in runs}, len(runs)


@theirs
def test_mlflow_reads_every_trial(study, store):
    """A run for the study, and in it one per trial: parameters, curves, result, state and times."""
    uri, client = store
    experiment = export_mlflow(study, uri)
    assert client.get_experiment(experiment).name == "study"
    runs, count = runs_of(client, experiment)
    assert sorted(runs) == [-1, *ENDED]
    assert count == len(runs)
    assert runs[-1].data.params == {"seed": "7"}
    states = {0: "FINISHED", 1: "KILLED", 2: "FAILED", 4: "KILLED", 6: "FINISHED"}
    for number, trial in trials_of(study).items():
        if number not in ENDED:
            continue
        run = runs[number]
        assert run.info.status == states[number]
        assert run.info.run_name == f"trial-{number:06d}"
        assert run.info.start_time == int(1000 * trial.leases[1].started_at)
        assert run.info.end_time == int(1000 * trial.end.at)
        assert run.data.tags["mlflow.parentRunId"] == runs[-1].info.run_id
        assert run.data.tags["trainwright.state"] == KINDS[number]
        assert set(run.data.params) == set(trial.params)
        assert float(run.data.params["lr"]) == trial.params["lr"]
        curve = [(m.step, m.value, m.timestamp) for m in client.get_metric_history(run.info.run_id, "accuracy")]
        assert sorted(curve) == [(e, r.metrics["accuracy"], int(1000 * r.at)) for e, r in sorted(trial.reports.items())]
        assert run.data.metrics.get("size") == (7.0 if KINDS[number] == "complete" else None)
    assert "timeout: took too long" in runs[2].data.tags["trainwright.failure"]


@theirs
def test_mlflow_again_adds_only_what_is_new(study, store):
    """A run that was left half written is deleted and written anew; other studies' runs are left alone."""
    uri, client = store
    experiment = export_mlflow(study, uri)
    first, _ = runs_of(client, experiment)
    foreign = client.create_run(experiment, run_name="mine").info.run_id
    tags = {"trainwright.study": FinishedTrials(study).study_id, "trainwright.trial": "3"}
    half = client.create_run(experiment, tags=tags).info.run_id
    settle(study)
    assert export_mlflow(study, uri) == experiment
    assert export_mlflow(study, uri) == experiment
    client.set_terminated(foreign)
    found = client.search_runs([experiment], max_results=1000)
    ids = {run.info.run_id for run in found}
    assert {run.info.run_id for run in first.values()} < ids
    assert half not in ids
    assert len(ids) == len(first) + 2  # trial 3 and the foreign one


@theirs
def test_mlflow_refusals(study, store, monkeypatch):
    uri, client = store
    with pytest.raises(InputError, match=r"MLflow at nosuch://here: .*"):
        export_mlflow(study, "nosuch://here")
    client.delete_experiment(export_mlflow(study, uri))
    with pytest.raises(InputError, match="experiment 'study' has been deleted; restore it"):
        export_mlflow(study, uri)
    monkeypatch.setitem(sys.modules, "mlflow.tracking", None)
    with pytest.raises(MissingExtra, match=r'the MLflow export needs mlflow: pip install "\.\[mlflow\]"'):
        export_mlflow(study, uri)
