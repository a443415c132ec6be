"""`run`, `status`, `report` and `export`: what they write, what they print, and their exit status."""

import csv
import json
import re
import shlex
import sys

import pytest

import trainwright as tw
from trainwright.cli.workflow.study_file import read_job
from trainwright.ledger import facts


def last_line(said):
    """Return the last line as JSON."""
    return json.loads(said.out.splitlines()[-1])


@pytest.fixture
def done(trainwright, study_file, tmp_path):
    """Return the directory of a study of four trials."""
    assert trainwright("run", study_file(), "--quiet").status == 0
    return tmp_path / "study"


class TestRun:
    def test_a_study_file(self, trainwright, study_file, tmp_path):
        """Runs the trials, writes summary and report, and says how to go on."""
        file = study_file()
        said = trainwright("run", file, "--json")
        assert said.status == 0
        assert (last_line(said)["trials"], last_line(said)["finished"]) == (4, 4)
        assert "4 of 4 trials have a result" in said.out
        assert f"trainwright run {file} --trials 8" in said.out
        assert "[4/4] trial 3 complete" in said.err
        assert json.loads((tmp_path / "study/summary.json").read_text())["finished"] == 4
        assert "<html" in (tmp_path / "study/report.html").read_text()
        with tw.Study.open(tmp_path / "study") as study:
            assert (study.seed, len(study.trials), study.trials[0].epoch) == (3, 4, 3)

    def test_going_on(self, trainwright, study_file, tmp_path):
        """A second run repeats nothing; more trials are added to those there."""
        file = study_file()
        trainwright("run", file, "--quiet")
        journals = len(list((tmp_path / "study/ledger/journal").iterdir()))
        assert last_line(trainwright("run", file, "--quiet", "--json"))["finished"] == 4
        assert last_line(trainwright("run", file, "--quiet", "--json", "--trials", 6))["finished"] == 6
        with tw.Study.open(tmp_path / "study") as study:
            assert [trial.lease for trial in study.trials] == [1] * 6
        assert len(list((tmp_path / "study/ledger/journal").iterdir())) <= journals + 2

    def test_the_command_to_continue_is_the_whole_command(self, trainwright, study_file, tmp_path):
        """With --directory and a space in the path it can be pasted as it stands."""
        said = trainwright("run", study_file(), "--directory", tmp_path / "other place")
        [line] = [line for line in said.out.splitlines() if line.startswith("continue:")]
        words = shlex.split(line.removeprefix("continue:"))
        assert words[3:] == ["--directory", str(tmp_path / "other place"), "--trials", "8"]
        assert (tmp_path / "other place/summary.json").exists()
        assert not (tmp_path / "study").exists()

    def test_quiet_says_nothing(self, trainwright, study_file):
        said = trainwright("run", study_file(), "--quiet")
        assert (said.status, said.out, said.err) == (0, "", "")

    def test_a_python_file(self, trainwright, tmp_path):
        """A Python file gives study and train, and whatever else it names."""
        (tmp_path / "my_study_file.py").write_text(
            "import trainwright as tw\n"
            f"study = tw.Study(tw.Space(x=tw.Float(0, 1)), 'min val_loss', directory={str(tmp_path / 'study')!r})\n"
            "def train(trial):\n"
            "    for epoch in trial.epochs():\n"
            "        trial.report(val_loss=trial.params['x'])\n"
            "trials, searcher, scheduler, engine = 2, tw.RandomSearcher(), tw.FixedEpochs(5), tw.Local(workers=0)\n"
        )
        said = trainwright("run", tmp_path / "my_study_file.py", "--json")
        assert (said.status, last_line(said)["finished"]) == (0, 2)
        with tw.Study.open(tmp_path / "study") as study:
            assert [trial.epoch for trial in study.trials] == [5, 5]

    def test_workers_keep_the_other_settings_of_the_engine(self, study_file):
        """--workers says how many, the file's limits stay."""
        file = study_file(("workers = 0", "workers = 1\ntimeout_seconds = 60"))
        assert read_job(file, workers=2).engine.timeout_seconds == 60
        assert read_job(file, workers=2).engine.slots == 2
        assert read_job(study_file(), workers=3).engine.slots == 3

    def test_failures_end_it_with_status_1(self, trainwright, study_file, tmp_path):
        """Trials that fail again and again end the run with one sentence."""
        said = trainwright("run", study_file(("cli_training:train", "cli_training:fails")))
        assert said.status == 1
        last = said.err.splitlines()[-1]
        assert last.startswith(
            "trainwright: 2 trials have failed in the same way, none has a result: ArithmeticError: diverged"
        )
        assert re.search(r"cli_training\.py:\d+, in `raise ArithmeticError", last)
        assert "Traceback" not in said.err
        shown = last.partition("; its traceback: trainwright ")[2]
        assert shown == f"status {tmp_path / 'study'} --trial 1"
        told = trainwright(*shlex.split(shown))
        assert told.out.splitlines()[-1].startswith("ArithmeticError: diverged")
        assert "Traceback" in last_line(trainwright(*shlex.split(shown), "--json"))["failure"]["traceback"]

    def test_constraints(self, trainwright, study_file, tmp_path):
        """They are words of the file: what is infeasible is no best."""
        limited = ('objectives = "min val_loss"', 'objectives = "min val_loss"\nconstraints = ["size <= 0.2"]')
        file = study_file(limited, (":train", ":two"), ("trials = 4", "trials = 9"))
        assert trainwright("run", file, "--quiet").status == 0
        summary = json.loads((tmp_path / "study" / "summary.json").read_text())
        assert summary["finished"] == 9
        assert 0 < summary["feasible"] < 9
        assert summary["best"]["values"]["size"] <= 0.2
        status = json.loads(trainwright("status", tmp_path / "study", "--json").out.splitlines()[-1])
        assert status["feasible"] == summary["feasible"]
        assert status["best"]["trial"] == summary["best"]["trial"]

    def test_several_objectives(self, trainwright, study_file, tmp_path):
        replaced = (('"min val_loss"', '["min val_loss", "min size"]'), ("cli_training:train", "cli_training:two"))
        assert trainwright("run", study_file(*replaced), "--quiet").status == 0
        content = last_line(trainwright("status", tmp_path / "study", "--json"))
        assert content["objectives"] == [
            {"metric": "val_loss", "direction": "min"},
            {"metric": "size", "direction": "min"},
        ]
        assert [entry["trial"] for entry in content["front"]] == [0, 1, 2, 3]
        assert content["best"] == content["front"][0]


class TestStatus:
    def test_json(self, trainwright, done):
        """The contract: trials by state, best, objectives, dropped records, in one line."""
        said = trainwright("status", done, "--json")
        content = last_line(said)
        assert said.status == 0
        assert said.out.count("\n") == 1
        assert set(content) == {"trials", "best", "objectives", "dropped_records"}
        states = {"proposed", "running", "paused", "lost", "complete", "stopped", "failed", "abandoned"}
        assert content["trials"] == dict.fromkeys(states, 0) | {"complete": 4}
        assert set(content["best"]) == {"trial", "params", "values"}
        with tw.Study.open(done) as study:
            best = study.best
        assert content["best"] == {"trial": best.number, "params": best.params, "values": best.values}
        assert content["objectives"] == [{"metric": "val_loss", "direction": "min"}]
        assert content["dropped_records"] == 0

    def test_text(self, trainwright, done):
        out = trainwright("status", done).out
        assert "min val_loss" in out
        assert "trials: 4 complete" in out
        assert "best: trial " in out
        assert "x = 0." in out

    def test_paused_trials(self, trainwright, study_file, tmp_path):
        """Those at a rung are results; those that were interrupted are told apart."""
        file = study_file(added='[rule]\nname = "IEpoch"\ntop_k = 1\nmax_epochs = 3\n')
        assert trainwright("run", file, "--quiet").status == 0
        assert "trials: 3 paused, 1 complete" in trainwright("status", tmp_path / "study").out
        assert last_line(trainwright("status", tmp_path / "study", "--json"))["trials"]["paused"] == 3
        with tw.Study.open(tmp_path / "study") as study:
            trial = next(trial for trial in study.trials if trial.at_rung)
            pause = facts.paused(trial.number, 2, reason="preempted", epoch=1, values={}, wall_seconds=0.0)
            study._log.append(facts.promoted(trial.number, 2, until_epoch=3), pause)
        assert "trials: 3 paused (1 interrupted), 1 complete" in trainwright("status", tmp_path / "study").out

    def test_why_a_trial_ended(self, trainwright, study_file, tmp_path):
        """`--trial` tells a trial's runs and the verdicts on it; an unknown number is refused."""
        file = study_file(added='[rule]\nname = "IEpoch"\ntop_k = 1\nmax_epochs = 3\n')
        assert trainwright("run", file, "--quiet").status == 0
        best = last_line(trainwright("status", tmp_path / "study", "--json"))["best"]["trial"]
        told = last_line(trainwright("status", tmp_path / "study", "--trial", best, "--json"))
        assert [run["end"] for run in told["attempts"]] == ["rung", "completed"]
        assert told["decisions"][0].items() >= {"epoch": 1, "rule": "IEpoch", "verdict": "pause"}.items()
        assert "epoch 1: pause by IEpoch" in trainwright("status", tmp_path / "study", "--trial", best).out
        said = trainwright("status", tmp_path / "study", "--trial", 99)
        assert said.status == 2
        assert "99" in said.err

    def test_grants(self, trainwright, study_file, tmp_path):
        """A trial that runs is shown with its devices and its epoch."""
        assert trainwright("run", study_file(), "--quiet").status == 0
        with tw.Study.open(tmp_path / "study") as study:
            start = facts.started(9, 1, slot="0", devices=["gpu:2", "gpu:3"], resumed_epoch=0)
            proposal = facts.proposed(9, params={"x": 0.5}, key="k", origin={}, seen=0, seen_hash="")
            report = facts.reported(9, 1, epoch=2, step=None, metrics={"val_loss": 1.0}, wall_seconds=1.0)
            study._log.append(facts.begun(proposal, start), report)
            study._log.ledger.heartbeat()
            holder = study.state.trials[9].holder
            grants = last_line(trainwright("status", tmp_path / "study", "--json"))["grants"]
            at = {"trial": 9, "devices": ["gpu:2", "gpu:3"], "epoch": 2, "holder": holder}
            assert grants == [{**at, "state": "running"}]
            assert "running: trial 9 on gpu:2, gpu:3, epoch 2\n" in trainwright("status", tmp_path / "study").out
        assert "lost: trial 9 on gpu:2, gpu:3, epoch 2: its worker" in trainwright("status", tmp_path / "study").out

    def test_before_the_first_trial(self, trainwright, tmp_path):
        tw.Study(tw.Space(x=tw.Float(0, 1)), "max accuracy >= 0.9", directory=tmp_path / "new").close()
        assert last_line(trainwright("status", tmp_path / "new", "--json"))["best"] is None
        assert "no trials yet" in trainwright("status", tmp_path / "new").out

    def test_damage_is_told(self, trainwright, done):
        """A damaged record is counted and named; with --strict the status is 1."""
        [journal] = [path for path in (done / "ledger/journal").iterdir() if path.stat().st_size > 500]
        content = bytearray(journal.read_bytes())
        content[-30] ^= 1
        journal.write_bytes(content)
        said = trainwright("status", done, "--json")
        assert (said.status, last_line(said)["dropped_records"]) == (0, 1)
        assert f"dropped: {journal.name}: " in said.out
        assert f"dropped: {journal.name}: " in trainwright("status", done).out
        assert trainwright("status", done, "--strict").status == 1
        assert trainwright("status", done, "--strict", "--json").status == 1

    def test_it_writes_nothing(self, trainwright, done):
        """Looking at a study leaves no trace in it."""
        before = {path: path.stat().st_size for path in done.rglob("*") if path.is_file()}
        trainwright("status", done)
        assert {path: path.stat().st_size for path in done.rglob("*") if path.is_file()} == before


class TestReport:
    def test_where_it_goes(self, trainwright, done, tmp_path):
        (done / "report.html").unlink()
        said = trainwright("report", done)
        assert (said.status, said.out) == (0, f"report: {done / 'report.html'}\n")
        assert "<html" in (done / "report.html").read_text()
        said = trainwright("report", done, "--out", tmp_path / "mine.html", "--json")
        assert last_line(said) == {
            "report": str(tmp_path / "mine.html"),
            "bytes": (tmp_path / "mine.html").stat().st_size,
        }


class TestExport:
    def test_csv_and_parquet(self, trainwright, done, tmp_path):
        """One row per trial, the same in both."""
        polars = pytest.importorskip("polars")
        said = trainwright("export", done, "--csv", tmp_path / "a.csv", "--parquet", tmp_path / "a.parquet", "--json")
        assert last_line(said) == {"csv": str(tmp_path / "a.csv"), "parquet": str(tmp_path / "a.parquet")}
        with (tmp_path / "a.csv").open() as file:
            rows = list(csv.DictReader(file))
        frame = polars.read_parquet(tmp_path / "a.parquet")
        assert [float(row["params.x"]) for row in rows] == frame["params.x"].to_list()
        assert [row["state"] for row in rows] == ["complete"] * 4

    def test_optuna_journal(self, trainwright, done, tmp_path):
        """Optuna opens the journal and finds every trial."""
        optuna = pytest.importorskip("optuna")
        file = tmp_path / "journal.log"
        said = trainwright("export", done, "--optuna-journal", file)
        assert (said.status, said.out) == (0, f"optuna_journal: {file}\n")
        storage = optuna.storages.JournalStorage(optuna.storages.journal.JournalFileBackend(str(file)))
        [summary] = optuna.get_all_study_summaries(storage)
        loaded = optuna.load_study(study_name=summary.study_name, storage=storage)
        with tw.Study.open(done) as study:
            assert loaded.best_value == study.best.values["val_loss"]
        assert len(loaded.trials) == 4

    def test_nothing_asked_for(self, trainwright, done):
        said = trainwright("export", done)
        assert (said.status, said.out) == (2, "")
        assert said.err == (
            "trainwright: export: no place was given; allowed: one or more of --optuna-journal, --tensorboard, "
            "--mlflow, --wandb, --csv, --parquet\n"
        )

    def test_tensorboard_and_mlflow(self, trainwright, done, tmp_path, monkeypatch):
        """Each gets every trial; where the extra is absent, the command says how to install it."""
        pytest.importorskip("tensorboard")
        logs = tmp_path / "logs"
        said = trainwright("export", done, "--tensorboard", logs)
        assert (said.status, said.out) == (0, f"tensorboard: {logs}\n")
        assert sorted(path.name for path in logs.glob("trial-*")) == [f"trial-00000{number}" for number in range(4)]
        monkeypatch.setitem(sys.modules, "mlflow", None)
        said = trainwright("export", done, "--mlflow", "sqlite:///x.db")
        assert (said.status, said.out) == (2, "")
        assert 'the MLflow export needs mlflow: pip install ".[mlflow]"' in said.err


@pytest.mark.parametrize("command", ["status", "report", "export"])
def test_no_study_there(trainwright, done, command):
    """Names the place and the studies near it."""
    more = ["--csv", "x.csv"] if command == "export" else []
    said = trainwright(command, done.with_name("stduy"), *more)
    assert said.status == 2
    [line] = said.err.splitlines()
    assert line.startswith("trainwright: ")
    assert "no study in" in line


def test_help_and_usage(trainwright):
    """Help is no mistake; an unknown command or option is."""
    assert trainwright("--help").status == 0
    assert "status" in trainwright("--help").out
    for wrong in (["fly"], ["status"], ["run", "x.toml", "--fast"], ["run", "x.toml", "--trials", "many"]):
        said = trainwright(*wrong)
        assert said.status == 2
        assert "Traceback" not in said.err
