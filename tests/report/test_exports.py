"""Exports: what other tools read back is what the study holds."""

import csv
import json
import math
import sys

import pytest

from trainwright.errors import InputError, MissingExtra, StudyError
from trainwright.integrations.optuna.journal import export_optuna_journal
from trainwright.ledger import DirectoryLedger, facts, fold
from trainwright.ledger.rows import columns, rows
from trainwright.report import export_csv, export_parquet
from trainwright.space import Choice, Constant, Derived, Float, Int, Space, equals

SPACE = Space(
    lr=Float(1e-5, 1e-1, log=True),
    drop=Float(0.0, 0.55, step=0.1),
    width=Int(16, 256, log=True),
    layers=Int(1, 8, step=3),
    optimizer=Choice("sgd", "adamw"),
    momentum=Float(0.0, 0.99, when=equals("optimizer", "sgd")),
    mixed=Choice(1, 1.5, True, None, "1", (2, 3)),
    data=Constant("digits"),
    twice=Derived("2 * width"),
)


def state_of(directory):
    return fold(DirectoryLedger(directory / "ledger").read()[0])


@pytest.fixture
def every_state(scribe):
    """Return a study with a trial in each state, and several metrics."""
    scribe.create(objectives=["max accuracy"], space=SPACE)
    kinds = ["complete", "stopped", "failed", "lost", "abandoned", "paused", "running", "proposed", "complete"]
    for number, kind in enumerate(kinds):
        params = scribe.propose(number, space=SPACE)
        assert set(params) >= {"lr", "twice", "data"}
        if kind == "proposed":
            continue
        scribe.at += 10
        scribe.say(facts.started(number, 1, slot="0", devices=["cpu"], resumed_epoch=0))
        for epoch in (1, 2, 3):
            metrics = {"accuracy": 0.1 * number + 0.01 * epoch, "val_loss": 1.0 / epoch}
            scribe.say(facts.reported(number, 1, epoch=epoch, step=None, metrics=metrics, wall_seconds=float(epoch)))
        scribe.at += 3
        ends = {
            "complete": facts.finished(number, 1, reason="completed", values=metrics, wall_seconds=3.0),
            "stopped": facts.finished(number, 1, reason="stopped", values=metrics, wall_seconds=3.0),
            "abandoned": facts.finished(number, 1, reason="cancelled", values={}, wall_seconds=3.0),
            "failed": facts.failed(number, 1, failure="timeout", message="took too long", wall_seconds=3.0),
            "lost": facts.lost(number, 1, why="gone", blame=True),
            "paused": facts.paused(number, 1, reason="rung", epoch=3, values=metrics, wall_seconds=3.0),
        }
        if kind in ends:
            scribe.say(ends[kind])
    directory = scribe.write()
    assert [trial.status.value for trial in state_of(directory).trials.values()] == kinds
    return directory


def load(path):
    optuna = pytest.importorskip("optuna")
    from optuna.storages import JournalStorage
    from optuna.storages.journal import JournalFileBackend

    return optuna.load_study(study_name=None, storage=JournalStorage(JournalFileBackend(str(path))))


def leaves_as(value, name):
    """Return a value as Optuna has it: a tuple, and the choices of which two are equal, as JSON texts."""
    return json.dumps(value) if isinstance(value, tuple) or name == "mixed" else value


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_optuna_reads_every_trial(every_state, tmp_path):
    """States, values, parameters, intermediate values and distributions come back as they were."""
    study = load(export_optuna_journal(every_state, tmp_path / "study.log"))
    ours = state_of(every_state).trials
    assert study.study_name == "study"
    assert study.direction.name == "MAXIMIZE"
    assert study.metric_names == ["accuracy"]
    trials = study.get_trials()
    assert [t.user_attrs["tw_number"] for t in trials] == [0, 1, 2, 3, 4, 8]
    assert [t.number for t in trials] == [0, 1, 2, 3, 4, 5]
    assert [t.state.name for t in trials] == ["COMPLETE", "PRUNED", "FAIL", "FAIL", "FAIL", "COMPLETE"]
    tw_states = ["complete", "stopped", "failed", "lost", "abandoned", "complete"]
    assert [t.user_attrs["tw_state"] for t in trials] == tw_states
    for trial in trials:
        mine = ours[trial.user_attrs["tw_number"]]
        expected = {n: leaves_as(v, n) for n, v in mine.params.items() if n != "twice"}
        assert {n: (type(v), v) for n, v in trial.params.items()} == {n: (type(v), v) for n, v in expected.items()}
        assert trial.user_attrs["twice"] == mine.params["twice"]
        assert trial.intermediate_values == {e: r.metrics["accuracy"] for e, r in mine.reports.items()}
        for name, value in trial.params.items():
            distribution = trial.distributions[name]
            assert distribution._contains(distribution.to_internal_repr(value))
    assert trials[0].value == pytest.approx(0.03)
    assert trials[0].user_attrs["val_loss"] == pytest.approx(1 / 3)
    assert trials[0].duration.total_seconds() == pytest.approx(3.0)
    assert study.best_trial.user_attrs["tw_number"] == 8
    assert "timeout: took too long" in trials[2].user_attrs["tw_failure"]
    shapes = trials[0].distributions
    assert (shapes["lr"].low, shapes["lr"].high, shapes["lr"].log) == (1e-5, 1e-1, True)
    assert (shapes["drop"].high, shapes["drop"].step) == (0.5, 0.1)
    assert (shapes["layers"].low, shapes["layers"].high, shapes["layers"].step) == (1, 7, 3)
    assert shapes["mixed"].choices == ("1", "1.5", "true", "null", '"1"', "[2, 3]")


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_optuna_goes_on_from_it_and_is_then_safe(every_state, tmp_path):
    """Optuna's sampler can continue the study; what it adds is not overwritten by the next export."""
    path = export_optuna_journal(every_state, tmp_path / "study.log")
    load(path).optimize(lambda trial: trial.suggest_float("lr", 1e-5, 1e-1, log=True), n_trials=2)
    with pytest.raises(InputError, match="holds what this export did not write"):
        export_optuna_journal(every_state, path)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_several_objectives_and_values_that_are_not_finite(scribe, tmp_path):
    scribe.create(objectives=["min loss", "max speed"], space=SPACE)
    for number, loss in enumerate([0.5, math.nan, math.inf]):
        scribe.propose(number, space=SPACE)
        metrics = {"loss": loss, "speed": 2.0}
        scribe.say(facts.reported(number, 1, epoch=1, step=None, metrics=metrics, wall_seconds=1.0))
        scribe.say(facts.finished(number, 1, reason="completed", values=metrics, wall_seconds=1.0))
    path = export_optuna_journal(scribe.write(), tmp_path / "journal")
    for line in path.read_text().splitlines():
        json.loads(line, parse_constant=lambda name: pytest.fail(f"{name} is no JSON"))
    study = load(path)
    assert [direction.name for direction in study.directions] == ["MINIMIZE", "MAXIMIZE"]
    first, *bad = study.get_trials()
    assert first.values == [0.5, 2.0]
    assert first.intermediate_values == {1: 0.5}
    assert [(t.state.name, t.values, t.intermediate_values) for t in bad] == [("FAIL", None, {})] * 2


def test_what_is_there_already(every_state, tmp_path):
    """An earlier export is replaced; anything else is refused and left as it was."""
    path = tmp_path / "study.log"
    before = load(export_optuna_journal(every_state, path)).get_trials()
    assert load(export_optuna_journal(every_state, path)).get_trials() == before
    other = tmp_path / "thesis.txt"
    other.write_text("years of work\n")
    with pytest.raises(InputError, match="holds what this export did not write; choose another name"):
        export_optuna_journal(every_state, other)
    assert other.read_text() == "years of work\n"
    assert sorted(p.name for p in tmp_path.iterdir() if p.is_file()) == ["study.log", "thesis.txt"]


def test_a_study_without_records_has_no_export(tmp_path):
    DirectoryLedger(tmp_path / "ledger", create=True).close()
    with pytest.raises(StudyError, match="has no records yet"):
        export_optuna_journal(tmp_path, tmp_path / "study.log")
    assert export_csv(tmp_path, tmp_path / "t.csv").read_text().startswith("number,state,epochs,seconds,")


def test_rows_are_a_rectangle(every_state):
    """Every row has the same columns: parameters in the order of the space, then metrics, objectives first."""
    table = rows(state_of(every_state))
    names = list(table[0])
    assert all(list(row) == names for row in table)
    assert names[:4] == ["number", "state", "params.lr", "params.drop"]
    assert names.index("values.accuracy") < names.index("values.val_loss") < names.index("epochs")
    assert table[0]["values.accuracy"] == pytest.approx(0.03)
    assert table[2]["values.accuracy"] is None
    assert table[2]["failure"] == "timeout: took too long"
    assert table[5]["state"] == "paused"
    assert table[5]["values.accuracy"] == pytest.approx(0.53)
    assert (table[0]["epochs"], table[0]["seconds"], table[7]["started_at"]) == (3, 3.0, None)


def test_csv_holds_the_rows(every_state, tmp_path):
    path = export_csv(every_state, tmp_path / "t.csv")
    with path.open(newline="", encoding="utf-8") as file:
        read = list(csv.DictReader(file))
    table = rows(state_of(every_state))
    assert list(read[0]) == list(table[0])
    for mine, theirs in zip(table, read, strict=True):
        assert theirs["state"] == mine["state"]
        assert float(theirs["params.lr"]) == mine["params.lr"]
        assert theirs["params.momentum"] == ("" if mine["params.momentum"] is None else str(mine["params.momentum"]))


def test_parquet_holds_the_columns(every_state, tmp_path):
    """A column of several types comes as JSON texts; the others keep theirs."""
    polars = pytest.importorskip("polars")
    frame = polars.read_parquet(export_parquet(every_state, tmp_path / "t.parquet"))
    assert frame.to_dict(as_series=False) == columns(state_of(every_state))
    assert frame.schema["params.mixed"] == polars.String
    assert frame.schema["params.width"] == polars.Int64
    mixed = [row["params.mixed"] for row in rows(state_of(every_state))]
    assert [json.loads(text) if text else None for text in frame["params.mixed"]] == [
        list(value) if isinstance(value, tuple) else value for value in mixed
    ]


def test_refusals_are_one_sentence(every_state, tmp_path, monkeypatch):
    with pytest.raises(InputError, match=r"its name must end in \.csv, got '\.xlsx'"):
        export_csv(every_state, tmp_path / "t.xlsx")
    with pytest.raises(InputError, match=r"its name must end in \.parquet or \.pq, got no ending"):
        export_parquet(every_state, tmp_path / "table")
    for export in (export_optuna_journal, export_csv, export_parquet):
        with pytest.raises(StudyError, match="no study in"):
            export(tmp_path / "nowhere", tmp_path / "t.parquet" if export is export_parquet else tmp_path / "t.csv")
    with pytest.raises(InputError, match="lies in the study's own records"):
        export_optuna_journal(every_state, every_state / "ledger" / "journal" / "x.jsonl")
    monkeypatch.setitem(sys.modules, "polars", None)
    with pytest.raises(MissingExtra, match=r"the Parquet export needs polars"):
        export_parquet(every_state, tmp_path / "t.parquet")


def test_a_full_disk_leaves_what_was_there(every_state, tmp_path, monkeypatch):
    path = export_csv(every_state, tmp_path / "t.csv")
    before = path.read_bytes()

    def full(*_, **__):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(type(path), "replace", full)
    with pytest.raises(InputError, match=r"cannot write .*t\.csv: no space left on device"):
        export_csv(every_state, path)
    assert path.read_bytes() == before
    assert [p.name for p in tmp_path.glob("*t.csv*")] == ["t.csv"]
